"""The types of load columns and the changes that they permit.

Tables and small functions for the fold: promotions that keep a column, and names and defaults that Hive supports. The
properties in load schemas are documented in `loader.load_schema`.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from headrace.avro_codec.readable import DECIMAL_BYTES_MAX, TIMESTAMP_MS_MAX
from headrace.avro_schema import (
    NO_DEFAULT,
    Array,
    Enum,
    Field,
    Fixed,
    JsonValue,
    LogicalType,
    Map,
    Name,
    NamedType,
    Primitive,
    PrimitiveType,
    Props,
    Record,
    Type,
    Union,
    default_problem,
    walk_type,
)
from headrace.avro_schema.json_reader import TEXT_CHARS_MAX

SOURCE = "headrace.source"
FORMER = "headrace.former"
ABSENT = "headrace.absent"
BRANCH = "headrace.branch"
KIND = "headrace.kind"
DECIMAL = "headrace.decimal"
WIDENED = "headrace.widened"
NAMES = "headrace.names"

MEMBERS = "members"
JSON = "json"
UNSCALED = "unscaled"

HIVE_PRECISION_MAX = 38

COLUMN_NODES_MAX = 2_000
"""Maximum number of types inside one column; a larger column becomes text. Load types have no references, so a type
that uses another twice contains its copy twice, and the size may double with each level."""

FOLD_TYPES_MAX = 200_000
"""Maximum number of types of one folded version, including columns that become text. A table never needs so many. The
limit bounds the time of the fold to some seconds: a short schema may use a type of 2,000 types in every field."""

LOAD_TEXT_CHARS_MAX = TEXT_CHARS_MAX - 10_000
"""Maximum length of a load schema's text: the parser's limit, less space for the `kafka` column."""

COLUMN_DEPTH_MAX = 30
"""Maximum nesting of records, lists and maps in a column; a deeper field becomes text. The load schema nests several
times deeper than the column, and its text must stay parseable. Deeper fields are hardly ever queried."""

COLUMN_NAME_CHARS_MAX = 120
"""Maximum length of a column name; a longer name is cut. A suffix that makes the name unique comes on top. Metastores
before 2.3 accept 128 characters in all, later ones 767."""

RESERVED_COLUMNS: Final[Mapping[str, str]] = {
    "dt": "a partition column",
    "hr": "a partition column",
    "input__file__name": "a virtual column of Hive",
    "block__offset__inside__file": "a virtual column of Hive",
    "row__offset__inside__block": "a virtual column of Hive",
    "raw__data__size": "a virtual column of Hive",
    "row__id": "a virtual column of Hive",
    "grouping__id": "a virtual column of Hive",
}

EXACT: Final = frozenset({("int", "long"), ("int", "double"), ("float", "double"), ("string", "bytes")})
"""Promotions (writer, reader) without loss. A column of the reader type accepts such a writer without a change."""

WIDENINGS: Final = frozenset(
    {("int", "long"), ("int", "float"), ("int", "double"), ("long", "float"), ("long", "double"), ("float", "double")}
)
"""Promotions (column, writer) that change a column's type. bytes and string do not widen into each other: a text column
that became binary would change the results of old queries, and not all bytes are text."""

NARROWER: Final[Mapping[str, tuple[str, ...]]] = {"int": ("int",), "long": ("int", "long"), "float": ("float",)}

IGNORED_LOGICAL_TYPES: Final = frozenset({"uuid"})
"""Logical types that change neither the column's Hive type nor the value."""

NULL = Primitive(PrimitiveType.NULL)

_INVALID_NAME_CHARACTERS = re.compile("[^A-Za-z0-9_]")


def prop(props: Props, key: str) -> JsonValue:
    return next((value for name, value in props if name == key), None)


def with_prop(props: Props, key: str, value: JsonValue) -> Props:
    """Returns the properties with `key` set to `value`, or without `key` if the value is None."""
    rest = tuple(item for item in props if item[0] != key)
    return rest if value is None else (*rest, (key, value))


def sources(field: Field) -> tuple[str, ...]:
    """Returns the names of the writer fields that feed the column `field`, newest first."""
    listed = prop(field.props, SOURCE)
    return tuple(listed) if listed is not None else (field.name,)


def former_sources(field: Field) -> tuple[str, ...]:
    """Returns the names of writer fields that fed the column `field` and now belong to other fields."""
    return tuple(prop(field.props, FORMER) or ())


def with_sources(field: Field, names: Sequence[str]) -> Field:
    listed = None if tuple(names) == (field.name,) else list(names)
    return replace(field, props=with_prop(field.props, SOURCE, listed))


def split(node: Type) -> tuple[Type, bool]:
    """Returns the load type `node` without its null branch, and whether it had one."""
    if not isinstance(node, Union):
        return node, False
    inner = [branch for branch in node.branches if branch != NULL]
    return inner[0], True


def kind_of(node: Type) -> JsonValue:
    return prop(node.props, KIND) if isinstance(node, Primitive | Record) else None


def nullable(inner: Type, *, last: bool = False) -> Type:
    """Returns the nullable form of the type `inner`. Null is the first branch.

    Args:
        last: null is the last branch instead, as a non-null default requires.
    """
    if inner == NULL:
        return inner
    return Union((inner, NULL) if last else (NULL, inner))


def rejoin(inner: Type, is_nullable: bool, default: JsonValue = NO_DEFAULT) -> Type:
    if not is_nullable:
        return inner
    return nullable(inner, last=default is not NO_DEFAULT and default is not None)


def type_names(node: Type) -> set[str]:
    """Returns the full names of all named types inside the load type `node`."""
    return {part.name.full for part in walk_type(node) if isinstance(part, Record | Enum | Fixed)}


def load_name(name: Name) -> Name:
    """Converts a writer's type name for the load schema: `com.my-company.2024` to `com.my_company._2024`.

    Other registries accept invalid namespaces. Avro Java, with which Hive reads the table's schema, then refuses the
    whole schema.
    """
    if not name.namespace:
        return name
    parts = (_INVALID_NAME_CHARACTERS.sub("_", part) for part in name.namespace.split("."))
    return Name(name.name, ".".join(f"_{part}" if not part or part[0].isdigit() else part for part in parts))


def accepted_names(node: NamedType) -> tuple[str, ...]:
    """Returns the full names of the writer's types for which `node`, a named type of the load schema, stands."""
    return tuple(prop(node.props, NAMES) or (node.name.full,))


def is_hive_resolvable(node: Type) -> bool:
    """Whether the type `node` contains neither records nor decimals, so that Hive can read a column of the type under
    an alias or fill in its default.

    Hive's deserializer searches for records and decimals by name in the schema of the file. It therefore finds them
    neither under an alias nor by a default.
    """
    return not any(
        isinstance(part, Record)
        or (isinstance(part, Primitive | Fixed) and part.logical is not None and part.logical.name == "decimal")
        for part in walk_type(node)
    )


def is_safe_default(inner: Type, value: JsonValue) -> bool:
    """Whether every reader, including Hive's, can fill the default `value`, which is not null, into a column of the
    type `inner`."""
    if isinstance(inner, Array | Map) and not value:
        return isinstance(value, list if isinstance(inner, Array) else dict)
    if not is_hive_resolvable(inner) or kind_of(inner) is not None:
        return False
    if default_problem(inner, value, lambda node: node) is not None:
        return False
    if isinstance(inner, Array | Map):
        element = inner.items if isinstance(inner, Array) else inner.values
        members = value if isinstance(value, list) else list(value.values())
        return isinstance(element, Primitive) and all(is_safe_default(element, member) for member in members)
    if isinstance(inner, Enum):
        return value in inner.symbols
    if isinstance(inner, Fixed):
        return len(value) == inner.size and _is_latin(value)
    if isinstance(inner, Primitive):
        return _is_safe_scalar(inner, value)
    return True


def _is_safe_scalar(inner: Primitive, value: JsonValue) -> bool:
    if inner.type is PrimitiveType.BYTES:
        return _is_latin(value)
    if inner.type in FRACTIONS:
        return _fits_format(FRACTIONS[inner.type], value)
    if inner.logical is not None and inner.logical.name == "timestamp-millis":
        return -TIMESTAMP_MS_MAX <= int(value) <= TIMESTAMP_MS_MAX
    return True


FRACTIONS: Final = {PrimitiveType.FLOAT: "<f", PrimitiveType.DOUBLE: "<d"}
"""Formats of Python's `struct` module for floating-point numbers, by the Avro type."""


def _fits_format(packing: str, number: float) -> bool:
    try:
        struct.pack(packing, float(number))
    except OverflowError:
        return False
    return True


def typed_default(inner: Type, value: JsonValue) -> JsonValue:
    """Returns the default `value` as the column's type `inner` requires it: floats and doubles get a decimal point,
    because fastavro takes 0 for an int and refuses the whole schema."""
    if isinstance(inner, Primitive) and inner.type in FRACTIONS:
        return float(value)
    if isinstance(inner, Array) and isinstance(value, list):
        return [typed_default(inner.items, item) for item in value]
    if isinstance(inner, Map) and isinstance(value, dict):
        return {key: typed_default(inner.values, item) for key, item in value.items()}
    return value


def may_default_when_nullable(inner: Type) -> bool:
    """Whether a column of the type `inner` or null may have a non-null default.

    Avro Java's reader, which Hive uses, accepts an empty list as the default of a list type, and fails on a union with
    it ("Not an array").
    """
    return not isinstance(inner, Array)


def type_word(node: Type) -> str:
    """Returns a short word for the load type `node`. It becomes part of the name of a sibling column
    (`<field>__<type>`)."""
    inner, _ = split(node)
    kind = kind_of(inner)
    if kind is not None:
        return {MEMBERS: "union", JSON: "json"}.get(kind, "bytes")
    if isinstance(inner, Primitive | Fixed) and inner.logical is not None:
        if inner.logical.name == "decimal":
            return f"decimal_{inner.logical.precision}_{inner.logical.scale}"
        return inner.logical.name.replace("-", "_")
    return inner.type.value if isinstance(inner, Primitive) else type(inner).__name__.lower()


def _is_latin(text: str) -> bool:
    return all(ord(char) < 256 for char in text)


def hive_logical(node: Fixed) -> LogicalType | None:
    """Returns the logical type that the writer's fixed `node` has in the load schema. Returns None, so that the column
    is plain binary, if it is a decimal with more digits than Hive can hold or with more bytes than readers can process
    as a number.

    A decimal on bytes with too many bytes is quarantined instead, value by value. All values of a fixed have the same
    size, so its column would stay empty.
    """
    logical = node.logical
    if logical is None or logical.name != "decimal":
        return logical
    fits_hive = (logical.precision or 0) <= HIVE_PRECISION_MAX and node.size <= DECIMAL_BYTES_MAX
    return logical if fits_hive else None


def logical_props(logical: LogicalType | None) -> Props:
    """Returns the properties that state a logical type in a schema: `logicalType` and, for a decimal, the precision and
    always the scale, which Hive reads from the file."""
    if logical is None:
        return ()
    if logical.name == "decimal":
        return (("logicalType", "decimal"), ("precision", logical.precision), ("scale", logical.scale))
    return (("logicalType", logical.name),)


def unscaled_props(logical: LogicalType) -> Props:
    return ((KIND, UNSCALED), (DECIMAL, f"{logical.precision},{logical.scale}"))


def alias_names(node: NamedType) -> tuple[str, ...]:
    """Returns the full names that the aliases of a named type denote.

    An alias that equals the type's own name denotes the name without a namespace: Avro Java's text, which registries
    store, has the alias `.X` of the type `shop.X` as `X`, which by Avro's rules is the type's own name.
    """
    return tuple(alias.name if alias == node.name else alias.full for alias in node.aliases)


def props_if_same_type(load: NamedType, node: NamedType, *, by_full_name: bool) -> Props | None:
    """Returns the properties of the load type `load` if it stands for `node`, a named type of the writer. Returns None
    otherwise.

    The type stands for the writer's type if the full name or an alias of the writer's type is one of its names. Unless
    `by_full_name`, equal names in different namespaces also match, as they do for Avro's readers. The returned property
    `headrace.names` includes the full name of the writer's type.
    """
    accepted = accepted_names(load)
    if node.name.full in accepted:
        return load.props
    is_same = any(alias in accepted for alias in alias_names(node))
    if not is_same and not by_full_name:
        simple_names = {name.rpartition(".")[2] for name in accepted}
        is_same = any(name.name in simple_names for name in (node.name, *node.aliases))
    return with_prop(load.props, NAMES, [*accepted, node.name.full]) if is_same else None


def branch_name(node: Type) -> str:
    """Returns the name that identifies `node`, a branch of a union: the type, or the full name of a named type."""
    if isinstance(node, Primitive):
        return node.type.value
    return node.name.full if isinstance(node, Record | Enum | Fixed) else type(node).__name__.lower()


def member_branches(member: Field) -> tuple[str, ...]:
    """Returns the names of the writer's union branches that the field `member` of a record of members holds, newest
    first."""
    return tuple(prop(member.props, BRANCH))


def member_text(member: Field) -> str:
    """Returns the name of a member, and the name of the union branch that it holds if that differs."""
    held = member_branches(member)[0]
    return member.name if held == member.name else f"{member.name} ({held})"


def with_branches(member: Field, names: Sequence[str]) -> Field:
    return replace(member, props=with_prop(member.props, BRANCH, list(names)))


class ColumnNames:
    """The names that the columns of one record have or had, to find unused names. Names that differ only in case are
    the same, because Hive ignores case; names of the past count, because old files still have them.

    Args:
        reserved: names in lower case that no column may have.
    """

    def __init__(self, columns: Iterable[Field], reserved: Container[str] = ()) -> None:
        self._used_names: set[str] = set()
        self._reserved = reserved
        self._last_numbers: dict[str, int] = {}
        for column in columns:
            self.add(column)

    def add(self, column: Field) -> None:
        self._used_names.update(name.lower() for name in (column.name, *column.aliases))

    def remove(self, column: Field) -> None:
        """Removes the names of a column from the used names, so that the column, which is about to be renamed, can get
        one of them again."""
        self._used_names.difference_update(name.lower() for name in (column.name, *column.aliases))
        self._last_numbers.clear()

    def free_name(self, preferred_name: str) -> str:
        """Returns the wanted name if no column has or had it and it is not reserved, else the name with a suffix. A
        name longer than `COLUMN_NAME_CHARS_MAX` is cut first."""
        if len(preferred_name) > COLUMN_NAME_CHARS_MAX:
            digest = hashlib.sha256(preferred_name.encode()).hexdigest()[:8]
            preferred_name = f"{preferred_name[: COLUMN_NAME_CHARS_MAX - 9]}_{digest}"
        if preferred_name.lower() in self._reserved:
            preferred_name = f"{preferred_name}_"
        folded = preferred_name.lower()
        # Continues after the last number used, without testing the smaller ones: thousands of names may differ in case
        # only.
        name, n = preferred_name, self._last_numbers.get(folded, 1)
        while name.lower() in self._used_names or name.lower() in self._reserved:
            n += 1
            name = f"{preferred_name}_{n}"
        self._last_numbers[folded] = n
        return name
