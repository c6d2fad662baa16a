"""The results of `headrace sql` in all formats, and its one-line errors."""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.cli.sql import _print
from headrace.hive_ddl.errors import ForeignTable, StatementRefused
from headrace.hive_ddl.executors.spark import SparkExecutor
from headrace.hive_ddl.plan import plan_view
from headrace.pipeline.sql import TASKS_PER_CORE, QueryFailed, QueryResult, check_statement, run_query
from support.hive.hive_engines import SparkEngine
from support.hive.topic_views import view_of
from support.pages import page

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("shared_spark")]


@pytest.fixture(scope="module")
def session(shared_engines: tuple[SparkEngine, object]) -> SparkSession:
    session: SparkSession = shared_engines[0].session
    session.sql("create database shop")
    session.sql("create table shop.sales stored as avro as select 1 as id, 'a' as name")
    return session


EVERY_TYPE = """
    select 1 as a, 2 as a, cast('1.50' as decimal(5,2)) d, cast('123456789012345678.5' as decimal(20,1)) wide,
    timestamp'2020-01-01 00:00:01.5' t, date'1000-02-03' day, named_struct('X', 1, 'y', cast(null as int)) s,
    X'01FF' b, null n, array(1, null) ar, map('k', 1) m, double('nan') nan, true yes, 9007199254740993 big, '' empty
"""


def run(session: SparkSession, query: str) -> QueryResult:
    return run_query(session, check_statement(query), "shop", with_values=True)


def test_json_preserves_numbers_and_nesting(session: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    _print(run(session, EVERY_TYPE), "json")
    assert json.loads(capsys.readouterr().out) == [
        {
            "a": 1,
            "a_2": 2,
            "d": "1.50",
            "wide": "123456789012345678.5",
            "t": "2020-01-01 00:00:01.5",
            "day": "1000-02-03",
            "s": {"X": 1, "y": None},
            "b": "01ff",
            "n": None,
            "ar": [1, None],
            "m": {"k": 1},
            "nan": "NaN",
            "yes": True,
            "big": 9007199254740993,
            "empty": "",
        }
    ]


IN_EACH_OTHER = """
    select named_struct('t', t, 'd', d, 'b', b, 'day', day, 'n', cast(null as timestamp)) s, array(t, null) a,
    map(t, b) m, array(named_struct('x', array(d))) deep, cast(null as struct<t: timestamp>) none,
    map(1, d) numbered, timestamp_ntz'2020-01-01 00:00:01.5' local, interval 1 day gap, array(double('inf')) infinite
    from (select timestamp'2020-01-01 00:00:01.5' t, cast('1.50' as decimal(5,2)) d, X'01FF' b, date'1000-02-03' day)
"""
INSIDE = {
    "s": {"t": "2020-01-01 00:00:01.5", "d": "1.50", "b": "01ff", "day": "1000-02-03", "n": None},
    "a": ["2020-01-01 00:00:01.5", None],
    "m": {"2020-01-01 00:00:01.5": "01ff"},
    "deep": [{"x": ["1.50"]}],
    "none": None,
    "numbered": {"1": "1.50"},
    "local": "2020-01-01 00:00:01.5",
    "gap": "INTERVAL '1' DAY",
    "infinite": ["Infinity"],
}


def test_values_have_the_same_form_at_every_depth(session: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(session, IN_EACH_OTHER)
    _print(found, "json")
    assert json.loads(capsys.readouterr().out) == [INSIDE]
    (row,) = found.rows
    texts = {name: text for name, text in zip(found.columns, row, strict=True) if text is not None}
    nested = ("s", "a", "m", "deep", "numbered", "infinite")
    assert {name: json.loads(texts[name]) for name in nested} == {name: INSIDE[name] for name in nested}


def test_kafka_column_is_short_in_tables(session: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    place = "named_struct('partition', 3, 'offset', bigint(7), 'timestamp', timestamp'2020-01-01 00:00:01.5')"
    found = run(session, f"select {place} kafka, 1 id union all select null, 2")
    _print(found, "table")
    rows = capsys.readouterr().out.splitlines()[2:]
    assert rows == ["3:7 2020-01-01 00:00:01.5   1", "NULL                        2"]
    assert found.values[0][0] == {"partition": 3, "offset": 7, "timestamp": "2020-01-01 00:00:01.5"}


def test_json_values_are_created_only_on_request(session: SparkSession) -> None:
    result = run_query(session, "select id, name from sales", "shop")
    assert (result.rows, result.values) == ((("1", "a"),), ())


PARTITIONS = 40


@pytest.fixture(scope="module")
def partitioned(session: SparkSession) -> SparkSession:
    """The session, with a table of many partitions with a file each, and a view of it."""
    session.sql("set hive.exec.dynamic.partition.mode=nonstrict")
    session.sql("create table shop.days (id int) partitioned by (dt string) stored as avro")
    rows = f"select /*+ repartition(1) */ cast(id as int) id, lpad(id, 2, '0') dt from range({PARTITIONS})"
    session.sql(f"insert into shop.days partition (dt) {rows}")
    session.sql("create view shop.late_days as select * from shop.days where dt >= '30'")
    return session


def tasks_of(session: SparkSession, query: str) -> tuple[QueryResult, int]:
    """Returns the result of a query, and the number of tasks of its largest stage."""
    context = session.sparkContext
    context.setJobGroup(query, query)
    try:
        result = run_query(session, query, "shop")
    finally:
        context._jsc.clearJobGroup()
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(query)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    return result, max(stage.numTasks for stage in stages if stage is not None)


@pytest.mark.parametrize(
    ("query", "value"),
    [
        ("select count(*) from days", "40"),
        ("select sum(a.id) from late_days a join days b on a.dt = b.dt", "345"),
        ("with a as (select max(id) id from days) select id from a union all select 7 where 1 = 0", "39"),
    ],
)
def test_number_of_tasks_does_not_grow_with_partitions(partitioned: SparkSession, query: str, value: str) -> None:
    """Each task of a scan deserializes all its partitions, so a task per partition takes quadratic time."""
    result, tasks = tasks_of(partitioned, query)
    assert result.rows == ((value,),)
    assert tasks <= TASKS_PER_CORE * partitioned.sparkContext.defaultParallelism < PARTITIONS


def test_condition_on_partition_column_still_limits_the_partitions(partitioned: SparkSession) -> None:
    assert tasks_of(partitioned, "select id from days where dt = '07'") == (
        QueryResult(("id",), ("int",), (("7",),), ()),
        1,
    )


def test_csv_quotes_special_values(session: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    _print(run(session, "select 'a,\"b\"\n' x, null y, array('z') z"), "csv")
    assert capsys.readouterr().out == 'x,y,z\n"a,""b""\n",,"[""z""]"\n'


def test_table_aligns_numbers_shows_null_and_shortens(
    session: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    query = "select * from values (1, 'one', 1.5), (20000, null, null), (3, repeat('x', 100), 2.25) as t(n, s, d)"
    _print(run(session, query), "table")
    header, rule, *rows = capsys.readouterr().out.splitlines()
    assert header.startswith("    n  s ")
    assert rule.startswith("-----  ---")
    assert rows[0].startswith("    1  one ")
    assert rows[0].endswith("  1.50")
    assert rows[1].startswith("20000  NULL")
    assert rows[1].endswith("NULL")
    assert "x…" in rows[2]
    assert len(rows[2]) < 80


def test_empty_results_and_show_statements(session: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    _print(run(session, "select * from sales where id > 9"), "table")
    assert capsys.readouterr().out == "id  name\n--  ----\n"
    assert ("shop", "sales", "false") in run(session, "show tables").rows
    assert run(session, "-- which?\n (select id from sales);").rows == (("1",),)
    assert run(session, "describe sales").rows[0][:2] == ("id", "int")
    assert len(run(session, "explain select * from sales").rows) == 1
    assert run(session, "select 'a\nInsert b' from sales").rows == (("a\nInsert b",),)


def test_values_do_not_depend_on_the_local_time_zone(session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    query = "select timestamp_millis(1600000000000) t"
    expected = datetime.datetime.fromtimestamp(1600000000, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
    assert run(session, query).rows == ((expected,),)


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("select * from nope", "TABLE_OR_VIEW_NOT_FOUND.*`nope` cannot be found. .*line 1, column 15"),
        ("select\n  nocol from sales", "nocol.*line 2, column 3"),
        ("select 1 +", "Syntax error at or near end of input"),
        ("select 1; select 2", "expected one query"),
        ("select raise_error('boom') from sales", "boom"),
        ("select cast('x' as int)", "'x' of the type"),
        ("with a as (select 1 id) insert into sales select id, 'b' from a", "parses this as Insert"),
        ("with a as (select 1 id) delete from sales", "parses this as Delete"),
        ("/* /* */ select */ drop table sales", "parses this as DropTable"),
        ("explain selec", "Syntax error"),
    ],
)
def test_error_of_a_query_is_one_line(session: SparkSession, query: str, reason: str) -> None:
    with pytest.raises(QueryFailed, match=reason) as caught:
        run(session, query)
    assert "\n" not in str(caught.value)
    assert "org.apache" not in str(caught.value)
    assert run(session, "select count(*) from sales").rows == (("1",),)


@pytest.mark.parametrize(
    "query", ["", "  ;", "-- nothing\n", "drop table sales", "/* x */ insert into a values (1)", "1"]
)
def test_statements_that_write_are_rejected(query: str) -> None:
    with pytest.raises(QueryFailed, match="quer"):
        check_statement(query)


def test_error_names_the_unreadable_file(session: SparkSession, tmp_path: Path) -> None:
    directory = tmp_path / "broken"
    directory.mkdir()
    (directory / "1.avro").write_bytes(b"no avro")
    session.sql(f"create external table shop.broken (x int) stored as avro location 'file://{directory}'")
    with pytest.raises(QueryFailed, match="Not an Avro data file") as caught:
        run(session, "select * from broken")
    assert "\n" not in str(caught.value)


def test_view_of_the_newest_schema_combines_columns(session: SparkSession) -> None:
    """Runs the printed statement on a table as a load would leave it."""
    session.sql(
        "create table shop.orders (id bigint, note string, note__int int, at bigint, here bigint) "
        "partitioned by (dt string, hr string) stored as avro"
    )
    session.sql(
        "insert into shop.orders partition (dt='2026-01-31', hr='12') values "
        "(1, '7', null, 1769860800000001, 1769860800001), (2, 'x', null, null, null), (3, null, 9, null, null)"
    )
    versions = []
    for kind in ("string", "int"):
        times = (
            '{"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}}, '
            '{"name": "here", "type": {"type": "long", "logicalType": "local-timestamp-millis"}}'
        )
        versions.append(
            '{"type": "record", "name": "O", "fields": [{"name": "id", "type": "long"}, '
            f'{{"name": "note", "type": "{kind}", "doc": "it\'s ${{x}}"}}, {times}]}}'
        )
    view = view_of(*versions, kafka_column="none")
    executor = SparkExecutor(session)
    for op in plan_view(executor.table("shop", view.name), view):
        executor.execute(op)
    assert plan_view(executor.table("shop", view.name), view) == ()
    rows = run(session, "select * from orders_latest order by id").rows
    assert rows == (
        ("1", "7", "2026-01-31 12:00:00.000001", "2026-01-31 12:00:00.001", "2026-01-31", "12"),
        ("2", None, None, None, "2026-01-31", "12"),
        ("3", "9", None, None, "2026-01-31", "12"),
    )
    assert ("note", "int", "it's ${x}") in run(session, "describe orders_latest").rows
    executor.execute(dataclasses.replace(view, columns=view.columns[:1]))
    assert run(session, "select * from orders_latest order by id").rows == (("1",), ("2",), ("3",))
    of_another = dataclasses.replace(view, topic="Orders")
    with pytest.raises(ForeignTable, match="is not the view of this topic"):
        plan_view(executor.table("shop", view.name), of_another)
    with pytest.raises(StatementRefused, match=r"the view shop\.of_nothing"):
        executor.execute(dataclasses.replace(view, name="of_nothing", table="nothing"))


def test_queries_of_the_page_read_only_their_partitions(session: SparkSession) -> None:
    session.sql("create table shop.sold_by_day (item string) partitioned by (dt string) stored as avro")
    for day in ("2026-01-29", "2026-01-30", "2026-01-31"):
        session.sql(f"insert into shop.sold_by_day partition (dt = '{day}') values ('lamp')")
    queries = re.findall(r"^SELECT count.* FROM orders WHERE dt.*$", page("docs/tables.md"), re.MULTILINE)
    read = []
    for query in queries:
        plan = session.sql(f"explain formatted {query.replace('orders', 'shop.sold_by_day')}").collect()[0][0]
        found = re.search(r"Pruned Partitions: \[(.*)\]", plan)
        assert found is not None, plan
        read.append(found[1].count("dt="))
    assert read == [1, 2]


def test_casts_of_the_page_convert_numbers_to_times(session: SparkSession) -> None:
    casts = dict(re.findall(r"^\| `([a-z-]+)` \| (?:bigint|int) \| `([^`]+)`", page("docs/tables.md"), re.MULTILINE))
    numbers = {
        "timestamp-micros": ("1769860800000001", "2026-01-31 12:00:00.000001"),
        "timestamp-nanos": ("1769860800000001000", "2026-01-31 12:00:00.000001"),
        "local-timestamp-millis": ("1769860800001", "2026-01-31 12:00:00.001"),
        "local-timestamp-micros": ("1769860800000001", "2026-01-31 12:00:00.000001"),
        "time-millis": ("3600001", "01:00:00.001"),
        "time-micros": ("3600000001", "01:00:00.000001"),
    }
    assert casts.keys() == numbers.keys()
    for name, (number, text) in numbers.items():
        assert run(session, f"select {casts[name]} from values ({number}) as t(c)").rows == ((text,),), name
