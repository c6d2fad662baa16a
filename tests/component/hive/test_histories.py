"""Generated schema histories at every level of the registry, from producer to query.

Versions that the registry refuses are skipped. Messages of each other version are sent, and loaded before the next
version. Each engine must return every message in the correct columns, from old and new partitions.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from headrace.avro_schema import Schema, frame, parse_schema
from headrace.hive_ddl.executors.session import close_session, open_session
from headrace.hive_ddl.executors.spark import SparkExecutor
from headrace.hive_ddl.table import local_location
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.load_schema import EMPTY, LoadState, fold
from headrace.loader.storage.local import local_storage
from headrace.registry.errors import IncompatibleSchema
from support.hive.hive_engines import SPARK, Engine, ServerEngine, SparkEngine
from support.hive.hive_topics import Sent, find_wrong_rows
from support.loader.load_world import FIRST_MS, HOUR_MS, LoadWorld
from support.loader.projection_oracle import encode
from support.schemas.strategies import data_for, histories
from support.schemas.union_histories import UnionHistory, union_histories

pytestmark = pytest.mark.hive

COUNT = int(os.environ.get("HEADRACE_HISTORIES", "200"))
SEED = int(os.environ.get("HEADRACE_HISTORIES_SEED", str(int(time.time()))))
LEVELS = (
    "FULL_TRANSITIVE", "FULL", "BACKWARD_TRANSITIVE", "BACKWARD", "FORWARD_TRANSITIVE", "FORWARD", "NONE", "NONE",
)  # fmt: skip
VERSIONS_MAX = 5
SENT_MAX = 2  # messages per version

History = list[tuple[Schema, list[Any]]]


@dataclass
class Topic:
    name: str
    level: str
    history: History
    state: LoadState = EMPTY
    versions: int = 0
    sent: dict[tuple[int, int], Sent] = field(default_factory=dict)
    folded: dict[int, Schema] = field(default_factory=dict)

    @property
    def subject(self) -> str:
        return f"{self.name}-value"


def generate_histories(count: int) -> list[History]:
    """Returns the same histories for the same seed. Each eighth is one of a union of types with one name."""
    found: list[History] = []
    of_unions: list[History] = []

    @seed(SEED)
    @settings(max_examples=count, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(histories(max_versions=VERSIONS_MAX), st.data())
    def collect(versions: list[Schema], data: st.DataObject) -> None:
        found.append([(one, data.draw(st.lists(data_for(one), min_size=1, max_size=SENT_MAX))) for one in versions])

    @seed(SEED)
    @settings(
        max_examples=count // 8 + 1, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(union_histories(versions_max=VERSIONS_MAX))
    def collect_of_unions(history: UnionHistory) -> None:
        of_unions.append([(schema, history.messages(number)) for number, schema in enumerate(history.versions)])

    collect()
    collect_of_unions()
    return [of_unions[i // 8] if i % 8 == 7 else history for i, history in enumerate(found[:count])]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadWorld]:
    world = LoadWorld(tmp_path_factory.mktemp("histories"))
    world.patience_s += COUNT  # creating a table takes most of a second
    yield world
    world.close()


@pytest.fixture(scope="module")
def topics(world: LoadWorld) -> list[Topic]:
    """Sends and loads all topics, one version of each at a time."""
    print(f"HEADRACE_HISTORIES_SEED={SEED}")
    topics = [
        Topic(f"t{number}", level, history)
        for number, (history, level) in enumerate(zip(generate_histories(COUNT), itertools.cycle(LEVELS), strict=False))
    ]
    for topic in topics:
        world.registry.set_compatibility(topic.level, topic.subject)
    for number in range(VERSIONS_MAX):
        for topic in topics:
            if number < len(topic.history):
                send(world, topic, *topic.history[number], hour=number)
        world.producer.flush()
        done = world.load("--partition-by", "hour")
        assert done.returncode == 0, done.stdout + done.stderr
    return topics


def send(world: LoadWorld, topic: Topic, schema: Schema, messages: list[Any], hour: int) -> None:
    try:
        registered = world.registry.register(topic.subject, schema.text)
    except IncompatibleSchema:
        return
    if registered.schema_id not in topic.folded:
        topic.versions += 1
        topic.state = fold(topic.state, topic.versions, schema, registered.schema_id)
        topic.folded[registered.schema_id] = parse_schema(topic.state.text)
    for message in messages:
        value = frame(registered.schema_id, encode(schema, message))
        future = world.producer.send(topic.name, value=value, partition=0, timestamp_ms=FIRST_MS + hour * HOUR_MS)
        at = future.get(60)
        topic.sent[at.partition, at.offset] = Sent(schema, topic.folded[registered.schema_id], message)


def find_mismatches(engine: Engine, world: LoadWorld, topics: list[Topic]) -> list[str]:
    known = CommitLog(local_storage(world.warehouse).commits).read_state().topics
    found = []
    for topic in topics:
        try:
            found += find_wrong_rows(
                engine, f"headrace.`{known[topic.name].table}`", parse_schema(topic.state.text), topic.sent
            )
        except Exception as error:
            found.append(f"{topic.name}: {error}")
            found += [f"  {schema.text}" for schema, _ in topic.history]
    return found


def test_spark_reads_every_history(world: LoadWorld, topics: list[Topic], tmp_path: Path) -> None:
    session = open_session(
        app_name="analyst",
        master="local[1]",
        metastore_uri=world.addresses["metastore"],
        data_dir=tmp_path / "analyst",
        warehouse_uri=local_location(world.warehouse),
    )
    try:
        assert find_mismatches(SparkEngine(SPARK, SparkExecutor(session), session), world, topics) == []
    finally:
        close_session(session)
    assert any(topic.versions > 1 for topic in topics)


def test_hiveserver2_reads_every_history(
    world: LoadWorld, topics: list[Topic], hive_server: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One command creates the same tables over the same files in HiveServer2's own metastore."""
    monkeypatch.setenv("HEADRACE__HIVE__SERVER_AUTH", "NOSASL")
    assert isinstance(hive_server, ServerEngine)
    flags = ["--data-dir", str(world.data_dir), "--hive-executor", str(hive_server.address)]
    done = world.command("hive", "apply", *flags, "--format", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(json.loads(done.stdout)["topics"]) == {topic.name for topic in topics}
    assert find_mismatches(hive_server, world, topics) == []
    second_plan = world.command("hive", "plan", *flags)
    assert (second_plan.returncode, second_plan.stdout) == (0, ""), second_plan.stdout + second_plan.stderr
