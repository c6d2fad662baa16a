"""Repair finds and restores changes of tables, partitions and directories by others, and deletes nothing."""

from __future__ import annotations

import dataclasses
import errno
import json
import re
import shutil
from pathlib import Path

import pytest

from headrace.hive_ddl.errors import ForeignTable, MetastoreUnavailable, StaleRevision, StatementRefused
from headrace.hive_ddl.executors.printing import PrintingExecutor
from headrace.hive_ddl.ops import CreateTable, DropTable, SetProperties
from headrace.hive_ddl.table import COMPLETE_UNTIL, REVISION, SCHEMA_LITERAL, SCHEMA_URL, TOPIC, VERSION, TableState
from headrace.loader.apply.complete import COMPLETE_PATH
from headrace.loader.apply.repair import (
    FOREIGN_DIRECTORY,
    MISSING_FILES_NOTE,
    MOVE_ATTEMPTS_MAX,
    Difference,
    DifferenceKind,
    Repair,
)
from headrace.loader.apply.schema import ATTEMPTS_MAX
from headrace.loader.errors import StorageUnavailable
from headrace.loader.rewrite.run import accept_missing
from headrace.loader.run import run_load
from headrace.loader.storage.local.commit_storage import LocalCommitStorage
from headrace.loader.storage.local.files import LocalFiles
from headrace.loader.work_unit import FileKind
from support.loader.loader_fakes import ORDER_V1, FakeHive, World

TABLE = ("headrace", "orders")
TIME_PARTITION = ("2026-01-01", "00")


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.registry.register("orders-value", 1, ORDER_V1)
    world.topic("orders", [1] * 10, [1] * 5)
    run_load(world.ports(), world.settings)
    return world


CATALOG = "headrace_catalog"  # the next load that changes a table creates its tables again


def repair(world: World, *, deep: bool = True) -> Repair:
    return Repair(world.log(), lambda: world.hive, world.tables(), world._new_run_id, deep)


def kinds(differences: tuple[Difference, ...]) -> list[DifferenceKind]:
    return [one.kind for one in differences]


def check_repaired(world: World, before: tuple[dict[object, TableState], dict[object, object]]) -> None:
    tables, parts = before
    assert world.hive.parts == parts
    assert {name for name in world.hive.tables if name[0] != CATALOG} == tables.keys()
    for name, table in tables.items():
        found = world.hive.tables[name]
        for key in table.properties.keys() - {REVISION, COMPLETE_UNTIL}:
            assert found.properties[key] == table.properties[key]
    assert repair(world).compare("orders") == ()
    assert world.rows("orders") == world.produced("orders")


def copied(hive: FakeHive) -> tuple[dict[object, TableState], dict[object, object]]:
    return {name: table for name, table in hive.tables.items() if name[0] != CATALOG}, {
        name: dict(parts) for name, parts in hive.parts.items()
    }


def test_repair_of_a_correct_topic_changes_nothing(world: World) -> None:
    executed = len(world.hive.executed)
    assert repair(world).compare("orders") == repair(world).repair_topic("orders") == ()
    assert len(world.hive.executed) == executed


def test_tables_are_restored_in_an_empty_metastore(world: World) -> None:
    before = copied(world.hive)
    world.hive.tables.clear()
    world.hive.parts.clear()
    world.hive.databases.clear()
    found = repair(world, deep=False).repair_topic("orders")
    assert kinds(found) == [DifferenceKind.TABLE, DifferenceKind.PARTITIONS]
    assert all(one.is_repairable for one in found)
    assert world.hive.databases == {"headrace"}
    check_repaired(world, before)
    # `complete_until` is restored too, because loads write it only when it changes.
    assert COMPLETE_UNTIL in world.hive.tables[TABLE].properties


def test_a_table_with_a_type_too_long_for_the_metastore_is_restored(world: World) -> None:
    fields = [{"name": f"some_column_name_of_a_table_{n:04}", "type": "string"} for n in range(1000)]
    row = {"name": "row", "type": {"type": "record", "name": "Row", "fields": fields}}
    order = json.loads(ORDER_V1)
    world.registry.register("wide-value", 2, json.dumps(order | {"fields": [*order["fields"], row]}))
    world.topic("wide", [2], topic_id="id-2")
    run_load(world.ports(), world.settings)
    before = world.hive.tables.pop(("headrace", "wide"))
    found = repair(world).repair_topic("wide")
    assert found[0].kind is DifferenceKind.TABLE
    assert world.hive.tables["headrace", "wide"].properties[SCHEMA_URL] == before.properties[SCHEMA_URL]
    assert repair(world).compare("wide") == ()


def test_an_altered_table_gets_its_properties_back_and_keeps_foreign_ones(world: World) -> None:
    before = copied(world.hive)
    table = world.hive.tables[TABLE]
    altered = {**table.properties, SCHEMA_LITERAL: "{}", VERSION: "77", "of.others": "x"}
    world.hive.tables[TABLE] = dataclasses.replace(table, properties=altered)
    (found,) = repair(world).repair_topic("orders")
    assert found.kind is DifferenceKind.TABLE
    assert found.message.endswith(f": {SCHEMA_LITERAL}, {VERSION}")
    check_repaired(world, before)
    assert world.hive.tables[TABLE].properties["of.others"] == "x"
    # Again at the same commit number: the condition of the table change needs a new revision each time.
    world.hive.tables[TABLE] = dataclasses.replace(world.hive.tables[TABLE], properties=altered)
    repair(world).repair_topic("orders")
    check_repaired(world, before)
    revisions = [dict(op.properties)[REVISION] for op in world.hive.executed if isinstance(op, SetProperties)]
    assert len(revisions) == len(set(revisions))


def test_a_table_changed_during_the_repair_is_compared_again(world: World) -> None:
    before = copied(world.hive)
    table = world.hive.tables[TABLE]
    world.hive.tables[TABLE] = dataclasses.replace(table, properties={**table.properties, VERSION: "77"})
    failures = [StaleRevision("headrace", "orders", "1", "2")]
    execute = world.hive.execute

    def racing(op: object) -> None:
        if failures and isinstance(op, SetProperties):
            raise failures.pop()
        execute(op)  # type: ignore[arg-type]  # of the protocol

    world.hive.execute = racing  # type: ignore[method-assign]
    repair(world).repair_topic("orders")
    check_repaired(world, before)


def test_dropped_moved_and_added_partitions_are_repaired(world: World) -> None:
    before = copied(world.hive)
    parts = world.hive.parts[TABLE]
    parts[("2020-01-01", "00")] = "file:///elsewhere"
    parts[TIME_PARTITION] = "file:///moved"
    (moved,) = repair(world, deep=False).compare("orders")
    assert re.search(rf"\b2026-01-01/00\b.*\bfile://{world.warehouse}/orders/dt=2026-01-01/hr=00$", moved.message)
    found = repair(world).repair_topic("orders")
    assert kinds(found) == [DifferenceKind.PARTITIONS] * 2
    assert re.search(r"\b2020-01-01/00\b.*\b1 partition\b", found[1].message)
    check_repaired(world, before)
    del world.hive.parts[TABLE][TIME_PARTITION]
    (found_one,) = repair(world).repair_topic("orders")
    assert found_one.message == "1 partition is missing: 2026-01-01/00"
    check_repaired(world, before)


def test_a_comparison_without_partitions_finds_missing_and_altered_tables(world: World) -> None:
    tables_only = Repair(world.log(), lambda: world.hive, world.tables(), world._new_run_id, False, False)
    del world.hive.parts[TABLE][TIME_PARTITION]
    requests = len(world.hive.partition_requests)
    assert tables_only.compare("orders") == ()
    assert len(world.hive.partition_requests) == requests, "no partitions are read"
    table = world.hive.tables[TABLE]
    world.hive.tables[TABLE] = dataclasses.replace(table, properties={**table.properties, VERSION: "77"})
    assert kinds(tables_only.compare("orders")) == [DifferenceKind.TABLE]
    world.hive.tables[TABLE] = dataclasses.replace(table, properties={**table.properties, TOPIC: "other"})
    assert kinds(tables_only.compare("orders")) == [DifferenceKind.TABLE]
    del world.hive.tables[TABLE]
    assert kinds(tables_only.compare("orders")) == [DifferenceKind.TABLE, DifferenceKind.PARTITIONS]


def test_foreign_files_are_moved_to_the_foreign_directory(world: World) -> None:
    before = copied(world.hive)
    directory = world.warehouse / "orders" / "dt=2026-01-01" / "hr=00"
    (directory / "notes.txt").write_bytes(b"mine")
    (directory / "_hidden").write_bytes(b"")
    assert repair(world, deep=False).compare("orders") == ()
    (found,) = repair(world).repair_topic("orders")
    assert found.kind is DifferenceKind.FOREIGN
    moved = world.warehouse / "orders" / FOREIGN_DIRECTORY / "dt=2026-01-01" / "hr=00" / "notes.txt"
    assert moved.read_bytes() == b"mine"
    assert not (directory / "notes.txt").exists()
    assert (directory / "_hidden").exists()
    check_repaired(world, before)


def test_foreign_files_with_equal_names_get_numbers(world: World) -> None:
    """Each INSERT of Hive or Spark writes a file with the same name."""
    directory = world.warehouse / "orders" / "dt=2026-01-01" / "hr=00"
    foreign_path = f"orders/{FOREIGN_DIRECTORY}/dt=2026-01-01/hr=00/000000_0"
    for text, target in (("first", foreign_path), ("second", f"{foreign_path}.1"), ("first", f"{foreign_path}.2")):
        (directory / "000000_0").write_text(text)
        (found,) = repair(world).repair_topic("orders")
        assert found.message.endswith(f" {target}")
        assert found.moves == (("orders/dt=2026-01-01/hr=00/000000_0", target),)
        assert (world.warehouse / target).read_text() == text
    moved_files = {path.name: path.read_text() for path in (world.warehouse / foreign_path).parent.iterdir()}
    assert moved_files == {"000000_0": "first", "000000_0.1": "second", "000000_0.2": "first"}
    assert repair(world).compare("orders") == ()


def test_a_foreign_directory_is_moved_with_its_content(world: World) -> None:
    directory = world.warehouse / "orders" / "dt=2026-01-01" / "hr=00"
    for number in ("", ".1"):
        (directory / "sub" / "deep").mkdir(parents=True)
        (directory / "sub" / "deep" / "x").write_text(f"mine{number}")
        (found,) = repair(world).repair_topic("orders")
        assert (found.kind, found.is_repairable) == (DifferenceKind.FOREIGN, True)
        moved = world.warehouse / "orders" / FOREIGN_DIRECTORY / "dt=2026-01-01" / "hr=00" / f"sub{number}"
        assert (moved / "deep" / "x").read_text() == f"mine{number}"
    assert repair(world).compare("orders") == ()
    assert world.rows("orders") == world.produced("orders")


def test_one_of_two_concurrent_repairs_moves_a_file(world: World) -> None:
    directory = world.warehouse / "orders" / "dt=2026-01-01" / "hr=00"
    (directory / "x").write_text("mine")
    slow = repair(world)
    differences = slow.compare("orders")
    repair(world).repair_topic("orders")
    (found,) = [slow._repair("orders", one) for one in differences]
    assert FOREIGN_DIRECTORY not in found.message
    moved = world.warehouse / "orders" / FOREIGN_DIRECTORY / "dt=2026-01-01" / "hr=00"
    assert [path.name for path in moved.iterdir()] == ["x"]


def test_a_target_name_taken_meanwhile_is_not_overwritten(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = world.warehouse / "orders" / "dt=2026-01-01" / "hr=00"
    foreign_directory = world.warehouse / "orders" / FOREIGN_DIRECTORY / "dt=2026-01-01" / "hr=00"
    (directory / "x").write_text("mine")
    move_uncommitted = LocalFiles.move_uncommitted

    def overtaken(files: LocalFiles, source: str, target: str) -> bool:
        if target.endswith("/x"):
            (world.warehouse / target).parent.mkdir(parents=True)
            (world.warehouse / target).write_text("another")
        return move_uncommitted(files, source, target)

    monkeypatch.setattr(LocalFiles, "move_uncommitted", overtaken)
    (found,) = repair(world).repair_topic("orders")
    assert found.moves[0][1].endswith("/x.1")
    assert {path.name: path.read_text() for path in foreign_directory.iterdir()} == {"x": "another", "x.1": "mine"}


def test_an_unmovable_file_is_reported_and_the_rest_is_repaired(world: World) -> None:
    before = copied(world.hive)
    directory = world.warehouse / "orders" / "dt=2026-01-01" / "hr=00"
    (directory / "x").write_text("mine")
    (world.warehouse / "orders" / FOREIGN_DIRECTORY).write_text("a file where the directory would be")
    world.hive.parts.clear()
    partitions, foreign = repair(world).repair_topic("orders")
    assert (partitions.kind, partitions.is_repairable) == (DifferenceKind.PARTITIONS, True)
    assert (foreign.kind, foreign.is_repairable, foreign.where) == (
        DifferenceKind.FOREIGN,
        False,
        "orders/dt=2026-01-01/hr=00/x",
    )
    assert (directory / "x").read_text() == "mine"
    assert world.hive.parts == before[1]
    (directory / "x").unlink()
    check_repaired(world, before)


def test_number_of_tried_target_names_is_limited(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (world.warehouse / "orders" / "dt=2026-01-01" / "hr=00" / "x").write_text("mine")
    attempts = []

    def refuse(files: LocalFiles, source: str, target: str) -> bool:
        attempts.append(target)
        raise FileExistsError(errno.EEXIST, "File exists", target)

    monkeypatch.setattr(LocalFiles, "move_uncommitted", refuse)
    (found,) = repair(world).repair_topic("orders")
    assert not found.is_repairable
    assert found.message.endswith(f": File exists: {attempts[0]}")
    assert len(attempts) == MOVE_ATTEMPTS_MAX


def test_an_unreadable_table_is_a_finding(world: World) -> None:
    world.hive.refused[TABLE] = "no leave"
    for found in (repair(world).compare("orders"), repair(world).repair_topic("orders")):
        (one,) = found
        assert (one.kind, one.is_repairable, one.where) == (DifferenceKind.UNKNOWN, False, "headrace.orders")
        assert re.search(r"\bheadrace\.orders: no leave$", one.message)


def test_a_refused_change_is_reported_and_the_rest_is_repaired(world: World) -> None:
    table = world.hive.tables[TABLE]
    world.hive.tables[TABLE] = dataclasses.replace(table, properties={**table.properties, VERSION: "77"})
    world.hive.parts.clear()
    execute = world.hive.execute

    def refusing(op: object) -> None:
        if isinstance(op, SetProperties):
            raise StatementRefused("a change of table headrace.orders", "no leave")
        execute(op)  # type: ignore[arg-type]  # of the protocol

    world.hive.execute = refusing  # type: ignore[method-assign]
    reported: list[Difference] = []
    found = repair(world).repair_topic("orders", reported.append)
    assert kinds(found) == [DifferenceKind.PARTITIONS, DifferenceKind.TABLE]
    assert [one.is_repairable for one in found] == [True, False]
    assert re.search(rf": {VERSION}; .*\bheadrace\.orders: no leave$", found[1].message)
    assert tuple(reported) == found
    assert world.hive.parts[TABLE]


def test_attempts_on_a_constantly_changing_table_are_limited(world: World) -> None:
    table = world.hive.tables[TABLE]
    world.hive.tables[TABLE] = dataclasses.replace(table, properties={**table.properties, VERSION: "77"})
    world.hive.parts[TABLE].clear()
    execute, attempts = world.hive.execute, []

    def racing(op: object) -> None:
        if isinstance(op, SetProperties):
            attempts.append(op)
            raise StaleRevision("headrace", "orders", "1", "2")
        execute(op)  # type: ignore[arg-type]  # of the protocol

    world.hive.execute = racing  # type: ignore[method-assign]
    found = repair(world).repair_topic("orders")
    assert [(one.kind, one.is_repairable) for one in found] == [
        (DifferenceKind.PARTITIONS, True),
        (DifferenceKind.TABLE, False),
    ]
    assert re.search(rf": {VERSION}; .*\bheadrace\.orders\b.*\b1\b.*\b2\b", found[1].message)
    assert len(attempts) == ATTEMPTS_MAX


def test_repairs_before_a_concurrent_table_change_are_reported(world: World) -> None:
    """The quarantine table changes; it is repaired after the topic's own table and files."""
    world.cluster.topics["orders"].logs[0] += [9]
    world.policy = dataclasses.replace(world.policy, quarantine_ratio_max=1.0)
    run_load(world.ports(), world.settings)
    name = ("headrace_quarantine", "orders")
    table = world.hive.tables[name]
    world.hive.tables[name] = dataclasses.replace(table, properties={**table.properties, VERSION: "77"})
    (world.warehouse / "orders" / "dt=2026-01-01" / "hr=00" / "x").write_text("mine")
    failures = [StaleRevision("headrace_quarantine", "orders", "1", "2")]
    execute = world.hive.execute

    def racing(op: object) -> None:
        if failures and isinstance(op, SetProperties):
            raise failures.pop()
        execute(op)  # type: ignore[arg-type]  # of the protocol

    world.hive.execute = racing  # type: ignore[method-assign]
    reported: list[Difference] = []
    found = repair(world).repair_topic("orders", reported.append)
    assert kinds(found) == [DifferenceKind.FOREIGN, DifferenceKind.TABLE]
    assert tuple(reported) == found


@pytest.mark.parametrize(
    "failure", [MetastoreUnavailable("there", "gone"), StorageUnavailable(errno.EPIPE, "gone", "hdfs://nn/w")], ids=repr
)
def test_an_outage_of_metastore_or_storage_is_raised(world: World, failure: Exception) -> None:
    world.hive.failure = failure
    with pytest.raises(type(failure)):
        repair(world).compare("orders")
    world.hive.failure = None
    world.hive.parts.clear()

    def fail(op: object) -> None:
        raise failure

    world.hive.execute = fail  # type: ignore[method-assign]
    with pytest.raises(type(failure)):
        repair(world).repair_topic("orders")


def test_a_missing_directory_is_reported_and_created_for_queries(world: World) -> None:
    directory = world.warehouse / "orders" / "dt=2026-01-01" / "hr=00"
    files = len(list(directory.iterdir()))
    shutil.rmtree(directory)
    (found,) = repair(world).repair_topic("orders")
    assert (found.kind, found.is_repairable) == (DifferenceKind.LOST, False)
    assert f"{files} of {files} " in found.message
    assert "headrace accept-missing orders --time-partition dt=2026-01-01/hr=00" in found.message
    assert (directory / MISSING_FILES_NOTE).is_file()
    accept_missing(world.rewrites(), "orders", [FileKind.DATA], "dt=2026-01-01/hr=00", is_dry=False)
    assert repair(world).compare("orders") == ()
    assert world.hive.parts[TABLE] == {}


def test_a_foreign_table_is_reported_and_unchanged(world: World) -> None:
    foreign = dataclasses.replace(world.hive.tables[TABLE], properties={})
    world.hive.tables[TABLE] = foreign
    (found,) = repair(world).repair_topic("orders")
    assert not found.is_repairable
    assert "headrace.orders" in found.message
    with pytest.raises(ForeignTable):
        repair(world).drop("orders")
    assert world.hive.tables[TABLE] is foreign


def test_pending_commits_are_left_to_the_next_load(world: World) -> None:
    world.hive.failure = OSError("the metastore is down")
    world.cluster.topics["orders"].logs[0] += [1] * 3
    run_load(world.ports(), world.settings)
    world.hive.failure = None
    (found,) = repair(world).compare("orders")
    assert (found.kind, found.is_repairable) == (DifferenceKind.PENDING, False)
    run_load(world.ports(), world.settings)
    assert repair(world).compare("orders") == ()


def test_files_added_during_a_comparison_are_not_foreign(world: World) -> None:
    slow_repair = repair(world)
    partitions = world.hive.partitions

    def slow(*arguments: object) -> object:
        found = partitions(*arguments)  # type: ignore[arg-type]  # of the protocol
        world.cluster.topics["orders"].logs[0] += [1] * 3
        world.hive.partitions = partitions  # type: ignore[method-assign]
        run_load(world.ports(), world.settings)
        return found

    world.hive.partitions = slow  # type: ignore[method-assign,assignment]
    assert slow_repair.compare("orders") == ()
    assert world.rows("orders") == world.produced("orders")


def test_a_dropped_table_comes_back_with_the_next_apply(world: World) -> None:
    before = copied(world.hive)
    ops = repair(world).drop("orders")
    assert ops == (DropTable("headrace", "orders", "orders"),)
    world.hive.execute(ops[0])
    assert repair(world).drop("orders") == ()
    repair(world, deep=False).repair_topic("orders")
    check_repaired(world, before)


def test_an_executor_that_prints_gets_every_statement(world: World, tmp_path: Path) -> None:
    with (tmp_path / "out.sql").open("w") as output:
        printing = PrintingExecutor(output)
        of_paper = Repair(world.log(), lambda: printing, world.tables(), world._new_run_id, deep=False)
        found = of_paper.repair_topic("orders")
    text = (tmp_path / "out.sql").read_text()
    assert [type(op) for one in found for op in one.ops][:1] == [CreateTable]
    assert text.startswith("CREATE DATABASE IF NOT EXISTS `headrace`;\n")
    assert "CREATE EXTERNAL TABLE `headrace`.`orders`" in text
    assert "ADD IF NOT EXISTS\n  PARTITION (`dt` = '2026-01-01', `hr` = '00')" in text


def test_tables_of_many_topics_are_compared_with_few_reads(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = [f"topic-{number:02}" for number in range(20)]
    for topic in topics:
        world.registry.register(f"{topic}-value", 1, ORDER_V1)
        world.topic(topic, [1])
    run_load(world.ports(), world.settings)
    world.cluster.topics[topics[0]].logs[0] += [1]
    run_load(world.ports(), world.settings)
    read = LocalCommitStorage.read
    paths: list[str] = []

    def reading(storage: LocalCommitStorage, path: str) -> bytes | None:
        paths.append(path)
        return read(storage, path)

    monkeypatch.setattr(LocalCommitStorage, "read", reading)
    before, one = world.hive.requests, repair(world, deep=False)
    assert [one.compare(topic) for topic in one.prefetched(topics)] == [()] * len(topics)
    assert world.hive.requests - before == 1 + len(topics), "all tables, and the partitions of each"
    assert COMPLETE_PATH not in paths, "it grows with the number of topics"
    assert sum(path.startswith("log/") for path in paths) <= 4, "a commit has the files of many topics"
    assert None not in world.hive.partition_requests, "all partitions of a table were listed"


def test_a_table_changed_after_it_was_read_ahead_is_read_again(world: World) -> None:
    world.registry.register("clicks-value", 1, ORDER_V1)
    world.topic("clicks", [1])
    run_load(world.ports(), world.settings)
    table, one = world.hive.tables[TABLE], repair(world, deep=False)
    world.hive.tables[TABLE] = dataclasses.replace(table, properties={**table.properties, VERSION: "0"})
    found = []
    for topic in one.prefetched(["clicks", "orders"]):
        world.hive.tables[TABLE] = table  # a load has altered it
        found += one.compare(topic)
    assert found == []
