"""Behaviour of every executor on every engine: texts of topics, schemas and properties are preserved, and concurrent
changes are detected.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pytest

from headrace.hive_ddl.errors import ForeignTable, MetastoreUnavailable, StaleRevision, StatementRefused
from headrace.hive_ddl.executors.base import Executor
from headrace.hive_ddl.executors.hiveserver import NOSASL, HiveServerExecutor
from headrace.hive_ddl.names import directory_name, table_name
from headrace.hive_ddl.ops import CreateTable, DropPartitions, DropTable, RenameTable
from headrace.hive_ddl.plan import plan_partitions, plan_table
from headrace.hive_ddl.table import (
    REVISION,
    SCHEMA_LITERAL,
    SCHEMA_URL,
    TableState,
    desired_table,
    is_same_location,
    local_location,
)
from headrace.hive_ddl.types import COMMENT_CHARS_MAX
from headrace.loader.storage.local import local_storage
from headrace.pipeline.load import SparkConnection
from headrace.settings import HiveSettings, Settings
from support.hive.hive_engines import SPARK, THRIFT_SERVER, Engine, ServerEngine, second_executor
from support.hive.hive_server import HiveServer

pytestmark = pytest.mark.xdist_group("shared_spark")

DATABASE = "executors"
REVISIONS = itertools.count(1)

MakeTable = Callable[..., TableState]


@pytest.fixture
def make_table(engine: Engine, tmp_path: Path) -> MakeTable:
    """Creates table values for a topic in the test's own directory; names contain the engine's name."""
    engine.executor.ensure_database(DATABASE)

    def make(topic: str, schema: dict[str, Any], **changes: Any) -> TableState:
        arguments: dict[str, Any] = {
            "database": DATABASE,
            "name": table_name(f"{topic}_{engine.name}".replace(" ", "_")),
            "location": local_location(tmp_path / directory_name(topic)),
            "topic": topic,
            "subject": f"{topic}-value",
            "version": 1,
            "schema_text": json.dumps(schema),
            "revision": f"{next(REVISIONS)}-test",
        }
        return desired_table(**arguments | changes)

    return make


def apply_plan(executor: Executor, table: TableState) -> int:
    ops = plan_table(executor.table(table.database, table.name), table)
    for op in ops:
        executor.execute(op)
    return len(ops)


def publish(table: TableState) -> None:
    """Writes the file of a schema that is not a literal, as the loader does before."""
    if SCHEMA_URL in table.properties:
        published = Path(table.properties[SCHEMA_URL].removeprefix("file://"))
        published.parent.mkdir(parents=True, exist_ok=True)
        published.write_text(table.schema_text, encoding="utf-8")


def load(engine: Engine, table: TableState, hour: str, schema: dict[str, Any], *rows: dict[str, Any]) -> None:
    directory = Path(table.location.removeprefix("file://")) / "dt=2026-01-31" / f"hr={hour}"
    directory.mkdir(parents=True)
    with (directory / "1.avro").open("wb") as file:
        fastavro.writer(file, fastavro.parse_schema(schema), rows, codec="snappy")
    locations = {("2026-01-31", hour): local_location(directory)}
    found = engine.executor.partitions(table.database, table.name, locations)
    for op in plan_partitions(table, found, locations):
        engine.executor.execute(op)


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def record(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Event", "fields": list(fields)}


ID = field("id", "int")

HOSTILE = (
    "'; DROP TABLE x; --",
    "\\'; DROP TABLE x; --",
    "${env:HOME} ${hiveconf:x} ${system:user.name}",
    '`"\\\\"`',
    "/* */ -- \\u0027 \\n %s %(x)s",
    "é 漢 \U0001f600 \u2028",
    "\x01\x7f",
)


def test_missing_database_has_no_table(engine: Engine) -> None:
    assert engine.executor.table("no_such_database", "t") is None
    assert engine.executor.tables_by_name("no_such_database", ["s", "t"]) == {}
    assert engine.executor.table_names("no_such_database") == frozenset()


def test_tables_by_name_returns_the_existing_tables(engine: Engine, make_table: MakeTable) -> None:
    tables = [
        make_table(f"many {number}", record(ID, field(f"column_{number}", "string", default=""))) for number in range(3)
    ]
    for table in tables:
        apply_plan(engine.executor, table)
    names = {table.name for table in tables}
    found = engine.executor.tables_by_name(DATABASE, [*names, "absent"])
    assert found == {name: engine.executor.table(DATABASE, name) for name in names}
    assert names <= engine.executor.table_names(DATABASE)
    assert "absent" not in engine.executor.table_names(DATABASE)


def test_hostile_texts_are_returned_unchanged(engine: Engine, make_table: MakeTable) -> None:
    suit = {"type": "enum", "name": "Suit", "symbols": ["from", "TABLE_x"], "doc": HOSTILE[0]}
    texts = [field(f"text_{n}", "string", doc=text, default=text) for n, text in enumerate(HOSTILE)]
    schema = record(ID, field("suit", suit, doc=HOSTILE[1]), field("url", "string", default="${env:HOME}"), *texts)
    properties = {f"hostile {n} ' \\ ${{env:HOME}} ;": text for n, text in enumerate(HOSTILE)}
    name = table_name(f"hostile_{engine.name}")
    table = make_table("hostile '; --", schema, name=name, subject=HOSTILE[2], properties=properties)
    assert apply_plan(engine.executor, table) == 1
    found = engine.executor.table(DATABASE, table.name)
    assert found is not None
    assert {key: found.properties[key] for key in table.properties} == table.properties
    assert found.columns == table.columns
    assert found.partition_columns == ("dt", "hr")
    assert apply_plan(engine.executor, table) == 0
    load(engine, table, "00", record(*schema["fields"][:2]), {"id": 1, "suit": "from"})
    newer = {f"text_{n}": text for n, text in enumerate(reversed(HOSTILE))}
    load(engine, table, "01", schema, {"id": 2, "suit": "TABLE_x", "url": "u", **newer})
    names = ", ".join(f"text_{n}" for n in range(len(HOSTILE)))
    query = f"select id, suit, url, {names} from {DATABASE}.{table.name} where dt = '2026-01-31'"
    assert sorted(engine.query(query)) == [(1, "from", "${env:HOME}", *HOSTILE), (2, "TABLE_x", "u", *newer.values())]


@pytest.mark.parametrize("word", ["order", "_from"])
def test_reserved_words_as_column_and_table_names(engine: Engine, make_table: MakeTable, word: str) -> None:
    schema = record(ID, field(word, "string"), field("inner", record(field("Select", "int")) | {"name": "Inner"}))
    table = make_table(word, schema, name=table_name(word))
    apply_plan(engine.executor, table)
    load(engine, table, "00", schema, {"id": 1, word: "x", "inner": {"Select": 7}})
    query = f"select id, `{word.lower()}`, `inner`.`select` from {DATABASE}.`{table.name}`"
    assert engine.query(query) == [(1, "x", 7)]
    engine.executor.execute(DropTable(DATABASE, table.name, word))


@pytest.mark.spark
def test_field_doc_is_column_comment(engines_of_spark: dict[str, Engine], tmp_path: Path) -> None:
    """Only the first comment is stored in the metastore. For a table created through Spark's SQL, Spark shows the
    original comments, which it stores with the schema, as long as the types do not change.
    """

    def comment() -> str:
        rows = engine.query(f"describe {DATABASE}.{table.name}")
        return next(str(row[2]) for row in rows if row[0] == "id")

    for engine in engines_of_spark.values():
        engine.executor.ensure_database(DATABASE)
        name = table_name(f"said_{engine.name}".replace(" ", "_"))
        for number, warnings in enumerate(("first", 'it\'s \\ "q" ${env:HOME} \U0001f600', "x" * COMMENT_CHARS_MAX)):
            table = desired_table(
                database=DATABASE,
                name=name,
                location=local_location(tmp_path / name),
                topic="said",
                subject="said-value",
                version=number + 1,
                schema_text=json.dumps(record(field("id", "int", doc=warnings))),
                revision=f"{next(REVISIONS)}-test",
            )
            assert apply_plan(engine.executor, table) == 1
            assert comment() == (warnings if engine.name == SPARK else "first")
            assert apply_plan(engine.executor, table) == 0


def test_long_schema_is_stored_in_a_file(engine: Engine, make_table: MakeTable) -> None:
    columns = [field(f"column_{i:04}", ["null", "string"], default=None) for i in range(600)]
    short, long = record(ID), record(ID, *columns)
    table = make_table("long", short)
    apply_plan(engine.executor, table)
    load(engine, table, "00", short, {"id": 1})
    grown = make_table("long", long)
    assert SCHEMA_URL in grown.properties
    publish(grown)
    assert apply_plan(engine.executor, grown) == 2
    load(engine, grown, "01", long, {"id": 2, "column_0599": "x"})
    query = f"select id, column_0599 from {DATABASE}.{table.name}"
    assert sorted(engine.query(query)) == [(1, None), (2, "x")]
    found = engine.executor.table(DATABASE, table.name)
    assert found is not None
    assert SCHEMA_LITERAL not in found.properties
    assert len(found.columns) == 601
    assert apply_plan(engine.executor, make_table("long", long)) == 0
    assert apply_plan(engine.executor, make_table("long", short)) == 1
    assert sorted(engine.query(f"select id from {DATABASE}.{table.name}")) == [(1,), (2,)]


@pytest.mark.parametrize("members", [3, 1000])
def test_type_longer_than_metastore_stores(engine: Engine, make_table: MakeTable, members: int) -> None:
    """Tests a table created with the type, and one that grows to it, in a metastore created by DataNucleus. Of all
    statements without columns, only Spark's ALTER TABLE writes columns: those from before.
    """

    def schema_of(count: int) -> dict[str, Any]:
        fields = [field(f"some_column_of_a_table_{n:04}", ["null", "string"], default=None) for n in range(count)]
        return record(ID, field("before", ["null", record(*fields) | {"name": "Row"}], default=None))

    topic, counts = f"nested_{members}", (members, 1001, 1002)
    for number, count in enumerate(counts):
        schema, last = schema_of(count), f"some_column_of_a_table_{count - 1:04}"
        table = make_table(topic, schema)
        publish(table)
        is_stored = engine.name == THRIFT_SERVER and number and counts[number - 1] > 3
        if is_stored:
            with pytest.raises(
                StatementRefused, match=r"32,672 characters .* set hive\.executor to spark .* load again$"
            ):
                apply_plan(engine.executor, table)
            return
        apply_plan(engine.executor, table)
        assert apply_plan(engine.executor, make_table(topic, schema)) == 0
        load(engine, table, f"{number:02}", schema, {"id": number, "before": {last: "x"}})
        query = f"select id, `before`.{last} from {DATABASE}.{table.name}"
        assert sorted(engine.query(query)) == [*((n, None) for n in range(number)), (number, "x")]


def test_partitions_are_added_found_moved_and_dropped(engine: Engine, make_table: MakeTable) -> None:
    table = make_table("partitions", record(ID))
    apply_plan(engine.executor, table)
    locations = {(f"2026-01-{day}", f"{hour:02}"): "" for day in (30, 31) for hour in range(24)}
    locations = {(dt, hr): f"{table.location}/dt={dt}/hr={hr}" for dt, hr in locations}
    (added,) = plan_partitions(table, {}, locations)
    for executor in (engine.executor, second_executor(engine)):
        executor.execute(added)
    some = {values: locations[values] for values in sorted(locations)[22:27]}
    assert plan_partitions(table, engine.executor.partitions(DATABASE, table.name, some), some) == ()
    assert engine.executor.partitions(DATABASE, table.name, [("2026-02-01", "00")]) == {}
    assert engine.executor.partitions(DATABASE, f"{table.name}_absent", [("2026-02-01", "00")]) == {}
    moved = {("2026-01-31", "05"): f"{table.location}/_g2/dt=2026-01-31/hr=05"}
    Path(moved["2026-01-31", "05"].removeprefix("file://")).mkdir(parents=True)
    for op in plan_partitions(table, locations, moved):
        engine.executor.execute(op)
    assert plan_partitions(table, engine.executor.partitions(DATABASE, table.name, moved), moved) == ()
    dropped = (("2026-01-31", "04"), ("2026-01-31", "05"), ("2026-02-01", "00"))
    for executor in (engine.executor, second_executor(engine)):
        executor.execute(DropPartitions(DATABASE, table.name, ("dt", "hr"), dropped))
    left = engine.executor.partitions(DATABASE, table.name, [*dropped, ("2026-01-31", "06")])
    assert set(left) == {("2026-01-31", "06")}


def test_renamed_table_keeps_partitions_and_rows(engine: Engine, make_table: MakeTable) -> None:
    new, table = make_table("renamed_new", record(ID)), make_table("renamed", record(ID))
    for one in (new, table):
        apply_plan(engine.executor, one)
    load(engine, new, "07", record(ID), {"id": 7})
    rename = RenameTable(DATABASE, new.name, table.name)
    with pytest.raises(StatementRefused):
        engine.executor.execute(rename)
    engine.executor.execute(DropTable(DATABASE, table.name, "renamed"))
    engine.executor.execute(rename)
    assert engine.query(f"select id, hr from {DATABASE}.{table.name}") == [(7, "07")]
    found = engine.executor.table(DATABASE, table.name)
    assert found is not None and is_same_location(found.location, new.location)
    assert engine.executor.table(DATABASE, new.name) is None
    load(engine, dataclasses.replace(new, name=table.name), "08", record(ID), {"id": 8})
    assert len(engine.executor.partitions(DATABASE, table.name)) == 2
    with pytest.raises(StatementRefused):
        engine.executor.execute(rename)


def test_concurrent_change_is_refused(engine: Engine, make_table: MakeTable, caplog: pytest.LogCaptureFixture) -> None:
    apply_plan(engine.executor, make_table("late", record(ID)))
    late = second_executor(engine)
    later = make_table("late", record(ID, field("a", "int", default=0)))
    planned = plan_table(late.table(DATABASE, later.name), later)
    quicker = make_table("late", record(ID, field("b", "int", default=0)))
    assert apply_plan(engine.executor, quicker) == 1
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with pytest.raises(StaleRevision):
                late.execute(planned[0])
    warnings = [one.getMessage() for one in caplog.records if "compare_and_set_unavailable" in one.getMessage()]
    assert len(warnings) == (0 if late.has_compare_and_set else 1)
    assert late.has_compare_and_set == (engine.name == SPARK)
    found = engine.executor.table(DATABASE, quicker.name)
    assert found is not None
    assert found.properties[REVISION] == quicker.properties[REVISION]
    assert found.columns == quicker.columns


def test_foreign_tables_are_not_changed_or_dropped(engine: Engine, make_table: MakeTable) -> None:
    table = make_table("foreign", record(ID))
    statement = f"create table {DATABASE}.{table.name} (x int)"
    engine.query(statement) if engine.name == SPARK else engine.executor._run(statement)  # type: ignore[attr-defined]
    with pytest.raises(ForeignTable, match="does not belong to topic"):
        apply_plan(engine.executor, table)
    for op in (CreateTable(table), DropTable(DATABASE, table.name, "foreign")):
        with pytest.raises(ForeignTable):
            engine.executor.execute(op)
    assert engine.executor.table(DATABASE, table.name) is not None


def test_recreated_table_has_its_files(engine: Engine, make_table: MakeTable) -> None:
    table = make_table("dropped", record(ID))
    apply_plan(engine.executor, table)
    load(engine, table, "00", record(ID), {"id": 1})
    for _ in range(2):
        engine.executor.execute(DropTable(DATABASE, table.name, "dropped"))
    assert engine.executor.table(DATABASE, table.name) is None
    assert apply_plan(engine.executor, table) == 1
    locations = {("2026-01-31", "00"): f"{table.location}/dt=2026-01-31/hr=00"}
    for op in plan_partitions(table, {}, locations):
        engine.executor.execute(op)
    assert engine.query(f"select id from {DATABASE}.{table.name}") == [(1,)]


def test_concurrent_creation_of_a_table(engine: Engine, make_table: MakeTable) -> None:
    op = CreateTable(make_table("twice", record(ID)))
    engine.executor.execute(op)
    second_executor(engine).execute(op)
    second_executor(engine).execute(CreateTable(make_table("twice", record(ID))))
    with pytest.raises(StaleRevision):
        engine.executor.execute(CreateTable(make_table("twice", record(ID, field("other", "int")))))


def test_refusal_is_one_line(engine: Engine, make_table: MakeTable) -> None:
    table = make_table("refused", record(ID))
    with pytest.raises(StatementRefused) as caught:
        for op in plan_partitions(table, {}, {("2026-01-31", "00"): "file:///x"}):
            engine.executor.execute(op)
    assert "\n" not in str(caught.value)
    assert "partitions of executors." in str(caught.value)


def test_accepted_and_refused_logins(engine: Engine) -> None:
    if not isinstance(engine, ServerEngine):
        assert engine.name == SPARK
        return
    is_open = engine.address.auth == NOSASL
    for auth in (NOSASL,) if is_open else ("NONE", "LDAP", "CUSTOM"):
        address = dataclasses.replace(engine.address, auth=auth, user="analyst", password="p")
        HiveServerExecutor(address).close()
    other = "NONE" if is_open else NOSASL
    with pytest.raises(MetastoreUnavailable) as caught:
        HiveServerExecutor(dataclasses.replace(engine.address, auth=other))
    assert str(caught.value).startswith(f"the Hive metastore {engine.address} cannot be used: ")
    assert "hive.server_auth" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.hive
def test_refused_password_is_tried_once_per_run(tmp_path: Path) -> None:
    """The server uses an unreachable LDAP and refuses all logins."""
    properties = {"hive.server2.authentication": "LDAP", "hive.server2.authentication.ldap.url": "ldap://127.0.0.1:1"}
    server = HiveServer(tmp_path / "server", properties)
    try:
        hive = HiveSettings(
            executor=f"hive://{server.address}", server_auth="LDAP", server_user="u", server_password="geheim"
        )
        edge = SparkConnection(Settings(hive=hive), local_storage(tmp_path / "warehouse"), io.StringIO())
        for _ in range(3):
            with pytest.raises(MetastoreUnavailable) as caught:
                edge.executor()
        assert "Error validating the login" in str(caught.value)
        assert "hive.server_user" in str(caught.value)
        assert "geheim" not in str(caught.value)
        warnings = (tmp_path / "server" / "hiveserver2.log").read_text(errors="replace")
        assert warnings.count("SASL negotiation failure") == 1
    finally:
        server.stop()
