"""Maps Avro types to Hive column types and explains why some types cannot be columns.

The mapping is that of Hive's AvroSerDe (2.3, included in Spark) as read by Spark SQL. Types that the SerDe accepts but
Spark refuses, and types with unreadable values, are refused here with the reason: one such field makes the whole table
unusable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from headrace.avro_schema import (
    Array,
    Enum,
    Fixed,
    JsonValue,
    Map,
    Name,
    Position,
    Primitive,
    PrimitiveType,
    Props,
    Record,
    Schema,
    Type,
    Union,
)
from headrace.hive_ddl.errors import UnsupportedColumn
from headrace.hive_ddl.names import COLUMN_NAME_CHARS_MAX

DECIMAL_PRECISION_MAX = 38
COMMENT_CHARS_MAX = 256  # COLUMNS_V2.COMMENT, in UTF-16; one character more and the CREATE fails
VARCHAR_CHARS_MAX = 65_535
CHAR_CHARS_MAX = 255


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a Hive table. `name` is in lower case, as in Hive; `type` is Hive's type name; `comment` is the
    result of `column_comment`, or the comment that the metastore has."""

    name: str
    type: str
    comment: str = ""


@dataclass(frozen=True, slots=True)
class ColumnProblem:
    """Reason why a field cannot be a column, or a schema that of a table. `path` is dotted, with `[]` for items and
    `{}` for map values; "" for the schema itself."""

    path: str
    reason: str
    position: Position


PRIMITIVE_TYPES: Mapping[PrimitiveType, str] = {
    PrimitiveType.NULL: "void",
    PrimitiveType.BOOLEAN: "boolean",
    PrimitiveType.INT: "int",
    PrimitiveType.LONG: "bigint",
    PrimitiveType.FLOAT: "float",
    PrimitiveType.DOUBLE: "double",
    PrimitiveType.BYTES: "binary",
    PrimitiveType.STRING: "string",
}


@dataclass(frozen=True, slots=True)
class LogicalTypeMapping:
    """The Hive type of an Avro logical type with this name and base type. Names are case-insensitive, as in Hive's
    AvroSerDe."""

    name: str
    base: PrimitiveType
    hive_type: Callable[[Props], str]


class _UnusableLogicalType(Exception):
    """The attributes of a logical type do not allow a column; the message gives the reason."""


def _decimal(props: Props) -> str:
    attributes = dict(props)
    precision, scale = attributes.get("precision"), attributes.get("scale")
    if not _is_integer(precision) or precision < 1:
        raise _UnusableLogicalType(f"the decimal needs an integer precision of at least 1, found {precision!r}")
    if precision > DECIMAL_PRECISION_MAX:
        raise _UnusableLogicalType(
            f"the decimal has a precision of {precision} digits, and Hive supports at most {DECIMAL_PRECISION_MAX}; "
            "use bytes without a logical type"
        )
    if scale is None:
        # The SerDe reads the scale from each file's schema and fails if it is missing.
        raise _UnusableLogicalType('the decimal has no scale, which Hive needs to read the files; add "scale": 0')
    if not _is_integer(scale) or not 0 <= scale <= precision:
        raise _UnusableLogicalType(f"the decimal needs a scale between 0 and its precision, found {scale!r}")
    return f"decimal({precision},{scale})"


def _text_of_length(hive_name: str, chars_max: int) -> Callable[[Props], str]:
    def hive_type(props: Props) -> str:
        length = dict(props).get("maxLength")
        if not _is_integer(length) or not 1 <= length <= chars_max:
            raise _UnusableLogicalType(f"{hive_name} needs a maxLength between 1 and {chars_max}, found {length!r}")
        return f"{hive_name}({length})"

    return hive_type


LOGICAL_TYPES: tuple[LogicalTypeMapping, ...] = (
    LogicalTypeMapping("date", PrimitiveType.INT, lambda _: "date"),
    LogicalTypeMapping("timestamp-millis", PrimitiveType.LONG, lambda _: "timestamp"),
    LogicalTypeMapping("decimal", PrimitiveType.BYTES, _decimal),
    LogicalTypeMapping("varchar", PrimitiveType.STRING, _text_of_length("varchar", VARCHAR_CHARS_MAX)),
    LogicalTypeMapping("char", PrimitiveType.STRING, _text_of_length("char", CHAR_CHARS_MAX)),
)
"""The logical types that have a Hive type of their own. All others map to their base type: time-millis to int,
time-micros to bigint, timestamp-micros, timestamp-nanos and the local timestamps to bigint, uuid on string to string,
duration and decimal on fixed to binary."""


def hive_type(schema: Schema, node: Type) -> str:
    """Returns Hive's type name for a column of a type in a schema.

    Args:
        schema: the schema, which resolves references to named types.
        node: the type.

    Raises:
        UnsupportedColumn: Hive has no type for it that both Hive and Spark can read.
    """
    text, problems = _TypeMapper(schema).of(node, "")
    for problem in problems:
        raise UnsupportedColumn(problem.path, problem.reason, problem.position)
    return text


def table_columns(schema: Schema, partition_columns: Sequence[str] = ()) -> tuple[Column, ...]:
    """Returns the columns of a table with this schema, in schema order, without partition columns.

    Args:
        partition_columns: names of the table's partition columns, which no field may have.

    Raises:
        UnsupportedColumn: the first of `column_problems`.
    """
    columns, problems = _columns(schema, partition_columns)
    for problem in problems:
        raise UnsupportedColumn(problem.path, problem.reason, problem.position)
    return columns


def column_comment(doc: str | None) -> str:
    """Converts the documentation of a field to a column comment: one line that fits every metastore database."""
    line = " ".join("".join(one if one.isprintable() else " " for one in doc or "").split())
    # Java and Derby count characters beyond U+FFFF as two.
    return line.encode("utf-16-le")[: 2 * COMMENT_CHARS_MAX].decode("utf-16-le", "ignore")


def column_problems(schema: Schema, partition_columns: Sequence[str] = ()) -> tuple[ColumnProblem, ...]:
    """Returns every reason why a table cannot have this schema; empty if it can. Reasons in the names of columns come
    first, then those in their types; both are in schema order.

    Args:
        partition_columns: names of the table's partition columns, which no field may have.
    """
    return _columns(schema, partition_columns)[1]


def _columns(schema: Schema, partition_columns: Sequence[str]) -> tuple[tuple[Column, ...], tuple[ColumnProblem, ...]]:
    root = schema.resolve(schema.root)
    if not isinstance(root, Record):
        return (), (
            ColumnProblem(
                "", "a table needs a record schema, since its fields become the columns", schema.root.position
            ),
        )
    if not root.fields:
        return (), (ColumnProblem("", "a table needs at least one column", root.position),)
    mapper = _TypeMapper(schema)
    used_names = {name.lower(): f"the partition column {name}" for name in partition_columns}
    problems = list(_name_problems(root, "", used_names))
    columns = []
    for field in root.fields:
        with_root = mapper.inside(root.name)
        text, found = with_root.of(field.type, field.name)
        problems += found
        columns.append(Column(field.name.lower(), text, column_comment(field.doc)))
    return tuple(columns), tuple(problems)


@dataclass(frozen=True, slots=True)
class _TypeMapper:
    """Determines the Hive types of a schema. `open_records` are the records that enclose the current type; a use of one
    of them is a recursion, which a Hive type cannot express."""

    schema: Schema
    open_records: tuple[Name, ...] = ()

    def inside(self, name: Name) -> _TypeMapper:
        return _TypeMapper(self.schema, (*self.open_records, name))

    def of(self, node: Type, path: str) -> tuple[str, list[ColumnProblem]]:
        """Returns Hive's name of an Avro type, and the reasons why the type cannot be in a column; if there are any,
        the name is meaningless.

        Args:
            node: the type.
            path: the path of the type below its column, for the reasons; see `ColumnProblem`.
        """
        node_position = node.position
        node = self.schema.resolve(node)
        match node:
            case Primitive():
                return _primitive(node, path)
            case Enum():
                return "string", []
            case Fixed():
                return "binary", []
            case Array(items=items):
                text, problems = self.of(items, f"{path}[]")
                return f"array<{text}>", problems
            case Map(values=values):
                text, problems = self.of(values, f"{path}{{}}")
                return f"map<string,{text}>", problems
            case Union():
                return self._union(node, path)
            case Record(name=name) if name in self.open_records:
                return "", [ColumnProblem(path, f"the record {name} contains itself", node_position)]
            case Record():
                return self._struct(node, path)
        raise AssertionError(f"expected a named type behind a reference, found {node!r}")

    def _struct(self, node: Record, path: str) -> tuple[str, list[ColumnProblem]]:
        problems = list(_name_problems(node, f"{path}.", {}))
        members = []
        for field in node.fields:
            text, found = self.inside(node.name).of(field.type, f"{path}.{field.name}")
            members.append(f"{field.name.lower()}:{text}")
            problems += found
        return f"struct<{','.join(members)}>", problems

    def _union(self, node: Union, path: str) -> tuple[str, list[ColumnProblem]]:
        branches = [branch for branch in node.branches if not _is_null(self.schema.resolve(branch))]
        if len(branches) == 1 and len(node.branches) == 2:
            return self.of(branches[0], path)
        if len(node.branches) < 2:
            reason = "Hive maps a union of a single branch to a uniontype, which Spark cannot read"
        else:
            reason = f"a union of {len(branches)} types besides null is a uniontype in Hive, which Spark cannot read"
        return "", [ColumnProblem(path, reason, node.position)]


def _primitive(node: Primitive, path: str) -> tuple[str, list[ColumnProblem]]:
    logical_name = dict(node.props).get("logicalType")
    for row in LOGICAL_TYPES:
        if row.base is node.type and isinstance(logical_name, str) and logical_name.lower() == row.name:
            try:
                return row.hive_type(node.props), []
            except _UnusableLogicalType as refused:
                return "", [ColumnProblem(path, str(refused), node.position)]
    return PRIMITIVE_TYPES[node.type], []


def _name_problems(record: Record, prefix: str, used_names: Mapping[str, str]) -> Iterator[ColumnProblem]:
    seen = dict(used_names)
    for field in record.fields:
        key, path = field.name.lower(), f"{prefix}{field.name}"
        if key in seen:
            yield ColumnProblem(
                path, f"Hive names are case-insensitive, so its name equals that of {seen[key]}", field.position
            )
        if len(key) > COLUMN_NAME_CHARS_MAX:
            yield ColumnProblem(
                path,
                f"its name has {len(key)} characters and a metastore stores at most {COLUMN_NAME_CHARS_MAX}",
                field.position,
            )
        seen.setdefault(key, f"the field {path}")


def _is_null(node: Type) -> bool:
    return isinstance(node, Primitive) and node.type is PrimitiveType.NULL


def _is_integer(value: JsonValue) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
