"""The cases of the tables in docs/hive.md: types with a value, and histories of a column, which have the field and the
value sent in each version of a schema."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.avro_schema import Field, Schema, parse_schema

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
WHO = {"type": "record", "name": "Who", "fields": [{"name": "Name", "type": "string"}]}


def logical(base: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": base, "logicalType": name, **more}


def fixed(size: int, **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": "F", "size": size, **more}


@dataclass(frozen=True)
class TypeCase:
    """An Avro type and a value of it. The value has the form of Avro's binary encoding: that of the underlying type for
    a logical type, and a pair of branch name and value for a union."""

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
    TypeCase("date, 0001-01-01", logical("int", "date"), -719_162),
    TypeCase("time-millis", logical("int", "time-millis"), 3_600_000),
    TypeCase("time-micros", logical("long", "time-micros"), 3_600_000_000),
    TypeCase("timestamp-millis", logical("long", "timestamp-millis"), 1_767_225_600_001),
    TypeCase("timestamp-millis, 0001-01-01", logical("long", "timestamp-millis"), -62_135_596_800_000),
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


def unscaled(number: int, padding: int = 0) -> bytes:
    return number.to_bytes(number.bit_length() // 8 + 1 + padding, "big", signed=True)


LONGS = (0, -1, 2**63 - 1, -(2**63))
YEAR_1_MS, YEAR_9999_END_MS = -62_135_596_800_000, 253_402_300_799_999
GREGORIAN_MS = -12_219_292_800_000
EDGES: tuple[tuple[Any, Sequence[Any]], ...] = (
    (logical("int", "date"), (-719_162, 2_932_896, -171_595, -141_437, -141_428, -141_427, 0)),
    (logical("int", "time-millis"), (0, 86_399_999, 2**31 - 1, -(2**31))),
    (logical("long", "time-micros"), (86_399_999_999, *LONGS)),
    (
        logical("long", "timestamp-millis"),
        (
            YEAR_1_MS,
            YEAR_9999_END_MS,
            GREGORIAN_MS - 864_000_000,
            GREGORIAN_MS - 1,
            GREGORIAN_MS,
            -2_208_988_800_001,
            -1,
        ),
    ),
    *((logical("long", f"{local}timestamp-{unit}"), LONGS) for local in ("", "local-") for unit in ("micros", "nanos")),
    (logical("long", "local-timestamp-millis"), LONGS),
    (DECIMAL, (*map(unscaled, (0, 1, 10**9 - 1, -(10**9) + 1, -1)), unscaled(10**9 - 1, 30), unscaled(-1, 30))),
    (logical("bytes", "decimal", precision=38, scale=38), tuple(map(unscaled, (10**38 - 1, -(10**38) + 1, 0)))),
    (logical("bytes", "decimal", precision=38), tuple(map(unscaled, (10**38 - 1, -(10**38) + 1, 0)))),
    (logical("bytes", "decimal", precision=44, scale=2), (unscaled(10**50), b"", unscaled(-1))),
    (fixed(2, logicalType="decimal", precision=4, scale=2), (b"\x7f\xff", b"\x80\x00", b"\x27\x10")),
    (logical("string", "uuid"), ("00000000-0000-0000-0000-000000000000", "no uuid", "")),
    ({**fixed(16, logicalType="uuid"), "name": "U"}, (b"\x00" * 16, b"\x7f" * 16)),
    ({**fixed(12, logicalType="duration"), "name": "D"}, (b"\x00" * 12, b"\x7f" * 12)),
)
"""Logical types with the first and last values that are loaded, in the form of Avro's binary encoding."""


Sent = tuple[dict[str, Any] | None, Any]
"""A field in one version of a schema, and the value sent with it. The field is None if the version lacks it."""


@dataclass(frozen=True)
class History:
    """The versions of a field and the values sent.

    Attributes:
        versions: the field `c` in each version; or a list of the fields `c`, `d` and `e`, in their order.
    """

    name: str
    versions: Sequence[Sent | list[Sent]]

    def fields(self, version: int) -> list[tuple[dict[str, Any], Any]]:
        """Returns the fields of a version, with the values sent. Versions after the last one of the history are equal
        to it."""
        sent = self.versions[min(version, len(self.versions) - 1)]
        every = sent if isinstance(sent, list) else [sent]
        return [(field, value) for field, value in every if field is not None]


def f(kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": "c", "type": kind, **more}


def named(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def added(kind: Any, default: Any, sent: Any) -> tuple[Sent, Sent]:
    return (None, None), (f(kind, default=default), sent)


def who(*more: dict[str, Any]) -> dict[str, Any]:
    return {**WHO, "fields": [*WHO["fields"], *more]}


AGE = {"name": "age", "type": ["null", "int"], "default": None}


def suit(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "Suit", "symbols": list(symbols), **more}


ORDERS = {"type": "record", "name": "orders.Created", "fields": [{"name": "p", "type": "int"}]}
USERS = {"type": "record", "name": "users.Created", "fields": [{"name": "q", "type": "int"}]}

HISTORIES = (
    History("added with a default", [(None, None), (f("string", default="x"), "new")]),
    History("added without a default", [(None, None), (f("string"), "new")]),
    History("added with the default \\u0001\\'${env:HOME}",
            [(None, None), (f("string", default="\x01\\'${env:HOME}"), "new")]),
    History("added boolean with a default", added("boolean", True, False)),
    History("added int with a default", added("int", -1, 7)),
    History("added double with a default", added("double", 2, 0.5)),
    History("added bytes with a default", added("bytes", "a\xff", b"b\x01")),
    History("added fixed with a default", added(fixed(3), "a\x00\xff", b"abc")),
    History("added enum with a default", added(suit("A", "B"), "B", "A")),
    History("added array with a default", added({"type": "array", "items": "int"}, [1, 2], [3])),
    History("added array with an empty default", added({"type": "array", "items": WHO}, [], [{"Name": "n"}])),
    History("added map with a default", added({"type": "map", "values": "int"}, {"K": 1}, {"k": 2})),
    History("added map with an empty default", added({"type": "map", "values": WHO}, {}, {"k": {"Name": "n"}})),
    History("added date with a default", added(logical("int", "date"), 1, 20_484)),
    History("added timestamp-millis with a default", added(logical("long", "timestamp-millis"), 1_001, 2_000)),
    History("added timestamp-micros with a default", added(logical("long", "timestamp-micros"), 1_001, 2_000)),
    History("added varchar with a default", added(logical("string", "varchar", maxLength=3), "xyz", "new")),
    History("added nullable", [(None, None), (f(["null", "int"], default=None), ("int", 7))]),
    History("added nullable with a default", added(["string", "null"], "x", None)),
    History("added nullable record", added(["null", WHO], None, ("Who", {"Name": "n"}))),
    History("added nullable decimal", added(["null", DECIMAL], None, ("bytes", b"\x02\x00"))),
    History("added record with a default", [(None, None), (f(WHO, default={"Name": "d"}), {"Name": "n"})]),
    History("added decimal with a default", [(None, None), (f(DECIMAL, default="\x01"), b"\x02\x00")]),
    History("added in the middle", [
        [(named("c", "string"), "c1"), (named("d", "int"), 1)],
        [(named("c", "string"), "c2"), (named("e", "string", default="x"), "e2"), (named("d", "int"), 2)]]),
    History("reordered", [
        [(named("c", "string"), "c1"), (named("d", "string"), "d1"), (named("e", "int"), 1)],
        [(named("e", "int"), 2), (named("d", "string"), "d2"), (named("c", "string"), "c2")],
        [(named("d", "string"), "d3"), (named("c", "string"), "c3"), (named("e", "int"), 3)]]),
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
    History("nullable, then wider",
            [(f(["null", "int"]), ("int", 1)), (f(["null", "long"]), ("long", 2**40)), (f(["null", "long"]), None)]),
    History("nullable, then with a branch more",
            [(f(["null", "string"]), ("string", "a")), (f(["null", "string", "int"]), ("int", 7)),
             (f(["null", "string"]), ("string", "b"))]),
    History("plain, then a union of several branches", [(f("int"), 1), (f(["int", "string"]), ("string", "b"))]),
    History("union that gains a branch",
            [(f(["int", "string"]), ("int", 1)), (f(["int", "string", "boolean"]), ("boolean", True)),
             (f(["string", "int"]), ("string", "c"))]),
    History("union of two types with one name, in another order",
            [(f([ORDERS, USERS]), ("orders.Created", {"p": 1})), (f([USERS, ORDERS]), ("orders.Created", {"p": 2})),
             (f([USERS, ORDERS]), ("users.Created", {"q": 3}))]),
    History("union in which a type replaces another with its name",
            [(f([ORDERS, "int"]), ("orders.Created", {"p": 1})), (f([USERS, "int"]), ("users.Created", {"q": 2})),
             (f(["int", ORDERS]), ("orders.Created", {"p": 3}))]),
    History("renamed with an alias",
            [(f("string"), "old"), ({"name": "d", "type": "string", "aliases": ["c"]}, "new")]),
    History("nullable renamed with an alias",
            [(f(["null", "string"], default=None), ("string", "old")),
             (named("d", ["null", "string"], default=None, aliases=["c"]), ("string", "new"))]),
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
    History("record with a wider member", [(f(who({"name": "n", "type": "int"})), {"Name": "o", "n": 1}),
                                           (f(who({"name": "n", "type": "double"})), {"Name": "n", "n": 0.5})]),
    History("record whose members change their order",
            [(f(who({"name": "n", "type": "int"})), {"Name": "o", "n": 1}),
             (f({**WHO, "fields": [{"name": "n", "type": "int"}, *WHO["fields"]]}), {"Name": "n", "n": 2})]),
    History("record whose member is renamed with an alias",
            [(f(WHO), {"Name": "o"}),
             (f({**WHO, "fields": [{"name": "title", "type": "string", "aliases": ["Name"]}]}), {"title": "n"})]),
    History("record in an array grown",
            [(f({"type": "array", "items": WHO}), [{"Name": "o"}]),
             (f({"type": "array", "items": who(AGE)}), [{"Name": "n", "age": ("int", 3)}])]),
    History("enum grown, shrunk, grown", [(f(suit("A", "B")), "B"), (f(suit("A", "B", "C")), "C"),
                                          (f(suit("A")), "A"), (f(suit("D", "A")), "D")]),
    History("enum with a default shrunk",
            [(f(suit("A", "B", default="A")), "B"), (f(suit("A", default="A")), "A")]),
    History("enum type renamed without an alias",
            [(f(suit("A")), "A"), (f({**suit("A", "B"), "name": "Colour"}), "B")]),
    History("record type in another namespace",
            [(f(WHO), {"Name": "o"}), (f({**WHO, "namespace": "elsewhere"}), {"Name": "n"})]),
    History("record type renamed without an alias",
            [(f(WHO), {"Name": "o"}), (f({**WHO, "name": "Person"}), {"Name": "n"})]),
    History("record type renamed with an alias",
            [(f(WHO), {"Name": "o"}), (f({**WHO, "name": "Person", "aliases": ["Who"]}), {"Name": "n"})]),
    History("decimal with more digits", [(f(DECIMAL), b"\x01"), (f({**DECIMAL, "precision": 18}), b"\x02\x00")]),
    History("decimal with another scale", [(f(DECIMAL), b"\x01"), (f({**DECIMAL, "scale": 3}), b"\x02\x00")]),
    History("decimal(10), then decimal(40)",
            [(f({**DECIMAL, "precision": 10}), b"\x01"), (f({**DECIMAL, "precision": 40}), b"\x02")]),
    History("bytes that become a decimal", [(f("bytes"), b"\x01"), (f(DECIMAL), b"\x02")]),
    History("int that becomes a date", [(f("int"), 1), (f(logical("int", "date")), 20_484)]),
    History("long that becomes a timestamp", [(f("long"), 1), (f(logical("long", "timestamp-millis")), 1_000)]),
    History("date that becomes an int, and back",
            [(f(logical("int", "date")), 20_484), (f("int"), 7), (f(logical("int", "date")), 1)]),
    History("timestamp that becomes a long, and back",
            [(f(logical("long", "timestamp-millis")), 1_767_225_600_001), (f("long"), 7),
             (f(logical("long", "timestamp-millis")), 1_000)]),
    History("timestamp-millis that becomes timestamp-micros",
            [(f(logical("long", "timestamp-millis")), 1_000), (f(logical("long", "timestamp-micros")), 2_000_000)]),
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


@dataclass(frozen=True)
class RecordHistory:
    """The versions of a record with one string field `c`. Each version has attributes of the record and attributes of
    the field, such as aliases."""

    name: str
    versions: Sequence[tuple[dict[str, Any], dict[str, Any]]]

    def schema(self, version: int) -> Schema:
        record, field = self.versions[version]
        return parse_schema(json.dumps({"type": "record", "fields": [f("string", **field)], **EVENT, **record}))


EVENT = {"name": "Event", "namespace": "here"}
LONG_DOC = "All that is to be said. " * 15
"""A text longer than the 256 characters that a metastore stores of a column comment."""

RECORDS = (
    RecordHistory("the message's record renamed", [({}, {}), ({"name": "Other"}, {}), ({}, {})]),
    RecordHistory("the message's record renamed with an alias",
                  [({}, {}), ({"name": "Other", "aliases": ["Event"]}, {})]),
    RecordHistory("the message's record in another namespace", [({}, {}), ({"namespace": "there"}, {}), ({}, {})]),
    RecordHistory("doc of more than 256 characters, of the message's record and of the field",
                  [({}, {}), ({"doc": LONG_DOC}, {"doc": LONG_DOC}), ({}, {"doc": f"Again. {LONG_DOC}"})]),
)  # fmt: skip


def types_schema(cases: Sequence[TypeCase]) -> Schema:
    """Returns a record with four fields for each case: the type itself, and the type in an array, in a map and in a
    record."""
    fields: list[dict[str, Any]] = []
    for number, case in enumerate(cases):
        kind = numbered(case.type, number)
        reference = kind["name"] if isinstance(kind, dict) and "name" in kind else kind  # named types are defined once
        inner = {"type": "record", "name": f"Inner{number}", "fields": [{"name": "C", "type": reference}]}
        fields += (
            {"name": f"c{number}", "type": kind},
            {"name": f"in_array{number}", "type": {"type": "array", "items": reference}},
            {"name": f"in_map{number}", "type": {"type": "map", "values": reference}},
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
    """Returns a record with the fields of all histories at a version."""
    fields: list[dict[str, Any]] = [{"name": "id", "type": "int"}]
    for number, history in enumerate(HISTORIES):
        for field, _ in history.fields(version):
            own = {"name": f"{field['name']}{number}", "type": numbered(field["type"], number)}
            aliases = [f"{alias}{number}" for alias in field.get("aliases", ())]
            default = {"default": field["default"]} if "default" in field else {}
            fields.append(own | ({"aliases": aliases} if aliases else {}) | default)
    return parse_schema(json.dumps({"type": "record", "name": "Event", "fields": fields}))


def histories_message(version: int) -> dict[str, Any]:
    message: dict[str, Any] = {"id": version}
    for number, history in enumerate(HISTORIES):
        for field, value in history.fields(version):
            message[f"{field['name']}{number}"] = numbered_value(value, number)
    return message


def columns_of(fields: Sequence[Field], number: int) -> dict[int, str]:
    """Returns the columns that belong to one history, by their index in a table of all histories. Their names are those
    without the number that makes them unique in this table.

    Args:
        fields: all columns of the table.
        number: number of the history.
    """
    names = (re.fullmatch(rf"([cde]){number}((?:_.*)?)", field.name.lower()) for field in fields)
    return {at: name[1] + name[2] for at, name in enumerate(names) if name}


def numbered(kind: Any, number: int) -> Any:
    """Returns an Avro type in which the number is added to all names, so that types of several cases fit in one
    schema."""
    if isinstance(kind, list):
        return [numbered(branch, number) for branch in kind]
    if isinstance(kind, str):
        return numbered_name(kind, number)
    renamed = {key: numbered(kind[key], number) for key in ("items", "values") if key in kind}
    if "fields" in kind:
        renamed["fields"] = [{**field, "type": numbered(field["type"], number)} for field in kind["fields"]]
    if "name" in kind:
        renamed["name"] = numbered_name(kind["name"], number)
    if "aliases" in kind:
        renamed["aliases"] = [numbered_name(alias, number) for alias in kind["aliases"]]
    return {**kind, **renamed}


def numbered_name(name: str, number: int) -> str:
    """Returns the name with the number after its namespace, or after the name if it has none."""
    if name in PRIMITIVES:
        return name
    namespace, dot, simple = name.rpartition(".")
    return f"{namespace}{number}.{simple}" if dot else f"{name}{number}"


def numbered_value(value: Any, number: int) -> Any:
    """Returns the value with the branch names of `numbered`."""
    match value:
        case (str(branch), inner):
            return (numbered_name(branch, number), numbered_value(inner, number))
        case dict():
            return {key: numbered_value(item, number) for key, item in value.items()}
        case list():
            return [numbered_value(item, number) for item in value]
    return value
