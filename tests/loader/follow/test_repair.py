"""What others did to tables, partitions and folders is found, and mended without deleting anything."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from headrace.hive_ddl.errors import ForeignTable, StaleRevision
from headrace.hive_ddl.executors.printing import PrintingExecutor
from headrace.hive_ddl.ops import CreateTable, DropTable, SetProperties
from headrace.hive_ddl.table import COMPLETE_UNTIL, REVISION, SCHEMA_LITERAL, VERSION, TableState
from headrace.loader.follow.repair import FOREIGN_FOLDER, LOST_NOTE, Difference, Repair, Trouble
from headrace.loader.rewrite.run import forget
from headrace.loader.run import run_load
from headrace.loader.work_unit import FileKind
from loader_fakes import ORDER_V1, FakeHive, World

TABLE = ("headrace", "orders")
BUCKET = ("2026-01-01", "00")


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.registry.register("orders-value", 1, ORDER_V1)
    world.topic("orders", [1] * 10, [1] * 5)
    run_load(world.ports(), world.settings)
    return world


def repair(world: World, *, deep: bool = True) -> Repair:
    return Repair(world.log(), lambda: world.hive, world.tables(), world._new_work_id, deep)


def troubles(differences: tuple[Difference, ...]) -> list[Trouble]:
    return [one.trouble for one in differences]


def check_mended(world: World, before: tuple[dict[object, TableState], dict[object, object]]) -> None:
    tables, parts = before
    assert world.hive.parts == parts
    assert world.hive.tables.keys() == tables.keys()
    for name, table in tables.items():
        found = world.hive.tables[name]
        for key in table.properties.keys() - {REVISION, COMPLETE_UNTIL}:
            assert found.properties[key] == table.properties[key]
    assert repair(world).compare("orders") == ()
    assert world.rows("orders") == world.produced("orders")


def copied(hive: FakeHive) -> tuple[dict[object, TableState], dict[object, object]]:
    return dict(hive.tables), {name: dict(parts) for name, parts in hive.parts.items()}


def test_what_is_as_decided_needs_nothing(world: World) -> None:
    executed = len(world.hive.executed)
    assert repair(world).compare("orders") == repair(world).mend("orders") == ()
    assert len(world.hive.executed) == executed


def test_a_table_of_another_metastore_is_made_whole(world: World) -> None:
    before = copied(world.hive)
    world.hive.tables.clear()
    world.hive.parts.clear()
    world.hive.databases.clear()
    found = repair(world, deep=False).mend("orders")
    assert troubles(found) == [Trouble.TABLE, Trouble.PARTITIONS]
    assert all(one.is_mendable for one in found)
    assert world.hive.databases == {"headrace"}
    check_mended(world, before)
    # What a load has said of it before is said again, since no load will.
    assert COMPLETE_UNTIL in world.hive.tables[TABLE].properties


def test_an_altered_table_gets_back_what_is_decided_and_keeps_the_rest(world: World) -> None:
    before = copied(world.hive)
    table = world.hive.tables[TABLE]
    odd = {**table.properties, SCHEMA_LITERAL: "{}", VERSION: "77", "of.others": "x"}
    world.hive.tables[TABLE] = dataclasses.replace(table, properties=odd)
    (found,) = repair(world).mend("orders")
    assert found.trouble is Trouble.TABLE
    assert found.message == f"the table was altered: {SCHEMA_LITERAL}, {VERSION}"
    check_mended(world, before)
    assert world.hive.tables[TABLE].properties["of.others"] == "x"
    # The same once more, at the same slot: the condition needs another revision each time.
    world.hive.tables[TABLE] = dataclasses.replace(world.hive.tables[TABLE], properties=odd)
    repair(world).mend("orders")
    check_mended(world, before)
    revisions = [dict(op.properties)[REVISION] for op in world.hive.executed if isinstance(op, SetProperties)]
    assert len(revisions) == len(set(revisions))


def test_a_table_that_changes_while_it_is_mended_is_looked_at_again(world: World) -> None:
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
    repair(world).mend("orders")
    check_mended(world, before)


def test_partitions_that_were_dropped_moved_or_added_by_hand(world: World) -> None:
    before = copied(world.hive)
    parts = world.hive.parts[TABLE]
    parts[("2020-01-01", "00")] = "file:///elsewhere"
    parts[BUCKET] = "file:///moved"
    assert [one.message for one in repair(world, deep=False).compare("orders")] == [
        f"the partition 2026-01-01/00 is elsewhere and belongs to file://{world.warehouse}/orders/dt=2026-01-01/hr=00"
    ]
    found = repair(world).mend("orders")
    assert troubles(found) == [Trouble.PARTITIONS] * 2
    assert found[1].message == "nothing decided 2020-01-01/00: 1 partition is taken out, and files are left"
    check_mended(world, before)
    del world.hive.parts[TABLE][BUCKET]
    (found_one,) = repair(world).mend("orders")
    assert found_one.message == "1 partition is not there: 2026-01-01/00"
    check_mended(world, before)


def test_foreign_files_are_moved_out_of_the_way_and_kept(world: World) -> None:
    before = copied(world.hive)
    folder = world.warehouse / "orders" / "dt=2026-01-01" / "hr=00"
    (folder / "notes.txt").write_bytes(b"mine")
    (folder / "_hidden").write_bytes(b"")
    assert repair(world, deep=False).compare("orders") == ()
    (found,) = repair(world).mend("orders")
    assert found.trouble is Trouble.FOREIGN
    moved = world.warehouse / "orders" / FOREIGN_FOLDER / "dt=2026-01-01" / "hr=00" / "notes.txt"
    assert moved.read_bytes() == b"mine"
    assert not (folder / "notes.txt").exists()
    assert (folder / "_hidden").exists()
    check_mended(world, before)


def test_a_removed_folder_is_named_and_no_longer_stops_queries(world: World) -> None:
    folder = world.warehouse / "orders" / "dt=2026-01-01" / "hr=00"
    files = len(list(folder.iterdir()))
    shutil.rmtree(folder)
    (found,) = repair(world).mend("orders")
    assert (found.trouble, found.is_mendable) == (Trouble.LOST, False)
    assert f"{files} of {files} decided files are gone" in found.message
    assert "headrace forget orders --bucket dt=2026-01-01/hr=00" in found.message
    assert (folder / LOST_NOTE).is_file()
    forget(world.rewrites(), "orders", [FileKind.DATA], "dt=2026-01-01/hr=00", is_dry=False)
    assert repair(world).compare("orders") == ()
    assert world.hive.parts[TABLE] == {}


def test_a_table_of_somebody_else_is_named_and_left(world: World) -> None:
    foreign = dataclasses.replace(world.hive.tables[TABLE], properties={})
    world.hive.tables[TABLE] = foreign
    (found,) = repair(world).mend("orders")
    assert not found.is_mendable
    assert "the Hive table headrace.orders is not its own" in found.message
    with pytest.raises(ForeignTable):
        repair(world).drop("orders")
    assert world.hive.tables[TABLE] is foreign


def test_what_a_load_has_still_to_bring_is_left_to_it(world: World) -> None:
    world.hive.failure = OSError("the metastore is down")
    world.cluster.topics["orders"].logs[0] += [1] * 3
    run_load(world.ports(), world.settings)
    world.hive.failure = None
    (found,) = repair(world).compare("orders")
    assert (found.trouble, found.is_mendable) == (Trouble.PENDING, False)
    run_load(world.ports(), world.settings)
    assert repair(world).compare("orders") == ()


def test_what_a_load_adds_while_this_looks_is_not_taken_for_foreign(world: World) -> None:
    looks = repair(world)
    partitions = world.hive.partitions

    def slow(*asked: object) -> object:
        found = partitions(*asked)  # type: ignore[arg-type]  # of the protocol
        world.cluster.topics["orders"].logs[0] += [1] * 3
        world.hive.partitions = partitions  # type: ignore[method-assign]
        run_load(world.ports(), world.settings)
        return found

    world.hive.partitions = slow  # type: ignore[method-assign,assignment]
    assert looks.compare("orders") == ()
    assert world.rows("orders") == world.produced("orders")


def test_a_dropped_table_comes_back_with_the_next_apply(world: World) -> None:
    before = copied(world.hive)
    ops = repair(world).drop("orders")
    assert ops == (DropTable("headrace", "orders", "orders"),)
    world.hive.execute(ops[0])
    assert repair(world).drop("orders") == ()
    repair(world, deep=False).mend("orders")
    check_mended(world, before)


def test_an_executor_that_prints_gets_every_statement(world: World, tmp_path: Path) -> None:
    with (tmp_path / "out.sql").open("w") as output:
        printing = PrintingExecutor(output)
        of_paper = Repair(world.log(), lambda: printing, world.tables(), world._new_work_id, deep=False)
        found = of_paper.mend("orders")
    text = (tmp_path / "out.sql").read_text()
    assert [type(op) for one in found for op in one.ops][:1] == [CreateTable]
    assert text.startswith("CREATE DATABASE IF NOT EXISTS `headrace`;\n")
    assert "CREATE EXTERNAL TABLE `headrace`.`orders`" in text
    assert "ADD IF NOT EXISTS\n  PARTITION (`dt` = '2026-01-01', `hr` = '00')" in text
