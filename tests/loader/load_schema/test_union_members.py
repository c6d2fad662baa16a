"""Members of unions: the values of one full name are in one member, whatever the other branches and their order."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings

from headrace.avro_codec import CapturedTime
from headrace.avro_schema import Record, Schema, canonical_text, parse_schema
from headrace.loader.load_schema import RULES, LoadState, explain, fold, load_record, route_entries, split
from headrace.loader.project.projection import Unconvertible, compile_projection
from support.examples import examples
from support.loader.projection_oracle import decode, encode, project, states_of
from support.schemas.union_histories import UnionHistory, union_histories


@settings(max_examples=examples(0.25))
@given(union_histories())
def test_values_of_one_full_name_are_in_one_member_and_equal_what_was_sent(history: UnionHistory) -> None:
    states = states_of(*history.versions)
    loads = [parse_schema(state.text) for state in states]
    members: dict[str, set[str]] = {}
    for sent in history.sent:
        writer, written_load = history.versions[sent.version], loads[sent.version]
        body = encode(writer, history.place.put((sent.branch, sent.value)))
        row = project(writer, written_load, body, states[sent.version].routes[sent.version + 1])
        for number in range(sent.version, len(loads)):
            route = states[number].routes[sent.version + 1]
            rows = [
                decode(written_load, row, reader=loads[number]),
                decode(loads[number], project(writer, loads[number], body, route)),
                decode(loads[number], project(writer, loads[number], body)),
            ]
            for found in map(history.place.take, rows):
                ((member, value),) = [item for item in found.items() if item[1] is not None]
                members.setdefault(sent.branch, set()).add(member)
                assert _without_nulls(value) == _without_nulls(sent.value)
    assert all(len(found) == 1 for found in members.values()), members
    assert len(set().union(*members.values())) == len(members), members


def _without_nulls(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    plain = {key: item[1] if isinstance(item, tuple) else item for key, item in value.items()}
    return {key: item for key, item in plain.items() if item is not None}


def record(name: str, *aliases: str, fields: str = "p") -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "aliases": list(aliases),
        "fields": [{"name": one, "type": "int"} for one in fields],
    }


def event(kind: Any) -> Schema:
    node = {"type": "record", "name": "Event", "namespace": "top", "fields": [{"name": "e", "type": kind}]}
    return parse_schema(canonical_text(parse_schema(json.dumps(node), strict=False)), strict=False)


def members_by_version(*unions: Any) -> list[list[str]]:
    """Returns, for each version, the member of each branch in the branches' order."""
    versions = [event(union) for union in unions]
    state = states_of(*versions)[-1]
    (column,) = load_record(state.text).fields
    members, _ = split(column.type)
    assert isinstance(members, Record)
    found = []
    for number, union in enumerate(unions, 1):
        (field,) = route_entries(state.routes[number], 1)
        entries = route_entries(field.nested, len(union) if isinstance(union, list) else 1)
        found.append([members.fields[entry.column].name for entry in entries])
    return found


ORDERS, USERS = record("orders.Created"), record("users.Created")


@pytest.mark.parametrize(
    ("unions", "members"),
    [
        pytest.param([[ORDERS, USERS], [USERS, ORDERS]], [["Created", "Created_2"], ["Created_2", "Created"]]),
        pytest.param(
            [[ORDERS, "int"], [USERS, ORDERS]], [["Created", "int"], ["Created_2", "Created"]], id="added in front"
        ),
        pytest.param(
            [[ORDERS, "int"], [USERS, "int"], [ORDERS, USERS]],
            [["Created", "int"], ["Created_2", "int"], ["Created", "Created_2"]],
            id="replaced by another type of the name",
        ),
        pytest.param(
            [[record("a.X"), record("a.Y")], [record("b.Y"), record("b.X")]],
            [["X", "Y"], ["Y_2", "X_2"]],
            id="other namespace without aliases",
        ),
        pytest.param(
            [[record("a.X"), record("a.Y")], [record("b.Y", "a.Y"), record("b.X", "a.X")], [record("b.X"), "int"]],
            [["X", "Y"], ["Y", "X"], ["X", "int"]],
            id="other namespace with aliases",
        ),
        pytest.param(
            [[{**record("X"), "namespace": ""}, "int"], [record("b.X", ".X"), "int"], ["int", record("b.X")]],
            [["X", "int"], ["X", "int"], ["int", "X"]],
            id="first namespace with an alias",
        ),
        pytest.param(
            [[record("a.X"), record("b.X")], [record("b.Y", "X"), "int"]],
            [["X", "X_2"], ["X_2", "int"]],
            id="alias in the namespace of its type",
        ),
        pytest.param(
            [
                [record("a.X"), "int"],
                [record("a.Y", "X"), "int"],
                [record("a.X"), record("a.Y")],
                [record("a.X"), "int"],
            ],
            [["X", "int"], ["X", "int"], ["X_2", "X"], ["X_2", "int"]],
            id="former name given to another type",
        ),
        pytest.param(
            [[record("a.X"), "int"], [record("a.Y", "X"), "int"], [record("a.X"), "int"], [record("a.Y"), "int"]],
            [["X", "int"]] * 4,
            id="renamed and back",
        ),
        pytest.param(
            [[record("a.X"), record("a.Y")], [record("a.Z", "Y", "X"), "int"], [record("a.Y"), record("a.Z")]],
            [["X", "Y"], ["X", "int"], ["Y", "X"]],
            id="one type with the names of two as aliases",
        ),
        pytest.param(
            [
                [record("a.X"), "int"],
                [record("a.Z", "X"), record("a.Y", "X")],
                [record("a.Y", "X"), record("a.Z", "X")],
            ],
            [["X", "int"], ["X", "Y"], ["Y", "X"]],
            id="two types with one alias",
        ),
        pytest.param(
            [[record("a.X"), record("a.Y")], [record("a.Y", "X"), record("a.X", "Y")]],
            [["X", "Y"], ["Y", "X"]],
            id="aliases that exchange the names",
        ),
        pytest.param(
            [[record("a.X"), "int"], [record("a.Y", "X"), record("a.X")]],
            [["X", "int"], ["Y", "X"]],
            id="alias of a type that still exists",
        ),
        pytest.param(
            [[record("x-y.K"), record("x_y.K")], [record("x_y.K"), record("x-y.K")]],
            [["K", "K_2"], ["K_2", "K"]],
            id="namespaces that become equal in the table",
        ),
        pytest.param(
            [[ORDERS, "int"], [{"type": "enum", "name": "orders.Created", "symbols": ["A"]}, "int"], [ORDERS, "int"]],
            [["Created", "int"], ["Created_2", "int"], ["Created", "int"]],
            id="another kind of type under the name",
        ),
        pytest.param(
            [[{"type": "fixed", "name": "a.F", "size": size}, "int"] for size in (2, 3, 2)],
            [["F", "int"], ["F_2", "int"], ["F", "int"]],
            id="another size under the name",
        ),
        pytest.param([[ORDERS, "int"], USERS, ORDERS], [["Created", "int"], ["Created_2"], ["Created"]], id="no union"),
    ],
)
def test_member_of_each_branch(unions: list[Any], members: list[list[str]]) -> None:
    assert members_by_version(*unions) == members


def columns_by_version(*kinds: Any) -> list[str]:
    """Returns, for each version, the name of the column of its only field."""
    state = states_of(*map(event, kinds))[-1]
    columns = load_record(state.text).fields
    entries = [next(route_entries(state.routes[number], 1)) for number in range(1, len(kinds) + 1)]
    return [columns[entry.column].name for entry in entries]


KINDS = [{"type": "enum", "name": f"{namespace}.Kind", "symbols": ["A"]} for namespace in ("orders", "users")]
HASHES = [{"type": "fixed", "name": f"{namespace}.Hash", "size": 2} for namespace in ("orders", "users")]


@pytest.mark.parametrize(("orders", "users"), [(ORDERS, USERS), KINDS, HASHES])
def test_type_known_to_a_sibling_column_goes_there(orders: Any, users: Any) -> None:
    versions = ["null", orders], ["null", orders, users], ["null", users], ["null", orders]
    assert columns_by_version(*versions) == ["e", "e__union", "e__union", "e"]
    lists = [{"type": "array", "items": kind} for kind in (orders, [orders, users], users)]
    assert columns_by_version(*lists) == ["e", "e__array", "e__array"]


def test_type_in_another_namespace_stays_in_a_column_that_is_no_union() -> None:
    """The field has one type in each version, so no values are mixed up. Avro's readers match these types too."""
    state = states_of(event(record("a.X")), event(record("b.X")), event(record("c.Y", "b.X")))[-1]
    (column,) = load_record(state.text).fields
    assert dict(column.type.props)["headrace.names"] == ["a.X", "b.X", "c.Y"]


def test_suffix_of_a_load_type_is_not_a_name_of_the_writer() -> None:
    fields = [{"name": "a", "type": record("X")}, {"name": "b", "type": "X"}]
    first = {"type": "record", "name": "Event", "fields": fields}
    second = {"type": "record", "name": "Event", "fields": [{"name": "b", "type": record("X_2")}]}
    state = states_of(*(parse_schema(json.dumps(version)) for version in (first, second)))[-1]
    assert [column.name for column in load_record(state.text).fields] == ["a", "b", "b__record"]


def row_of_foreign(writer: Schema, state: LoadState, value: Any) -> Any:
    load = parse_schema(state.text)
    return decode(load, project(writer, load, encode(writer, value)))["e"]


def test_schema_that_is_no_version_uses_the_members_of_its_full_names() -> None:
    state = states_of(event([ORDERS, USERS]))[-1]
    foreign = event([USERS, ORDERS])
    assert row_of_foreign(foreign, state, {"e": ("users.Created", {"p": 1})}) == {
        "Created": None,
        "Created_2": {"p": 1},
    }
    assert row_of_foreign(event(ORDERS), state, {"e": {"p": 2}}) == {"Created": {"p": 2}, "Created_2": None}
    with pytest.raises(Unconvertible):
        compile_projection(event([record("billing.Created"), ORDERS]), parse_schema(state.text), (), CapturedTime())


def test_schema_that_is_no_version_may_have_the_type_of_a_plain_column_in_another_namespace() -> None:
    state = states_of(event(record("a.X")))[-1]
    assert row_of_foreign(event(record("b.X")), state, {"e": {"p": 1}}) == {"p": 1}
    for other in (record("b.Y"), record("b.Y", "a.X")):  # no version has given the type this name
        with pytest.raises(Unconvertible):
            compile_projection(event(other), parse_schema(state.text), (), CapturedTime())


def test_explain_names_the_type_of_each_member() -> None:
    state = fold(states_of(event([ORDERS, USERS]))[-1], 2, event([ORDERS, USERS, record("billing.Created")]), 2)
    details = [(row.column, row.rule, row.detail) for row in explain(state)]
    assert details == [
        ("e", "union", "Created (orders.Created), Created_2 (users.Created)"),
        ("e.Created_3", "member-added", "billing.Created"),
    ]
    assert all(row.reason == RULES[row.rule] for row in explain(state))
