"""Parses JSON text to the model: Avro 1.12, Schema Declaration, with Avro Java's rules where the specification is
silent.

A name is resolved in the enclosing namespace, then without namespace, then in the enclosing namespace among types
defined later in the same text (Avro 1.12 allows a use before the definition). Two definitions that differ at most in
documentation, aliases and an enum's default are one type.

`strict` applies to new schemas: defaults must be valid and the parts of namespaces must be names. Without it, schemas
that older registries accepted can still be read; names themselves are always checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, NoReturn

from headrace.avro_schema.defaults import DefaultValidator, shorten
from headrace.avro_schema.errors import SchemaParseError
from headrace.avro_schema.json_reader import JsonDocument, JsonObject, item_offset, read_json, to_plain
from headrace.avro_schema.logical import logical_type
from headrace.avro_schema.model import (
    NO_DEFAULT,
    Array,
    Enum,
    Field,
    Fixed,
    JsonValue,
    Map,
    Name,
    NamedType,
    Order,
    Primitive,
    Props,
    Record,
    Reference,
    Schema,
    Type,
    Union,
)
from headrace.avro_schema.names import COMPLEX_TYPES, NAME_RULE, PRIMITIVES, full_name, is_name, name_problem
from headrace.avro_schema.quick_json import read_without_positions
from headrace.avro_schema.text import canonical_text

NODES_MAX = 200_000
"""Maximum number of types in one schema. Of the texts within the length limit, only generated ones exceed it."""

FIXED_BYTES_MAX = 2**31 - 1

_RESERVED: Final = frozenset(
    ("doc", "fields", "items", "name", "namespace", "size", "symbols", "values", "type", "aliases")
)
_ENUM_RESERVED: Final = _RESERVED | {"default"}
_FIELD_RESERVED: Final = frozenset(("default", "doc", "name", "order", "type", "aliases"))
_ORDERS: Final = {order.value: order for order in Order}
_NON_FINITE: Final = frozenset(("NaN", "Infinity", "-Infinity"))


def parse_schema(
    text: str,
    *,
    references: Sequence[Schema] = (),
    source: str = "",
    strict: bool = True,
    lenient_json: bool = False,
) -> Schema:
    """Parses a schema text.

    Args:
        text: JSON.
        references: schemas with named types that this text may use by full name.
        source: a file name or subject, for messages.
        strict: also refuse invalid defaults and namespaces.
        lenient_json: also accept comments, and keys that an object has several times: the last value counts. Avro Java
            does both, so registries may have accepted and stored such texts. `Schema.text` then has blanks instead of
            comments.

    Raises:
        SchemaParseError: the text is not a schema; the error has the position and the expected syntax.
    """
    quick = read_without_positions(text, source)
    if quick is not None:
        try:
            return _parsed(quick, references, strict)
        except SchemaParseError:
            pass  # the parser with positions reports the error
    return _parsed(read_json(text, source, lenient=lenient_json), references, strict)


def _parsed(document: JsonDocument, references: Sequence[Schema], strict: bool) -> Schema:
    parser = _Parser(document, _referenced_names(document, references), strict)
    root = parser.parse_type(document.root, document.offset, "", "")
    schema = Schema(root, MappingProxyType(parser.names), document.text, document.source)
    try:
        parser.finish()
        if parser.unresolved:
            # The canonical text moves a type to its first use, so it may be nested deeper than the parsed text.
            read_json(canonical_text(schema), document.source)
    except RecursionError:
        document.fail("the types of this schema are nested too deeply", document.offset)
    return schema


def _referenced_names(document: JsonDocument, references: Sequence[Schema]) -> dict[Name, NamedType]:
    known: dict[Name, NamedType] = {}
    for reference in references:
        for name, node in reference.names.items():
            if _comparable(known.setdefault(name, node)) != _comparable(node):
                document.fail(f"two of the referenced schemas define {name.full} differently", 0)
    return known


class _Parser:
    """State of parsing one schema text: the known types, and the checks that need all types."""

    def __init__(self, document: JsonDocument, known: dict[Name, NamedType], strict: bool) -> None:
        self.document = document
        self.names = known
        self.external = frozenset(known)
        self.strict = strict
        self.open: set[Name] = set()
        self.unresolved: list[tuple[Name, str, int]] = []
        self.defaults: list[tuple[Field, JsonObject]] = []
        self.nodes = 0

    def fail(self, message: str, offset: int, pointer: str) -> NoReturn:
        self.document.fail(message, offset, pointer)

    def parse_type(self, value: JsonValue, offset: int, pointer: str, namespace: str) -> Type:
        self.nodes += 1
        if self.nodes > NODES_MAX:
            self.fail(f"the schema has more than {NODES_MAX} types", offset, pointer)
        if isinstance(value, str):
            kind = PRIMITIVES.get(value)
            if kind is not None:
                return Primitive(kind, None, (), self.document.position(pointer, offset))
            return self.reference(value, offset, pointer, namespace)
        if isinstance(value, JsonObject):
            return self.parse_object(value, pointer, namespace)
        if not isinstance(value, list):
            self.fail(f"{shorten(value)} is not a schema; expected a type name, an object or an array", offset, pointer)
        return self.parse_union(value, offset, pointer, namespace)

    def reference(self, text: str, offset: int, pointer: str, namespace: str) -> Reference:
        if not text or text in COMPLEX_TYPES or text == "union":
            self.fail(_not_a_type(text), offset, pointer)
        name = full_name(text, namespace)
        if name not in self.names and name not in self.open:
            bare = Name(text)
            if bare in self.names or bare in self.open:
                name = bare
            else:
                self.unresolved.append((name, pointer, offset))
        return Reference(name, self.document.position(pointer, offset))

    def parse_union(self, value: list[JsonValue], offset: int, pointer: str, namespace: str) -> Type:
        branches: list[Type] = []
        seen: dict[str, int] = {}
        for i, item in enumerate(value):
            where, at = f"{pointer}/{i}", item_offset(value, i)
            if isinstance(item, list):
                self.fail("a union directly inside a union; put its branches into the outer union", at, where)
            branch = self.parse_type(item, at, where, namespace)
            key = _branch_key(branch)
            if key in seen:
                self.fail(f"the union has {key} twice (branches {seen[key]} and {i}); keep one", at, where)
            seen[key] = i
            branches.append(branch)
        return Union(tuple(branches), self.document.position(pointer, offset))

    def parse_object(self, value: JsonObject, pointer: str, namespace: str) -> Type:
        kind = value.get("type")
        if not isinstance(kind, str):
            self.fail(_no_type(value, kind), value.offsets.get("type", value.offset), pointer)
        primitive = PRIMITIVES.get(kind)
        if primitive is not None:
            logical = logical_type(value, kind) if "logicalType" in value else None
            return Primitive(
                primitive, logical, _props(value, _RESERVED), self.document.position(pointer, value.offset)
            )
        handler = _HANDLERS.get(kind)
        if handler is not None:
            return handler(self, value, pointer, namespace)
        return self.reference(kind, value.offsets["type"], f"{pointer}/type", namespace)

    def parse_array(self, value: JsonObject, pointer: str, namespace: str) -> Type:
        items = self.inner(value, "items", pointer, namespace)
        return Array(items, _props(value, _RESERVED), self.document.position(pointer, value.offset))

    def parse_map(self, value: JsonObject, pointer: str, namespace: str) -> Type:
        values = self.inner(value, "values", pointer, namespace)
        return Map(values, _props(value, _RESERVED), self.document.position(pointer, value.offset))

    def inner(self, value: JsonObject, key: str, pointer: str, namespace: str) -> Type:
        if key not in value:
            self.fail(f'the {value["type"]} needs "{key}", the schema of its {key}', value.offset, pointer)
        return self.parse_type(value[key], value.offsets[key], f"{pointer}/{key}", namespace)

    def parse_record(self, value: JsonObject, pointer: str, namespace: str) -> Type:
        name, aliases = self.names_of(value, pointer, namespace)
        items = value.get("fields")
        if not isinstance(items, list):
            self.fail(
                f'record {name.full} needs a list of "fields"', value.offsets.get("fields", value.offset), pointer
            )
        outermost = name not in self.open
        self.open.add(name)
        fields: list[Field] = []
        seen: set[str] = set()
        for i, item in enumerate(items):
            fields.append(self.parse_field(item, item_offset(items, i), f"{pointer}/fields/{i}", name, seen))
        record = Record(
            name,
            tuple(fields),
            _doc(value),
            aliases,
            value["type"] == "error",
            _props(value, _RESERVED),
            self.document.position(pointer, value.offset),
        )
        if outermost:
            self.open.discard(name)
        return self.define(record, value, pointer)

    def parse_field(self, value: JsonValue, offset: int, pointer: str, owner: Name, seen: set[str]) -> Field:
        if not isinstance(value, JsonObject):
            self.fail(f"{shorten(value)} is not a field; expected an object with name and type", offset, pointer)
        name = value.get("name")
        if not isinstance(name, str):
            self.fail(
                f'a field of record {owner.full} needs a "name" (a string)', value.offsets.get("name", offset), pointer
            )
        if not is_name(name):
            self.fail(f'"{name}" is not a field name; expected {NAME_RULE}', value.offsets["name"], f"{pointer}/name")
        if name in seen:
            self.fail(f'record {owner.full} has two fields named "{name}"', value.offsets["name"], f"{pointer}/name")
        seen.add(name)
        if "type" not in value:
            self.fail(f'field "{name}" of {owner.full} has no "type"; add one', offset, pointer)
        node = self.parse_type(value["type"], value.offsets["type"], f"{pointer}/type", owner.namespace)
        field = Field(
            name,
            node,
            to_plain(value["default"]) if "default" in value else NO_DEFAULT,
            _doc(value),
            tuple(self.aliases_of(value, pointer)) if "aliases" in value else (),
            self.order_of(value, pointer) if "order" in value else Order.ASCENDING,
            _props(value, _FIELD_RESERVED),
            self.document.position(pointer, offset),
        )
        if "default" in value:
            field = self.with_number_default(field, value, pointer)
            self.defaults.append((field, value))
        return field

    def with_number_default(self, field: Field, value: JsonObject, pointer: str) -> Field:
        """Returns the field. If it is a float or double with a text such as "1.5" as its default, the default is
        converted to a number, as in Avro Java since 1.4. If the parser is strict, a text other than a finite number,
        NaN, Infinity or -Infinity is an error.

        Args:
            value: the field in the schema text, which has the offset for the error.
            pointer: the field's JSON pointer, for the error.
        """
        text = field.default
        if not isinstance(text, str) or text in _NON_FINITE or not isinstance(field.type, Primitive):
            return field
        if field.type.type.value not in ("float", "double"):
            return field
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            if self.strict:
                self.fail(
                    f'default of field "{field.name}": {shorten(text)} is not a number',
                    value.offsets["default"],
                    f"{pointer}/default",
                )
            return field
        return replace(field, default=number)

    def order_of(self, value: JsonObject, pointer: str) -> Order:
        text = value["order"]
        order = _ORDERS.get(text.lower()) if isinstance(text, str) else None
        if order is None:
            self.fail(
                f"{shorten(text)} is not a sort order of a field; expected ascending, descending or ignore",
                value.offsets["order"],
                f"{pointer}/order",
            )
        return order

    def parse_enum(self, value: JsonObject, pointer: str, namespace: str) -> Type:
        name, aliases = self.names_of(value, pointer, namespace)
        symbols = self.symbols_of(value, name, pointer)
        default = value.get("default")
        if not isinstance(default, str):
            default = None
        elif default not in symbols:
            self.fail(
                f'the default "{default}" of enum {name.full} is not one of its symbols',
                value.offsets["default"],
                f"{pointer}/default",
            )
        position = self.document.position(pointer, value.offset)
        props = _props(value, _ENUM_RESERVED)
        return self.define(Enum(name, symbols, default, _doc(value), aliases, props, position), value, pointer)

    def symbols_of(self, value: JsonObject, name: Name, pointer: str) -> tuple[str, ...]:
        items = value.get("symbols")
        if not isinstance(items, list):
            self.fail(
                f'enum {name.full} needs a list of "symbols"', value.offsets.get("symbols", value.offset), pointer
            )
        seen: dict[str, None] = {}
        for i, symbol in enumerate(items):
            where = f"{pointer}/symbols/{i}"
            if not isinstance(symbol, str) or not is_name(symbol):
                self.fail(
                    f"{shorten(symbol)} is not an enum symbol; expected {NAME_RULE}", item_offset(items, i), where
                )
            if symbol in seen:
                self.fail(f'enum {name.full} has the symbol "{symbol}" twice', item_offset(items, i), where)
            seen[symbol] = None
        return tuple(seen)

    def parse_fixed(self, value: JsonObject, pointer: str, namespace: str) -> Type:
        name, aliases = self.names_of(value, pointer, namespace)
        size = value.get("size")
        if type(size) is not int or not 0 <= size <= FIXED_BYTES_MAX:
            found = f"found {shorten(size)}" if "size" in value else "found none"
            self.fail(
                f'fixed {name.full}: expected "size" to be a number of bytes from 0 to {FIXED_BYTES_MAX}, {found}',
                value.offsets.get("size", value.offset),
                pointer,
            )
        logical = logical_type(value, "fixed", size) if "logicalType" in value else None
        position = self.document.position(pointer, value.offset)
        props = _props(value, _RESERVED)
        return self.define(Fixed(name, size, logical, _doc(value), aliases, props, position), value, pointer)

    def names_of(self, value: JsonObject, pointer: str, namespace: str) -> tuple[Name, tuple[Name, ...]]:
        text = value.get("name")
        if not isinstance(text, str):
            self.fail(
                f'the {value["type"]} needs a "name" (a string)', value.offsets.get("name", value.offset), pointer
            )
        space = value.get("namespace", namespace)
        name = full_name(text, space if isinstance(space, str) else namespace)
        problem = name_problem(name, check_namespace=self.strict)
        if problem is None and not name.namespace and name.name in PRIMITIVES:
            problem = f'a named type cannot be called "{name.name}", the name of a built-in type'
        if problem is not None:
            self.fail(problem, value.offsets["name"], f"{pointer}/name")
        if "aliases" not in value:
            return name, ()
        aliases = []
        for i, alias in enumerate(self.aliases_of(value, pointer)):
            full = full_name(alias, name.namespace)
            problem = name_problem(full, check_namespace=False)  # Avro Java checks only the namespaces of names
            if problem is not None:
                self.fail(f"alias: {problem}", item_offset(value["aliases"], i), f"{pointer}/aliases/{i}")
            aliases.append(full)
        return name, tuple(dict.fromkeys(aliases))

    def aliases_of(self, value: JsonObject, pointer: str) -> list[str]:
        items = value["aliases"]
        if not isinstance(items, list):
            self.fail(f"aliases: expected a list of names, found {shorten(items)}", value.offsets["aliases"], pointer)
        for i, item in enumerate(items):
            if not isinstance(item, str):
                self.fail(
                    f"{shorten(item)} is not an alias; expected a string",
                    item_offset(items, i),
                    f"{pointer}/aliases/{i}",
                )
        return list(dict.fromkeys(items))

    def define(self, node: NamedType, value: JsonObject, pointer: str) -> Type:
        name = node.name
        known = self.names.get(name)
        if known is None and name not in self.open:
            self.names[name] = node
            return node
        if known is None or _comparable(known) != _comparable(node):
            where, remedy = "this schema", "keep one definition"
            if name in self.external:
                where, remedy = "a referenced schema", "remove this definition or rename the type"
            message = f"{name.full} is already defined differently in {where}; {remedy}"
            self.fail(message, value.offsets["name"], f"{pointer}/name")
        return Reference(name, node.position)

    def finish(self) -> None:
        """Checks that every reference denotes a defined type and, if `strict`, that all defaults are valid. It is
        called last, because it needs all types.

        Raises:
            SchemaParseError: a type is not defined, or a default is invalid.
        """
        for name, pointer, offset in self.unresolved:
            if name not in self.names:
                self.fail(_undefined(name, self.names), offset, pointer)
        if not self.strict:
            return
        check = DefaultValidator(self.resolve)
        for field, value in self.defaults:
            if isinstance(field.default, str) and field.default in _NON_FINITE and _is_floating(field.type):
                continue
            problem = check.own(field)
            if problem is not None:
                pointer = f"{field.position.pointer}/default"
                self.fail(f'default of field "{field.name}": {problem}', value.offsets["default"], pointer)

    def resolve(self, node: Type) -> Type:
        return self.names[node.name] if isinstance(node, Reference) else node


_Handler = Callable[[_Parser, JsonObject, str, str], Type]

_HANDLERS: Final[Mapping[str, _Handler]] = {
    "record": _Parser.parse_record,
    "error": _Parser.parse_record,
    "enum": _Parser.parse_enum,
    "fixed": _Parser.parse_fixed,
    "array": _Parser.parse_array,
    "map": _Parser.parse_map,
}


def _props(value: JsonObject, reserved: frozenset[str]) -> Props:
    if value.keys() <= reserved:
        return ()
    return tuple((key, to_plain(item)) for key, item in value.items() if key not in reserved)


def _doc(value: JsonObject) -> str | None:
    doc = value.get("doc")
    return doc if isinstance(doc, str) else None


def _comparable(node: Type, *, is_outer: bool = True) -> Type:
    """Returns a copy of a type for the comparison of two definitions of the same name. The copy lacks the attributes
    that Avro Java excludes from equality: documentation, aliases, an enum's default.

    Nested named types are replaced by references, because each of them is compared at its own definition.

    Args:
        is_outer: whether `node` is the compared definition, not a type inside it.
    """
    if isinstance(node, Union):
        return Union(tuple(_comparable(branch, is_outer=False) for branch in node.branches))
    if isinstance(node, Array):
        return replace(node, items=_comparable(node.items, is_outer=False))
    if isinstance(node, Map):
        return replace(node, values=_comparable(node.values, is_outer=False))
    if isinstance(node, Record) and is_outer:
        fields = [replace(f, type=_comparable(f.type, is_outer=False), doc=None, aliases=()) for f in node.fields]
        return replace(node, fields=tuple(fields), doc=None, aliases=())
    if isinstance(node, Enum) and is_outer:
        return replace(node, default=None, doc=None, aliases=())
    if isinstance(node, Fixed) and is_outer:
        return replace(node, doc=None, aliases=())
    return Reference(node.name) if isinstance(node, Record | Enum | Fixed) else node


def _branch_key(branch: Type) -> str:
    """Returns the text that must be unique among the branches of a union: the full name of a named type, else the kind
    of the type, such as `array`."""
    match branch:
        case Primitive():
            return branch.type.value
        case Array():
            return "array"
        case Map():
            return "map"
        case Union():
            raise AssertionError("a union directly inside a union was rejected earlier")
    return branch.name.full


def _is_floating(node: Type) -> bool:
    return isinstance(node, Primitive) and node.type.value in ("float", "double")


def _not_a_type(text: str) -> str:
    if text == "union":
        return "a union is written as an array of its branches"
    if text:
        return f'"{text}" needs an object with its attributes, such as {{"type": "{text}", …}}'
    return "an empty type name"


def _no_type(value: JsonObject, kind: JsonValue) -> str:
    if isinstance(kind, dict | list):
        return 'the "type" of a schema object must be a type name; write the inner schema in place of this object'
    if kind is None and "type" not in value:
        return 'a schema object has no "type"; add one'
    return f'"type": expected the name of a type, found {shorten(kind)}'


_USUAL_NAMES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("integer", "int32", "int16", "int8", "short", "smallint", "tinyint", "byte", "uint16"), "int"),
    **dict.fromkeys(("int64", "bigint", "biginteger", "uint32", "longint"), "long"),
    "bool": "boolean",
    "float32": "float",
    **dict.fromkeys(("float64", "number", "real", "numeric"), "double"),
    **dict.fromkeys(("str", "text", "varchar", "char", "character"), "string"),
    **dict.fromkeys(("binary", "blob", "bytearray"), "bytes"),
    **dict.fromkeys(("none", "nil", "void"), "null"),
    **dict.fromkeys(("list", "tuple", "set", "vector"), '{"type": "array", "items": …}'),
    **dict.fromkeys(("dict", "dictionary", "hash", "hashmap"), '{"type": "map", "values": …}'),
    "object": '{"type": "record", …} or {"type": "map", "values": …}',
    **dict.fromkeys(("struct", "message", "class"), '{"type": "record", …}'),
    "uuid": '{"type": "string", "logicalType": "uuid"}',
    "guid": '{"type": "string", "logicalType": "uuid"}',
    "date": '{"type": "int", "logicalType": "date"}',
    "time": '{"type": "int", "logicalType": "time-millis"}',
    **dict.fromkeys(
        ("datetime", "timestamp", "timestamptz", "instant"), '{"type": "long", "logicalType": "timestamp-millis"}'
    ),
    **dict.fromkeys(
        ("decimal", "bigdecimal", "money"), '{"type": "bytes", "logicalType": "decimal", "precision": …, "scale": …}'
    ),
    # Logical types, which are no types of their own.
    "time-millis": '{"type": "int", "logicalType": "time-millis"}',
    **{
        name: f'{{"type": "long", "logicalType": "{name}"}}'
        for name in (
            "time-micros",
            *(f"{kind}-{unit}" for kind in ("timestamp", "local-timestamp") for unit in ("millis", "micros", "nanos")),
        )
    },
}
"""Usual names of types in programming languages and databases, with their equivalents in Avro."""

_SIMILARITY_MIN: Final = 0.75
"""Similarity (0 to 1) of an unknown name to the name of a type from which the error suggests that type."""


def _undefined(name: Name, names: Mapping[Name, NamedType]) -> str:
    suggested = _suggested(name.name.lower(), names)
    kinds = ", ".join((*PRIMITIVES, *COMPLEX_TYPES))
    expected = (
        f"did you mean {suggested}?"
        if suggested
        else f"expected {kinds} or a type defined in this schema or in its references"
    )
    return f"the type {name.full} is not defined; {expected}"


def _suggested(name: str, names: Mapping[Name, NamedType]) -> str:
    """Returns the type that is probably meant by an unknown type name in lower case, "" if none is similar.

    Args:
        names: the named types that the schema may use.
    """
    if name in _USUAL_NAMES and name not in {known.name.lower() for known in names}:
        return _USUAL_NAMES[name]
    from difflib import get_close_matches  # slow to import

    types = {each: each for each in (*PRIMITIVES, *COMPLEX_TYPES)} | {known.name.lower(): known.full for known in names}
    near = get_close_matches(name, types, 1, _SIMILARITY_MIN)
    return types[near[0]] if near else ""
