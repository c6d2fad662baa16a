"""Loads without new messages find missing and foreign tables and missing partitions, and restore them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from headrace.hive_ddl.errors import MetastoreUnavailable
from headrace.hive_ddl.table import TOPIC
from headrace.loader.apply.quiet_tables import COMPARED_EVERY_MS
from headrace.loader.inspect.findings import ConsistencyCheck
from headrace.loader.inspect.open_findings import WarehouseChecks, read_checks
from headrace.loader.report import RunReport
from headrace.loader.run import run_load
from support.loader.loader_fakes import ORDER_V1, World

TABLE = ("headrace", "orders")


@pytest.fixture
def world(memory_path: Path) -> World:
    world = World(memory_path)
    world.latest_views = True
    world.is_session_open = True
    world.pool.bad.add(9)
    for number, topic in enumerate(("orders", "users"), start=1):
        world.registry.register(f"{topic}-value", number, ORDER_V1)
        world.topic(topic, [number] * 5, [number, 9])
    run_load(world.ports(), world.settings)
    return world


def load(world: World) -> RunReport:
    return run_load(world.ports(), world.settings)


def checks(world: World) -> WarehouseChecks:
    return read_checks(world.log().storage)


@pytest.mark.parametrize("is_session_open", [True, False])
@pytest.mark.parametrize("lost", ["table", "quarantine", "database", "all"])
def test_a_dropped_table_is_created_again_with_its_partitions(world: World, lost: str, is_session_open: bool) -> None:
    tables, parts = dict(world.hive.tables), {name: dict(one) for name, one in world.hive.parts.items()}
    for name in tables:
        if (lost == "table" and name == TABLE) or lost in ("all", "database" if name[0] == "headrace" else ""):
            del world.hive.tables[name]
            world.hive.parts.pop(name, None)
        if lost == "quarantine" and name == ("headrace_quarantine", "orders"):
            del world.hive.tables[name]
            world.hive.parts.pop(name, None)
    world.is_session_open = is_session_open
    report = load(world)
    assert report.problems == {}
    assert any(note.startswith("orders: its table ") for note in report.notes)
    assert world.hive.tables.keys() == tables.keys()
    assert world.hive.parts == parts
    assert load(world).notes == ()


def test_without_a_session_no_session_is_opened_for_an_hour(world: World) -> None:
    load(world)
    world.is_session_open, opened = False, world.sessions_opened
    load(world)
    assert world.sessions_opened == opened
    world.clock_ms += COMPARED_EVERY_MS
    load(world)
    assert world.sessions_opened == opened + 1
    load(world)
    assert world.sessions_opened == opened + 1


def test_an_unknown_metastore_is_compared_once_an_hour(world: World) -> None:
    load(world)
    world.is_session_open = world.knows_names = False
    del world.hive.tables[TABLE]
    assert not any("its table" in note for note in load(world).notes)
    assert TABLE not in world.hive.tables
    world.clock_ms += COMPARED_EVERY_MS
    load(world)
    assert TABLE in world.hive.tables


def test_a_foreign_table_is_a_finding_until_it_is_gone(world: World) -> None:
    ours = world.hive.tables[TABLE]
    foreign = {key: value for key, value in ours.properties.items() if key != TOPIC}
    world.hive.tables[TABLE] = dataclasses.replace(ours, properties=foreign)
    world.clock_ms += 5
    for _ in range(2):
        report = load(world)
        assert [len(sentences) for sentences in report.problems.values()] == [1]
        (one,) = checks(world).open
        assert (one.finding.topic, one.finding.check, one.since_ms) == (
            "orders",
            ConsistencyCheck.TABLE,
            world.clock_ms,
        )
        assert "headrace.orders" in one.finding.message
        world.is_session_open = False
    del world.hive.tables[TABLE]
    assert load(world).problems == {}
    assert checks(world).open == ()
    assert world.hive.tables[TABLE].topic == "orders"


def test_a_table_with_another_location_is_a_finding(world: World) -> None:
    world.hive.tables[TABLE] = dataclasses.replace(world.hive.tables[TABLE], location="file:/elsewhere")
    assert "file:/elsewhere" in load(world).problems["orders"][0]
    assert [one.finding.check for one in checks(world).open] == [ConsistencyCheck.TABLE]


@pytest.mark.parametrize("is_moved", [True, False])
def test_a_dropped_or_moved_partition_is_restored(world: World, is_moved: bool) -> None:
    before = {name: dict(parts) for name, parts in world.hive.parts.items()}
    for parts in world.hive.parts.values():
        for values in tuple(parts):
            if is_moved:
                parts[values] = "file:/elsewhere"
            else:
                del parts[values]
    report = load(world)
    assert report.problems == {}
    assert world.hive.parts == before
    assert sum("partitions of" in note for note in report.notes) == 4
    assert load(world).notes == ()


def test_an_unavailable_metastore_is_a_note_of_a_load_without_messages(world: World) -> None:
    load(world)
    compared_at_ms = checks(world).tables_at_ms
    world.clock_ms += COMPARED_EVERY_MS - 1
    world.hive.failure = MetastoreUnavailable("thrift://x", "connection refused")
    report = load(world)
    assert report.problems == {}
    assert any(note.startswith("the tables were not compared") for note in report.notes)
    assert checks(world).tables_at_ms == compared_at_ms
