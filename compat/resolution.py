"""Compares a reader and a writer schema: can data written with one schema be read with the other?

The results are those of Avro Java's `SchemaCompatibility` 1.12: the same problems in the same order (depth first), with
the same location and message. Its behaviour is reproduced also where the specification does not require it, because
every registry behaves this way; comments mark these cases. In addition to Avro Java's results, a problem has positions
in both texts, field paths, and the problems inside the intended branch of a union.

Two differences remain. A named type that a text defines twice with the same content is one type here and two types in
Avro Java; a problem at its second use therefore has the location of the first use. And comparisons are limited, see
`PAIRS_MAX` and `INCOMPATIBILITIES_MAX`.

The comparison uses an explicit stack, because types that refer to each other can nest deeper than Python's recursion
limit.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import NamedTuple

from headrace.avro_schema import (
    Array,
    Enum,
    Field,
    Fixed,
    Map,
    Name,
    NamedType,
    Position,
    Primitive,
    PrimitiveType,
    Record,
    Reference,
    Schema,
    Type,
    Union,
    defined_names,
    self_contained_text,
)
from headrace.compat.errors import ComparisonTooLarge
from headrace.compat.incompatibility import ComparedNode, Incompatibility, IncompatibilityType, LinkedPath

PAIRS_MAX = 500_000
"""Most pairs of types compared in one check, over all versions (10 s). Two unions compare each branch with each branch.
"""

PAIRS_BETWEEN_TIME_CHECKS = 1_000
"""Number of compared pairs between two checks of the caller's deadline (some 20 ms)."""

PAIR_DEPTH_MAX = 2_000
"""Maximum nesting of compared pairs of types. If both schemas are recursive with cycles of different lengths, pairs
nest up to the product of the two lengths. A problem's location is as long as the nesting."""

INCOMPATIBILITIES_MAX = 1_000
"""Most problems listed. A type that is used in many places repeats its problems in each place, so the number of
problems can double at every level of nesting."""

CAUSES_MAX = 20
"""Most problems listed inside one union branch; users need only the first few."""

PROMOTIONS = frozenset(
    (PrimitiveType(reader), PrimitiveType(writer))
    for reader, writers in {
        "long": ("int",),
        "float": ("int", "long"),
        "double": ("int", "long", "float"),
        "bytes": ("string",),
        "string": ("bytes",),
    }.items()
    for writer in writers
)
"""Promotions between primitives: (reader, writer). Avro 1.12, Schema Resolution."""


class ComparisonBudget:
    """Number of pairs of types that the comparisons of one check may still compare together; `PAIRS_MAX` at the start.

    Args:
        is_expired: whether the caller's deadline has passed; called every `PAIRS_BETWEEN_TIME_CHECKS` pairs.
    """

    def __init__(self, is_expired: Callable[[], bool] = lambda: False) -> None:
        self.pairs_left = PAIRS_MAX
        self._is_expired = is_expired

    def spend_pair(self) -> None:
        if not self.pairs_left:
            raise ComparisonTooLarge(f"the comparison exceeds the limit of {PAIRS_MAX} pairs of types")
        self.pairs_left -= 1
        if self.pairs_left % PAIRS_BETWEEN_TIME_CHECKS == 0 and self._is_expired():
            spent = PAIRS_MAX - self.pairs_left
            raise ComparisonTooLarge(f"the time limit ended after {spent} pairs of types were compared")


def check_reader_writer(
    reader: Schema, writer: Schema, budget: ComparisonBudget | None = None
) -> tuple[Incompatibility, ...]:
    """Returns the problems of reading the writer's data with the reader schema, depth first, at most
    `INCOMPATIBILITIES_MAX`; empty if it is readable. An ambiguous field is the only problem returned, see
    `_AmbiguousField`.

    Args:
        budget: limit for the compared pairs of types, shared with other comparisons; None for `PAIRS_MAX` pairs.

    Raises:
        ComparisonTooLarge: the schemas are too large to compare within the limits or the remaining budget.
    """
    walk = _ComparisonWalk(reader, writer, ComparisonBudget() if budget is None else budget)
    try:
        problems = walk.run(
            _Visit(
                reader.root,
                writer.root,
                LinkedPath(""),
                ComparedNode(None, reader.root.position),
                ComparedNode(None, writer.root.position),
            )
        )
    except _AmbiguousField as error:
        return (error.incompatibility,)
    return tuple(islice(_flatten(problems), INCOMPATIBILITIES_MAX))


def is_readable(reader: PrimitiveType, writer: PrimitiveType) -> bool:
    """Whether a primitive reader type can read the data of a primitive writer type: the types are equal, or Avro
    promotes the writer's type to the reader's."""
    return reader is writer or (reader, writer) in PROMOTIONS


class _AmbiguousField(Exception):
    """A reader's field matches several fields of the writer. The exception ends the whole comparison. Like the
    exception of Avro Java, it discards the problems found before."""

    def __init__(self, incompatibility: Incompatibility) -> None:
        super().__init__(incompatibility.message)
        self.incompatibility = incompatibility


_ROOT = LinkedPath("")


class _Visit(NamedTuple):
    """One reader type and one writer type to compare, with their places in the two schemas.

    `location` is the path that Avro Java reports. It starts with "" at the root, and again where a branch of the
    reader's union is tried. `reader_side` and `writer_side` have the whole path in each schema.
    """

    reader: Type
    writer: Type
    location: LinkedPath
    reader_side: ComparedNode
    writer_side: ComparedNode

    def inside(self, step: str, reader: Type, writer: Type, reader_mark: str = "", writer_mark: str = "") -> _Visit:
        """Returns the comparison of two types that are directly inside the two types of this comparison, such as the
        types of two fields. If only one type of this comparison is a union, a branch of the union is compared with the
        other type itself.

        Args:
            step: path element that is appended to the location, such as `items`.
            reader: the inner type of the reader, or the reader itself.
            writer: the inner type of the writer, or the writer itself.
            reader_mark: path element that is appended to the reader's path of field names; "" if none.
            writer_mark: path element that is appended to the writer's path of field names; "" if none.
        """
        location = LinkedPath(step, self.location)
        reader_side = _location_inside(self.reader_side, reader, reader_mark)
        return _Visit(reader, writer, location, reader_side, _location_inside(self.writer_side, writer, writer_mark))

    def trial(self, reader: Type, writer: Type) -> _Visit:
        """Returns a comparison that tries the reader's union, or one of its branches, for a type of the writer. The
        locations of its problems start at the root, as in Avro Java, instead of below the location of this comparison.
        """
        return _Visit(
            reader,
            writer,
            _ROOT,
            _location_inside(self.reader_side, reader),
            _location_inside(self.writer_side, writer),
        )

    def at(self, *steps: str) -> _Visit:
        """Returns this comparison of two types with `steps` (path elements) appended to its location."""
        return self._replace(location=_extend_path(self.location, steps))

    def incompatible(
        self,
        kind: IncompatibilityType,
        message: str,
        *steps: str,
        field: Field | None = None,
        causes: tuple[Incompatibility, ...] = (),
    ) -> _Problems:
        """Returns the reason why the reader's type of this comparison cannot read the writer's type, as a tree with one
        element.

        Args:
            kind: the kind of incompatibility.
            message: the message that Avro Java gives for it.
            steps: path elements from this comparison's location to the location that Avro Java reports.
            field: the reader's field, if the writer has no or several fields for it.
            causes: the problems inside the intended branch of a union.
        """
        location = _extend_path(self.location, steps)
        reader_side, writer_side = self.reader_side, self.writer_side
        if kind in _REPORTED_AT_DEFINITION:
            reader_side = _with_position(reader_side, self.reader.position)
            writer_side = _with_position(writer_side, self.writer.position)
        if field is not None:
            reader_side = replace(
                _with_position(reader_side, field.position), linked_path=LinkedPath(field.name, reader_side.linked_path)
            )
        return _Problems(
            (
                Incompatibility(
                    kind, location, message, self.reader, self.writer, reader_side, writer_side, field, causes
                ),
            )
        )


_REPORTED_AT_DEFINITION = frozenset(
    (
        IncompatibilityType.NAME_MISMATCH,
        IncompatibilityType.FIXED_SIZE_MISMATCH,
        IncompatibilityType.MISSING_ENUM_SYMBOLS,
        IncompatibilityType.READER_FIELD_MISSING_DEFAULT_VALUE,
        IncompatibilityType.AMBIGUOUS_FIELD_ALIAS,
    )
)
"""Kinds of problems with the position of a named type's definition; all other problems have the position of its use."""


def _extend_path(linked_path: LinkedPath, steps: Sequence[str]) -> LinkedPath:
    for step in steps:
        linked_path = LinkedPath(step, linked_path)
    return linked_path


def _location_inside(side: ComparedNode, node: Type, mark: str = "") -> ComparedNode:
    """Returns the location in the schema text of a type that another type directly contains.

    Args:
        side: the location of the containing type, in the reader's or in the writer's schema.
        node: the contained type.
        mark: path element that is appended for `node`; "" for none.
    """
    linked_path = LinkedPath(mark, side.linked_path) if mark else side.linked_path
    return ComparedNode(linked_path, side.position if side.is_external else node.position, side.is_external)


def _with_position(side: ComparedNode, position: Position) -> ComparedNode:
    return side if side.is_external else replace(side, position=position)


class _Problems(list["Incompatibility | _Problems"]):
    """A tree of problems: a list whose items are problems, or trees with the problems of inner types. The same tree is
    an item of several lists if a type is used several times. Empty trees are never included."""

    __slots__ = ()

    def include(self, other: _Problems) -> None:
        if other:
            self.append(other)


def _flatten(problems: _Problems) -> Iterator[Incompatibility]:
    pending: list[Incompatibility | _Problems] = [problems]
    while pending:
        item = pending.pop()
        if isinstance(item, _Problems):
            pending.extend(reversed(item))
        else:
            yield item


_Steps = Generator[_Visit, _Problems, _Problems]
"""Generator that checks one pair of types: it yields each inner pair whose result it needs, is sent the problems of
that pair, and returns the problems of its own pair."""


class _ComparisonWalk:
    """The state of comparing one reader schema with one writer schema.

    `results` holds the problems of every pair of types compared so far, keyed by the identity of both objects as in
    Avro Java. If a pair occurs again, its problems are repeated with the location of the first occurrence. While a pair
    is being compared, it counts as readable; comparisons of recursive types therefore end.
    """

    def __init__(self, reader: Schema, writer: Schema, budget: ComparisonBudget) -> None:
        self.reader = reader
        self.writer = writer
        self.budget = budget
        self.results: dict[tuple[int, int], _Problems] = {}

    @cached_property
    def reader_names(self) -> set[Name]:
        """Names of the types that the reader's own text defines, without the types of referenced schemas. The names are
        computed when the first `Reference` is met: most schemas have none, and collecting the names takes as long as
        the check."""
        return defined_names(self.reader)

    @cached_property
    def writer_names(self) -> set[Name]:
        return defined_names(self.writer)

    def run(self, request: _Visit) -> _Problems:
        """Compares the two types of `request`, and all pairs of inner types on which the result depends; returns the
        problems of `request`. Uses a stack instead of recursion: it contains the checks that wait for the result of an
        inner pair."""
        stack: list[tuple[tuple[int, int], _Steps]] = []
        while True:
            visit = self.resolved(request)
            key = (id(visit.reader), id(visit.writer))
            problems = self.results.get(key)
            if problems is None:
                self.budget.spend_pair()
                if len(stack) == PAIR_DEPTH_MAX:
                    raise ComparisonTooLarge(f"types are nested deeper than the limit of {PAIR_DEPTH_MAX} levels")
                self.results[key] = _Problems()
                stack.append((key, _check(self, visit)))
            next_visit = None
            while stack and next_visit is None:
                next_visit, problems = _resume(stack[-1][1], problems)
                if next_visit is None:
                    assert problems is not None
                    self.results[stack.pop()[0]] = problems
            if next_visit is None:
                assert problems is not None
                return problems
            request = next_visit

    def resolved(self, visit: _Visit) -> _Visit:
        """Returns the pair of types in `visit` with references replaced by the referenced types. The content of a type
        from a referenced schema gets the position of the reference, because it has no position in the referring text.
        """
        reader, writer = visit.reader, visit.writer
        if not (isinstance(reader, Reference) or isinstance(writer, Reference)):
            return visit
        return _Visit(
            self.reader.resolve(reader),
            self.writer.resolve(writer),
            visit.location,
            _follow_reference(visit.reader_side, reader, self.reader_names),
            _follow_reference(visit.writer_side, writer, self.writer_names),
        )


def _follow_reference(side: ComparedNode, node: Type, own: set[Name]) -> ComparedNode:
    if isinstance(node, Reference) and node.name not in own:
        return replace(side, is_external=True)
    return side


def _resume(steps: _Steps, problems: _Problems | None) -> tuple[_Visit | None, _Problems | None]:
    """Continues the check of a pair of types until it needs the result of an inner pair, or ends.

    Args:
        steps: the generator that performs the check.
        problems: the result of the inner pair that the check requested last; None starts the check.

    Returns:
        A tuple: the inner pair whose result the check needs, or None if the check has ended; and the problems of the
        checked pair, or None if the check has not ended.
    """
    try:
        return (next(steps) if problems is None else steps.send(problems)), None
    except StopIteration as end:
        result: _Problems = end.value
        return None, result


def _check(walk: _ComparisonWalk, visit: _Visit) -> _Steps:
    """Generator that checks the pair of types in `visit` by the rules of Avro 1.12, Schema Resolution. It yields the
    pairs of inner types whose problems it needs, is sent these problems, and returns the problems of the pair.

    Args:
        walk: the comparison that the check belongs to; resolves references.
    """
    match visit.reader, visit.writer:
        case Union(), Union(branches=branches):
            return (yield from _check_union(visit, branches))
        case reader, Union(branches=branches):
            return (yield from _check_every_branch(visit, reader, branches))
        case Union(branches=branches), writer:
            return (yield from _try_branches(walk, visit, branches, writer))
        case Primitive(type=reader_type), Primitive(type=writer_type):
            return _Problems() if is_readable(reader_type, writer_type) else _type_mismatch(visit)
        case Array(items=reader), Array(items=writer):
            if _is_trivially_readable(reader, writer):
                return _Problems()
            return (yield visit.inside("items", reader, writer, "[]", "[]"))
        case Map(values=reader), Map(values=writer):
            if _is_trivially_readable(reader, writer):
                return _Problems()
            return (yield visit.inside("values", reader, writer, "{}", "{}"))
        case Record() as reader, Record() as writer:
            return (yield from _check_records(walk, visit, reader, writer))
        case Enum() as reader, Enum() as writer:
            return _check_enums(visit, reader, writer)
        case Fixed() as reader, Fixed() as writer:
            return _check_fixed(visit, reader, writer)
    return _type_mismatch(visit)


def _check_records(walk: _ComparisonWalk, visit: _Visit, reader: Record, writer: Record) -> _Steps:
    """Generator that checks whether one record can be read as another record. It yields the pairs of field types whose
    problems it needs, is sent these problems, and returns the problems of the records. The fields are compared even if
    the names of the records differ.

    Args:
        walk: the comparison that the check belongs to; resolves references.
        visit: the comparison of the two records.
        reader: the reader's record.
        writer: the writer's record.

    Raises:
        _AmbiguousField: a field of the reader matches several fields of the writer.
    """
    problems = _check_names(visit, reader, writer)
    by_name = {field.name: field for field in writer.fields}
    fields = visit.at("fields")
    for index, field in enumerate(reader.fields):
        found = [by_name[name] for name in (field.name, *field.aliases) if name in by_name]
        if not found and field.has_default:
            continue
        if len(found) == 1 and _is_trivially_readable(field.type, found[0].type):
            continue
        field_visit = fields.at(str(index))
        if len(found) > 1:
            raise _AmbiguousField(_ambiguous(walk, field_visit, field, writer))
        if found:
            problems.include((yield field_visit.inside("type", field.type, found[0].type, field.name, found[0].name)))
        else:
            problems.include((yield from _check_missing_field(walk, field_visit, field)))
    return problems


def _is_trivially_readable(reader: Type, writer: Type) -> bool:
    """Whether the reader can read the writer because both are primitives or unions of primitives, as in most fields.
    Such a pair need not be compared like other pairs: the comparison would find no problem, and no other pair needs its
    result.

    False for a reader's union in which a branch before the matching one is not primitive, because branches are tried in
    order.
    """
    if type(writer) is Union:
        return all(_is_trivially_readable(reader, branch) for branch in writer.branches)
    if type(writer) is not Primitive:
        return False
    if type(reader) is Primitive:
        return is_readable(reader.type, writer.type)
    if type(reader) is Union:
        for branch in reader.branches:
            if type(branch) is not Primitive:
                return False
            if is_readable(branch.type, writer.type):
                return True
    return False


def _check_missing_field(walk: _ComparisonWalk, visit: _Visit, field: Field) -> _Steps:
    """Generator that returns the problem of a reader field without default that the writer does not have.

    If the field's type is an enum with a default, the problem is a type mismatch between the enum and the writer's
    record, as in Avro Java. To get it, the generator yields the pair (enum, record), and the caller sends the problem
    of that pair.

    Args:
        walk: the whole comparison of two schemas; resolves references.
        visit: the comparison of the two records, with the location of the field.
    """
    node = walk.reader.resolve(field.type)
    if not (isinstance(node, Enum) and node.default is not None):
        kind = IncompatibilityType.READER_FIELD_MISSING_DEFAULT_VALUE
        return visit.incompatible(kind, field.name, field=field)
    (problem,) = _flatten((yield visit.inside("type", node, visit.writer)))
    (own,) = _flatten(visit.incompatible(IncompatibilityType.TYPE_MISMATCH, problem.message, field=field))
    return _Problems((replace(own, location_path=problem.location_path, reader=node),))


def _ambiguous(walk: _ComparisonWalk, visit: _Visit, field: Field, writer: Record) -> Incompatibility:
    """Returns the problem of a reader field whose name and aliases match several writer fields; the message is that of
    Avro Java's exception.

    Args:
        walk: the comparison of the two schemas; resolves references.
        visit: the comparison of the two records, with the location of the field.
        writer: the writer's record.
    """
    shown = f"{field.name} type:{_java_type(walk.reader.resolve(field.type))} pos:{visit.location.step}"
    text = self_contained_text(replace(walk.writer, root=writer))
    message = f"Reader record field {shown} matches multiple fields in writer record schema {text}"
    (problem,) = _flatten(visit.incompatible(IncompatibilityType.AMBIGUOUS_FIELD_ALIAS, message, field=field))
    return problem


def _check_names(visit: _Visit, reader: NamedType, writer: NamedType) -> _Problems:
    """Returns the problem of two named types with different names, empty if the names match. Names match if the short
    names are equal (the namespaces may differ), or if an alias of the reader is the writer's full name.

    Args:
        visit: the comparison of the two types.
    """
    if reader.name.name == writer.name.name or writer.name in reader.aliases:
        return _Problems()
    return visit.incompatible(IncompatibilityType.NAME_MISMATCH, f"expected: {writer.name.full}", "name")


def _check_enums(visit: _Visit, reader: Enum, writer: Enum) -> _Problems:
    problems = _check_names(visit, reader, writer)
    missing = sorted(set(writer.symbols) - set(reader.symbols))
    if missing and reader.default is None:
        kind = IncompatibilityType.MISSING_ENUM_SYMBOLS
        problems.include(visit.incompatible(kind, f"[{', '.join(missing)}]", "symbols"))
    return problems


def _check_fixed(visit: _Visit, reader: Fixed, writer: Fixed) -> _Problems:
    problems = _check_names(visit, reader, writer)
    if reader.size != writer.size:
        message = f"expected: {writer.size}, found: {reader.size}"
        problems.include(visit.incompatible(IncompatibilityType.FIXED_SIZE_MISMATCH, message, "size"))
    return problems


def _check_union(visit: _Visit, writer_branches: tuple[Type, ...]) -> _Steps:
    """Generator that checks whether each branch of the writer's union can be read by some branch of the reader's union.
    For each branch of the writer it yields the comparison of the reader's union with this branch, and is sent the
    problems; it returns the problems of the two unions.

    Args:
        visit: the comparison of the two unions.
    """
    problems = _Problems()
    for index, branch in enumerate(writer_branches):
        found = yield visit.trial(visit.reader, branch)
        if found:
            (missing,) = _flatten(found)
            field_visit = visit.inside(str(index), visit.reader, branch)
            field_visit = field_visit._replace(writer=missing.writer)
            problems.include(field_visit.incompatible(missing.type, missing.message, causes=missing.causes))
    return problems


def _check_every_branch(visit: _Visit, reader: Type, writer_branches: tuple[Type, ...]) -> _Steps:
    """Generator that checks whether a reader that is not a union can read each branch of the writer's union. It yields
    the comparison with each branch, is sent the problems of each, and returns all of them.

    Args:
        visit: the comparison of the reader with the union.
    """
    problems = _Problems()
    for index, branch in enumerate(writer_branches):
        problems.include((yield visit.inside(str(index), reader, branch)))
    return problems


def _try_branches(walk: _ComparisonWalk, visit: _Visit, reader_branches: tuple[Type, ...], writer: Type) -> _Steps:
    """Generator that checks whether some branch of the reader's union can read the writer's type, which is not a union.
    It yields the comparison with each branch in order and is sent its problems, until a branch has none. It returns no
    problems, or the problem that no branch fits.

    Args:
        walk: the comparison that the check belongs to; resolves references.
        visit: the comparison of the reader's union with the writer's type.
    """
    intended = _intended_branch([walk.reader.resolve(branch) for branch in reader_branches], writer)
    causes: tuple[Incompatibility, ...] = ()
    for index, branch in enumerate(reader_branches):
        problems = yield visit.trial(branch, writer)
        if not problems:
            return problems
        if index == intended:
            nested = (cause for problem in _flatten(problems) for cause in problem.causes or (problem,))
            causes = tuple(islice(nested, CAUSES_MAX))
    message = f"reader union lacking writer type: {_java_type(writer)}"
    return visit.incompatible(IncompatibilityType.MISSING_UNION_BRANCH, message, causes=causes)


def _intended_branch(branches: Sequence[Type], writer: Type) -> int | None:
    """Returns the index of the branch of the reader's union that was probably intended for the writer's type: the one
    with the same name, else the only one of the same kind, such as the only record. None if there is no such branch, or
    if the writer's type is primitive."""
    same_kind = [
        index
        for index, branch in enumerate(branches)
        if type(branch) is type(writer) and not isinstance(branch, Primitive)
    ]
    for index in same_kind:
        if _short_name(branches[index]) == _short_name(writer):
            return index
    return same_kind[0] if len(same_kind) == 1 else None


def _short_name(node: Type) -> str | None:
    return node.name.name if isinstance(node, NamedType) else None


def _type_mismatch(visit: _Visit) -> _Problems:
    message = f"reader type: {_java_type(visit.reader)} not compatible with writer type: {_java_type(visit.writer)}"
    return visit.incompatible(IncompatibilityType.TYPE_MISMATCH, message)


def _java_type(node: Type) -> str:
    """Returns Avro Java's name for the kind of a type, such as `RECORD` or `LONG`. Its name for an error type is
    `RECORD`."""
    return node.type.value.upper() if isinstance(node, Primitive) else type(node).__name__.upper()
