"""Stored routes: which parts of a version's route are stored, and that later versions change none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.avro_schema import Array, Map, Record, Schema, Type, parse_schema
from headrace.loader.load_schema import EMPTY, LoadState, RouteEntry, fold, route_entries, split, stored_route
from headrace.loader.load_schema.stored_route import IDENTITY_ROUTE
from support.loader.projection_oracle import decode, encode, expected_row, project, states_of
from support.schemas.strategies import histories


def record(*fields: Any, name: str = "Event") -> Schema:
    return parse_schema(json.dumps({"type": "record", "name": name, "fields": list(fields)}))


def field(name: str, kind: Any = "string", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def nested(name: str, *fields: Any, **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def rows(versions: list[Schema], number: int, value: Any) -> list[Any]:
    """The rows of a message of one version (from 1), in the load schema of its time and in each later one."""
    return [
        decode(parse_schema(state.text), project(versions[number - 1], parse_schema(state.text), body, route))
        for body in [encode(versions[number - 1], value)]
        for state in states_of(*versions)[number - 1 :]
        for route in [state.routes[number]]
    ]


@pytest.mark.parametrize("default", [{}, {"default": ""}])
def test_messages_from_before_a_reused_name_stay_in_their_column(default: Any) -> None:
    versions = [
        record(field("a", **default)),
        record(field("b", aliases=["a"], **default)),
        record(field("b", default=""), field("a", default="")),
    ]
    assert rows(versions, 1, {"a": "old"}) == [{"a": "old"}, {"b": "old"}, {"b": "old", "a_2": ""}]
    assert rows(versions, 2, {"b": "old"}) == [{"b": "old"}, {"b": "old", "a_2": ""}]
    assert rows(versions, 3, {"b": "old", "a": "new"}) == [{"b": "old", "a_2": "new"}]


INSIDE = {
    "a record": (lambda node: node, lambda value: value),
    "a list": (lambda node: {"type": "array", "items": node}, lambda value: [value, value]),
    "a map": (lambda node: {"type": "map", "values": node}, lambda value: {"k": value}),
    "a nullable record": (lambda node: ["null", node], lambda value: ("In", value)),
}


@pytest.mark.parametrize("place", INSIDE)
def test_messages_from_before_a_reused_nested_name_stay_in_their_column(place: str) -> None:
    wrap, wrapped = INSIDE[place]
    inner = [
        nested("In", field("n", "int"), field("a")),
        nested("In", field("b", aliases=["a"])),
        nested("In", field("a", default=""), field("b", default="")),
    ]
    versions = [record(field("r", wrap(node))) for node in inner]
    read = (lambda value: value[1]) if place == "a nullable record" else (lambda value: value)
    (_, _, row) = rows(versions, 1, {"r": wrapped({"n": 1, "a": "old"})})
    assert row == {"r": read(wrapped({"n": 1, "b": "old", "a_2": ""}))}


def test_branches_that_exchange_their_names_keep_their_members() -> None:
    one, other = nested("One", field("x", "int")), nested("Other", field("x", "int"))
    swapped = [nested("Other", field("x", "int"), aliases=["One"]), nested("One", field("x", "int"), aliases=["Other"])]
    versions = [record(field("u", [one, other])), record(field("u", swapped)), record(field("u", ["string", *swapped]))]
    early, *later = rows(versions, 1, {"u": ("Other", {"x": 7})})
    assert early == {"u": {"One": None, "Other": {"x": 7}}}
    assert [row["u"]["Other"] for row in later] == [{"x": 7}, {"x": 7}]


def test_only_routes_that_differ_from_names_are_stored() -> None:
    first = record(field("a"), field("r", nested("R", field("x"), field("y"))), field("c"))
    second = record(field("a"), field("new"), field("r", nested("R", field("y"), field("x"))), field("c"))
    state = states_of(first, second)[-1]
    assert state.routes == {1: IDENTITY_ROUTE, 2: {"1": 3, "2": [1, {"0": 1, "1": 0}]}}


def test_a_repeated_schema_id_keeps_its_route() -> None:
    first = record(field("a", default=""))
    state = EMPTY
    versions = [first, record(field("b", aliases=["a"], default="")), record(field("b"), field("a", default="")), first]
    for number, schema in enumerate(versions, 1):
        state = fold(state, number, schema, 1 if schema is first else number)
    assert state.versions == (1, 2, 3, 4)
    assert state.routes[1] == IDENTITY_ROUTE
    load = parse_schema(state.text)
    row = decode(load, project(first, load, encode(first, {"a": "old"}), state.routes[1]))
    assert row == {"b": "old", "a_2": ""}


def test_a_state_without_routes_is_read_and_continued() -> None:
    versions = [record(field("a")), record(field("b", aliases=["a"])), record(field("b"), field("c"))]
    old = states_of(*versions)[1].to_json()
    del old["routes"]
    state = LoadState.from_json(json.loads(json.dumps(old)))
    assert (state.versions, state.routes) == ((1, 2), {})
    state = fold(state, 3, versions[2], 33)
    assert (state.text, state.routes) == (states_of(*versions)[2].text, {33: IDENTITY_ROUTE})
    load = parse_schema(state.text)
    assert decode(load, project(versions[0], load, encode(versions[0], {"a": "x"}))) == {"b": "x", "c": None}


def test_a_state_survives_json_with_its_routes() -> None:
    first = record(field("a"), field("b"))
    state = states_of(first, record(field("b"), field("r", nested("R", field("x"))), field("a")))[-1]
    again = LoadState.from_json(json.loads(json.dumps(state.to_json())))
    assert again == state
    assert again.routes[2] == {"0": 1, "2": 0}


TREES = st.recursive(
    st.just([]), lambda children: st.lists(st.tuples(st.integers(0, 9), children), max_size=5), max_leaves=12
)


def stored(tree: Any) -> Any:
    return stored_route(RouteEntry(column, stored(children)) for column, children in tree)


def unfolded(route: Any, tree: Any) -> Any:
    """The tree with the number of parts of each node restored from the schemas."""
    found = route_entries(route, len(tree))
    return [(entry.column, unfolded(entry.nested, children)) for entry, (_, children) in zip(found, tree, strict=True)]


@given(TREES)
def test_a_stored_route_restores_the_route(tree: Any) -> None:
    assert unfolded(json.loads(json.dumps(stored(tree))), tree) == tree


@given(histories())
def test_columns_never_move_and_never_lose_a_name(versions: list[Schema]) -> None:
    earlier: dict[tuple[int, ...], set[str]] = {}
    for state in states_of(*versions):
        columns = dict(_columns(parse_schema(state.text).root, ()))
        assert all(names <= columns[position] for position, names in earlier.items())
        earlier = columns


def _columns(node: Type, position: tuple[int, ...]) -> Any:
    """The names and aliases of every column and member, by position."""
    inner, _ = split(node)
    match inner:
        case Record(fields=fields):
            for i, column in enumerate(fields):
                yield (*position, i), {column.name, *column.aliases}
                yield from _columns(column.type, (*position, i))
        case Array(items=items):
            yield from _columns(items, position)
        case Map(values=values):
            yield from _columns(values, position)


def test_oracle_detects_a_message_in_the_wrong_column() -> None:
    """Without its stored route, a message of the first version is stored in the column that now has its name."""
    versions = [
        record(field("a", default="")),
        record(field("b", aliases=["a"], default="")),
        record(field("b", default=""), field("a", default="")),
    ]
    versions.append(record(field("a", default="")))
    then, now = parse_schema(states_of(*versions)[0].text), parse_schema(states_of(*versions)[-1].text)
    row = decode(now, project(versions[0], now, encode(versions[0], {"a": "old"})))
    assert row == {"b": None, "a_2": "old"}
    assert expected_row(versions[0], then, now, {"a": "old"}) != row
