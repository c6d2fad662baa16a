"""The compatibility policy LOGICAL: in addition to Avro's rules, values must keep their meaning.

Avro's rules ignore logical types, so a date may become a plain int, and a decimal may change its scale, without an
error. Under this policy a field keeps its logical type, a decimal keeps its scale, and the reader's precision is at
least the writer's.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.avro_schema import Array, Enum, Fixed, LogicalType, Map, Primitive, Record, Schema, Type, Union
from headrace.compat.resolution import is_readable

_TypePair = tuple[Type, Type, str]
"""Reader's type, writer's type, JSON pointer into the reader."""


def find_logical_problems(reader: Schema, writer: Schema, *, reader_is_new: bool) -> list[str]:
    """Returns a message for each pair of matching types that violates the compatibility policy LOGICAL: their logical
    types or scales differ, or the reader's precision is less than the writer's.

    Outer types come before inner ones. Pairs of different kinds, and of primitive types that Avro cannot read, are
    omitted, because Avro's rules report them. With `reader_is_new`, the messages call the reader "new" and the writer
    "old", otherwise the reverse.
    """
    problems: list[str] = []
    pending: list[_TypePair] = [(reader.root, writer.root, "/")]
    seen: set[tuple[int, int]] = set()
    while pending:
        reader_type, writer_type, path = pending.pop()
        reader_type, writer_type = reader.resolve(reader_type), writer.resolve(writer_type)
        # A type that is used several times is one object, so the walk of a recursive schema ends here.
        if (id(reader_type), id(writer_type)) in seen:
            continue
        seen.add((id(reader_type), id(writer_type)))
        nested = list(_inner(reader, writer, reader_type, writer_type, path))
        pending.extend(reversed(nested))
        problem = _problem(reader_type, writer_type)
        if problem is not None:
            reader_age, writer_age = ("new", "old") if reader_is_new else ("old", "new")
            problems.append(
                f"Logical compatibility: {problem.format(reader_age=reader_age, writer_age=writer_age)} (path '{path}')"
            )
    return problems


def _problem(reader_type: Type, writer_type: Type) -> str | None:
    if isinstance(reader_type, Primitive) and isinstance(writer_type, Primitive):
        if not is_readable(reader_type.type, writer_type.type):
            return None
    elif not (isinstance(reader_type, Fixed) and isinstance(writer_type, Fixed)):
        return None
    reader, writer = reader_type.logical, writer_type.logical
    reader_name, writer_name = _name(reader), _name(writer)
    if reader_name != writer_name:
        return (
            f"the logical type is {reader_name} in the {{reader_age}} schema and {writer_name} in the {{writer_age}} "
            "schema"
        )
    if reader is None or writer is None or reader.name != "decimal":
        return None
    if reader.scale != writer.scale:
        return (
            f"the scale is {reader.scale} in the {{reader_age}} schema and {writer.scale} in the {{writer_age}} schema"
        )
    if (reader.precision or 0) < (writer.precision or 0):
        return (
            f"the precision is {reader.precision} in the {{reader_age}} schema, less than {writer.precision} in the "
            "{writer_age} schema"
        )
    return None


def _name(logical: LogicalType | None) -> str:
    return "none" if logical is None else logical.name


def _inner(reader: Schema, writer: Schema, reader_type: Type, writer_type: Type, path: str) -> Iterator[_TypePair]:
    base = path.removesuffix("/")
    if isinstance(reader_type, Union) or isinstance(writer_type, Union):
        branches = writer_type.branches if isinstance(writer_type, Union) else (writer_type,)
        # Reversed, so that the first branch of each kind wins.
        others = {_kind(writer.resolve(branch)): branch for branch in reversed(branches)}
        for index, branch in (
            enumerate(reader_type.branches) if isinstance(reader_type, Union) else [(None, reader_type)]
        ):
            other = others.get(_kind(reader.resolve(branch)))
            if other is not None:
                yield branch, other, path if index is None else f"{base}/{index}"
    elif isinstance(reader_type, Record) and isinstance(writer_type, Record):
        fields = {field.name: field for field in writer_type.fields}
        for index, field in enumerate(reader_type.fields):
            match = next((fields[name] for name in (field.name, *field.aliases) if name in fields), None)
            if match is not None:
                yield field.type, match.type, f"{base}/fields/{index}/type"
    elif isinstance(reader_type, Array) and isinstance(writer_type, Array):
        yield reader_type.items, writer_type.items, f"{base}/items"
    elif isinstance(reader_type, Map) and isinstance(writer_type, Map):
        yield reader_type.values, writer_type.values, f"{base}/values"


def _kind(node: Type) -> str:
    """Returns the text by which the branches of two unions are matched, for the branch `node`: the short name of a
    named type, else the kind of the type, such as `long`."""
    if isinstance(node, Record | Enum | Fixed):
        return node.name.name
    return node.type.value if isinstance(node, Primitive) else type(node).__name__
