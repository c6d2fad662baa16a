"""The executor on a real metastore: Spark reads its tables, with files that fastavro wrote before and after changes."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql import SparkSession

from headrace.hive_ddl.errors import ForeignTable, StaleRevision, StatementRefused
from headrace.hive_ddl.executors import metastore
from headrace.hive_ddl.executors.spark import SparkExecutor
from headrace.hive_ddl.names import directory_name, quote_literal, table_name
from headrace.hive_ddl.ops import CreateTable, DropTable, SetProperties
from headrace.hive_ddl.plan import plan_partitions, plan_table
from headrace.hive_ddl.render import render
from headrace.hive_ddl.table import REVISION, SCHEMA_LITERAL, SCHEMA_URL, TableState, desired_table, local_location
from support.hive.counting_client import CountingClient
from support.hive.hive_engines import SparkEngine

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("shared_spark")]

DATABASE = "hive_executor"


class Hive:
    """A session, its executor, and a warehouse for files."""

    def __init__(self, session: SparkSession, warehouse: Path) -> None:
        self.session = session
        self.executor = SparkExecutor(session)
        self.warehouse = warehouse
        self.revision = 0
        self.executor.ensure_database(DATABASE)

    def table_state(self, topic: str, schema: dict[str, Any], **changes: Any) -> TableState:
        self.revision += 1
        arguments: dict[str, Any] = {
            "database": DATABASE,
            "name": table_name(topic),
            "location": local_location(self.warehouse / directory_name(topic)),
            "topic": topic,
            "subject": f"{topic}-value",
            "version": 1,
            "schema_text": json.dumps(schema),
            "revision": f"{self.revision}-test",
        }
        return desired_table(**arguments | changes)

    def apply_changes(self, table_state: TableState, executor: SparkExecutor | None = None) -> int:
        """Plans and runs the operations, and returns their number."""
        executor = executor or self.executor
        ops = plan_table(executor.table(table_state.database, table_state.name), table_state)
        for op in ops:
            executor.execute(op)
        return len(ops)

    def load(self, table: TableState, hour: str, schema: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
        """Writes a file into a partition."""
        directory = Path(table.location.removeprefix("file://")) / "dt=2026-01-31" / f"hr={hour}"
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / "1.avro").open("wb") as file:
            fastavro.writer(file, fastavro.parse_schema(schema), rows, codec="snappy")
        selected = {("2026-01-31", hour): local_location(directory)}
        for op in plan_partitions(table, self.executor.partitions(table.database, table.name, selected), selected):
            self.executor.execute(op)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.session.sql(query).collect()]


@pytest.fixture(scope="module")
def hive(shared_engines: tuple[SparkEngine, object], tmp_path_factory: pytest.TempPathFactory) -> Hive:
    return Hive(shared_engines[0].session, tmp_path_factory.mktemp("hive") / "warehouse")


def record(*fields: dict[str, Any], name: str = "Event") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


ID = field("id", "int")
WHO = {"type": "record", "name": "Who", "fields": [field("Name", "string")]}
GROWN_WHO = {
    "type": "record",
    "name": "Who",
    "fields": [field("Name", "string"), field("age", ["null", "int"], default=None)],
}
SUIT = {"type": "enum", "name": "Suit", "symbols": ["A", "B"]}
GROWN_SUIT = {"type": "enum", "name": "Suit", "symbols": ["A", "B", "C"]}
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}

Fields = list[dict[str, Any]]
Evolution = tuple[Fields, dict[str, Any], Fields, dict[str, Any], str, list[Any]]
"""Fields before and after a change, a row of each, the selected expressions, and their values for the two rows."""

EVOLUTIONS: dict[str, Evolution] = {
    "added with a default": ([], {}, [field("c", "string", default="x")], {"c": "new"}, "c", ["x", "new"]),
    "added with a control character as default": (
        [],
        {},
        [field("c", "string", default="\x01")],
        {"c": "n"},
        "c",
        ["\x01", "n"],
    ),
    "added with a backslash and a quote as default": (
        [],
        {},
        [field("c", "string", default="\\'${env:HOME}")],
        {"c": "n"},
        "c",
        ["\\'${env:HOME}", "n"],
    ),
    "added nullable": ([], {}, [field("c", ["null", "int"], default=None)], {"c": 7}, "c", [None, 7]),
    "added nullable record": (
        [],
        {},
        [field("c", ["null", WHO], default=None)],
        {"c": {"Name": "n"}},
        "c.name",
        [None, "n"],
    ),
    "added nullable decimal": (
        [],
        {},
        [field("c", ["null", PRICE], default=None)],
        {"c": b"\x01\x00"},
        "cast(c as string)",
        [None, "2.56"],
    ),
    "removed": ([field("c", "string")], {"c": "old"}, [], {}, "id", [1, 2]),
    "removed but kept as nullable": (
        [field("c", "string")],
        {"c": "old"},
        [field("c", ["null", "string"], default=None)],
        {"c": None},
        "c",
        ["old", None],
    ),
    "widened": ([field("c", "int")], {"c": 1}, [field("c", "long")], {"c": 2**40}, "c", [1, 2**40]),
    "widened to double": ([field("c", "int")], {"c": 1}, [field("c", "double")], {"c": 0.5}, "c", [1.0, 0.5]),
    "widened inside an array": (
        [field("c", {"type": "array", "items": "int"})],
        {"c": [1]},
        [field("c", {"type": "array", "items": "long"})],
        {"c": [2**40]},
        "c[0]",
        [1, 2**40],
    ),
    "string to bytes": (
        [field("c", "string")],
        {"c": "a"},
        [field("c", "bytes")],
        {"c": b"b"},
        "cast(c as string)",
        ["a", "b"],
    ),
    "renamed with an alias": (
        [field("c", "string")],
        {"c": "old"},
        [field("d", "string", aliases=["c"])],
        {"d": "new"},
        "d",
        ["old", "new"],
    ),
    "made nullable": (
        [field("c", "string")],
        {"c": "old"},
        [field("c", ["null", "string"], default=None)],
        {"c": None},
        "c",
        ["old", None],
    ),
    "record grown": (
        [field("c", WHO)],
        {"c": {"Name": "o"}},
        [field("c", GROWN_WHO)],
        {"c": {"Name": "n", "age": 3}},
        "c.age",
        [None, 3],
    ),
    "enum grown": ([field("c", SUIT)], {"c": "A"}, [field("c", GROWN_SUIT)], {"c": "C"}, "c", ["A", "C"]),
    "reordered": (
        [field("c", "string"), field("d", "int")],
        {"c": "o", "d": 1},
        [field("d", "int"), field("c", "string")],
        {"c": "n", "d": 2},
        "c",
        ["o", "n"],
    ),
}


@pytest.mark.parametrize("name", EVOLUTIONS)
def test_rows_from_before_and_after_a_change_are_read(hive: Hive, name: str) -> None:
    old_fields, old_row, new_fields, new_row, expression, expected = EVOLUTIONS[name]
    topic = f"evolution {name}"
    old_schema, new_schema = record(ID, *old_fields), record(ID, *new_fields)
    table = hive.table_state(topic, old_schema)
    assert hive.apply_changes(table) == 1
    hive.load(table, "00", old_schema, [{"id": 1, **old_row}])
    assert hive.apply_changes(hive.table_state(topic, new_schema, version=2)) == 1
    hive.load(table, "01", new_schema, [{"id": 2, **new_row}])
    found = hive.rows(f"select id, {expression} from {DATABASE}.{table.name} order by id")
    assert found == list(zip([1, 2], expected, strict=True))
    assert hive.apply_changes(hive.table_state(topic, new_schema, version=2)) == 0
    # A later change succeeds: the table is not locked.
    assert hive.apply_changes(hive.table_state(topic, old_schema, version=3)) == 1


@pytest.mark.parametrize("topic", ["Shop.Page-Views", "order", "_under", "a b%é", "dots.and-dashes", "x" * 249])
def test_any_topic_name_gets_a_table(hive: Hive, topic: str) -> None:
    table = hive.table_state(topic, record(ID))
    hive.apply_changes(table)
    hive.load(table, "00", record(ID), [{"id": 1}])
    assert hive.rows(f"select id, dt, hr from {DATABASE}.`{table.name}`") == [(1, "2026-01-31", "00")]
    assert hive.executor.table(DATABASE, table.name).topic == topic  # type: ignore[union-attr]  # it was just made


def test_tables_by_name_reads_existing_tables_in_few_requests(hive: Hive) -> None:
    columns = [field(f"column_{i:04}", ["null", "string"], default=None) for i in range(600)]
    schemas = {f"many_{number:03}": record(ID, field(f"of_{number}", "string", doc="é\n")) for number in range(120)}
    schemas["many_long"] = record(ID, *columns)  # read from avro.schema.url
    for topic, schema in schemas.items():
        hive.apply_changes(hive.table_state(topic, schema))
    calls: list[str] = []
    executor = hive.executor
    executor._client = CountingClient(client := executor._client, calls)
    try:
        found = executor.tables_by_name(DATABASE, [*schemas, "absent"])
        assert calls == ["getTableObjectsByName", "getTableObjectsByName", "getFields"]
        calls.clear()
        names = executor.table_names(DATABASE)
        assert calls == ["getAllTables"]
    finally:
        executor._client = client
    assert found == {topic: executor.table(DATABASE, topic) for topic in schemas}
    assert schemas.keys() <= names
    assert "absent" not in names
    assert executor.tables_by_name("no_such_database", ["a"]) == {}
    assert executor.table_names("no_such_database") == frozenset()


def test_reserved_words_and_hostile_docs_are_escaped(hive: Hive) -> None:
    schema = record(
        field("select", "string", doc="it's ${env:HOME} \\ `x` \x01 é 漢; --"),
        field("Order", "string", default="${hiveconf:x}"),
        field("_from", "string"),
        field("url", "string", doc="d" * 300),
    )
    table = hive.table_state("hostile", schema)
    hive.apply_changes(table)
    hive.load(table, "00", schema, [{"select": "a", "Order": "b", "_from": "c", "url": "d"}])
    assert hive.rows(f"select `select`, `order`, `_from`, url from {DATABASE}.hostile") == [("a", "b", "c", "d")]
    current = hive.executor.table(DATABASE, "hostile")
    assert current is not None
    assert current.properties[SCHEMA_LITERAL] == json.dumps(schema)
    assert current.columns == table.columns


def test_printed_statements_create_the_same_table(hive: Hive) -> None:
    schema = record(field("c", "string", doc='it\'s ${env:HOME} \\ "q" ; \n -- é', default="\x01\\"))
    table_state = hive.table_state("printed", schema)
    hive.session.conf.set("spark.sql.variable.substitute", "true")
    try:
        hive.session.sql(render(CreateTable(table_state)).rstrip().rstrip(";"))
    finally:
        hive.session.conf.set("spark.sql.variable.substitute", "false")
    assert hive.apply_changes(table_state) == 0
    text = "a'b\\c${env:HOME}\n;\0\t\r é"
    assert hive.rows(f"select {quote_literal(text)}") == [(text,)]


def test_long_schema_is_stored_in_a_file(hive: Hive) -> None:
    columns = [field(f"column_{i:04}", ["null", "string"], default=None) for i in range(600)]
    short, long = record(ID), record(ID, *columns)
    assert len(json.dumps(long)) > 35_000
    table = hive.table_state("long", short)
    hive.apply_changes(table)
    hive.load(table, "00", short, [{"id": 1}])
    assert hive.apply_changes(hive.table_state("long", long)) == 2
    hive.load(table, "01", long, [{"id": 2, "column_0599": "x"}])
    query = f"select id, column_0599 from {DATABASE}.long order by id"
    assert hive.rows(query) == [(1, None), (2, "x")]
    current = hive.executor.table(DATABASE, "long")
    assert current is not None
    assert SCHEMA_URL in current.properties
    assert SCHEMA_LITERAL not in current.properties
    assert len(current.columns) == 601
    assert hive.apply_changes(hive.table_state("long", long)) == 0
    assert hive.apply_changes(hive.table_state("long", short)) == 1
    assert hive.rows(f"select id from {DATABASE}.long order by id") == [(1,), (2,)]


def nested(members: int) -> dict[str, Any]:
    """Returns a schema with a column whose type takes 40 characters per member."""
    fields = [field(f"some_column_name_of_a_table_{n:04}", ["null", "string"], default=None) for n in range(members)]
    row = {"type": "record", "name": "Row", "fields": fields}
    return record(ID, field("before", ["null", row], default=None), field("rows", {"type": "array", "items": "Row"}))


@pytest.mark.parametrize("members", [3, 2000])
def test_type_too_long_for_the_metastore_is_read_from_the_schema(hive: Hive, members: int) -> None:
    """Covers a table created with the type, and tables that grow to it and beyond."""
    topic = f"nested_{members}"
    for version, count in enumerate((members, members + 998, members + 999), 1):
        schema, last = nested(count), f"some_column_name_of_a_table_{count - 1:04}"
        table = hive.table_state(topic, schema, version=version)
        hive.apply_changes(table)
        assert hive.apply_changes(hive.table_state(topic, schema, version=version)) == 0
        hive.load(table, f"{version:02}", schema, [{"id": version, "before": {last: "x"}, "rows": [{last: "y"}]}])
        query = f"select id, before.{last}, rows[0].{last} from {DATABASE}.{topic} order by id"
        assert hive.rows(query) == [*((n, None, None) for n in range(1, version)), (version, "x", "y")]
        current = hive.executor.table(DATABASE, topic)
        assert current is not None
        assert current.columns == table.columns


def test_literal_too_long_for_the_metastore_is_rejected(hive: Hive) -> None:
    columns = [field(f"column_{i:04}", ["null", "string"], default=None) for i in range(700)]
    with pytest.raises(StatementRefused) as caught:
        hive.apply_changes(hive.table_state("too_long", record(*columns), literal_chars_max=10**9))
    assert "\n" not in str(caught.value)


def test_manually_created_table_is_not_changed(hive: Hive) -> None:
    hive.session.sql(f"create table {DATABASE}.by_hand (x int) stored as avro")
    with pytest.raises(ForeignTable, match="by_hand does not belong to topic"):
        hive.apply_changes(hive.table_state("by.hand", record(ID)))
    with pytest.raises(ForeignTable):
        hive.executor.execute(CreateTable(hive.table_state("by.hand", record(ID))))
    assert hive.rows(f"describe {DATABASE}.by_hand")[0][:2] == ("x", "int")


def test_partitions_can_be_added_twice_and_moved(hive: Hive) -> None:
    table = hive.table_state("partitions", record(ID))
    hive.apply_changes(table)
    other = SparkExecutor(hive.session)
    selected = {("2026-01-31", f"{hour:02}"): f"{table.location}/dt=2026-01-31/hr={hour:02}" for hour in range(24)}
    ops = plan_partitions(table, {}, selected)
    for op in ops:
        hive.executor.execute(op)
        other.execute(op)
    assert len(hive.executor.partitions(DATABASE, table.name)) == 24
    assert plan_partitions(table, other.partitions(DATABASE, table.name), selected) == ()
    moved = {("2026-01-31", "05"): f"{table.location}/_g2/dt=2026-01-31/hr=05"}
    for op in plan_partitions(table, other.partitions(DATABASE, table.name, moved), moved):
        other.execute(op)
    assert plan_partitions(table, hive.executor.partitions(DATABASE, table.name, moved), moved) == ()
    assert hive.executor.partitions(DATABASE, table.name, [("2026-02-01", "00")]) == {}
    assert hive.executor.partitions(DATABASE, "absent", [("2026-02-01", "00")]) == {}
    removed = [("2026-01-31", "04"), ("2026-01-31", "05"), ("2026-02-01", "00")]
    (drop,) = plan_partitions(table, {}, {}, removed)
    for executor in (hive.executor, other):
        executor.execute(drop)
    left = hive.executor.partitions(DATABASE, table.name)
    assert len(left) == 22 and not set(removed) & set(left)
    hive.session.sql(render(drop).rstrip().rstrip(";"))


def test_adding_partitions_reads_their_table_once(hive: Hive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a table takes a metastore as long as adding three partitions."""
    table = hive.table_state("looked_at", record(ID))
    hive.apply_changes(table)
    seen_before = SparkExecutor(hive.session)
    assert seen_before.table(DATABASE, table.name) is not None

    def refuse(*name: str) -> None:
        raise AssertionError(name)

    for hour, executor in enumerate((hive.executor, seen_before)):
        monkeypatch.setattr(executor, "_get_table", refuse)
        selected = {("2026-01-31", f"{hour:02}"): f"{table.location}/dt=2026-01-31/hr={hour:02}"}
        for op in plan_partitions(table, executor.partitions(DATABASE, table.name, selected), selected):
            executor.execute(op)
        monkeypatch.undo()
    assert len(hive.executor.partitions(DATABASE, table.name)) == 2
    hive.executor.execute(DropTable(DATABASE, table.name, "looked_at"))
    with pytest.raises(StatementRefused, match="does not exist"):
        hive.executor.execute(plan_partitions(table, {}, {("2026-02-01", "00"): table.location})[0])


def test_partitions_with_special_values_are_added_in_several_calls(hive: Hive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hive escapes values in partition names, and wide tables need several calls."""
    monkeypatch.setattr(metastore, "CHARS_PER_CALL_MAX", 1)
    table = hive.table_state("odd_partitions", record(ID))
    hive.apply_changes(table)
    values = (("2026-01-31", 'a=b/c %"é'), ("2026-01-31", "00"), ("unknown", "00"))
    selected = {each: f"{table.location}/{number} %3A é" for number, each in enumerate(values)}
    for op in plan_partitions(table, hive.executor.partitions(DATABASE, table.name, selected), selected):
        hive.executor.execute(op)
    for found in (
        hive.executor.partitions(DATABASE, table.name, selected),
        hive.executor.partitions(DATABASE, table.name),
    ):
        assert set(found) == set(selected)
        assert plan_partitions(table, found, selected) == ()


def test_concurrent_change_is_rejected(hive: Hive) -> None:
    hive.apply_changes(hive.table_state("late", record(ID)))
    late, quick = SparkExecutor(hive.session), hive.executor
    assert late.has_compare_and_set
    (planned,) = plan_table(
        late.table(DATABASE, "late"), hive.table_state("late", record(ID, field("a", "int", default=0)))
    )
    table_state = hive.table_state("late", record(ID, field("b", "int", default=0)))
    assert hive.apply_changes(table_state, quick) == 1
    with pytest.raises(StaleRevision):
        late.execute(planned)
    assert quick.table(DATABASE, "late").columns == table_state.columns  # type: ignore[union-attr]  # it was just made
    # Repeating the same change, as after a lost response, is not a conflict.
    current = quick.table(DATABASE, "late")
    assert current is not None
    with pytest.raises(StaleRevision):
        quick.execute(planned)


def test_concurrent_writers_lose_no_accepted_change(hive: Hive) -> None:
    """The count is part of the revision: during a change, Derby may return one property from before and another from
    after."""
    hive.apply_changes(hive.table_state("race", record(ID), revision="0-test-0"))
    accepted: list[int] = []
    failures: list[BaseException] = []

    def increment(worker: int) -> None:
        executor = SparkExecutor(hive.session)
        for attempt in range(15):
            try:
                current = executor.table(DATABASE, "race")
                assert current is not None and current.revision is not None
                count = int(current.revision.split("-")[-1]) + 1
                new = ((REVISION, f"{attempt}-{worker}-{count}"),)
                executor.execute(SetProperties(DATABASE, "race", current.revision, new))
                accepted.append(count)
            except StaleRevision:
                continue
            except BaseException as failure:
                failures.append(failure)
                raise

    workers = [threading.Thread(target=increment, args=(number,)) for number in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures
    current = hive.executor.table(DATABASE, "race")
    assert current is not None and current.revision is not None
    assert sorted(accepted) == list(range(1, int(current.revision.split("-")[-1]) + 1))


def test_probe_leaves_no_table(hive: Hive) -> None:
    assert hive.executor.has_compare_and_set
    assert [name for (_, name, _) in hive.rows(f"show tables in {DATABASE}") if "probe" in name] == []


def test_concurrent_creation_of_a_table(hive: Hive) -> None:
    table_state = hive.table_state("twice", record(ID))
    op = CreateTable(table_state)
    hive.executor.execute(op)
    SparkExecutor(hive.session).execute(op)
    SparkExecutor(hive.session).execute(CreateTable(hive.table_state("twice", record(ID))))
    with pytest.raises(StaleRevision):
        hive.executor.execute(CreateTable(hive.table_state("twice", record(ID, field("other", "int")))))
