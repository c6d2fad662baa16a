"""Which plans are permitted. Plans of real statements are in tests/component/spark/test_sql_endpoint.py."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.sql_endpoint.permitted import LEAVES, READ_CLASSES, READ_STATEMENTS, WRITE_STATEMENTS
from headrace.pipeline.sql_endpoint.statements import (
    JavaValue,
    PlanPart,
    StatementDenied,
    check_plan,
    is_leaf,
    statement_kind,
)
from headrace.registry.access.permissions import SqlPermission

LOADER = frozenset({"headrace"})
READ, WRITE = SqlPermission.READ, SqlPermission.WRITE
PACKAGES = {
    "logical": "org.apache.spark.sql.catalyst.plans.logical.",
    "analysis": "org.apache.spark.sql.catalyst.analysis.",
    "expressions": "org.apache.spark.sql.catalyst.expressions.",
    "command": "org.apache.spark.sql.execution.command.",
}


def value(name: str, *parts: PlanPart) -> JavaValue:
    package, _, simple = name.partition(".")
    return JavaValue(PACKAGES[package] + simple, parts)


def seq(*parts: PlanPart) -> JavaValue:
    return JavaValue("scala.collection.immutable.$colon$colon", parts)


def some(*parts: PlanPart) -> JavaValue:
    return JavaValue("scala.Some", parts)


NONE = JavaValue("scala.None$", ())
EMPTY = JavaValue("scala.collection.immutable.Map$EmptyMap$", ())


def relation(*names: str, options: str = "{}", streaming: bool = False) -> JavaValue:
    kind = JavaValue("org.apache.spark.sql.util.CaseInsensitiveStringMap", (options,))
    return value("analysis.UnresolvedRelation", seq(*names), kind, streaming)


def query(*parts: PlanPart) -> JavaValue:
    return value("logical.Project", seq(*parts), relation("headrace", "orders"))


def function(*names: str) -> JavaValue:
    return value("analysis.UnresolvedFunction", seq(*names), seq(), False)


def insert(*names: str) -> JavaValue:
    target = relation(*names, options="{__required_write_privileges__=INSERT}")
    return value("logical.InsertIntoStatement", target, EMPTY, seq(), query(), False)


def spec(**fields: PlanPart) -> JavaValue:
    defaults: dict[str, PlanPart] = {
        "properties": EMPTY,
        "provider": NONE,
        "options": value("logical.OptionList", seq()),
        "location": NONE,
        "comment": NONE,
        "collation": NONE,
        "serde": NONE,
        "external": False,
        "constraints": seq(),
    }
    return value("logical.UnresolvedTableSpec", *(defaults | fields).values())


def create(*names: str, table: JavaValue | None = None) -> JavaValue:
    identifier = value("analysis.UnresolvedIdentifier", seq(*names), False)
    return value("logical.CreateTableAsSelect", identifier, seq(), query(), table or spec(), EMPTY, False, False)


def database(*names: str, properties: PlanPart = EMPTY) -> JavaValue:
    return value(
        "logical.CreateNamespace", value("analysis.UnresolvedNamespace", seq(*names), False), False, properties
    )


def reason(plan: PlanPart, permission: SqlPermission | None) -> str:
    with pytest.raises(StatementDenied) as failure:
        check_plan(plan, permission, LOADER)
    return str(failure.value)


@pytest.mark.parametrize(
    "plan",
    [
        query(),
        query(function("abs"), function("COUNT")),
        value("logical.Filter", value("expressions.Exists", query(function("max"))), query()),
        value("command.ExplainCommand", query(), JavaValue("org.apache.spark.sql.execution.SimpleMode$", ())),
        value("command.SetCommand", some(JavaValue("scala.Tuple2", ("spark.sql.session.timeZone", some("UTC"))))),
        relation("orders"),
        relation("spark_catalog", "headrace", "a b"),
    ],
)
def test_reader_may_query(plan: JavaValue) -> None:
    check_plan(plan, READ, LOADER)
    check_plan(plan, WRITE, LOADER)


@pytest.mark.parametrize("plan", [query(), insert("mine", "t"), None, "text"])
def test_user_without_grant_may_do_nothing(plan: PlanPart) -> None:
    with pytest.raises(StatementDenied) as failure:
        check_plan(plan, None, LOADER)
    assert failure.value.needs is READ


HOSTILE = [
    value("logical.ScriptTransformation", "sh -c id", query()),
    value("command.AddJarsCommand", seq("/tmp/x.jar")),
    JavaValue("org.apache.spark.sql.catalyst.plans.logical.Projector", ()),
    JavaValue("com.example.Project", ()),
    JavaValue("Project", ()),
    relation("text", "/etc/passwd"),
    relation("text", "file:x"),
    relation("a\\b"),
    relation(""),
    relation(),
    relation("x" * 256),
    relation("t", options="{path=/etc/passwd}"),
    relation("t", options="{__required_write_privileges__=INSERT, path=/etc/passwd}"),
    relation("t", streaming=True),
    function("reflect"),
    function("REFLECT"),
    function("builtin", "abs"),
    function(),
    value("analysis.UnresolvedTableValuedFunction", seq("python_worker_logs"), seq(), False),
    value("command.SetCommand", NONE),
    value("command.SetCommand", some(JavaValue("scala.Tuple2", ("spark.sql.runSQLonFile", some("true"))))),
    value("command.SetCommand", some(JavaValue("scala.Tuple2", ("-v", NONE)))),
]
NESTINGS = [
    lambda plan: plan,
    lambda plan: query(plan),
    lambda plan: query(some(seq(JavaValue("scala.Tuple2", ("x", plan))))),
    lambda plan: value("logical.Filter", value("expressions.ScalarSubquery", query(plan)), query()),
    lambda plan: value("command.ExplainCommand", plan),
    lambda plan: create("mine", "t", table=spec(comment=some(plan))),
]


@pytest.mark.parametrize("nest", NESTINGS)
@pytest.mark.parametrize("plan", HOSTILE)
def test_hostile_part_is_denied_at_any_depth(plan: JavaValue, nest: object) -> None:
    assert callable(nest)
    reason(nest(plan), READ)
    with pytest.raises(StatementDenied) as failure:
        check_plan(nest(plan), WRITE, LOADER)
    assert failure.value.needs is None, "no grant permits it"


@given(st.text(alphabet="abcXYZ.$", min_size=1, max_size=30))
def test_unknown_class_is_denied(name: str) -> None:
    known = READ_CLASSES | READ_STATEMENTS | WRITE_STATEMENTS | LEAVES
    class_name = f"org.apache.spark.sql.{name}"
    if class_name not in known and not is_leaf(class_name):
        assert "does not permit" in reason(query(JavaValue(class_name, ())), WRITE)


@pytest.mark.parametrize(
    "plan",
    [
        insert("mine", "t"),
        insert("spark_catalog", "mine", "t"),
        value("logical.UnresolvedWith", insert("mine", "t"), seq()),
        create("mine", "t"),
        create("mine", "t", table=spec(provider=some("parquet"), comment=some("x"))),
        create("mine", "t", table=spec(provider=some("ORC"))),
        database("mine"),
        database("mine", properties=seq(JavaValue("scala.Tuple2", ("comment", "location")))),
        value("command.ExplainCommand", insert("mine", "t")),
    ],
)
def test_write_needs_the_grant(plan: JavaValue) -> None:
    check_plan(plan, WRITE, LOADER)
    with pytest.raises(StatementDenied) as failure:
        check_plan(plan, READ, LOADER)
    assert failure.value.needs is WRITE


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (insert("headrace", "orders"), "only loads"),
        (insert("HeadRace", "orders"), "only loads"),
        (insert("spark_catalog", "headrace", "orders"), "only loads"),
        (value("logical.Union", seq(insert("mine", "t"), insert("headrace", "orders"))), "only loads"),
        (value("command.ExplainCommand", insert("headrace", "orders")), "only loads"),
        (database("headrace"), "only loads"),
        (insert("orders"), "DATABASE.NAME"),
        (insert("a", "b", "c"), "DATABASE.NAME"),
        (insert("spark_catalog", "t"), "DATABASE.NAME"),
        (create(), "DATABASE.NAME"),
        (create("mine", ".."), "DATABASE.NAME"),
        (create("mine", "t\n"), "DATABASE.NAME"),
        (database("a", "b"), "DATABASE.NAME"),
        (create("mine", "t", table=spec(provider=some("jdbc"))), "jdbc"),
        (create("mine", "t", table=spec(provider=some("text"))), "text"),
        (create("mine", "t", table=spec(location=some("/tmp"))), "location"),
        (create("mine", "t", table=spec(properties=seq(JavaValue("scala.Tuple2", ("a", "b"))))), "properties"),
        (create("mine", "t", table=spec(options=value("logical.OptionList", seq("x")))), "options"),
        (create("mine", "t", table=spec(serde=some("x"))), "serde"),
        (create("mine", "t", table=spec(external=True)), "EXTERNAL"),
        (database("mine", properties=seq(JavaValue("scala.Tuple2", ("location", "/tmp")))), "LOCATION"),
        (
            database(
                "mine",
                properties=seq(
                    JavaValue("scala.Tuple2", ("comment", "x")), JavaValue("scala.Tuple2", ("location", "/tmp"))
                ),
            ),
            "LOCATION",
        ),
    ],
)
def test_writer_stays_in_the_warehouse_and_out_of_the_loaders_databases(plan: JavaValue, expected: str) -> None:
    assert expected in reason(plan, WRITE)


def test_kind_of_a_statement_is_its_class() -> None:
    assert [statement_kind(plan) for plan in (query(), insert("a", "b"), None)] == [
        "Project",
        "InsertIntoStatement",
        "unknown",
    ]
