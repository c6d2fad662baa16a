"""Lints about a single schema, without comparison with earlier versions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from difflib import get_close_matches

from headrace.avro_schema import (
    Enum,
    Field,
    Fixed,
    NamedType,
    Primitive,
    PrimitiveType,
    Record,
    Schema,
    Union,
    defined_names,
)
from headrace.avro_schema.logical import FIXED_SIZES, LOGICAL_TYPES
from headrace.compat.describe import describe_field, schema_fragment, type_fragment, type_kind
from headrace.compat.lints.located_types import Path, located_types
from headrace.compat.lints.model import LintFinding, LintInput
from headrace.hive_ddl.names import is_reserved_word
from headrace.hive_ddl.types import column_problems

_TYPE_NAME = re.compile(r"[A-Z][A-Za-z0-9]*\Z")
_NAMESPACE = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*\Z")
_SYMBOL = re.compile(r"[A-Z][A-Z0-9_]*\Z")
_SNAKE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*\Z")
_CAMEL = re.compile(r"[a-z][a-z0-9]*([A-Z][a-z0-9]*)*\Z")

LOGICAL_TYPE_LIKENESS = 0.8
"""Similarity (0 to 1) to a logical type from which an unknown name, such as timestamp-milis, is reported as misspelled.
"""


def documentation(linted: LintInput) -> Iterator[LintFinding]:
    for node, path in _named(linted.candidate):
        if not (node.doc or "").strip():
            sentence = f"{type_kind(node)} {node.name.name} has no documentation"
            yield LintFinding(sentence, 'describe it: "doc": "…"', node.position, path, schema_fragment(node))
        for field, inner in _fields(node, path):
            if not (field.doc or "").strip():
                fix = 'describe its meaning and unit: "doc": "…"'
                yield LintFinding(
                    f'field "{field.name}" has no documentation', fix, field.position, inner, schema_fragment(field)
                )


def naming(linted: LintInput) -> Iterator[LintFinding]:
    style = _field_style(linted.candidate)
    spaces: set[str] = set()
    for node, path in _named(linted.candidate):
        name = node.name
        if not _TYPE_NAME.match(name.name):
            sentence = f"{type_kind(node)} {name.name} is not named in CapitalWords"
            yield LintFinding(sentence, f"call it {_capital_words(name.name)}", node.position, path, name.full)
        if name.namespace and name.namespace not in spaces and not _NAMESPACE.match(name.namespace):
            spaces.add(name.namespace)
            sentence = f"the namespace {name.namespace} is not in lower case"
            yield LintFinding(sentence, f"call it {name.namespace.lower()}", node.position, path, name.full)
        for symbol in node.symbols if isinstance(node, Enum) else ():
            if not _SYMBOL.match(symbol):
                sentence = f"the symbol {symbol} of enum {name.name} is not in UPPER_CASE"
                yield LintFinding(
                    sentence, f"call it {_snake(symbol).upper()}", node.position, path, schema_fragment(node)
                )
        for field, inner in _fields(node, path):
            if not (_SNAKE if style == "snake_case" else _CAMEL).match(field.name):
                better = _snake(field.name) if style == "snake_case" else _camel(field.name)
                sentence = f'field "{field.name}" is not in {style}, as the fields of this schema are'
                yield LintFinding(
                    sentence,
                    f'call it "{better}"; where it was released, with "aliases": ["{field.name}"]',
                    field.position,
                    inner,
                    schema_fragment(field),
                )


def _field_style(schema: Schema) -> str:
    """Returns the naming style that most fields of the schema have: "snake_case" or "camelCase"; "snake_case" if
    neither is more frequent. Names of one word count for neither."""
    styles: Counter[str] = Counter()
    for node, path in _named(schema):
        for field, _ in _fields(node, path):
            is_snake, is_camel = _SNAKE.match(field.name), _CAMEL.match(field.name)
            if is_snake and not is_camel:
                styles["snake_case"] += 1
            elif is_camel and not is_snake:
                styles["camelCase"] += 1
    return "camelCase" if styles["camelCase"] > styles["snake_case"] else "snake_case"


def _words(name: str) -> list[str]:
    return re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", name) or [name]


def _snake(name: str) -> str:
    return re.sub(r"_(?=[0-9])", "", "_".join(word.lower() for word in _words(name)))


def _camel(name: str) -> str:
    words = _words(name)
    return words[0].lower() + "".join(word.capitalize() for word in words[1:])


def _capital_words(name: str) -> str:
    return "".join(word.capitalize() if not word.isupper() else word for word in _words(name))


def enum_default(linted: LintInput) -> Iterator[LintFinding]:
    for node, path in _named(linted.candidate):
        if isinstance(node, Enum) and node.default is None:
            sentence = f"enum {node.name.name} has no default, so adding a symbol breaks readers"
            sample = node.symbols[0] if node.symbols else "UNKNOWN"
            for symbol in node.symbols:
                if symbol.upper() in ("UNKNOWN", "UNSPECIFIED", "OTHER", "NONE"):
                    sample = symbol
                    break
            fix = f'set the symbol for unknown values, such as "default": "{sample}"'
            yield LintFinding(sentence, fix, node.position, path, schema_fragment(node))


def optional_default(linted: LintInput) -> Iterator[LintFinding]:
    for node, path in _named(linted.candidate):
        for field, inner in _fields(node, path):
            if field.has_default or not isinstance(field.type, Union) or not any(map(_is_null, field.type.branches)):
                continue
            first = '"default": null'
            fix = first if _is_null(field.type.branches[0]) else f'put "null" first in the union and add {first}'
            sentence = f'field "{field.name}" may be null but has no default'
            yield LintFinding(f"{sentence}, so it can neither be removed nor omitted", fix, field.position, inner)


def empty_array_default(linted: LintInput) -> Iterator[LintFinding]:
    """Finds fields of the candidate (the new schema) with a union type that contains an array, and with an empty array
    as the default. Avro Java's reader creates that array with the union as its type, instead of the union's array
    branch, and fails."""
    for node, path in _named(linted.candidate):
        for field, inner in _fields(node, path):
            if field.default == [] and isinstance(field.type, Union):
                sentence = (
                    f'field "{field.name}" is a union with the default [], so Avro Java cannot read data that '
                    "lacks the field (Not an array)"
                )
                fix = 'use the array without a union, or make "null" the first branch with "default": null'
                yield LintFinding(sentence, fix, field.position, inner, schema_fragment(field))


def ignored_logical_type(linted: LintInput) -> Iterator[LintFinding]:
    """Finds logical types in the candidate (the new schema) that are misspelled or misplaced, or lack valid attributes.
    A name that is not similar to any of Avro's is not reported, because it may be a custom logical type."""
    for node, path in _named(linted.candidate):
        for field, inner in _fields(node, path):
            name = dict(field.props).get("logicalType")
            has_logical_type = isinstance(field.type, Primitive | Fixed) and field.type.logical is not None
            if isinstance(name, str) and name in LOGICAL_TYPES and not has_logical_type:
                sentence = f'field "{field.name}" has "logicalType": "{name}" next to its type, where Avro ignores it'
                fix = f'write it into the type: "type": {{"type": …, "logicalType": "{name}"}}'
                yield LintFinding(sentence, fix, field.position, inner, schema_fragment(field))
    for located in located_types(linted.candidate):
        if isinstance(located.node, Primitive | Fixed) and located.node.logical is None:
            name = dict(located.node.props).get("logicalType")
            fix = _logical_type_advice(located.node, name) if isinstance(name, str) else ""
            if fix:
                sentence = f'{describe_field(located.path)} has the invalid logical type "{name}", which Avro ignores'
                yield LintFinding(sentence, fix, located.node.position, located.path, type_fragment(located.node))


def _logical_type_advice(node: Primitive | Fixed, name: str) -> str:
    """Returns advice for the author that corrects an invalid logical type; "" if its name resembles none of Avro's.

    Args:
        node: the type that has the logical type.
        name: the invalid logical type, as written.
    """
    if name not in LOGICAL_TYPES:
        near = get_close_matches(name.lower().replace("_", "-"), LOGICAL_TYPES, 1, LOGICAL_TYPE_LIKENESS)
        return f'call it "{near[0]}"' if near else ""
    kind = node.type.value if isinstance(node, Primitive) else "fixed"
    if kind not in LOGICAL_TYPES[name]:
        return f"put it on {' or '.join(sorted(LOGICAL_TYPES[name]))}"
    if name == "decimal":
        return 'set a "precision" of at least 1 that fits the size, and a "scale" from 0 to the precision'
    return f"set the size of the fixed to {FIXED_SIZES[name]}"


def hive_column(linted: LintInput) -> Iterator[LintFinding]:
    schema = linted.candidate
    if not isinstance(schema.root, Record):
        return
    fields = {field.name: field for field in schema.root.fields}
    is_self_contained = schema.names.keys() <= defined_names(schema)
    for problem in column_problems(schema):
        # Positions inside a type of another file refer to that file.
        outer = fields.get(re.split(r"[.\[{]", problem.path)[0])
        position = problem.position if is_self_contained or outer is None else outer.position
        field_name = f'field "{problem.path}"' if problem.path else "the schema"
        fix = "use a type or name that Hive supports, or do not load this data into Hive"
        yield LintFinding(f"{field_name} cannot be a column in Hive: {problem.reason}", fix, position, (problem.path,))


def hive_reserved_word(linted: LintInput) -> Iterator[LintFinding]:
    for node, path in _named(linted.candidate):
        for field, inner in _fields(node, path):
            if is_reserved_word(field.name):
                sentence = f'field "{field.name}" is a reserved word of Hive, so every query must quote it'
                fix = f'use a more specific name, such as "{_snake(node.name.name)}_{field.name.lower()}"'
                yield LintFinding(sentence, fix, field.position, inner, schema_fragment(field))


def _named(schema: Schema) -> Iterator[tuple[NamedType, Path]]:
    for located in located_types(schema):
        if isinstance(located.node, NamedType):
            yield located.node, located.path


def _fields(node: NamedType, path: Path) -> Iterator[tuple[Field, Path]]:
    for field in node.fields if isinstance(node, Record) else ():
        yield field, (*path, field.name)


def _is_null(node: object) -> bool:
    return isinstance(node, Primitive) and node.type is PrimitiveType.NULL
