"""Histories of one field, by name, with what is sent at each version: the cases of the tables in docs/hive.md."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.avro_schema import Schema, parse_schema

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
WHO = {"type": "record", "name": "Who", "fields": [{"name": "Name", "type": "string"}]}


def logical(base: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": base, "logicalType": name, **more}


def fixed(size: int, **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": "F", "size": size, **more}


@dataclass(frozen=True)
class TypeCase:
    """`value` is as Avro's binary holds it, of a logical type that of the type below; a union's with its branch."""

    name: str
    type: Any
    value: Any


TYPES = (
    TypeCase("null", "null", None),
    TypeCase("boolean", "boolean", True),
    TypeCase("int", "int", -(2**31)),
    TypeCase("long", "long", 2**63 - 1),
    TypeCase("float", "float", 0.5),
    TypeCase("double", "double", 1e300),
    TypeCase("bytes", "bytes", b"ab\x01"),
    TypeCase("string", "string", "é 'x' \\ \U0001f600"),
    TypeCase("[null, int]", ["null", "int"], ("int", 7)),
    TypeCase("[int] (one branch)", ["int"], ("int", 7)),
    TypeCase("[int, string]", ["int", "string"], ("string", "x")),
    TypeCase("[null, int, string]", ["null", "int", "string"], ("int", 7)),
    TypeCase("enum", {"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B"),
    TypeCase("fixed", fixed(3), b"abc"),
    TypeCase("array", {"type": "array", "items": "int"}, [1, 2]),
    TypeCase("map", {"type": "map", "values": "int"}, {"K": 1}),
    TypeCase("record", WHO, {"Name": "n"}),
    TypeCase("record that contains itself", {"type": "record", "name": "R", "fields": [
        {"name": "n", "type": "int"}, {"name": "next", "type": ["null", "R"]}]},
        {"n": 1, "next": ("R", {"n": 2, "next": None})}),
    TypeCase("date", logical("int", "date"), 20_484),
    TypeCase("time-millis", logical("int", "time-millis"), 3_600_000),
    TypeCase("time-micros", logical("long", "time-micros"), 3_600_000_000),
    TypeCase("timestamp-millis", logical("long", "timestamp-millis"), 1_767_225_600_001),
    TypeCase("timestamp-micros", logical("long", "timestamp-micros"), 1_767_225_600_000_001),
    TypeCase("timestamp-nanos", logical("long", "timestamp-nanos"), 1_767_225_600_000_000_001),
    TypeCase("local-timestamp-millis", logical("long", "local-timestamp-millis"), 1_767_225_600_001),
    TypeCase("local-timestamp-micros", logical("long", "local-timestamp-micros"), 1_767_225_600_000_001),
    TypeCase("decimal on bytes", DECIMAL, b"\x01\x00"),
    TypeCase("decimal without scale", logical("bytes", "decimal", precision=9), b"\x01\x00"),
    TypeCase("decimal of more than 38 digits", logical("bytes", "decimal", precision=44, scale=2), b"\x01\x00"),
    TypeCase("decimal on fixed", fixed(2, logicalType="decimal", precision=4, scale=2), b"\x01\x00"),
    TypeCase("big-decimal", logical("bytes", "big-decimal"), b"\x04\x01\x00\x04"),
    TypeCase("uuid on string", logical("string", "uuid"), "0f4e6a3c-9a4b-4b6e-9d62-0a1b2c3d4e5f"),
    TypeCase("uuid on fixed", fixed(16, logicalType="uuid"), bytes(range(16))),
    TypeCase("duration", fixed(12, logicalType="duration"), bytes(range(12))),
    TypeCase("unknown logical type", logical("int", "made-up"), 7),
)  # fmt: skip


@dataclass(frozen=True)
class History:
    """Versions of the field `c`, each with the value that is sent: None where the version lacks the field."""

    name: str
    versions: Sequence[tuple[dict[str, Any] | None, Any]]


def f(kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": "c", "type": kind, **more}


def who(*more: dict[str, Any]) -> dict[str, Any]:
    return {**WHO, "fields": [*WHO["fields"], *more]}


AGE = {"name": "age", "type": ["null", "int"], "default": None}


def suit(*symbols: str) -> dict[str, Any]:
    return {"type": "enum", "name": "Suit", "symbols": list(symbols)}


HISTORIES = (
    History("added with a default", [(None, None), (f("string", default="x"), "new")]),
    History("added without a default", [(None, None), (f("string"), "new")]),
    History("added with the default \\u0001\\'${env:HOME}",
            [(None, None), (f("string", default="\x01\\'${env:HOME}"), "new")]),
    History("added nullable", [(None, None), (f(["null", "int"], default=None), ("int", 7))]),
    History("added record with a default", [(None, None), (f(WHO, default={"Name": "d"}), {"Name": "n"})]),
    History("added decimal with a default", [(None, None), (f(DECIMAL, default="\x01"), b"\x02\x00")]),
    History("added array of records with a default",
            [(None, None), (f({"type": "array", "items": WHO}, default=[{"Name": "d"}]), [{"Name": "n"}])]),
    History("always null, then with a type", [(f("null"), None), (f("int"), 7), (f("null"), None)]),
    History("always null, then a record", [(f("null"), None), (f(WHO), {"Name": "n"})]),
    History("removed", [(f("string"), "old"), (None, None)]),
    History("removed and added again", [(f("string"), "old"), (None, None), (f("string", default="d"), "again")]),
    History("removed and added again with another type",
            [(f("string"), "old"), (None, None), (f("long", default=0), 7)]),
    History("int, long, float, double",
            [(f("int"), 1), (f("long"), 2**40), (f("float"), 0.5), (f("double"), 1e300), (f("int"), 3)]),
    History("long, then int", [(f("long"), 2**40), (f("int"), 7)]),
    History("int, then string", [(f("int"), 7), (f("string"), "x"), (f("int"), 8)]),
    History("string, then bytes", [(f("string"), "a"), (f("bytes"), b"b\x01")]),
    History("bytes, then string", [(f("bytes"), b"a"), (f("string"), "b")]),
    History("made nullable, and back", [(f("string"), "a"), (f(["null", "string"]), None), (f("string"), "c")]),
    History("nullable, then with a branch more",
            [(f(["null", "string"]), ("string", "a")), (f(["null", "string", "int"]), ("int", 7)),
             (f(["null", "string"]), ("string", "b"))]),
    History("plain, then a union of several branches", [(f("int"), 1), (f(["int", "string"]), ("string", "b"))]),
    History("union that gains a branch",
            [(f(["int", "string"]), ("int", 1)), (f(["int", "string", "boolean"]), ("boolean", True)),
             (f(["string", "int"]), ("string", "c"))]),
    History("renamed with an alias",
            [(f("string"), "old"), ({"name": "d", "type": "string", "aliases": ["c"]}, "new")]),
    History("renamed without an alias",
            [(f("string"), "old"), ({"name": "d", "type": "string", "default": "x"}, "new")]),
    History("renamed with an alias, then back without one",
            [(f("string"), "old"), ({"name": "d", "type": "string", "aliases": ["c"]}, "new"), (f("string"), "again")]),
    History("record renamed with an alias",
            [(f(WHO), {"Name": "o"}), ({"name": "d", "type": WHO, "aliases": ["c"]}, {"Name": "n"})]),
    History("decimal renamed with an alias",
            [(f(DECIMAL), b"\x01"), ({"name": "d", "type": DECIMAL, "aliases": ["c"]}, b"\x02")]),
    History("record grown", [(f(WHO), {"Name": "o"}), (f(who(AGE)), {"Name": "n", "age": ("int", 3)}),
                             (f(who({"name": "new", "type": WHO | {"name": "Other"}}, AGE)),
                              {"Name": "m", "new": {"Name": "i"}, "age": None})]),
    History("record in an array grown",
            [(f({"type": "array", "items": WHO}), [{"Name": "o"}]),
             (f({"type": "array", "items": who(AGE)}), [{"Name": "n", "age": ("int", 3)}])]),
    History("enum grown, shrunk, grown", [(f(suit("A", "B")), "B"), (f(suit("A", "B", "C")), "C"),
                                          (f(suit("A")), "A"), (f(suit("D", "A")), "D")]),
    History("record type renamed with an alias",
            [(f(WHO), {"Name": "o"}), (f({**WHO, "name": "Person", "aliases": ["Who"]}), {"Name": "n"})]),
    History("decimal with more digits", [(f(DECIMAL), b"\x01"), (f({**DECIMAL, "precision": 18}), b"\x02\x00")]),
    History("decimal with another scale", [(f(DECIMAL), b"\x01"), (f({**DECIMAL, "scale": 3}), b"\x02\x00")]),
    History("decimal(10), then decimal(40)",
            [(f({**DECIMAL, "precision": 10}), b"\x01"), (f({**DECIMAL, "precision": 40}), b"\x02")]),
    History("bytes that become a decimal", [(f("bytes"), b"\x01"), (f(DECIMAL), b"\x02")]),
    History("int that becomes a date", [(f("int"), 1), (f(logical("int", "date")), 20_484)]),
    History("long that becomes a timestamp", [(f("long"), 1), (f(logical("long", "timestamp-millis")), 1_000)]),
    History("array with other items", [(f({"type": "array", "items": "int"}), [1]),
                                       (f({"type": "array", "items": "long"}), [2**40]),
                                       (f({"type": "array", "items": "string"}), ["x"])]),
    History("map with wider values", [(f({"type": "map", "values": "int"}), {"k": 1}),
                                      (f({"type": "map", "values": "double"}), {"k": 0.5})]),
    History("a name in another case", [(f("string"), "a"), ({"name": "C", "type": "string"}, "b")]),
    History("ten versions", [
        (f("int"), 1), (f("long"), 2**40), (f(["null", "long"]), None), (None, None), (f("int", default=5), 5),
        (f(["null", "double"]), ("double", 0.5)), (f("string"), "six"), (f(["null", "string"]), None),
        (f(["null", "string", "int"]), ("int", 9)), (f("long"), 10)]),
)  # fmt: skip


def types_schema(cases: Sequence[TypeCase]) -> Schema:
    """A record with four fields for each case: of the type, and of it in an array, a map and a record."""
    fields: list[dict[str, Any]] = []
    for number, case in enumerate(cases):
        kind = numbered(case.type, number)
        again = kind["name"] if isinstance(kind, dict) and "name" in kind else kind  # a name is defined once
        inner = {"type": "record", "name": f"Inner{number}", "fields": [{"name": "C", "type": again}]}
        fields += (
            {"name": f"c{number}", "type": kind},
            {"name": f"in_array{number}", "type": {"type": "array", "items": again}},
            {"name": f"in_map{number}", "type": {"type": "map", "values": again}},
            {"name": f"in_record{number}", "type": inner},
        )
    return parse_schema(json.dumps({"type": "record", "name": "Event", "fields": fields}))


def types_message(cases: Sequence[TypeCase]) -> dict[str, Any]:
    message: dict[str, Any] = {}
    for number, case in enumerate(cases):
        value = numbered_value(case.value, number)
        message |= {f"c{number}": value, f"in_array{number}": [value]}
        message |= {f"in_map{number}": {"k": value}, f"in_record{number}": {"C": value}}
    return message


VERSIONS = max(len(history.versions) for history in HISTORIES)


def histories_schema(version: int) -> Schema:
    """A record with the field of each history as of a version; a history that has no more versions stays."""
    fields: list[dict[str, Any]] = [{"name": "id", "type": "int"}]
    for number, history in enumerate(HISTORIES):
        field, _ = history.versions[min(version, len(history.versions) - 1)]
        if field is not None:
            own = {"name": f"{field['name']}{number}", "type": numbered(field["type"], number)}
            aliases = [f"{alias}{number}" for alias in field.get("aliases", ())]
            default = {"default": field["default"]} if "default" in field else {}
            fields.append(own | ({"aliases": aliases} if aliases else {}) | default)
    return parse_schema(json.dumps({"type": "record", "name": "Event", "fields": fields}))


def histories_message(version: int) -> dict[str, Any]:
    message: dict[str, Any] = {"id": version}
    for number, history in enumerate(HISTORIES):
        field, value = history.versions[min(version, len(history.versions) - 1)]
        if field is not None:
            message[f"{field['name']}{number}"] = numbered_value(value, number)
    return message


def column_of(name: str, number: int) -> str | None:
    """The column as if its history were alone; None where it is another's."""
    match = re.fullmatch(rf"([cd]){number}((?:_.*)?)", name)
    return match and match[1] + match[2]


def numbered(kind: Any, number: int) -> Any:
    """The type with names of its own, so that it can stand beside others."""
    if isinstance(kind, list):
        return [numbered(branch, number) for branch in kind]
    if isinstance(kind, str):
        return kind if kind in PRIMITIVES else f"{kind}{number}"
    renamed = {key: numbered(kind[key], number) for key in ("items", "values") if key in kind}
    if "fields" in kind:
        renamed["fields"] = [{**field, "type": numbered(field["type"], number)} for field in kind["fields"]]
    if "name" in kind:
        renamed["name"] = f"{kind['name']}{number}"
    if "aliases" in kind:
        renamed["aliases"] = [f"{alias}{number}" for alias in kind["aliases"]]
    return {**kind, **renamed}


def numbered_value(value: Any, number: int) -> Any:
    """The value with the branches of unions named likewise."""
    match value:
        case (str(branch), inner):
            return (branch if branch in PRIMITIVES else f"{branch}{number}", numbered_value(inner, number))
        case dict():
            return {key: numbered_value(item, number) for key, item in value.items()}
        case list():
            return [numbered_value(item, number) for item in value]
    return value
