"""Each engine reads the catalogue's tables and shows the comments of tables and columns."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.hive_ddl.ops import DropTable
from headrace.hive_ddl.plan import plan_table
from headrace.hive_ddl.table import desired_table
from headrace.loader.apply.catalog import COLUMNS, DATABASE_SUFFIX, OWNER_OF_CATALOG, TABLES, catalog_table
from headrace.loader.run import run_load
from support.hive.hive_engines import Engine
from support.loader.loader_fakes import ORDER_V1, World

pytestmark = pytest.mark.xdist_group("shared_spark")

DATABASE = "shop_of_catalogue"


def test_the_catalogue_is_read_by_each_engine(engine: Engine, tmp_path: Path) -> None:
    world = World(tmp_path)
    world.registry.register("orders-value", 1, ORDER_V1)
    world.topic("orders", [1] * 10, [1] * 5)
    run_load(world.ports(), world.settings)
    engine.executor.ensure_database(DATABASE + DATABASE_SUFFIX)
    for name in (TABLES, COLUMNS):
        wanted = catalog_table(name, DATABASE, f"file://{world.warehouse}/_catalog/{name}")
        for operation in plan_table(None, wanted):
            engine.executor.execute(operation)
        assert plan_table(engine.executor.table(wanted.database, wanted.name), wanted) == ()
    catalog = DATABASE + DATABASE_SUFFIX
    (row,) = engine.query(f"SELECT topic, row_count, lag, cast(complete_until AS string) FROM {catalog}.tables")
    assert (row[:3], row[3][:19]) == (("orders", 15, 0), "2026-01-01 00:00:00")
    assert engine.query(f"SELECT column_name, since_version FROM {catalog}.columns ORDER BY ordinal_position") == [
        ("id", 1),
        ("kafka", 1),
        ("dt", None),
        ("hr", None),
    ]
    for name in (TABLES, COLUMNS):
        engine.executor.execute(DropTable(catalog, name, OWNER_OF_CATALOG + name))


def test_describe_shows_the_comments_of_partition_columns_and_table(engine: Engine, tmp_path: Path) -> None:
    engine.executor.ensure_database(DATABASE)
    schema = '{"type":"record","name":"Sale","fields":[{"name":"id","type":"long","doc":"number of the sale"}]}'
    table = desired_table(
        database=DATABASE,
        name="sales",
        location=f"file://{tmp_path}/sales",
        topic="sales",
        subject="sales-value",
        version=1,
        schema_text=schema,
        revision="1-test",
        properties={"comment": "a sale in a shop"},
    )
    for operation in plan_table(None, table):
        engine.executor.execute(operation)
    described = {row[0].strip(): row[2] for row in engine.query(f"DESCRIBE {DATABASE}.sales")}
    assert described["id"] == "number of the sale"
    assert "day" in described["dt"]
    assert "hour" in described["hr"]
    detailed = engine.query(f"DESCRIBE FORMATTED {DATABASE}.sales")
    assert any("a sale in a shop" in str(value) for row in detailed for value in row)
    engine.executor.execute(DropTable(DATABASE, "sales", "sales"))
