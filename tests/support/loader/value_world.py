"""A loader's world with messages of any bytes, which tasks read and validate for real."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from headrace.kafka_wire.cluster import FetchSlice
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader import task
from headrace.loader.inspect.preview import Preview, PreviewLimits, preview
from headrace.loader.inspect.quarantine import committed_files, read_rows
from headrace.loader.plan.schemas import WriterSchemas
from support.broker.record_batches import make_batch
from support.loader.task_world import ServingCluster, TaskWorld

BYTES_PER_FETCH = 20


class ValueCluster(ServingCluster):
    """A cluster whose topics have the given values instead of encoded offsets."""

    values: dict[str, list[list[bytes | None]]]

    def fetch(self, topic_partition: TopicPartition, offset: int, max_bytes: int, **named: object) -> FetchSlice:
        topic = self.topics[topic_partition.topic]
        values = self.values[topic_partition.topic][topic_partition.partition]
        at = offset - topic.first
        chosen = dict(enumerate(values[at : at + BYTES_PER_FETCH], start=offset))
        batch = make_batch(sorted(chosen), base=offset, next_offset=offset + len(chosen), value=chosen.get)
        end = topic.first + len(values)
        return FetchSlice(batch if chosen else b"", end, end, 0, (), "broker:1")


class ValueWorld(TaskWorld):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.cluster: ValueCluster = ValueCluster(self.registry)
        self.cluster.values = {}

    def produce(self, topic: str, *logs: list[bytes | None]) -> None:
        self.topic(topic, *([0] * len(log) for log in logs))
        self.cluster.values[topic] = [*logs]

    def preview(self, topic: str = "orders", **limits: float) -> Preview:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(task, "KafkaCluster", lambda servers, timeout_s, security: self.cluster)
            limit = dataclasses.replace(PreviewLimits(), **limits)  # type: ignore[arg-type]
            ports = self.ports()
            schemas = WriterSchemas(self.registry, ports.log.storage, self.subject_of, writable=False)
            return preview(dataclasses.replace(ports, schemas=schemas), self.settings, topic, limit)

    def files(self) -> set[tuple[str, bytes]]:
        return {(str(path), path.read_bytes()) for path in self.warehouse.rglob("*") if path.is_file()}

    def quarantine_codes(self, topic: str = "orders") -> Counter[str]:
        log = self.log()
        found: Counter[str] = Counter()
        for file in committed_files(log, [topic]):
            with (self.warehouse / file.name).open("rb") as stream:
                found.update(row.code for row in read_rows(stream))
        return found
