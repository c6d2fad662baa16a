"""The view `<table>_latest` in Spark: it shows the values that were sent, in the types of the newest schema."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from pyspark.sql import SparkSession

from headrace.avro_schema import Schema, parse_schema
from headrace.hive_ddl.errors import StatementRefused
from headrace.hive_ddl.names import quote_identifier, quote_literal
from headrace.hive_ddl.ops import ReplaceView, ViewColumn
from headrace.hive_ddl.plan import plan_view
from headrace.hive_ddl.render import qualified_name
from headrace.hive_ddl.types import table_columns
from headrace.loader.inspect.latest_view import latest_view
from headrace.loader.inspect.view_conversions import CORRECTIONS
from headrace.loader.load_schema import EMPTY, fold, table_schema
from support.hive.hive_engines import ServerEngine, SparkEngine
from support.hive.hive_topics import DATABASE, FoldedTopic
from support.hive.topic_views import topic_state
from support.hive.view_oracle import KINDS, LOCAL, converted, shown_later, single, unscaled
from support.schemas.strategies import DAY_MS, histories

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("shared_spark")]

ROOT = Path(__file__).resolve().parents[3]
COLUMNS_PER_QUERY = 60
PAIRS = [(source, target) for source in KINDS for target in KINDS]
ROWS = max(len(kind.values) for kind in KINDS.values())


@pytest.fixture(scope="module")
def spark(shared_engines: tuple[SparkEngine, object]) -> SparkEngine:
    return shared_engines[0]


def view_of_topic(topic: FoldedTopic, newest: str) -> ReplaceView:
    """Returns the view of a topic's table, for its newest schema."""
    state = topic_state(topic.states[-1], topic.table)
    view = latest_view(topic.name, state, "position", DATABASE, len(topic.states), newest)
    assert view is not None
    return view


def version(fields: Sequence[tuple[str, Any]]) -> str:
    return json.dumps({"type": "record", "name": "O", "fields": [{"name": n, "type": kind} for n, kind in fields]})


def with_own_name(kind: Any, number: int) -> Any:
    """Returns a type, with another type name if it has one, because a schema may define a name only once."""
    return {**kind, "name": f"T{number}"} if isinstance(kind, dict) and "name" in kind else kind


def test_view_shows_values_of_every_earlier_type_as_the_oracle(spark: SparkEngine, tmp_path: Path) -> None:
    """Each field has one type in the first version and another one in the second, for every pair of types."""
    topic = FoldedTopic("converted", tmp_path / "converted", [spark])
    for side in (0, 1):
        fields = [(f"f{number}", with_own_name(KINDS[pair[side]].type, number)) for number, pair in enumerate(PAIRS)]
        messages = [
            {f"f{number}": cycle(KINDS[pair[side]].values, row) for number, pair in enumerate(PAIRS)}
            for row in range(ROWS)
        ]
        text = version(fields)
        topic.evolve(parse_schema(text), *messages)
    columns = view_of_topic(topic, text).columns[: len(PAIRS)]
    wrong = []
    for zone, is_ansi in (("UTC", "true"), ("America/New_York", "false")):
        with session_settings(spark.session, zone, is_ansi):
            for start in range(0, len(PAIRS), COLUMNS_PER_QUERY):
                chunk = range(start, min(start + COLUMNS_PER_QUERY, len(PAIRS)))
                rows = select(spark.session, topic, [columns[number] for number in chunk])
                assert len(rows) == 2 * ROWS
                for position, row in enumerate(rows):
                    for number, value in zip(chunk, row, strict=True):
                        source, target = PAIRS[number]
                        kind = KINDS[source if position < ROWS else target]
                        sent = cycle(kind.values, position % ROWS)
                        expected = (
                            converted(source, target, sent) if position < ROWS else shown_later(source, target, sent)
                        )
                        actual = normalized(target, value, expected)
                        if not is_same(actual, expected):
                            wrong.append(f"{zone} {source} -> {target}: {sent!r} is {actual!r} instead of {expected!r}")
    assert not wrong, f"{len(wrong)} differences\n" + "\n".join(wrong[:60])


def test_view_converts_parts_and_has_unique_names(spark: SparkEngine, tmp_path: Path) -> None:
    """Lists, maps, records and unions are converted part by part. The column of a field with a name that is reserved,
    taken or the partition's has the name of the table's column."""
    topic = FoldedTopic("parts", tmp_path / "parts", [spark])
    for fields, message in (PARTS_BEFORE, PARTS_AFTER):
        text = version(fields)
        topic.evolve(parse_schema(text), message)
    view = view_of_topic(topic, text)
    for op in plan_view(spark.executor.table(DATABASE, view.name), view):
        spark.executor.execute(op)
    names = [column.name for column in view.columns]
    assert names == [
        *(name for name, _ in PARTS_AFTER[0][:-5]),
        "dt_",
        "hr_",
        "a",
        "a_2",
        "kafka_",
        "kafka",
        "dt",
        "hr",
    ]
    shown_names = ", ".join(f"to_json(struct({name}))" for name in names[:-3])
    rows = spark.query(f"SELECT {shown_names}, kafka.`offset` FROM {DATABASE}.{view.name} ORDER BY kafka.`offset`")
    before, after = ([json.loads(text) for text in row[:-1]] for row in rows)
    assert before == [
        {name: value} if value is not None else {} for name, value in zip(names, PARTS_SHOWN, strict=False)
    ]
    assert after[0] == {"items": ["x"]}
    assert after[8:10] == [{"same": {"age": 8, "at": 5}}, {"sames": [{"price": 1.005}]}]
    assert after[-1] == {"kafka_": 3}


def test_view_shows_days_of_every_year_as_sent(spark: SparkEngine, tmp_path: Path) -> None:
    """Spark itself shows days before 1582-10-15 as days of the Julian calendar. It shows two days as the same one in
    years with a Julian leap day that the Gregorian calendar lacks; the view takes it for the later one."""
    day, at = KINDS["date"].type, KINDS["timestamp-millis"].type
    member = record("Member", day=day, ats={"type": "map", "values": ["null", at]})
    fields = [
        *(("day", day), ("at", ["null", at]), ("days", array(["null", day])), ("member", ["null", member])),
        *(("union", ["null", "string", at]), ("again", day)),
    ]
    before = [(name, "string" if name == "again" else kind) for name, kind in fields]
    starts = [datetime(year, 2, 20) for year in (1, 4, *range(100, 1601, 100))] + [datetime(1582, 10, 1)]
    first_days = [(start - datetime(1970, 1, 1)).days for start in starts]
    numbers = [-719_162, *(first + step for first in first_days for step in range(25))]
    messages = [
        {
            "day": number,
            "at": ("long", number * DAY_MS),
            "days": [("int", number), None],
            "member": ("Member", {"day": number, "ats": {"k": ("long", number * DAY_MS + DAY_MS - 1)}}),
            "union": ("long", number * DAY_MS + 1),
            "again": number,
        }
        for number in numbers
    ]
    topic = FoldedTopic("calendar", tmp_path / "calendar", [spark])
    topic.evolve(parse_schema(version(before)), {**messages[0], "again": "0001-01-02"})
    topic.evolve(parse_schema(text := version(fields)), *messages)
    view = view_of_topic(topic, text)
    for op in plan_view(spark.executor.table(DATABASE, view.name), view):
        spark.executor.execute(op)
    at_name = next(column.name for column in topic.fields if column.name == "union")
    columns = (
        "unix_date(day), unix_millis(at), unix_date(days[0]), days[1], unix_date(member.day), "
        f"unix_millis(member.ats['k']), unix_millis({at_name}.long), unix_date(again)"
    )
    for zone in ("UTC", "America/New_York"):
        with session_settings(spark.session, zone, "true"):
            first, *rows = spark.query(f"SELECT {columns} FROM {DATABASE}.{view.name} ORDER BY kafka.`offset`")
            assert first[-1] == -719_161
            ambiguous = set()
            for number, row in zip(numbers, rows, strict=True):
                shown = row[0]
                ms = shown * DAY_MS
                assert row == (shown, ms, shown, None, shown, ms + DAY_MS - 1, ms + 1, shown)
                if shown != number:
                    assert shown == number + 1
                    ambiguous.add(number)
            years = [(datetime(1970, 1, 1) + timedelta(days=number)).year for number in sorted(ambiguous)]
            assert years == [year for year in range(100, 1501, 100) if year % 400]


def test_documented_expression_for_dates_is_that_of_the_view() -> None:
    page = (ROOT / "docs" / "hive.md").read_text(encoding="utf-8")
    assert CORRECTIONS["date"].replace("{value}", "c") in page


def test_view_is_replaced_when_a_column_becomes_wider(spark: SparkEngine, tmp_path: Path) -> None:
    """Spark casts to the types of the view's creation: a value beyond the old type would fail the query."""
    topic = FoldedTopic("wider", tmp_path / "wider", [spark])
    for kind, value in (("int", 1), ("long", 2**40)):
        text = version([("n", kind)])
        topic.evolve(parse_schema(text), {"n": value})
        view = view_of_topic(topic, text)
        for op in plan_view(spark.executor.table(DATABASE, view.name), view):
            spark.executor.execute(op)
    assert spark.query(f"SELECT n FROM {DATABASE}.{view.name} ORDER BY n") == [(1,), (2**40,)]


def test_view_of_messages_that_are_no_records_has_the_column_value(spark: SparkEngine, tmp_path: Path) -> None:
    topic = FoldedTopic("plain", tmp_path / "plain", [spark])
    for text, message in (('"string"', "7"), ('"long"', 8)):
        topic.evolve(parse_schema(text), message)
    view = view_of_topic(topic, text)
    for op in plan_view(spark.executor.table(DATABASE, view.name), view):
        spark.executor.execute(op)
    assert spark.query(f"SELECT value FROM {DATABASE}.{view.name} ORDER BY value") == [(7,), (8,)]


def test_view_shows_no_branch_of_a_union_as_another_type_of_its_name(spark: SparkEngine, tmp_path: Path) -> None:
    """Field `a` loses the branch of the first message, `b` changes the order of its branches, and `c` becomes a
    union of two types with equal names and members."""

    def created(namespace: str) -> dict[str, Any]:
        return {"type": "record", "name": f"{namespace}.Created", "fields": [{"name": "p", "type": "int"}]}

    a, b, c = ([created(f"orders.{name}"), created(f"users.{name}")] for name in "abc")
    texts = [version([("a", a), ("b", b), ("c", c[1])]), version([("a", a[1]), ("b", b[::-1]), ("c", c)])]
    first: list[dict[str, Any]] = [
        {"a": (f"{one}.a.Created", {"p": 1}), "b": (f"{one}.b.Created", {"p": 2}), "c": {"p": 3}}
        for one in ("orders", "users")
    ]
    last = {"a": {"p": 4}, "b": ("orders.b.Created", {"p": 5}), "c": ("orders.c.Created", {"p": 6})}
    topic = FoldedTopic("one_name", tmp_path / "one_name", [spark])
    topic.evolve(parse_schema(texts[0]), *first)
    topic.evolve(parse_schema(texts[1]), last)
    columns = ", ".join(f"to_json({column.expression})" for column in view_of_topic(topic, texts[1]).columns[:3])
    rows = spark.query(f"SELECT {columns} FROM {DATABASE}.{topic.table} ORDER BY kafka.`offset`")
    assert rows == [
        (None, '{"created":{"p":2}}', '{"created_2":{"p":3}}'),
        ('{"p":1}', '{"created_2":{"p":2}}', '{"created_2":{"p":3}}'),
        ('{"p":4}', '{"created":{"p":5}}', '{"created":{"p":6}}'),
    ]


def test_view_that_the_metastore_cannot_store_is_refused_in_one_plain_line(
    shared_engines: tuple[SparkEngine, ServerEngine], tmp_path: Path
) -> None:
    topic = FoldedTopic("broad", tmp_path / "broad", shared_engines[:1])
    text = version([("n", "int")])
    topic.evolve(parse_schema(text))
    view = view_of_topic(topic, text)
    long = ViewColumn("long", quote_literal("x" * 40_000))
    view = dataclasses.replace(view, columns=(*view.columns, long))
    for engine in shared_engines:
        with pytest.raises(StatementRefused) as caught:
            engine.executor.execute(view)
        assert caught.value.reason.startswith("its query has 40,")
        assert "Derby database stores 32,700; set hive.metastore " in caught.value.reason
        assert len(caught.value.reason) < 250


@settings(max_examples=25, deadline=None)
@given(histories())
def test_view_of_a_generated_history_is_valid(spark: SparkEngine, versions: list[Schema]) -> None:
    """Spark accepts the expressions of each view for columns of the table's types."""
    state = EMPTY
    for number, schema in enumerate(versions, 1):
        state = fold(state, number, schema, number)
    view = latest_view("t", topic_state(state, "t"), "none", DATABASE, len(versions), versions[-1].text)
    assert view is not None
    columns = table_columns(parse_schema(table_schema(state.text, "none")))
    nulls = ", ".join(f"CAST(NULL AS {quoted_members(one.type)}) AS {quote_identifier(one.name)}" for one in columns)
    shown = ", ".join(f"{one.expression} AS {quote_identifier(one.name)}" for one in view.columns)
    query = f"SELECT {shown} FROM (SELECT {nulls}, '' AS dt, '' AS hr)"
    try:
        frame = spark.session.sql(query)
    except Exception as error:
        raise AssertionError(f"{error}\n{[one.text for one in versions]}") from error
    assert frame.columns == [one.name for one in view.columns]
    assert len({name.lower() for name in frame.columns}) == len(frame.columns)


def quoted_members(hive_type: str) -> str:
    """Returns a Hive type with quoted names of members, for SQL."""
    return re.sub(r"([<,])(\w+):", r"\1`\2`:", hive_type)


def record(name: str, **members: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": kind} for n, kind in members.items()]}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def values_of(kind: str) -> dict[str, Any]:
    return {"type": "map", "values": KINDS[kind].type}


PARTS_BEFORE = (
    [
        ("items", array("int")),
        ("times", array(KINDS["timestamp-millis"].type)),
        ("prices", values_of("decimal(9,2)")),
        ("who", record("Old", Name="string", age="string", gone="int")),
        ("lines", array(record("OldLine", at=KINDS["timestamp-micros"].type))),
        ("one", "int"),
        ("many", ["int", "string"]),
        ("unlike", array("int")),
        ("same", record("Same", at=KINDS["timestamp-millis"].type, age="string", gone="int")),
        ("sames", array(record("SameLine", price=KINDS["decimal(9,2)"].type))),
        ("dt", "int"),
        ("hr", "int"),
        ("a", "int"),
        ("A", "int"),
    ],
    {
        "items": [1, 2],
        "times": [1_000, -1],
        "prices": {"k": unscaled(150)},
        "who": {"Name": "n", "age": "7", "gone": 1},
        "lines": [{"at": 5}, {"at": -5_000_000}],
        "one": 3,
        "many": ("string", "4"),
        "unlike": [1],
        "same": {"at": -1, "age": "7", "gone": 1},
        "sames": [{"price": unscaled(150)}],
        "dt": 1,
        "hr": 2,
        "a": 4,
        "A": 5,
    },
)
PARTS_AFTER = (
    [
        ("items", array("string")),
        ("times", array(KINDS["timestamp-micros"].type)),
        ("prices", values_of("decimal(9,3)")),
        ("who", record("New", Name="string", age="int", added="int")),
        ("lines", array(record("NewLine", at=KINDS["timestamp-nanos"].type))),
        ("one", ["null", "string", "long"]),
        ("many", "long"),
        ("unlike", {"type": "map", "values": "int"}),
        ("same", record("Same", age="int", at=KINDS["timestamp-micros"].type)),
        ("sames", array(record("SameLine", price=KINDS["decimal(9,3)"].type))),
        *PARTS_BEFORE[0][-4:],
        ("kafka", "int"),  # the name of the table's own column
    ],
    {
        "items": ["x"],
        "times": [1],
        "prices": {},
        "who": {"Name": "m", "age": 1, "added": 2},
        "lines": [],
        "one": None,
        "many": 1,
        "unlike": {},
        "same": {"age": 8, "at": 5},
        "sames": [{"price": unscaled(1_005)}],
        "dt": 1,
        "hr": 2,
        "a": 4,
        "A": 5,
        "kafka": 3,
    },
)
PARTS_SHOWN = (
    ["1", "2"],
    [1_000_000, -1_000],
    {"k": 1.5},
    {"name": "n", "age": 7},
    [{"at": 5_000}, {"at": -5_000_000_000}],
    {"string": "3"},
    4,
    None,
    {"age": 7, "at": -1_000},
    [{"price": 1.5}],
    1,
    2,
    4,
    5,
    None,
)
"""The row of `PARTS_BEFORE` in the types of `PARTS_AFTER`, as JSON without nulls."""


def cycle(values: Sequence[Any], row: int) -> Any:
    return values[row % len(values)]


@contextmanager
def session_settings(session: SparkSession, zone: str, is_ansi: str) -> Iterator[None]:
    """Sets the time zone of the session and whether it has the ANSI mode, while the context is open."""
    names = ("spark.sql.session.timeZone", "spark.sql.ansi.enabled", "spark.sql.codegen.factoryMode")
    before = [session.conf.get(name) for name in names]
    for name, value in zip(names, (zone, is_ansi, "NO_CODEGEN"), strict=True):
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, text in zip(names, before, strict=True):
            session.conf.set(name, str(text))


def select(session: SparkSession, topic: FoldedTopic, columns: Sequence[ViewColumn]) -> list[tuple[Any, ...]]:
    """Returns the values of a view's columns, by offset, with timestamps and dates as numbers."""
    expressions = ", ".join(f"({column.expression}) AS {quote_identifier(column.name)}" for column in columns)
    frame = session.sql(f"SELECT {expressions}, kafka.`offset` AS at FROM {qualified_name(DATABASE, topic.table)}")
    frame.createOrReplaceTempView("shown")
    casts = ", ".join(READABLE.get(kind.partition("(")[0], "{0}").format(name) for name, kind in frame.dtypes[:-1])
    return [tuple(row) for row in session.sql(f"SELECT {casts} FROM shown ORDER BY at").collect()]


READABLE = {
    "timestamp": "unix_micros({0})",
    "timestamp_ntz": "CAST({0} AS string)",
    "date": "unix_date({0})",
    "decimal": "CAST({0} AS string)",
}
"""By Spark type, the expression for a value that Python can hold: its own times end with the year 9999."""


def normalized(target: str, value: Any, expected: Any) -> Any:
    """Returns a value that Spark returned in the form of the oracle."""
    if value is None:
        return None
    if isinstance(value, bytearray):
        return bytes(value)
    if target in LOCAL:
        return micros_of(value)
    if target.startswith("decimal(") and isinstance(value, str):
        return Fraction(value)
    if target == "string" and isinstance(expected, float):
        number = float(value)
        is_single = abs(expected) < 1e39 and single(expected) == expected
        return single(number) if is_single else number  # Java's text of a float is short
    return value


def micros_of(text: str) -> int:
    """Returns the microseconds since 1970 of a timestamp in Spark's form, which may have more than four digits for the
    year and a sign."""
    match = re.fullmatch(r"([+-]?)(\d{4,})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d+))?", text)
    assert match is not None, text
    sign, year, month, day, hour, minute, second, fraction = match.groups()
    # The calendar repeats after 400 years, which have 146,097 days.
    cycles, rest = divmod(-int(year) if sign == "-" else int(year), 400)
    days = (datetime(2000 + rest, int(month), int(day)) - datetime(1970, 1, 1)).days + (cycles - 5) * 146_097
    seconds = ((days * 24 + int(hour)) * 60 + int(minute)) * 60 + int(second)
    return seconds * 1_000_000 + int((fraction or "0").ljust(6, "0"))


def is_same(actual: Any, expected: Any) -> bool:
    if isinstance(expected, float) and isinstance(actual, float) and math.isnan(expected):
        return math.isnan(actual)
    return type(actual) is type(expected) and bool(actual == expected)
