"""The rules: purpose, severity and explanation for each type of incompatibility.

An explanation addresses the author of the candidate. It calls the candidate "this schema" and the other schema by its
name, states which data can no longer be read, and then gives the fix.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from types import MappingProxyType

from headrace.avro_schema import (
    Array,
    Enum,
    Field,
    Fixed,
    JsonValue,
    Map,
    NamedType,
    Primitive,
    PrimitiveType,
    Record,
    Type,
    Union,
)
from headrace.compat.describe import (
    LISTED_WORDS_MAX,
    describe_field,
    describe_type,
    join_words,
    type_fragment,
    type_kind,
)
from headrace.compat.finding import Direction, Severity
from headrace.compat.incompatibility import Incompatibility, IncompatibilityType
from headrace.compat.resolution import is_readable

RENAME_LIKENESS = 0.5
"""Similarity of two names (0 to 1) from which a removed and an added field are assumed to be a renamed one."""

TYPE_CHARS_MAX = 60
"""Longest type that advice contains in full; a longer one is replaced by "…"."""


@dataclass(frozen=True, slots=True)
class Explanation:
    sentence: str
    fix: str


@dataclass(frozen=True, slots=True)
class RuleCase:
    """One incompatibility, described from the view of the author of the candidate (the new schema).

    `other` is the name of the earlier version. `causes` explain the problems inside a union branch.
    """

    problem: Incompatibility
    direction: Direction
    other: str
    causes: tuple[Explanation, ...] = ()

    @property
    def is_backward(self) -> bool:
        return self.direction is Direction.BACKWARD

    @property
    def location(self) -> str:
        """Affected field of the candidate, such as `field "header.region"`."""
        side = self.problem.reader_side if self.is_backward else self.problem.writer_side
        return describe_field(side.path)

    @property
    def consequence(self) -> str:
        """Clause that states which data can no longer be read, as the end of a sentence."""
        if self.is_backward:
            return "data of that version cannot be read"
        return "readers of that version cannot read new data"


@dataclass(frozen=True, slots=True)
class CompatibilityRule:
    """One kind of incompatibility. `id` is Avro Java's name of it, except for `AMBIGUOUS_FIELD_ALIAS`; `purpose` is the
    requirement and `rationale` its reason. `explain` returns the sentence and the fix of one occurrence."""

    id: IncompatibilityType
    purpose: str
    rationale: str
    severity: Severity
    explain: Callable[[RuleCase], Explanation]


def _explain_missing_field(case: RuleCase) -> Explanation:
    field = case.problem.field
    assert field is not None
    writer = case.problem.writer
    assert isinstance(writer, Record)
    if case.is_backward:
        sentence = f"{case.location} is not in {case.other} and has no default, so {case.consequence}"
        return Explanation(sentence, f"{_rename_advice(case, field, writer)}{_default_advice(field)}")
    path = (*case.problem.writer_side.path, field.name)
    sentence = (
        f"{describe_field(path)} is missing here, but {case.other} has it without a default, so {case.consequence}"
    )
    return Explanation(sentence, _keep_field_advice(field))


def _keep_field_advice(field: Field) -> str:
    return (
        f'keep the field "{field.name}"; to remove it, first register a version that gives it a default and move '
        "every reader to that version"
    )


def _rename_advice(case: RuleCase, field: Field, writer: Record) -> str:
    """Returns advice to add an alias, as the beginning of a sentence, if `field` is probably a renamed field: the
    writer has a field of the same type and a similar name that the reader does not read. Otherwise returns "".

    Args:
        case: the incompatibility that the advice is for.
        field: the reader's field that the writer does not have.
        writer: the writer's record.
    """
    reader = case.problem.reader
    read = {name for writer_field in _fields(reader) for name in (writer_field.name, *writer_field.aliases)}
    unread = [writer_field for writer_field in writer.fields if writer_field.name not in read]
    similar = [
        writer_field
        for writer_field in unread
        if type_fragment(writer_field.type) == type_fragment(field.type)
        and SequenceMatcher(None, writer_field.name.lower(), field.name.lower()).ratio() >= RENAME_LIKENESS
    ]
    if not similar:
        return ""
    name = similar[0].name
    return f'if this is the field "{name}" of {case.other} under a new name, add "aliases": ["{name}"]; else '


def _fields(node: Type) -> tuple[Field, ...]:
    return node.fields if isinstance(node, Record) else ()


def _default_advice(field: Field) -> str:
    node = field.type
    branches = node.branches if isinstance(node, Union) else (node,)
    nullable = any(_is_null(branch) for branch in branches)
    sample = _sample_default(branches[0]) if branches else None
    if sample is not None:
        default = f'"default": {json.dumps(sample[0])}'
        if nullable:
            return f"give it a default: {default}"
        return f"give it a default, such as {default}, or make it optional: {_optional(branches)}"
    if nullable:
        return 'give it a default: put "null" first in the union and add "default": null'
    return f"make it optional: {_optional(branches)}"


def _optional(branches: tuple[Type, ...]) -> str:
    branch_types = ", ".join(type_fragment(branch) for branch in branches)
    if len(branch_types) > TYPE_CHARS_MAX:
        branch_types = "…"
    return f'"type": ["null", {branch_types}], "default": null'


_SAMPLES: Mapping[PrimitiveType, JsonValue] = MappingProxyType(
    {
        PrimitiveType.NULL: None,
        PrimitiveType.BOOLEAN: False,
        PrimitiveType.INT: 0,
        PrimitiveType.LONG: 0,
        PrimitiveType.FLOAT: 0.0,
        PrimitiveType.DOUBLE: 0.0,
        PrimitiveType.BYTES: "",
        PrimitiveType.STRING: "",
    }
)


def _sample_default(node: Type) -> tuple[JsonValue] | None:
    """Returns a simple default of the type `node` in a tuple of one element, or None if no simple one exists."""
    match node:
        case Primitive():
            return (_SAMPLES[node.type],)
        case Array():
            return ([],)
        case Map():
            return ({},)
        case Enum() if node.symbols:
            return (node.symbols[0],)
    return None


def _is_null(node: Type) -> bool:
    return isinstance(node, Primitive) and node.type is PrimitiveType.NULL


def _explain_type(case: RuleCase) -> Explanation:
    if case.problem.field is not None:
        return _explain_enum_field(case)
    reader, writer = describe_type(case.problem.reader), describe_type(case.problem.writer)
    if _is_null(case.problem.writer):
        return _explain_null(case, reader)
    if case.is_backward:
        sentence = f"{case.location} is {reader} here but {writer} in {case.other}, so {case.consequence}"
        return Explanation(sentence, f"{_keep_advice(case.problem.writer)}, {_new_field_advice(case)}")
    sentence = f"{case.location} is {writer} here but {reader} in {case.other}, so {case.consequence}"
    return Explanation(sentence, f"{_keep_advice(case.problem.reader, widen=False)}, {_new_field_advice(case)}")


def _explain_enum_field(case: RuleCase) -> Explanation:
    """Returns the explanation of the incompatibility `case`, a missing field with an enum type: the field needs its own
    default, because the default of the enum does not apply to fields."""
    field, node = case.problem.field, case.problem.reader
    assert field is not None
    assert isinstance(node, Enum)
    note = "(the enum's default applies only to unknown symbols)"
    if case.is_backward:
        sentence = f"{case.location} is not in {case.other} and the field has no default {note}, so {case.consequence}"
        return Explanation(sentence, f'give the field a default: "default": "{node.default}"')
    location = describe_field((*case.problem.writer_side.path, field.name))
    sentence = (
        f"{location} is missing here, but {case.other} has it without a field default {note}, so {case.consequence}"
    )
    return Explanation(sentence, _keep_field_advice(field))


def _explain_null(case: RuleCase, reader: str) -> Explanation:
    """Returns the explanation of the incompatibility `case`, in which the writer's type may be null and the reader's
    type may not.

    Args:
        reader: the reader's type as a phrase.
    """
    if case.is_backward:
        sentence = f"{case.location} may be null in {case.other} but is {reader} here, so {case.consequence}"
        return Explanation(sentence, f'allow null: "type": ["null", {_type_text(case.problem.reader)}]')
    sentence = f"{case.location} may be null here but is {reader} in {case.other}, so {case.consequence}"
    return Explanation(sentence, f"{_keep_advice(case.problem.reader, widen=False)}, {_new_field_advice(case)}")


def _type_text(node: Type) -> str:
    text = type_fragment(node)
    return text if len(text) <= TYPE_CHARS_MAX else "…"


def _keep_advice(node: Type, *, widen: bool = True) -> str:
    """Returns the advice to keep the type `node`. With `widen`, the advice also names the types that can read data of
    this type."""
    if not widen or not isinstance(node, Primitive):
        return f"keep {describe_type(node)}"
    wider = [kind.value for kind in PrimitiveType if kind is not node.type and is_readable(kind, node.type)]
    return (
        f"keep {node.type.value} or use a type that also reads {node.type.value} data ({', '.join(wider)})"
        if wider
        else f"keep {node.type}"
    )


def _new_field_advice(case: RuleCase) -> str:
    side = case.problem.reader_side if case.is_backward else case.problem.writer_side
    if not side.path:
        return "or use another subject for the new type"
    return "or leave the field unchanged and add a new field of the new type with a default"


def _explain_union(case: RuleCase) -> Explanation:
    writer = describe_type(case.problem.writer)
    if case.causes:
        more = f" (and {len(case.causes) - 1} more problems inside it)" if len(case.causes) > 1 else ""
        return Explanation(f"inside a union: {case.causes[0].sentence}{more}", case.causes[0].fix)
    branches = case.problem.reader.branches if isinstance(case.problem.reader, Union) else ()
    names = ", ".join(map(describe_type, branches[:LISTED_WORDS_MAX]))
    union = f"the union {'here' if case.is_backward else f'in {case.other}'} ({names})"
    can_be = "may be null" if writer == "null" else f"may hold {writer}"
    if case.is_backward:
        sentence = f"{case.location} {can_be} in {case.other}, but {union} has no branch for it, so {case.consequence}"
        return Explanation(sentence, f"add {_type_text(case.problem.writer)} to the union, {_new_field_advice(case)}")
    sentence = f"{case.location} {can_be} here, but {union} has no branch for it, so {case.consequence}"
    return Explanation(sentence, f"do not add {writer} until every reader accepts it, {_new_field_advice(case)}")


def _explain_name(case: RuleCase) -> Explanation:
    reader, writer = case.problem.reader, case.problem.writer
    assert isinstance(reader, NamedType)
    assert isinstance(writer, NamedType)
    candidate_type, other_type = (reader, writer) if case.is_backward else (writer, reader)
    sentence = (
        f"{_location_prefix(case)}{type_kind(candidate_type)} {candidate_type.name.full} is called "
        f"{other_type.name.full} in {case.other}, so {case.consequence}"
    )
    if case.is_backward:
        return Explanation(sentence, f'add "aliases": ["{writer.name.full}"] to it, or keep the name')
    return Explanation(
        sentence, f"keep the name {other_type.name.full}: an alias here does not help readers of {case.other}"
    )


def _location_prefix(case: RuleCase) -> str:
    """Returns the field that an incompatibility affects as the start of a sentence, such as `field "price":`; "" for
    the root of the schema."""
    side = case.problem.reader_side if case.is_backward else case.problem.writer_side
    return f"{case.location}: " if side.path else ""


def _explain_symbols(case: RuleCase) -> Explanation:
    reader, writer = case.problem.reader, case.problem.writer
    assert isinstance(reader, Enum)
    assert isinstance(writer, Enum)
    missing = sorted(set(writer.symbols) - set(reader.symbols))
    word = "symbol" if len(missing) == 1 else "symbols"
    if case.is_backward:
        sentence = (
            f"{_location_prefix(case)}enum {reader.name.name} lacks the {word} {join_words(missing)} of {case.other}, "
            f"so {case.consequence}"
        )
        sample = f'"{reader.symbols[0]}"' if reader.symbols else "one of its symbols"
        return Explanation(
            sentence, f'keep the {word}, or give the enum a default for unknown symbols, such as "default": {sample}'
        )
    sentence = (
        f"{_location_prefix(case)}enum {writer.name.name} has the new {word} {join_words(missing)}, "
        f"for which {case.other} has no default, so {case.consequence}"
    )
    return Explanation(
        sentence,
        f"do not add the new {word} yet; first register a version whose enum has a default and move every reader to it",
    )


def _explain_size(case: RuleCase) -> Explanation:
    reader, writer = case.problem.reader, case.problem.writer
    assert isinstance(reader, Fixed)
    assert isinstance(writer, Fixed)
    candidate_type, other_type = (reader, writer) if case.is_backward else (writer, reader)
    sentence = (
        f"{_location_prefix(case)}fixed {candidate_type.name.name} has {candidate_type.size} bytes here but "
        f"{other_type.size} in {case.other}, so {case.consequence}"
    )
    return Explanation(sentence, f'keep "size": {other_type.size}, {_new_field_advice(case)}')


def _explain_ambiguous(case: RuleCase) -> Explanation:
    field, writer = case.problem.field, case.problem.writer
    assert field is not None
    assert isinstance(writer, Record)
    names = [
        name for name in (field.name, *field.aliases) if name in {writer_field.name for writer_field in writer.fields}
    ]
    matched = join_words([f'"{name}"' for name in dict.fromkeys(names)])
    owner, reader = ("this schema", case.other) if not case.is_backward else (case.other, "this schema")
    sentence = (
        f'the field "{field.name}" of {reader} matches {matched} of {owner} by its name and aliases, '
        f"so {case.consequence}"
    )
    if case.is_backward:
        return Explanation(sentence, "keep one name: remove the other aliases")
    return Explanation(sentence, f"keep only one of the fields {matched}")


RULES: Mapping[IncompatibilityType, CompatibilityRule] = MappingProxyType(
    {
        rule.id: rule
        for rule in (
            CompatibilityRule(
                IncompatibilityType.READER_FIELD_MISSING_DEFAULT_VALUE,
                "A reader field that the writer does not have needs a default.",
                "The reader fills a field missing from the data with its own default; without a default it fails on "
                "every record.",
                Severity.ERROR,
                _explain_missing_field,
            ),
            CompatibilityRule(
                IncompatibilityType.TYPE_MISMATCH,
                "The types must be equal, or Avro must promote the writer's type to the reader's.",
                "The data does not contain types. Avro reads int as long, float or double, long as float or double, "
                "float as double, and string and bytes as each other; nothing else.",
                Severity.ERROR,
                _explain_type,
            ),
            CompatibilityRule(
                IncompatibilityType.NAME_MISMATCH,
                "Records, enums and fixed types must have equal names, or the reader an alias with the writer's name.",
                "Types are identified by name. Short names are compared; an alias of the reader must be the writer's "
                "full name.",
                Severity.ERROR,
                _explain_name,
            ),
            CompatibilityRule(
                IncompatibilityType.MISSING_ENUM_SYMBOLS,
                "The reader's enum must have every symbol of the writer's, or a default.",
                "The data holds the number of the writer's symbol. A reader that does not have the symbol takes its "
                "enum's default, or fails.",
                Severity.ERROR,
                _explain_symbols,
            ),
            CompatibilityRule(
                IncompatibilityType.FIXED_SIZE_MISMATCH,
                "Fixed types must have the same size.",
                "A fixed is written without its length, so a reader of another size reads bytes of the next value.",
                Severity.ERROR,
                _explain_size,
            ),
            CompatibilityRule(
                IncompatibilityType.MISSING_UNION_BRANCH,
                "The reader's union must have a branch for each type that the writer may write.",
                "The data contains the index of the writer's branch. A reader without a matching branch fails on "
                "records with that branch, and only on them.",
                Severity.ERROR,
                _explain_union,
            ),
            CompatibilityRule(
                IncompatibilityType.AMBIGUOUS_FIELD_ALIAS,
                "A field's name and aliases must match at most one field of the writer.",
                "If the name and aliases of the reader's field match several writer fields, the choice is ambiguous, "
                "and Avro Java refuses to read.",
                Severity.ERROR,
                _explain_ambiguous,
            ),
        )
    }
)
