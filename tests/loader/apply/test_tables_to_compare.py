"""The tables of topics without new messages that a load compares with the commits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.hive_ddl.ops import CreateTable
from headrace.hive_ddl.table import SUBJECT
from headrace.loader.apply.tables_to_compare import METASTORE_LIMITS, CompareLimits, next_topics
from headrace.loader.inspect.rolling_check import PARTITION_CALLS_MAX
from headrace.loader.run import run_load
from support.loader.loader_fakes import ORDER_V1, World

TOPICS = [f"topic-{number:05}" for number in range(10_000)]
COUNT = 30
TABLES_MAX = METASTORE_LIMITS.tables


@pytest.mark.parametrize("count", [1, 200, 201, 2_001])
def test_every_table_is_compared_in_turn(count: int) -> None:
    topics, after = TOPICS[:count], "deleted-topic"
    compared: list[str] = []
    for _ in range(math.ceil(count / TABLES_MAX)):
        share = next_topics(topics, after, TABLES_MAX)
        assert len(share) <= TABLES_MAX
        compared += share
        after = share[-1]
    assert compared[:count] == topics
    assert next_topics([], after, TABLES_MAX) == ()


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Has more topics than a load compares."""
    world = World(tmp_path)
    world.compare_limits = CompareLimits(10, 500)
    for topic in TOPICS[:COUNT]:
        world.registry.register(f"{topic}-value", 1, ORDER_V1)
        world.topic(topic, [1])
    run_load(world.ports(), world.settings)
    return world


def load_one_topic(world: World) -> None:
    world.cluster.topics[TOPICS[0]].logs[0] += [1]
    assert run_load(world.ports(), world.settings).problems == {}


def test_any_missing_table_is_created_by_the_next_load(world: World) -> None:
    (deleted,) = [key for key in world.hive.tables if key[1] == TOPICS[17].replace("-", "_")]
    del world.hive.tables[deleted]
    parts = world.hive.parts.pop(deleted)
    world.hive.executed.clear()
    load_one_topic(world)
    assert [op.table.name for op in world.hive.executed if isinstance(op, CreateTable)] == [deleted[1]]
    assert world.hive.parts[deleted] == parts


def test_altered_tables_are_restored_by_one_of_the_next_loads(world: World) -> None:
    for key, table in world.hive.tables.items():
        world.hive.tables[key] = dataclasses.replace(table, properties={**table.properties, SUBJECT: "altered"})
    numbers = []
    for _ in range(5):
        load_one_topic(world)
        numbers.append(sum(table.properties[SUBJECT] == "altered" for table in world.hive.tables.values()))
    assert numbers == sorted(numbers, reverse=True)
    assert numbers[0] >= COUNT - 11
    assert numbers[-1] == 0


def test_loads_without_messages_restore_altered_tables_in_turn(world: World) -> None:
    world.is_session_open = True
    for key, table in world.hive.tables.items():
        world.hive.tables[key] = dataclasses.replace(table, properties={**table.properties, SUBJECT: "altered"})
    for altered in (20, 10, 0):
        assert run_load(world.ports(), world.settings).problems == {}
        tables = [table for (database, _), table in world.hive.tables.items() if database == "headrace"]
        assert sum(table.properties[SUBJECT] == "altered" for table in tables) == altered


def test_metastore_requests_do_not_grow_with_quiet_topics(world: World) -> None:
    load_one_topic(world)
    before = world.hive.requests
    load_one_topic(world)
    assert world.hive.requests - before <= 8 + PARTITION_CALLS_MAX + 1


def test_requests_of_a_load_without_messages_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One request for each topic to the registry, a few to the brokers, and none to the metastore."""
    calls: list[str] = []
    for name in ("metadata", "lookup_offsets", "lookup_epoch_ends", "commit_group_offsets"):
        monkeypatch.setattr(world.cluster, name, counting(getattr(world.cluster, name), name, calls))
    of_registry, of_hive = world.registry.requests, world.hive.requests
    assert run_load(world.ports(), world.settings).problems == {}
    assert world.registry.requests - of_registry <= COUNT + 1
    assert len(calls) <= 5, calls
    assert world.hive.requests == of_hive


def counting(method: Callable[..., Any], name: str, calls: list[str]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        calls.append(name)
        return method(*arguments, **named)

    return call
