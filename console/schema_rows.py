"""Versions of a schema as rows: the fields of two versions side by side, and since when each field is there. Pure.

Fields are paired by name, or by an alias if the newer field names the older one, so that a renamed field is one row.
"""

from __future__ import annotations

import contextlib
import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Final

from headrace.avro_schema import (
    Array,
    Enum,
    Field,
    Fixed,
    Map,
    NamedType,
    Order,
    Primitive,
    Record,
    Reference,
    Schema,
    Type,
    Union,
)
from headrace.console.errors import ConsoleError

FIELDS_MAX: Final = 1_000
"""Fields of a schema that pages show and the search finds, in the order of the text."""
CELL_CHARS_MAX: Final = 1_000
LISTED_CHARS_MAX: Final = 300
"""Longest type, default or doc in the list of fields."""
WORDS_MAX: Final = 100
"""Words of a text that are compared one by one."""
TEXT_LINES_MAX: Final = 10_000
LINE_CHARS_MAX: Final = 500
EQUAL_LINES: Final = 3
"""Equal lines that are shown before and after a difference of texts."""

Piece = tuple[str, bool]
"""A part of a text, and whether it differs from the other version."""


class TextTooLong(ConsoleError):
    """The texts cannot be compared line by line."""


class RowMark(StrEnum):
    """The change of a field between two versions."""

    ADDED = "added"
    REMOVED = "removed"
    RENAMED = "renamed"
    CHANGED = "changed"
    SAME = "same"


@dataclass(frozen=True, slots=True)
class FieldPair:
    """A field in the earlier and in the later version; None where it is missing. Paths are dotted names, "" where the
    field is missing."""

    depth: int
    before_path: str
    after_path: str
    before: Field | None
    after: Field | None

    @property
    def mark(self) -> RowMark:
        before, after = self.before, self.after
        if before is None or after is None:
            return RowMark.ADDED if before is None else RowMark.REMOVED
        if before.name != after.name:
            return RowMark.RENAMED
        return RowMark.SAME if before == after or _texts(before) == _texts(after) else RowMark.CHANGED


@dataclass(frozen=True, slots=True)
class SchemaCell:
    """The parts of a field in one version. `details` are its aliases, order and other attributes."""

    name: tuple[Piece, ...]
    type: tuple[Piece, ...]
    default: tuple[Piece, ...]
    doc: tuple[Piece, ...]
    details: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class FieldRow:
    """A row of the comparison of two versions."""

    mark: RowMark
    depth: int
    path: str
    before: SchemaCell | None
    after: SchemaCell | None


@dataclass(frozen=True, slots=True)
class BlamedField:
    """A field of the newest version: the versions that added and last changed it, None if these are not known. `former`
    are its earlier names."""

    path: str
    type: str
    default: str
    doc: str
    since: int | None
    changed: int | None
    former: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TextRow:
    """Two lines of texts side by side; the number 0 means that there is no line. `mark` is `SAME`, `ADDED`, `REMOVED`
    or `CHANGED`."""

    mark: RowMark
    before_number: int
    before: str
    after_number: int
    after: str


def list_fields(schema: Schema) -> list[tuple[str, Field]]:
    """Returns the paths and fields of a schema, at most `FIELDS_MAX`. Types of other schemas are not followed."""
    pairs = _pairs(held_records(schema.root), held_records(schema.root), "", "", 0)
    return [(one.after_path, one.after) for one in islice(pairs, FIELDS_MAX) if one.after is not None]


def pair_fields(before: Schema, after: Schema) -> list[FieldPair]:
    """Returns the fields of both versions, at most `FIELDS_MAX`, in the order of the later one. A removed field has the
    place that it had."""
    return list(islice(_pairs(held_records(before.root), held_records(after.root), "", "", 0), FIELDS_MAX))


def _pairs(
    before: Sequence[Record], after: Sequence[Record], before_path: str, after_path: str, depth: int
) -> Iterator[FieldPair]:
    sides = ((before_path, before), (after_path, after))
    for pair in _paired_records(before, after):
        old, new = pair
        paths = [
            path if len(records) == 1 or record is None else _joined(path, record.name.name)
            for (path, records), record in zip(sides, pair, strict=True)
        ]
        for was, now in _paired_fields(old, new):
            here = [
                "" if field is None else _joined(path, field.name)
                for path, field in zip(paths, (was, now), strict=True)
            ]
            yield FieldPair(depth, here[0], here[1], was, now)
            inner = [held_records(field.type) if field else [] for field in (was, now)]
            if inner[0] or inner[1]:
                yield from _pairs(inner[0], inner[1], here[0], here[1], depth + 1)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _paired_records(before: Sequence[Record], after: Sequence[Record]) -> Iterator[tuple[Record | None, Record | None]]:
    """Yields the records of two types in pairs: by full name or alias; a single record on each side is a pair."""
    if len(before) == 1 and len(after) == 1:
        yield before[0], after[0]
        return
    earlier = {one.name.full: one for one in before}
    for new in after:
        names = (new.name.full, *(alias.full for alias in new.aliases))
        yield next((earlier.pop(name) for name in names if name in earlier), None), new
    for old in earlier.values():
        yield old, None


def _paired_fields(old: Record | None, new: Record | None) -> list[tuple[Field | None, Field | None]]:
    earlier = {field.name: field for field in (old.fields if old else ())}
    later = {field.name: field for field in (new.fields if new else ())}
    pairs: list[tuple[Field | None, Field | None]] = []
    taken: set[str] = set()
    for field in later.values():
        name = next((name for name in _earlier_names(field, earlier, later) if name not in taken), None)
        pairs.append((None if name is None else earlier[name], field))
        if name is not None:
            taken.add(name)
    for at, name in enumerate(earlier):
        if name not in taken:
            pairs.insert(min(at, len(pairs)), (earlier[name], None))
    return pairs


def _earlier_names(field: Field, earlier: Mapping[str, Field], later: Mapping[str, Field]) -> Iterator[str]:
    """Yields the names that a later field may have had: its own, else its aliases, else, as versions may be compared
    backwards, the fields with its name as an alias. A field that both versions have was not renamed."""
    if field.name in earlier:
        yield field.name
        return
    yield from (alias for alias in field.aliases if alias in earlier and alias not in later)
    yield from (one.name for one in earlier.values() if field.name in one.aliases and one.name not in later)


def held_records(node: Type) -> list[Record]:
    """Returns the records that a type defines: itself, items, values, or branches of a union."""
    match node:
        case Record():
            return [node]
        case Union():
            return [record for branch in node.branches for record in held_records(branch)]
        case Array():
            return held_records(node.items)
        case Map():
            return held_records(node.values)
    return []


def field_row(pair: FieldPair) -> FieldRow:
    """Returns a pair as texts, in which the differing words are marked."""
    mark = pair.mark
    path = pair.after_path or pair.before_path
    if pair.before is None or pair.after is None:
        return FieldRow(mark, pair.depth, path, _whole_cell(pair.before), _whole_cell(pair.after))
    compared = [_pieces(a, b) for a, b in zip(_texts(pair.before), _texts(pair.after), strict=True)]
    cells = [SchemaCell(*(sides[at] for sides in compared)) for at in (0, 1)]
    return FieldRow(mark, pair.depth, path, cells[0], cells[1])


def _whole_cell(field: Field | None) -> SchemaCell | None:
    return None if field is None else SchemaCell(*(((_cut(text), False),) for text in _texts(field)))


def _texts(field: Field) -> tuple[str, str, str, str, str]:
    default = json.dumps(field.default, ensure_ascii=False) if field.has_default else ""
    return field.name, type_words(field.type), default, field.doc or "", "; ".join(_details(field))


def _details(field: Field) -> Iterator[str]:
    if field.aliases:
        yield f"aliases {', '.join(field.aliases)}"
    if field.order is not Order.ASCENDING:
        yield f"order {field.order.value}"
    yield from (f"{key} {json.dumps(value, ensure_ascii=False)}" for key, value in field.props)
    yield from _type_details(field.type)


def _type_details(node: Type) -> Iterator[str]:
    """Yields the attributes of a type that `type_words` omits. The fields of a record have rows of their own."""
    if isinstance(node, Primitive | Array | Map | NamedType):
        hidden = ("logicalType", "precision", "scale") if getattr(node, "logical", None) else ()
        yield from (f"{key} {json.dumps(value, ensure_ascii=False)}" for key, value in node.props if key not in hidden)
    if isinstance(node, NamedType):
        if node.aliases:
            yield f"aliases of {node.name.name}: {', '.join(alias.full for alias in node.aliases)}"
        if node.doc:
            yield f"doc of {node.name.name}: {node.doc}"
    if isinstance(node, Enum) and node.default is not None:
        yield f"default symbol {node.default}"
    match node:
        case Union():
            for branch in node.branches:
                yield from _type_details(branch)
        case Array():
            yield from _type_details(node.items)
        case Map():
            yield from _type_details(node.values)


def type_words(node: Type) -> str:
    """Returns a type in short: `long?` for a nullable long, `array<string>`, `decimal(10,2)`."""
    match node:
        case Union():
            branches = [type_words(branch) for branch in node.branches]
            others = [words for words in branches if words != "null"]
            if len(others) == 1 and len(branches) == 2:
                # The order of the branches determines which defaults are valid.
                return f"{others[0]}?" if branches[0] == "null" else f"{others[0]} | null"
            return " | ".join(branches)
        case Array():
            return f"array<{type_words(node.items)}>"
        case Map():
            return f"map<{type_words(node.values)}>"
        case Record() | Reference():
            return node.name.full
        case Enum():
            return f"enum {node.name.full} {{{', '.join(node.symbols)}}}"
        case Fixed():
            return f"{_logical_words(node) or 'fixed'} {node.name.full}[{node.size}]"
        case Primitive():
            return _logical_words(node) or node.type.value


def _logical_words(node: Primitive | Fixed) -> str:
    logical = node.logical
    if logical is None:
        return ""
    if logical.name == "decimal":
        return f"decimal({logical.precision},{logical.scale or 0})"
    return f"{logical.name} ({node.type.value})" if isinstance(node, Primitive) else logical.name


def _cut(text: str, chars_max: int = CELL_CHARS_MAX) -> str:
    return text if len(text) <= chars_max else f"{text[:chars_max]}…"


def _pieces(a: str, b: str) -> tuple[tuple[Piece, ...], tuple[Piece, ...]]:
    """Splits both texts into equal and differing runs of words."""
    if a == b or not a or not b or max(len(a), len(b)) > CELL_CHARS_MAX:
        return ((_cut(a), a != b),), ((_cut(b), a != b),)
    one, other = a.split(" "), b.split(" ")
    if max(len(one), len(other)) > WORDS_MAX:
        return ((a, True),), ((b, True),)
    left: list[Piece] = []
    right: list[Piece] = []
    for kind, i1, i2, j1, j2 in difflib.SequenceMatcher(a=one, b=other, autojunk=False).get_opcodes():
        left.append((" ".join(one[i1:i2]), kind != "equal"))
        right.append((" ".join(other[j1:j2]), kind != "equal"))
    return tuple(piece for piece in left if piece[0]), tuple(piece for piece in right if piece[0])


def blame_fields(versions: Sequence[tuple[int, Schema]], *, is_whole: bool = True) -> list[BlamedField]:
    """Returns the fields of the newest version with the versions that added and last changed them.

    Args:
        versions: numbers and schemas, ascending, at least one.
        is_whole: whether there are no older versions. Otherwise it is not known when fields of the first one were
            added and changed.
    """
    number, schema = versions[0]
    first = number if is_whole else None
    known: dict[str, tuple[int | None, int | None, tuple[str, ...]]] = {
        path: (first, first, ()) for path, _ in list_fields(schema)
    }
    for number, later in versions[1:]:
        found = {}
        for pair in pair_fields(schema, later):
            if pair.after is None:
                continue
            since, changed, former = known.get(pair.before_path, (None, None, ()))
            if pair.before is None:
                since = changed = number
                former = ()
            elif pair.mark is not RowMark.SAME:
                changed = number
                former = (*former, pair.before.name) if pair.mark is RowMark.RENAMED else former
            found[pair.after_path] = (since, changed, former)
        known, schema = found, later
    result = []
    for path, field in list_fields(schema):
        words, default, doc = (_cut(text, LISTED_CHARS_MAX) for text in _texts(field)[1:4])
        result.append(BlamedField(path, words, default, doc, *known.get(path, (None, None, ()))))
    return result


def text_rows(before: str, after: str) -> list[TextRow]:
    """Returns the lines of two schema texts side by side, those near a difference.

    Raises:
        TextTooLong: there are too many lines.
    """
    one, other = _lines(before), _lines(after)
    if max(len(one), len(other)) > TEXT_LINES_MAX:
        raise TextTooLong(f"they have more than {TEXT_LINES_MAX:,} lines")
    rows: list[TextRow] = []
    matcher = difflib.SequenceMatcher(a=one, b=other)
    for group in matcher.get_grouped_opcodes(EQUAL_LINES):
        for kind, i1, i2, j1, j2 in group:
            for k in range(max(i2 - i1, j2 - j1)):
                left = (i1 + k + 1, one[i1 + k]) if i1 + k < i2 else (0, "")
                right = (j1 + k + 1, other[j1 + k]) if j1 + k < j2 else (0, "")
                rows.append(TextRow(_TEXT_MARKS[kind], *left, *right))
    return rows


_TEXT_MARKS: Final = {
    "equal": RowMark.SAME,
    "insert": RowMark.ADDED,
    "delete": RowMark.REMOVED,
    "replace": RowMark.CHANGED,
}


def _lines(text: str) -> list[str]:
    with contextlib.suppress(ValueError, RecursionError):  # then it is shown as it was registered
        text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    return [line if len(line) <= LINE_CHARS_MAX else f"{line[:LINE_CHARS_MAX]}…" for line in text.splitlines()]
