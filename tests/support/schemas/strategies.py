"""Hypothesis generators: Avro schemas as JSON, data for them, and histories of one subject.

Schemas contain namespaces, aliases, recursion, unions, logical types, defaults and references by name. All of them are
valid for Avro Java. Data is in the form that fastavro reads and writes, with logical types as plain numbers.
"""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from headrace.avro_schema import (
    Array,
    Enum,
    Fixed,
    LogicalType,
    Map,
    Primitive,
    PrimitiveType,
    Record,
    Schema,
    Type,
    Union,
    branch_name,
    parse_schema,
)

PRIMITIVE_NAMES = [kind.value for kind in PrimitiveType]

NAMES = st.one_of(
    st.sampled_from(["a", "b", "c", "d", "A", "id", "time", "value", "user", "order", "dt", "hr", "kafka", "_x", "X1"]),
    st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True),
)
TYPE_NAMES = st.sampled_from(["R", "S", "T", "Node", "Color", "Hash", "r", "Address"])
NAMESPACES = st.sampled_from(["", "n", "n.m", "org.example", "_a.b1"])
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)

LOGICAL_TYPES: list[dict[str, Any]] = [
    {"type": "int", "logicalType": "date"},
    {"type": "int", "logicalType": "time-millis"},
    {"type": "long", "logicalType": "time-micros"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "long", "logicalType": "timestamp-nanos"},
    {"type": "long", "logicalType": "local-timestamp-millis"},
    {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    {"type": "bytes", "logicalType": "decimal", "precision": 5},
    {"type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 10},
    {"type": "string", "logicalType": "uuid"},
    {"type": "string", "logicalType": "unknown-to-all", "note": [1, None]},
]


@dataclass
class _Names:
    """The named types of a schema that is being generated.

    Attributes:
        defined: the kind of each completed type, by full name.
        open: the records that are not completed yet.
    """

    defined: dict[str, str] = field(default_factory=dict)
    open: list[str] = field(default_factory=list)


@st.composite
def schema_values(draw: st.DrawFn, *, root: str | None = None, max_depth: int = 3, logical: bool = True) -> Any:
    """Generates a valid Avro schema as a JSON value; `root="record"` makes it a record."""
    names = _Names()
    if root == "record":
        return _record(draw, names, "", max_depth, logical)
    return _type(draw, names, "", max_depth, logical)


def schemas(**options: Any) -> st.SearchStrategy[Schema]:
    """Generates a valid schema and parses it; the options are those of `schema_values`."""
    return schema_values(**options).map(lambda value: parse_schema(json.dumps(value)))


def _type(draw: st.DrawFn, names: _Names, space: str, depth: int, logical: bool, *, in_union: bool = False) -> Any:
    kinds = ["primitive"] * 4 + ["reference"] + (["logical"] if logical else [])
    if depth > 0:
        kinds += ["record", "enum", "fixed", "array", "map"] + ([] if in_union else ["union", "union", "nullable"])
    kind = draw(st.sampled_from(kinds))
    if kind == "logical":
        return dict(draw(st.sampled_from(LOGICAL_TYPES)))
    if kind == "record":
        return _record(draw, names, space, depth, logical)
    if kind == "enum":
        return _enum(draw, names, space)
    if kind == "fixed":
        return _fixed(draw, names, space, logical)
    if kind == "array":
        return {"type": "array", "items": _type(draw, names, space, depth - 1, logical)}
    if kind == "map":
        return {"type": "map", "values": _type(draw, names, space, depth - 1, logical)}
    if kind == "nullable":
        inner = _type(draw, names, space, depth - 1, logical, in_union=True)
        return ["null", inner] if _union_key(inner, space) != "null" else ["null"]
    if kind == "union":
        return _union(draw, names, space, depth, logical)
    if kind == "reference" and names.defined:
        return draw(st.sampled_from(sorted(names.defined)))
    return draw(st.sampled_from(PRIMITIVE_NAMES))


def _union(draw: st.DrawFn, names: _Names, space: str, depth: int, logical: bool) -> list[Any]:
    branches: dict[str, Any] = {}
    for _ in range(draw(st.integers(1, 4))):
        before = dict(names.defined)
        branch = _type(draw, names, space, depth - 1, logical, in_union=True)
        key = _union_key(branch, space)
        if key in branches:
            names.defined = before
        else:
            branches[key] = branch
    if draw(st.booleans()):
        branches.setdefault("null", "null")
    return list(branches.values())


def _union_key(value: Any, space: str) -> str:
    if isinstance(value, str):
        return value
    if "name" in value:
        return _full(value, space)
    return str(value["type"])


def _full(value: dict[str, Any], space: str) -> str:
    namespace = value.get("namespace", space)
    return f"{namespace}.{value['name']}" if namespace else str(value["name"])


def _new_name(draw: st.DrawFn, names: _Names, space: str) -> dict[str, Any]:
    head: dict[str, Any] = {"name": draw(TYPE_NAMES)}
    if draw(st.booleans()):
        head["namespace"] = draw(NAMESPACES)
    # An unqualified reference from another namespace may refer to a type without namespace. Short names are unique too,
    # so that the meaning of a reference never depends on its position.
    used_names = {full.rpartition(".")[2] for full in (*names.defined, *names.open)}
    while head["name"] in used_names:
        head["name"] += "x"
    return head


def _record(draw: st.DrawFn, names: _Names, space: str, depth: int, logical: bool) -> dict[str, Any]:
    value: dict[str, Any] = {"type": "record", **_new_name(draw, names, space)}
    full = _full(value, space)
    inner_space = value.get("namespace", space)
    names.open.append(full)
    if draw(st.booleans()):
        value["doc"] = draw(TEXTS)
    fields: list[dict[str, Any]] = []
    for name in draw(st.lists(NAMES, max_size=4 if depth > 1 else 2, unique=True)):
        fields.append(_field(draw, names, name, inner_space, depth - 1, logical))
    if depth > 1 and draw(st.integers(0, 3)) == 0 and not any(item["name"] == "next" for item in fields):
        fields.append({"name": "next", "type": ["null", full], "default": None})
    value["fields"] = fields
    if draw(st.integers(0, 4)) == 0:
        value["aliases"] = [draw(st.sampled_from(["Old", "n.Old", "x.y.Older"]))]
    names.open.remove(full)
    names.defined[full] = "record"
    return value


def _field(draw: st.DrawFn, names: _Names, name: str, space: str, depth: int, logical: bool) -> dict[str, Any]:
    node = _type(draw, names, space, depth, logical)
    out: dict[str, Any] = {"name": name, "type": node}
    default = _default(draw, node)
    if default is not _NO_DEFAULT and draw(st.booleans()):
        out["default"] = default
    if draw(st.integers(0, 5)) == 0:
        out["doc"] = draw(TEXTS)
    if draw(st.integers(0, 5)) == 0:
        out["order"] = draw(st.sampled_from(["ascending", "descending", "ignore"]))
    if draw(st.integers(0, 5)) == 0:
        out["aliases"] = [f"{name}_old"]
    if draw(st.integers(0, 5)) == 0:
        out["x-prop"] = draw(st.sampled_from([1, "text", None, {"b": 1, "a": [1.5]}]))
    return out


_NO_DEFAULT = object()


def _default(draw: st.DrawFn, node: Any) -> Any:
    """Returns a valid default for a type, or `_NO_DEFAULT` for a type that gets none. Dates and times have the range of
    `data_for`."""
    if isinstance(node, list):
        return _default(draw, node[0])
    kind = node if isinstance(node, str) else node["type"]
    simple: dict[str, st.SearchStrategy[Any]] = {
        "null": st.none(),
        "boolean": st.booleans(),
        "int": st.integers(-(2**31), 2**31 - 1),
        "long": st.integers(-(2**63), 2**63 - 1),
        "float": st.sampled_from([0, 1.5, -2.25, 1e10]),
        "double": st.sampled_from([0, 1.5, -0.001, 1e-7, 12345678.9]),
        "bytes": st.text(st.characters(max_codepoint=255), max_size=4),
        "string": TEXTS,
    }
    logical = node.get("logicalType", "") if isinstance(node, dict) else ""
    if logical == "decimal" and kind == "bytes":
        return draw(st.text(st.characters(max_codepoint=255), min_size=1, max_size=3))
    if logical in _LOGICAL_DATA and kind in ("int", "long"):
        return draw(_LOGICAL_DATA[logical])
    if kind in simple:
        return draw(simple[kind])
    if kind == "array":
        return []
    if kind == "map":
        return {}
    if kind == "enum":
        return node["symbols"][0]
    if kind == "fixed":
        return "\u0000" * node["size"]
    return _NO_DEFAULT


def _enum(draw: st.DrawFn, names: _Names, space: str) -> dict[str, Any]:
    value: dict[str, Any] = {"type": "enum", **_new_name(draw, names, space)}
    value["symbols"] = draw(st.lists(st.sampled_from(["A", "B", "C", "D", "_e"]), min_size=1, unique=True))
    if draw(st.booleans()):
        value["default"] = value["symbols"][-1]
    names.defined[_full(value, space)] = "enum"
    return value


def _fixed(draw: st.DrawFn, names: _Names, space: str, logical: bool) -> dict[str, Any]:
    value: dict[str, Any] = {"type": "fixed", **_new_name(draw, names, space), "size": draw(st.integers(1, 5))}
    if logical and draw(st.integers(0, 3)) == 0:
        value["logicalType"], value["size"] = draw(st.sampled_from([("uuid", 16), ("duration", 12), ("decimal", 8)]))
        if value["logicalType"] == "decimal":
            value.update(precision=10, scale=3)
    names.defined[_full(value, space)] = "fixed"
    return value


def data_for(schema: Schema, node: Type | None = None, *, depth: int = 4) -> st.SearchStrategy[Any]:
    """Generates data that fastavro can write with the schema.

    Below `depth` levels, values that can be null or empty are so. Dates and timestamps are in the years 1 to 9999, and
    decimals have at least one byte and at most the declared digits, because queries cannot show others. A value of a
    union is a pair of branch name and value if the value alone would be ambiguous to fastavro.
    """
    node = schema.resolve(schema.root if node is None else node)
    if isinstance(node, Primitive):
        logical = node.logical.name if node.logical is not None else ""
        if node.logical is not None and logical == "decimal":
            return decimal_data(node.logical)
        return _LOGICAL_DATA.get(logical, _PRIMITIVE_DATA[node.type.value])
    if isinstance(node, Enum):
        return st.sampled_from(node.symbols)
    if isinstance(node, Fixed):
        return st.binary(min_size=node.size, max_size=node.size)
    if isinstance(node, Array):
        return st.just([]) if depth <= 0 else st.lists(data_for(schema, node.items, depth=depth - 1), max_size=2)
    if isinstance(node, Map):
        if depth <= 0:
            return st.just({})
        return st.dictionaries(TEXTS, data_for(schema, node.values, depth=depth - 1), max_size=2)
    if isinstance(node, Union):
        return _union_data(schema, node, depth)
    assert isinstance(node, Record)
    fields = node.fields
    return st.fixed_dictionaries(
        {item.name: st.deferred(lambda item=item: data_for(schema, item.type, depth=depth - 1)) for item in fields}
    )


def decimal_data(logical: LogicalType) -> st.SearchStrategy[bytes]:
    """Generates the bytes of a decimal: numbers of at most its digits, often the largest, some with repeated signs."""
    assert logical.precision is not None
    largest = 10**logical.precision - 1

    def encoded(number: int, padding: int) -> bytes:
        return number.to_bytes(number.bit_length() // 8 + 1 + padding, "big", signed=True)

    numbers = st.one_of(
        st.integers(-largest, largest), st.integers(-70_000, 70_000).filter(lambda n: abs(n) <= largest)
    )
    return st.builds(
        encoded, st.one_of(numbers, st.sampled_from([largest, -largest])), st.sampled_from([0, 0, 0, 1, 20])
    )


def _union_data(schema: Schema, node: Union, depth: int) -> st.SearchStrategy[Any]:
    branches = [schema.resolve(branch) for branch in node.branches]
    null = [b for b in branches if isinstance(b, Primitive) and b.type is PrimitiveType.NULL]
    if depth <= 0 and null:
        return st.none()
    return st.one_of([_branch_data(schema, branch, depth) for branch in branches])


def _branch_data(schema: Schema, branch: Type, depth: int) -> st.SearchStrategy[Any]:
    if isinstance(branch, Primitive) and branch.type is PrimitiveType.NULL:
        return st.none()
    inner = st.deferred(lambda: data_for(schema, branch, depth=depth - 1))
    name = branch_name(branch)
    return inner.map(lambda value: (name, value))


DAY_MS = 86_400_000
EDGE_DAYS = tuple(
    (datetime.date.fromisoformat(text) - datetime.date(1970, 1, 1)).days
    for text in (
        "0001-01-01", "0004-02-29", "0100-02-27", "0999-12-31", "1500-02-28", "1500-03-10", "1500-03-11", "1582-10-04",
        "1582-10-05", "1582-10-14", "1582-10-15", "1700-02-28", "1883-11-18", "1900-01-01", "2100-02-28", "9999-12-31",
    )
)  # fmt: skip
"""Days at which calendars and readers differ: the first and last year, the change from the Julian to the Gregorian
calendar, and days around leap days that only one of them has."""
_DAYS = st.one_of(st.integers(-25_000, 50_000), st.sampled_from(EDGE_DAYS))
_MILLIS = st.one_of(
    st.integers(0, 4_102_444_800_000),
    st.builds(lambda day, time_ms: day * DAY_MS + time_ms, st.sampled_from(EDGE_DAYS), st.integers(0, DAY_MS - 1)),
)
_LOGICAL_DATA: dict[str, st.SearchStrategy[Any]] = {
    "date": _DAYS,
    "timestamp-millis": _MILLIS,
    "timestamp-micros": _MILLIS.map(lambda millis: millis * 1000),
    "local-timestamp-millis": _MILLIS,
}
_FLOATS = st.floats(width=32, allow_nan=False)
_PRIMITIVE_DATA: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": _FLOATS,
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=6),
    "string": TEXTS,
}


@st.composite
def histories(draw: st.DrawFn, *, max_versions: int = 5) -> list[Schema]:
    """Generates the versions of one subject.

    Fields of records are added, removed, widened, narrowed, retyped, renamed, renamed back, swap their names, or give
    their name to another field, at the top level and in nested records.
    """
    history = _History(draw)
    for name in draw(st.lists(NAMES, min_size=1, max_size=4, unique=True)):
        history.fields.append(history.new_field(name))
    versions = [_history_schema(history.fields)]
    for _ in range(draw(st.integers(1, max_versions - 1))):
        history.change()
        versions.append(_history_schema(history.fields))
    return versions


@st.composite
def growing_histories(draw: st.DrawFn, *, max_versions: int = 4) -> list[Schema]:
    """Generates versions that only add fields, anywhere, each with a default or nullable."""
    names = draw(st.lists(st.from_regex(r"[a-z]{3,6}", fullmatch=True), min_size=1, max_size=8, unique=True))
    fields: list[dict[str, Any]] = []
    versions: list[Schema] = []
    while names and len(versions) < max_versions:
        for name in names[: draw(st.integers(1, 3))]:
            kind, default = draw(st.sampled_from(_ADDED))
            fields.insert(draw(st.integers(0, len(fields))), {"name": name, "type": kind, "default": default})
            names.remove(name)
        versions.append(_history_schema(fields))
    return versions


_ADDED: list[tuple[Any, Any]] = [
    ("int", 5),
    ("string", "x"),
    (["null", "long"], None),
    ({"type": "array", "items": "string"}, []),
    (["null", {"type": "long", "logicalType": "timestamp-millis"}], None),
    ("boolean", True),
]

_FIELD_TYPES: list[Any] = [
    "int",
    "long",
    "float",
    "double",
    "string",
    "bytes",
    ["null", "int"],
    ["null", "string"],
    ["int", "string"],
    ["null", "long", "string", {"type": "array", "items": "int"}],
    "null",
    {"type": "array", "items": "int"},
    {"type": "array", "items": "long"},
    {"type": "map", "values": ["null", "string"]},
    {"type": "int", "logicalType": "date"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2},
    {"type": "bytes", "logicalType": "decimal", "precision": 44, "scale": 2},
]


_CHANGES = ["add", "remove", "retype", "rename", "rename", "reuse", "exchange", "rename type", "reorder"]


class _History:
    """Generates the versions of a subject, of which it stores the newest.

    Attributes:
        fields: the fields of the newest version as JSON.
    """

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.fields: list[dict[str, Any]] = []
        self._former_fields: list[tuple[list[dict[str, Any]], dict[str, Any]]] = []
        self._types: set[str] = set()  # names of types created for a field that is not yet in a record

    def change(self) -> None:
        """Makes one change in one record of the newest version: the top-level one or a nested one."""
        nested = [node["fields"] for node in _named_types(self.fields) if node.get("fields")]
        fields = self.draw(st.sampled_from([self.fields, *nested]))
        former = self._free_former_fields(fields)
        change = self.draw(st.sampled_from(["take again"] * len(_CHANGES) * bool(former) + _CHANGES))
        if change == "take again":
            self._insert(fields, self._recreate_field(self.draw(st.sampled_from(former))))
        elif change == "rename type":
            self._rename_type()
        elif change == "add" or not fields:
            self._insert(fields, self.new_field(self._new_name(fields)))
        elif change == "exchange" and len(fields) > 1:
            self._swap_names(*self.draw(st.permutations(fields))[:2])
        elif change == "reorder":
            fields.reverse()
        else:
            self._change_field(fields, self.draw(st.integers(0, len(fields) - 1)), change)

    def _change_field(self, fields: list[dict[str, Any]], i: int, change: str) -> None:
        field = fields[i]
        if change == "retype":
            del fields[i]
            fields.insert(i, self.new_field(field["name"]) | {"aliases": field.get("aliases", [])})
            return
        self._former_fields.append((fields, dict(field)))
        if change == "remove":
            del fields[i]
            return
        former = self._free_former_fields(fields)
        back = former and self.draw(st.booleans())
        old = field["name"]
        field["name"] = self.draw(st.sampled_from(former))["name"] if back else self._new_name(fields)
        field["aliases"] = [old, *self.draw(st.sampled_from([[], field.get("aliases", [])]))]
        if change == "reuse" and field["name"] != old:
            self._insert(fields, self._recreate_field(self._former_fields[-1][1]))

    def _free_former_fields(self, fields: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the fields that the record had in earlier versions and whose names are now unused."""
        names = {item["name"] for item in fields}
        return [field for of, field in self._former_fields if of is fields and field["name"] not in names]

    def _swap_names(self, one: dict[str, Any], other: dict[str, Any]) -> None:
        one["name"], other["name"] = other["name"], one["name"]
        one["aliases"], other["aliases"] = [other["name"]], [one["name"]]

    def _recreate_field(self, field: dict[str, Any]) -> dict[str, Any]:
        """Returns a field equal to a former one. If that one defines named types, which a schema may define only once,
        returns a new field with its name."""
        if _named_types(field["type"]) or self.draw(st.integers(0, 3)) == 0:
            return self.new_field(field["name"])
        return self._with_default({"name": field["name"], "type": field["type"]})

    def _rename_type(self) -> None:
        nodes = [node for node in _named_types(self.fields) if node["type"] != "fixed"]
        if not nodes:
            return
        one, *others = self.draw(st.permutations(nodes))
        alike = [node for node in others if node["type"] == one["type"]]
        if alike and self.draw(st.booleans()):
            self._swap_names(one, alike[0])
        else:
            old = one["name"]
            one["name"] = self._free_type_name(old)
            one["aliases"] = [old]

    def _insert(self, fields: list[dict[str, Any]], field: dict[str, Any]) -> None:
        fields.insert(self.draw(st.integers(0, len(fields))), field)

    def _new_name(self, fields: list[dict[str, Any]]) -> str:
        names = {item["name"] for item in fields}
        return self.draw(NAMES.filter(lambda name: name not in names))

    def _free_type_name(self, preferred: str) -> str:
        used_names = {node["name"] for node in _named_types(self.fields)} | self._types
        while preferred in used_names:
            preferred += "x"
        self._types.add(preferred)
        return preferred

    def new_field(self, name: str) -> dict[str, Any]:
        self._types.clear()
        return self._field(name, 2)

    def _field(self, name: str, depth: int) -> dict[str, Any]:
        return self._with_default({"name": name, "type": self._new_type(name, depth)})

    def _with_default(self, field: dict[str, Any]) -> dict[str, Any]:
        default = _default(self.draw, field["type"])
        return field | {"default": default} if default is not _NO_DEFAULT and self.draw(st.booleans()) else field

    def _new_type(self, name: str, depth: int) -> Any:
        containers = ["record", "record", "records", "map of records", "nullable record", "union of records"]
        kind = self.draw(st.sampled_from(["plain"] * 8 + ["enum"] + (containers if depth else [])))
        if kind == "plain":
            return self.draw(st.sampled_from(_FIELD_TYPES))
        if kind == "enum":
            symbols = self.draw(st.lists(st.sampled_from(["A", "B", "C"]), min_size=1, unique=True))
            return {"type": "enum", "name": self._free_type_name(f"E_{name}"), "symbols": symbols}
        record = self._new_record(self._free_type_name(f"R_{name}"), depth)
        if kind == "records":
            return {"type": "array", "items": record}
        if kind == "map of records":
            return {"type": "map", "values": record}
        if kind == "nullable record":
            return ["null", record]
        if kind == "union of records":
            return ["null", record, self._new_record(self._free_type_name(f"S_{name}"), 1), "string"]
        return record

    def _new_record(self, type_name: str, depth: int) -> dict[str, Any]:
        names = self.draw(st.lists(st.sampled_from(["x", "y", "z"]), max_size=3, unique=True))
        fields = [self._field(name, depth - 1) for name in names]
        return {"type": "record", "name": type_name, "fields": fields}


def _named_types(value: Any) -> list[dict[str, Any]]:
    """Returns the named types in a JSON value of fields or types."""
    if isinstance(value, list):
        return [node for item in value for node in _named_types(item)]
    if not isinstance(value, dict):
        return []
    own = [value] if value.get("type") in ("record", "enum", "fixed") else []
    return own + [node for key in ("type", "fields", "items", "values") for node in _named_types(value.get(key))]


def _history_schema(fields: list[dict[str, Any]]) -> Schema:
    return parse_schema(json.dumps({"type": "record", "name": "Event", "namespace": "n", "fields": fields}))
