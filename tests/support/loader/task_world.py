"""The loader's world in memory with real tasks: they fetch real batches and stage real files."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Sequence
from pathlib import Path

import fastavro
import pytest

from headrace.avro_schema import frame, parse_schema
from headrace.kafka_wire.cluster import FetchSlice
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader import task
from headrace.loader.build import current_build
from headrace.loader.inspect.quarantine import read_rows
from headrace.loader.rewrite.merge import MergeResult, MergeUnit, run_merge_unit
from headrace.loader.rewrite.run import RewritePorts
from headrace.loader.work_unit import UnitResult, WorkUnit
from support.broker.record_batches import make_batch
from support.loader.loader_fakes import FakeCluster, FakeRegistry, World
from support.loader.projection_oracle import encode

MESSAGES_PER_FETCH = 3
HOLE = 0  # instead of a schema id: the log no longer has this message
FIRST_MS, HOUR_MS, HOURS = 1_767_225_600_000, 3_600_000, 3


@functools.cache
def _batch(first: int, texts: tuple[str, ...], schema_ids: tuple[int, ...]) -> bytes:
    values = {
        first + at: frame(schema_id, _body(text, first + at))
        for at, (text, schema_id) in enumerate(zip(texts, schema_ids, strict=True))
        if schema_id != HOLE
    }
    return make_batch(sorted(values), base=first, next_offset=first + len(texts), value=values.get)


def _body(text: str, offset: int) -> bytes:
    """Returns a message body: a record whose `id` is the offset and whose other fields are strings. Its `timestamp` is
    in hour `offset % 3`. The body is empty if `text`, the schema, is empty, because the schema id is not registered."""
    if not text:
        return b""
    known = {"id": offset, "timestamp": FIRST_MS + offset % HOURS * HOUR_MS}
    fields = [one["name"] for one in json.loads(text)["fields"]]
    return encode(parse_schema(text), {name: known.get(name, f"n{offset}") for name in fields})


class ServingCluster(FakeCluster):
    """A fake cluster from which tasks can also fetch messages. A message has its offset as content, encoded with the
    schema that the topic's log states for this offset."""

    def __init__(self, registry: FakeRegistry) -> None:
        super().__init__()
        self._registry = registry

    def prefetch(self, *where: object, **named: object) -> None:
        pass

    def expect_topics(self, topics: object) -> None:
        pass

    def fetch(self, topic_partition: TopicPartition, offset: int, max_bytes: int, **named: object) -> FetchSlice:
        topic = self.topics[topic_partition.topic]
        log = topic.logs[topic_partition.partition]
        at = offset - topic.first
        schema_ids = tuple(log[at : at + MESSAGES_PER_FETCH])
        texts = tuple(self._registry.texts.get(schema_id, "") for schema_id in schema_ids)
        end = topic.first + len(log)
        return FetchSlice(_batch(offset, texts, schema_ids) if schema_ids else b"", end, end, 0, (), "broker:1")

    def close(self) -> None:
        pass


class TaskWorld(World):
    """A `World` whose units of work are run by the loader's real tasks, in this process."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.cluster: ServingCluster = ServingCluster(self.registry)
        self.pool = self._run_units  # type: ignore[assignment]
        self.settings = dataclasses.replace(
            self.settings,
            plan=dataclasses.replace(self.settings.plan, build=current_build()),
            task=dataclasses.replace(self.settings.task, fetch_timeout_ms=0),
        )

    def rewrites(self) -> RewritePorts:
        return dataclasses.replace(super().rewrites(), build=current_build())

    def _run_units(self, units: Sequence[WorkUnit]) -> list[UnitResult]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(task, "KafkaCluster", lambda servers, timeout_s, security: self.cluster)
            return [task.run_work_unit(unit) for unit in units]

    def _merge(self, units: Sequence[MergeUnit]) -> list[MergeResult]:
        return [run_merge_unit(unit) for unit in units]

    def rows(self, topic: str) -> list[tuple[int, int]]:
        """Returns the (partition, offset) of every row that a query of the topic's table finds; a duplicate row occurs
        twice."""
        found = []
        for path in self._files("headrace", topic):
            with path.open("rb") as file:
                found += [(row["kafka"]["partition"], row["kafka"]["offset"]) for row in fastavro.reader(file)]
        return sorted(found)

    def quarantined(self, topic: str) -> list[tuple[int, int]]:
        found = []
        for path in self._files("headrace_quarantine", topic):
            with path.open("rb") as file:
                found += [(row.partition, row.offset) for row in read_rows(file)]
        return sorted(found)

    def _files(self, database: str, table: str) -> list[Path]:
        locations = self.hive.parts.get((database, table), {}).values()
        return [path for one in sorted(locations) for path in sorted(Path(one.removeprefix("file://")).glob("*.avro"))]
