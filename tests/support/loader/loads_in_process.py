"""Loads from a real broker in this process: real tasks, files and commits, without Spark and registry."""

from __future__ import annotations

import dataclasses
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import confluent_kafka
import fastavro

from headrace.avro_schema import frame, parse_schema
from headrace.kafka_wire.cluster import KafkaCluster
from headrace.loader.build import current_build
from headrace.loader.plan.schemas import WriterSchemas
from headrace.loader.report import RunReport
from headrace.loader.run import run_load
from headrace.loader.task import run_work_unit
from headrace.registry.client import RegistryClient
from support.loader.loader_fakes import World
from support.loader.projection_oracle import encode

SCHEMA = json.dumps({"type": "record", "name": "Event", "fields": [{"name": "n", "type": "long"}]})
SCHEMA_ID = 7


class Loads:
    """A warehouse of its own, into which one topic is loaded from any broker. The messages are numbers."""

    def __init__(self, root: Path, topic: str) -> None:
        self.topic = topic
        self._world = World(root)
        self._world.clock_ms = time.time_ns() // 1_000_000
        self._world.registry.register(f"{topic}-value", SCHEMA_ID, SCHEMA)
        self._world.settings = dataclasses.replace(self._world.settings, topics_include=(topic,))
        self._registry: RegistryClient | None = None

    def produce(self, address: str, numbers: range) -> None:
        """Sends the numbers to partition 0, in order; all are acknowledged."""
        producer = confluent_kafka.Producer({"bootstrap.servers": address, "batch.num.messages": 7})
        for number in numbers:
            value = frame(SCHEMA_ID, encode(parse_schema(SCHEMA), {"n": number}))
            producer.produce(self.topic, value, partition=0)
        assert producer.flush(60) == 0

    def produce_values(self, address: str, values: Sequence[bytes]) -> None:
        """Sends messages with these values to partition 0; all are acknowledged."""
        producer = confluent_kafka.Producer({"bootstrap.servers": address})
        for value in values:
            producer.produce(self.topic, value, partition=0)
        assert producer.flush(60) == 0

    def register(self, schema_id: int, text: str) -> None:
        """Registers a further version of the topic's subject."""
        self._world.registry.register(f"{self.topic}-value", schema_id, text)

    def use_registry(self, registry: RegistryClient) -> None:
        """Makes the next loads use a real registry."""
        self._registry = registry

    def load(self, address: str, on_data_loss: str = "fail", quarantine_ratio_max: float = 0.1) -> RunReport:
        self._world.policy = dataclasses.replace(
            self._world.policy, on_data_loss=on_data_loss, quarantine_ratio_max=quarantine_ratio_max
        )
        settings = self._world.settings
        settings = dataclasses.replace(
            settings,
            plan=dataclasses.replace(settings.plan, build=current_build()),
            task=dataclasses.replace(settings.task, bootstrap_servers=address),
        )
        with KafkaCluster(address, timeout_s=30) as cluster:
            ports = dataclasses.replace(
                self._world.ports(), cluster=cluster, run_units=lambda units: [run_work_unit(unit) for unit in units]
            )
            if self._registry is not None:
                storage = self._world.log().storage
                ports = dataclasses.replace(
                    ports, schemas=WriterSchemas(self._registry, storage, self._world.subject_of)
                )
            return run_load(ports, settings)

    @property
    def directory(self) -> str:
        """The directory of the topic's files, relative to the warehouse."""
        return self._world.log().read_state().topics[self.topic].directory

    @property
    def _table(self) -> tuple[str, str]:
        return "headrace", self._world.log().read_state().topics[self.topic].table

    def replace_table(self) -> None:
        """Replaces the topic's table by one that Headrace did not create."""
        self._world.hive.tables[self._table] = dataclasses.replace(self._world.hive.tables[self._table], properties={})
        self._world.is_session_open = True

    def drop_table(self) -> None:
        self._world.hive.tables.pop(self._table)

    def rows(self) -> dict[int, list[tuple[int, int]]]:
        """Returns by commit number: the offset and the number of every row that the commit published."""
        found: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for path in sorted((self._world.warehouse / self.topic).rglob("*.avro")):
            with path.open("rb") as file:
                for row in fastavro.reader(file):
                    values: Any = row
                    found[int(path.name.split("-")[1])].append((values["kafka"]["offset"], values["n"]))
        return {commit_number: sorted(rows) for commit_number, rows in found.items()}


def check_resumed_at_divergence(loads: Loads, address: str) -> None:
    """Checks the loads of a topic partition whose log has diverged: 100 messages were loaded (numbers 0 to 99), then
    the log was truncated to offset 80 and has grown to 150 (numbers from 1000 on).

    No message may be skipped silently. The loader holds the partition back; if the policy permits data loss, it resumes
    at offset 80 and reports the replaced offsets.
    """
    before = loads.rows()
    held = loads.load(address)
    (problem,) = held.problems[loads.topic]
    assert problem.startswith(
        "partition 0: offsets 80 to 99 were loaded and are no longer in the log, which was truncated and grew again"
    )
    assert loads.rows() == before
    report = loads.load(address, "skip")
    assert report.problems == {}
    assert any("the rows of its offsets 80 to 99 in files" in note for note in report.notes), report.notes
    commits = loads.rows()
    newest = max(commits)
    assert {commit_number: rows for commit_number, rows in commits.items() if commit_number != newest} == before
    assert commits[newest] == [(offset, 920 + offset) for offset in range(80, 150)]
    assert not loads.load(address).has_findings
    assert loads.rows() == commits
