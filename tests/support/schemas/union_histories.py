"""Generates histories of a union whose types have equal names in different namespaces, with one message per branch of
each version."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from hypothesis import strategies as st

from headrace.avro_schema import Schema, parse_schema

NAMESPACES: Final = ("orders", "users", "orders.v2", "")

_RECORDS: Final[tuple[list[dict[str, Any]], ...]] = (
    [{"name": "p", "type": "int"}],
    [{"name": "p", "type": "int"}, {"name": "q", "type": ["null", "int"], "default": None}],
    [{"name": "q", "type": "int"}],
    [{"name": "p", "type": {"type": "array", "items": "int"}}],
    [],
)
_DEFINITIONS: Final[tuple[dict[str, Any], ...]] = (
    *({"type": "record", "name": "Created", "fields": fields} for fields in _RECORDS),
    {"type": "enum", "name": "Kind", "symbols": ["A", "B"]},
    {"type": "enum", "name": "Kind", "symbols": ["B", "C"]},
    {"type": "fixed", "name": "Hash", "size": 2},
    {"type": "fixed", "name": "Hash", "size": 3},
)


@dataclass(frozen=True, slots=True)
class Place:
    """A place of the union in the schema. `wrap` returns the schema's JSON, `put` a message with a value of the union,
    and `take` the value of the union's column in a row."""

    wrap: Callable[[list[Any]], Any]
    put: Callable[[Any], Any]
    take: Callable[[Any], Any]


def _event(kind: Any) -> dict[str, Any]:
    fields = [{"name": "n", "type": "int"}, {"name": "e", "type": kind}]
    return {"type": "record", "name": "Event", "namespace": "top", "fields": fields}


def _inner(kind: Any) -> dict[str, Any]:
    return {"type": "record", "name": "Inner", "namespace": "top", "fields": [{"name": "u", "type": kind}]}


PLACES: Final[dict[str, Place]] = {
    "message": Place(lambda union: union, lambda value: value, lambda row: row["value"]),
    "field": Place(_event, lambda value: {"n": 1, "e": value}, lambda row: row["e"]),
    "array": Place(
        lambda union: _event({"type": "array", "items": union}),
        lambda value: {"n": 1, "e": [value]},
        lambda row: row["e"][0],
    ),
    "map": Place(
        lambda union: _event({"type": "map", "values": union}),
        lambda value: {"n": 1, "e": {"k": value}},
        lambda row: row["e"]["k"],
    ),
    "record": Place(
        lambda union: _event(_inner(union)), lambda value: {"n": 1, "e": {"u": value}}, lambda row: row["e"]["u"]
    ),
    "map of arrays of records": Place(
        lambda union: _event({"type": "map", "values": {"type": "array", "items": _inner(union)}}),
        lambda value: {"n": 1, "e": {"k": [{"u": value}]}},
        lambda row: row["e"]["k"][0]["u"],
    ),
    "union": Place(
        lambda union: _event(["int", _inner(union)]),
        lambda value: {"n": 1, "e": ("top.Inner", {"u": value})},
        lambda row: row["e"]["Inner"]["u"],
    ),
}


@dataclass(frozen=True, slots=True)
class SentValue:
    """A value of a union branch in a message: `version` counts from 0, `branch` is the branch's full name or type."""

    version: int
    branch: str
    value: Any


@dataclass(frozen=True, slots=True)
class UnionHistory:
    """Versions of a subject with a union at one place, and a value for each branch of each version."""

    place: Place
    versions: tuple[Schema, ...]
    sent: tuple[SentValue, ...]

    def messages(self, version: int) -> list[Any]:
        """Returns the messages of a version, which counts from 0, in the form of fastavro."""
        return [self.place.put((one.branch, one.value)) for one in self.sent if one.version == version]


@st.composite
def union_histories(draw: st.DrawFn, *, versions_max: int = 4, places: tuple[str, ...] = tuple(PLACES)) -> UnionHistory:
    """Generates versions whose union loses and gains branches and changes their order. A full name always means the
    same type, to which later versions may add a field."""
    place = PLACES[draw(st.sampled_from(places))]
    types = {
        namespace: {**definition, "namespace": namespace}
        for namespace in draw(st.lists(st.sampled_from(NAMESPACES), min_size=2, unique=True))
        for definition in [draw(st.sampled_from(_DEFINITIONS))]
    }
    versions, sent = [], []
    for number in range(draw(st.integers(2, versions_max))):
        chosen = draw(st.lists(st.sampled_from(list(types)), min_size=1 if number else 2, unique=True))
        branches: list[Any] = [types[namespace] for namespace in chosen]
        for other in draw(st.lists(st.sampled_from(["null", "int"]), unique=True)):
            branches.insert(draw(st.integers(0, len(branches))), other)
        versions.append(parse_schema(json.dumps(place.wrap(branches))))
        sent += [SentValue(number, name_of(one), _value(draw, one)) for one in branches if one != "null"]
        for node in types.values():
            if node["type"] == "record" and draw(st.integers(0, 3)) == 0:
                added = {"name": f"added{number}", "type": ["null", "int"], "default": None}
                node["fields"] = [*node["fields"], added]
    return UnionHistory(place, tuple(versions), tuple(sent))


def name_of(branch: Any) -> str:
    if isinstance(branch, str):
        return branch
    return f"{branch['namespace']}.{branch['name']}" if branch["namespace"] else str(branch["name"])


def _value(draw: st.DrawFn, branch: Any) -> Any:
    number = draw(st.integers(0, 99))
    if branch == "int":
        return number
    if branch["type"] == "enum":
        return draw(st.sampled_from(branch["symbols"]))
    if branch["type"] == "fixed":
        return bytes([number] * branch["size"])
    return {field["name"]: _field_value(field["type"], number) for field in branch["fields"]}


def _field_value(kind: Any, number: int) -> Any:
    return [number] if isinstance(kind, dict) else ("int", number) if isinstance(kind, list) else number
