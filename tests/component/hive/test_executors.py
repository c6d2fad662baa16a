"""What every executor promises, on every engine: whatever a topic, schema or property holds comes back unchanged, and
no writer that is late goes unnoticed."""

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
from headrace.hive_ddl.ops import CreateTable, DropPartitions, DropTable
from headrace.hive_ddl.plan import plan_partitions, plan_table
from headrace.hive_ddl.table import (
    REVISION,
    SCHEMA_LITERAL,
    SCHEMA_URL,
    TableState,
    desired_table,
    local_location,
)
from headrace.hive_ddl.types import COMMENT_CHARS_MAX
from headrace.loader.storage.local import local_storage
from headrace.pipeline.load import SparkConnection
from headrace.settings import HiveSettings, Settings
from support.hive.hive_engines import SPARK, THRIFT_SERVER, Engine, ServerEngine, another
from support.hive.hive_server import HiveServer

pytestmark = pytest.mark.xdist_group("shared_spark")

DATABASE = "executors"
REVISIONS = itertools.count(1)

Wanted = Callable[..., TableState]


@pytest.fixture
def wanted(engine: Engine, tmp_path: Path) -> Wanted:
    """Makes tables, each of a topic of this name below the test's own directory; names are those of the engine."""
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


def bring(executor: Executor, table: TableState) -> int:
    ops = plan_table(executor.table(table.database, table.name), table)
    for op in ops:
        executor.execute(op)
    return len(ops)


def publish(table: TableState) -> None:
    """The file of a schema that is no literal, as the loader does before."""
    if SCHEMA_URL in table.properties:
        published = Path(table.properties[SCHEMA_URL].removeprefix("file://"))
        published.parent.mkdir(parents=True, exist_ok=True)
        published.write_text(table.schema_text, encoding="utf-8")


def load(engine: Engine, table: TableState, hour: str, schema: dict[str, Any], *rows: dict[str, Any]) -> None:
    directory = Path(table.location.removeprefix("file://")) / "dt=2026-01-31" / f"hr={hour}"
    directory.mkdir(parents=True)
    with (directory / "1.avro").open("wb") as file:
        fastavro.writer(file, fastavro.parse_schema(schema), rows, codec="snappy")
    asked = {("2026-01-31", hour): local_location(directory)}
    found = engine.executor.partitions(table.database, table.name, asked)
    for op in plan_partitions(table, found, asked):
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


def test_in_a_database_that_is_not_there_is_no_table(engine: Engine) -> None:
    assert engine.executor.table("no_such_database", "t") is None


def test_hostile_texts_come_back_unchanged_wherever_they_stand(engine: Engine, wanted: Wanted) -> None:
    suit = {"type": "enum", "name": "Suit", "symbols": ["from", "TABLE_x"], "doc": HOSTILE[0]}
    texts = [field(f"text_{n}", "string", doc=text, default=text) for n, text in enumerate(HOSTILE)]
    schema = record(ID, field("suit", suit, doc=HOSTILE[1]), field("url", "string", default="${env:HOME}"), *texts)
    properties = {f"hostile {n} ' \\ ${{env:HOME}} ;": text for n, text in enumerate(HOSTILE)}
    name = table_name(f"hostile_{engine.name}")
    table = wanted("hostile '; --", schema, name=name, subject=HOSTILE[2], properties=properties)
    assert bring(engine.executor, table) == 1
    found = engine.executor.table(DATABASE, table.name)
    assert found is not None
    assert {key: found.properties[key] for key in table.properties} == table.properties
    assert found.columns == table.columns
    assert found.partition_columns == ("dt", "hr")
    assert bring(engine.executor, table) == 0
    load(engine, table, "00", record(*schema["fields"][:2]), {"id": 1, "suit": "from"})
    newer = {f"text_{n}": text for n, text in enumerate(reversed(HOSTILE))}
    load(engine, table, "01", schema, {"id": 2, "suit": "TABLE_x", "url": "u", **newer})
    names = ", ".join(f"text_{n}" for n in range(len(HOSTILE)))
    query = f"select id, suit, url, {names} from {DATABASE}.{table.name} where dt = '2026-01-31'"
    assert sorted(engine.ask(query)) == [(1, "from", "${env:HOME}", *HOSTILE), (2, "TABLE_x", "u", *newer.values())]


@pytest.mark.parametrize("word", ["order", "_from"])
def test_columns_and_tables_may_be_called_by_words_of_the_language(engine: Engine, wanted: Wanted, word: str) -> None:
    schema = record(ID, field(word, "string"), field("inner", record(field("Select", "int")) | {"name": "Inner"}))
    table = wanted(word, schema, name=table_name(word))
    bring(engine.executor, table)
    load(engine, table, "00", schema, {"id": 1, word: "x", "inner": {"Select": 7}})
    query = f"select id, `{word.lower()}`, `inner`.`select` from {DATABASE}.`{table.name}`"
    assert engine.ask(query) == [(1, "x", 7)]
    engine.executor.execute(DropTable(DATABASE, table.name, word))


@pytest.mark.spark
def test_what_a_schema_says_of_a_field_is_its_column_s_comment(
    engines_of_spark: dict[str, Engine], tmp_path: Path
) -> None:
    """The metastore is told once. Of a table that Spark's SQL made, Spark goes on showing what it was made with, which
    it keeps beside the schema while the types stay the same."""

    def comment() -> str:
        rows = engine.ask(f"describe {DATABASE}.{table.name}")
        return next(str(row[2]) for row in rows if row[0] == "id")

    for engine in engines_of_spark.values():
        engine.executor.ensure_database(DATABASE)
        name = table_name(f"said_{engine.name}".replace(" ", "_"))
        for number, said in enumerate(("first", 'it\'s \\ "q" ${env:HOME} \U0001f600', "x" * COMMENT_CHARS_MAX)):
            table = desired_table(
                database=DATABASE,
                name=name,
                location=local_location(tmp_path / name),
                topic="said",
                subject="said-value",
                version=number + 1,
                schema_text=json.dumps(record(field("id", "int", doc=said))),
                revision=f"{next(REVISIONS)}-test",
            )
            assert bring(engine.executor, table) == 1
            assert comment() == (said if engine.name == SPARK else "first")
            assert bring(engine.executor, table) == 0


def test_a_schema_beyond_the_limit_lives_in_a_file(engine: Engine, wanted: Wanted) -> None:
    columns = [field(f"column_{i:04}", ["null", "string"], default=None) for i in range(600)]
    short, long = record(ID), record(ID, *columns)
    table = wanted("long", short)
    bring(engine.executor, table)
    load(engine, table, "00", short, {"id": 1})
    grown = wanted("long", long)
    assert SCHEMA_URL in grown.properties
    publish(grown)
    assert bring(engine.executor, grown) == 2
    load(engine, grown, "01", long, {"id": 2, "column_0599": "x"})
    query = f"select id, column_0599 from {DATABASE}.{table.name}"
    assert sorted(engine.ask(query)) == [(1, None), (2, "x")]
    found = engine.executor.table(DATABASE, table.name)
    assert found is not None
    assert SCHEMA_LITERAL not in found.properties
    assert len(found.columns) == 601
    assert bring(engine.executor, wanted("long", long)) == 0
    assert bring(engine.executor, wanted("long", short)) == 1
    assert sorted(engine.ask(f"select id from {DATABASE}.{table.name}")) == [(1,), (2,)]


@pytest.mark.parametrize("members", [3, 1000])
def test_a_type_beyond_what_a_metastore_stores(engine: Engine, wanted: Wanted, members: int) -> None:
    """Of a table that is made with it, and of one that grows to it, in a metastore that DataNucleus made. Of all
    statements that have no columns, Spark's ALTER TABLE alone writes them, those of before."""

    def schema_of(count: int) -> dict[str, Any]:
        fields = [field(f"some_column_of_a_table_{n:04}", ["null", "string"], default=None) for n in range(count)]
        return record(ID, field("before", ["null", record(*fields) | {"name": "Row"}], default=None))

    topic, counts = f"nested_{members}", (members, 1001, 1002)
    for number, count in enumerate(counts):
        schema, last = schema_of(count), f"some_column_of_a_table_{count - 1:04}"
        table = wanted(topic, schema)
        publish(table)
        is_stored = engine.name == THRIFT_SERVER and number and counts[number - 1] > 3
        if is_stored:
            with pytest.raises(
                StatementRefused, match=r"32,672 characters .* set hive\.executor to spark .* load again$"
            ):
                bring(engine.executor, table)
            return
        bring(engine.executor, table)
        assert bring(engine.executor, wanted(topic, schema)) == 0
        load(engine, table, f"{number:02}", schema, {"id": number, "before": {last: "x"}})
        query = f"select id, `before`.{last} from {DATABASE}.{table.name}"
        assert sorted(engine.ask(query)) == [*((n, None) for n in range(number)), (number, "x")]


def test_partitions_are_added_found_moved_and_dropped(engine: Engine, wanted: Wanted) -> None:
    table = wanted("partitions", record(ID))
    bring(engine.executor, table)
    asked = {(f"2026-01-{day}", f"{hour:02}"): "" for day in (30, 31) for hour in range(24)}
    asked = {(dt, hr): f"{table.location}/dt={dt}/hr={hr}" for dt, hr in asked}
    (added,) = plan_partitions(table, {}, asked)
    for executor in (engine.executor, another(engine)):
        executor.execute(added)
    some = {values: asked[values] for values in sorted(asked)[22:27]}
    assert plan_partitions(table, engine.executor.partitions(DATABASE, table.name, some), some) == ()
    assert engine.executor.partitions(DATABASE, table.name, [("2026-02-01", "00")]) == {}
    assert engine.executor.partitions(DATABASE, f"{table.name}_absent", [("2026-02-01", "00")]) == {}
    moved = {("2026-01-31", "05"): f"{table.location}/_g2/dt=2026-01-31/hr=05"}
    Path(moved["2026-01-31", "05"].removeprefix("file://")).mkdir(parents=True)
    for op in plan_partitions(table, asked, moved):
        engine.executor.execute(op)
    assert plan_partitions(table, engine.executor.partitions(DATABASE, table.name, moved), moved) == ()
    gone = (("2026-01-31", "04"), ("2026-01-31", "05"), ("2026-02-01", "00"))
    for executor in (engine.executor, another(engine)):
        executor.execute(DropPartitions(DATABASE, table.name, ("dt", "hr"), gone))
    left = engine.executor.partitions(DATABASE, table.name, [*gone, ("2026-01-31", "06")])
    assert set(left) == {("2026-01-31", "06")}


def test_a_late_writer_is_refused(engine: Engine, wanted: Wanted, caplog: pytest.LogCaptureFixture) -> None:
    bring(engine.executor, wanted("late", record(ID)))
    late = another(engine)
    later = wanted("late", record(ID, field("a", "int", default=0)))
    planned = plan_table(late.table(DATABASE, later.name), later)
    quicker = wanted("late", record(ID, field("b", "int", default=0)))
    assert bring(engine.executor, quicker) == 1
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with pytest.raises(StaleRevision):
                late.execute(planned[0])
    said = [one.getMessage() for one in caplog.records if "compare_and_set_unavailable" in one.getMessage()]
    assert len(said) == (0 if late.has_compare_and_set else 1)
    assert late.has_compare_and_set == (engine.name == SPARK)
    found = engine.executor.table(DATABASE, quicker.name)
    assert found is not None
    assert found.properties[REVISION] == quicker.properties[REVISION]
    assert found.columns == quicker.columns


def test_tables_of_others_are_neither_changed_nor_dropped(engine: Engine, wanted: Wanted) -> None:
    table = wanted("foreign", record(ID))
    statement = f"create table {DATABASE}.{table.name} (x int)"
    engine.ask(statement) if engine.name == SPARK else engine.executor._run(statement)  # type: ignore[attr-defined]
    with pytest.raises(ForeignTable, match="is not its own"):
        bring(engine.executor, table)
    for op in (CreateTable(table), DropTable(DATABASE, table.name, "foreign")):
        with pytest.raises(ForeignTable):
            engine.executor.execute(op)
    assert engine.executor.table(DATABASE, table.name) is not None


def test_a_table_dropped_and_made_again_has_its_files(engine: Engine, wanted: Wanted) -> None:
    table = wanted("dropped", record(ID))
    bring(engine.executor, table)
    load(engine, table, "00", record(ID), {"id": 1})
    for _ in range(2):
        engine.executor.execute(DropTable(DATABASE, table.name, "dropped"))
    assert engine.executor.table(DATABASE, table.name) is None
    assert bring(engine.executor, table) == 1
    asked = {("2026-01-31", "00"): f"{table.location}/dt=2026-01-31/hr=00"}
    for op in plan_partitions(table, {}, asked):
        engine.executor.execute(op)
    assert engine.ask(f"select id from {DATABASE}.{table.name}") == [(1,)]


def test_two_creators_of_one_table(engine: Engine, wanted: Wanted) -> None:
    op = CreateTable(wanted("twice", record(ID)))
    engine.executor.execute(op)
    another(engine).execute(op)
    another(engine).execute(CreateTable(wanted("twice", record(ID))))
    with pytest.raises(StaleRevision):
        engine.executor.execute(CreateTable(wanted("twice", record(ID, field("other", "int")))))


def test_what_an_engine_refuses_is_one_line(engine: Engine, wanted: Wanted) -> None:
    table = wanted("refused", record(ID))
    with pytest.raises(StatementRefused) as caught:
        for op in plan_partitions(table, {}, {("2026-01-31", "00"): "file:///x"}):
            engine.executor.execute(op)
    assert "\n" not in str(caught.value)
    assert "partitions of executors." in str(caught.value)


def test_logins_that_a_server_takes_and_one_that_it_does_not(engine: Engine) -> None:
    if not isinstance(engine, ServerEngine):
        assert engine.name == SPARK
        return
    is_open = engine.address.auth == NOSASL
    for auth in (NOSASL,) if is_open else ("NONE", "LDAP", "CUSTOM"):
        address = dataclasses.replace(engine.address, auth=auth, user="somebody", password="p")
        HiveServerExecutor(address).close()
    other = "NONE" if is_open else NOSASL
    with pytest.raises(MetastoreUnavailable) as caught:
        HiveServerExecutor(dataclasses.replace(engine.address, auth=other))
    assert str(caught.value).startswith(f"the Hive metastore {engine.address} cannot be used: ")
    assert "hive.server_auth" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.hive
def test_a_refused_password_is_one_line_and_tried_once_in_a_run(tmp_path: Path) -> None:
    """By a server that asks an LDAP which is not there: it refuses everybody."""
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
        said = (tmp_path / "server" / "hiveserver2.log").read_text(errors="replace")
        assert said.count("SASL negotiation failure") == 1
    finally:
        server.stop()
