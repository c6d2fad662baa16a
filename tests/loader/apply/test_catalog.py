"""The catalogue describes the tables and columns of all topics."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import fastavro
import pytest

from headrace.avro_schema import Schema, parse_schema
from headrace.hive_ddl.errors import StatementRefused
from headrace.loader.apply.catalog import Catalog, hours_of
from headrace.loader.load_schema import EMPTY, column_versions, fold, table_owner, with_owner
from headrace.loader.report import RunReport
from headrace.loader.run import run_load
from support.loader.loader_fakes import ORDER_V1, ORDER_V2, World

CATALOG = "headrace_catalog"


@pytest.fixture
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("catalog"))
    world.registry.register("orders-value", 1, ORDER_V1)
    world.topic("orders", [1] * 10, [1] * 5)
    return world


def load(world: World, **changes: object) -> RunReport:
    return run_load(world.ports(), dataclasses.replace(world.settings, **changes))


def rows(world: World, name: str) -> Sequence[Any]:
    with (world.warehouse / "_catalog" / name / f"{name}.avro").open("rb") as file:
        return list(fastavro.reader(file))


def test_the_catalogue_counts_rows_and_names_the_columns_of_each_topic(world: World) -> None:
    load(world)
    (table,) = rows(world, "tables")
    assert (table["topic"], table["table_name"], table["row_count"], table["lag"]) == ("orders", "orders", 15, 0)
    assert (table["first_hour"], table["last_hour"]) == (datetime(2026, 1, 1, tzinfo=UTC),) * 2
    assert table["complete_until"] == datetime(2026, 1, 1, tzinfo=UTC)
    columns = [(one["ordinal_position"], one["column_name"], one["since_version"]) for one in rows(world, "columns")]
    assert columns == [(1, "id", 1), (2, "kafka", 1), (3, "dt", None), (4, "hr", None)]
    assert {(CATALOG, "tables"), (CATALOG, "columns")} <= set(world.hive.tables)


def test_a_new_version_adds_its_columns_with_their_version(world: World) -> None:
    load(world)
    world.registry.register("orders-value", 2, ORDER_V2)
    world.cluster.topics["orders"].logs[0].append(2)
    load(world)
    assert {one["column_name"]: one["since_version"] for one in rows(world, "columns")} == {
        "id": 1,
        "note": 2,
        "kafka": 1,
        "dt": None,
        "hr": None,
    }
    assert [row["row_count"] for row in rows(world, "tables")] == [16]


def test_version_of_a_column_is_known_although_hive_folds_its_name(world: World) -> None:
    load(world)
    world.registry.register("orders-value", 2, ORDER_V2.replace('"note"', '"noteText"'))
    world.cluster.topics["orders"].logs[0].append(2)
    load(world)
    assert {one["column_name"]: one["since_version"] for one in rows(world, "columns")}["notetext"] == 2


def test_a_load_without_changes_writes_the_time_and_the_lag_and_no_columns(world: World) -> None:
    load(world)
    columns = world.warehouse / "_catalog/columns/columns.avro"
    written = columns.stat().st_ino
    world.clock_ms += 60_000
    load(world)
    (table,) = rows(world, "tables")
    assert table["as_of"] == datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
    assert columns.stat().st_ino == written
    world.topic("other", [7])
    load(world, topics_only=("other",))
    assert [row["lag"] for row in rows(world, "tables")] == [None], "the offsets of orders were not fetched"


def test_a_table_of_the_catalogue_is_one_block(world: World) -> None:
    """A reader that has listed the file before its replacement reads the whole new block."""
    for number in range(300):
        world.registry.register(f"t{number}-value", 100 + number, ORDER_V2)
        world.topic(f"t{number}", [100 + number])
    load(world)
    assert (len(rows(world, "tables")), len(rows(world, "columns"))) == (301, 300 * 5 + 4)
    for name in ("tables", "columns"):
        with (world.warehouse / "_catalog" / name / f"{name}.avro").open("rb") as file:
            assert len(list(fastavro.block_reader(file))) == 1


@pytest.mark.parametrize("damage", [b"", b"Obj\x01garbage", b"text"])
@pytest.mark.parametrize("name", ["tables", "columns"])
def test_a_damaged_or_missing_file_is_written_again(world: World, name: str, damage: bytes) -> None:
    load(world)
    before = rows(world, name)
    path = world.warehouse / "_catalog" / name / f"{name}.avro"
    path.write_bytes(damage)
    if name == "columns":  # its content is compared only through the table `tables`
        path.unlink()
    assert load(world).notes == ()
    assert rows(world, name) == before


def test_dropped_tables_of_the_catalogue_are_created_again(world: World) -> None:
    load(world)
    for name in ("tables", "columns"):
        del world.hive.tables[CATALOG, name]
    world.cluster.topics["orders"].logs[0].append(1)
    load(world)
    assert {(CATALOG, "tables"), (CATALOG, "columns")} <= set(world.hive.tables)


def test_a_failure_of_the_catalogue_is_a_note_and_the_next_load_writes_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(*_: object) -> None:
        raise StatementRefused("a table of the catalogue", "no permission")

    with monkeypatch.context() as patch:
        patch.setattr(Catalog, "_ensure_tables", unavailable)
        report = load(world)
    assert report.commit_number == 1
    (note,) = report.notes
    assert CATALOG in note
    load(world)
    assert [row["row_count"] for row in rows(world, "tables")] == [15]


def test_first_hour_moves_when_expiry_empties_the_oldest_days() -> None:
    days = ["dt=2026-01-01", "dt=2026-01-02", "dt=2026-01-03", "dt=2026-01-04"]
    live = {"dt=2026-01-03": ["dt=2026-01-03/hr=05", "dt=2026-01-03/hr=09"]}
    assert hours_of(days, lambda day: live.get(day, [])) == (
        datetime(2026, 1, 3, 5, tzinfo=UTC),
        datetime(2026, 1, 3, 9, tzinfo=UTC),
    )
    assert hours_of(days, lambda day: []) == (None, None)
    assert hours_of([], lambda day: []) == (None, None)
    assert hours_of(["dt=2026-01-01"], lambda day: [day]) == (datetime(2026, 1, 1, tzinfo=UTC),) * 2


def schema(*fields: dict[str, Any], **attributes: object) -> Schema:
    return parse_schema(json.dumps({"type": "record", "name": "Sale", "fields": list(fields), **attributes}))


def test_a_renamed_column_has_the_version_that_added_it() -> None:
    number, text = {"name": "id", "type": "long"}, {"name": "note", "type": "string", "default": ""}
    renamed = {**text, "name": "remark", "aliases": ["note"]}
    state = fold(fold(EMPTY, 1, schema(number)), 2, schema(number, text))
    assert column_versions(state) == {"note": 2}
    assert column_versions(fold(state, 3, schema(number, renamed))) == {"remark": 2}
    changed = fold(state, 3, schema(number, {**text, "type": "int", "default": 0}))
    assert column_versions(changed) == {"note": 2, "note__int": 3}


def test_the_owner_is_that_of_the_metadata_then_of_the_schema() -> None:
    number = {"name": "id", "type": "long"}
    state = fold(EMPTY, 1, schema(number, owner="team shop"))
    assert table_owner(json.dumps(state.to_json())) == "team shop"
    assert table_owner(json.dumps(with_owner(state, {"owner": "ops"}).to_json())) == "ops"
    assert with_owner(state, {}) == state
    assert table_owner(json.dumps(fold(EMPTY, 1, schema(number, owner=["a", "b"])).to_json())) == ""
