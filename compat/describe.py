"""Describes schemas in messages: types as short phrases, fields by path, fragments of schema text."""

from __future__ import annotations

import json
from collections.abc import Sequence

from headrace.avro_schema import (
    Array,
    Enum,
    Field,
    Fixed,
    JsonValue,
    Map,
    NamedType,
    Primitive,
    Props,
    Record,
    Reference,
    Type,
    Union,
)

LISTED_WORDS_MAX = 8
"""Most symbols, branches or names that one sentence lists. If there are more, the sentence ends in the number of the
rest."""

FRAGMENT_CHARS_MAX = 1_000
"""Maximum length of a fragment, which is the schema text of one type or field in a message. A fragment only identifies
the type or field, because the file contains the full text."""


TYPE_DESCRIPTION_CHARS_MAX = 100
"""Longest description of a type, such as an array of arrays of arrays."""


def describe_type(node: Type) -> str:
    """Returns a type as a phrase: `int`, `record Header`, `array of string`, `union of null and string`."""
    words = _type_words(node)
    return words if len(words) <= TYPE_DESCRIPTION_CHARS_MAX else f"{words[:TYPE_DESCRIPTION_CHARS_MAX]}…"


def _type_words(node: Type) -> str:
    match node:
        case Primitive():
            return node.type.value
        case Reference():
            return node.name.name
        case Array():
            return f"array of {_type_words(node.items)}"
        case Map():
            return f"map of {_type_words(node.values)}"
        case Union():
            return (
                f"union of {join_words([_type_words(branch) for branch in node.branches])}"
                if node.branches
                else "union"
            )
        case Fixed():
            return f"fixed {node.name.name} of {node.size} bytes"
    return f"{type_kind(node)} {node.name.name}"


def type_kind(node: Type) -> str:
    """Returns the keyword of a type in schema text, such as `record` or `long`."""
    if isinstance(node, Primitive):
        return node.type.value
    if isinstance(node, Record) and node.is_error:
        return "error"
    return type(node).__name__.lower()


def describe_field(path: Sequence[str]) -> str:
    """Returns `field "header.region"` for a path, or "the schema" for the root."""
    text = "".join(part if part in ("[]", "{}") else f".{part}" for part in path).removeprefix(".")
    return f'field "{text}"' if text else "the schema"


def join_words(words: Sequence[str]) -> str:
    """Joins words to a list in a sentence, such as `a, b and c`. A list of more than `LISTED_WORDS_MAX` words ends in
    the number of the rest, such as `and 3 more`."""
    if len(words) > LISTED_WORDS_MAX:
        return f"{', '.join(words[:LISTED_WORDS_MAX])} and {len(words) - LISTED_WORDS_MAX} more"
    if len(words) > 1:
        return f"{', '.join(words[:-1])} and {words[-1]}"
    return "".join(words)


def schema_fragment(node: Type | Field) -> str:
    """Returns the schema text of a type or field (`node`), truncated to `FRAGMENT_CHARS_MAX`. A named type is written
    with its content; named types inside it are replaced by their full names. Documentation and aliases are omitted."""
    value = _field_json(node) if isinstance(node, Field) else _json(node)
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= FRAGMENT_CHARS_MAX else f"{text[: FRAGMENT_CHARS_MAX - 1]}…"


def type_fragment(node: Type) -> str:
    """Returns the schema text of a type. Every named type, also the type itself, is replaced by its full name."""
    return json.dumps(_inner_json(node), ensure_ascii=False)


def _json(node: Type) -> JsonValue:
    if not isinstance(node, NamedType):
        return _inner_json(node)
    head = {"type": type_kind(node), "name": node.name.full}
    match node:
        case Record():
            return {**head, "fields": [_field_json(field) for field in node.fields]}
        case Enum():
            default = {} if node.default is None else {"default": node.default}
            return {**head, "symbols": list(node.symbols), **default}
    return {**head, "size": node.size, **_props(node.props)}


def _inner_json(node: Type) -> JsonValue:
    match node:
        case Primitive():
            return {"type": node.type.value, **_props(node.props)} if node.props else node.type.value
        case Array():
            return {"type": "array", "items": _inner_json(node.items), **_props(node.props)}
        case Map():
            return {"type": "map", "values": _inner_json(node.values), **_props(node.props)}
        case Union():
            return [_inner_json(branch) for branch in node.branches]
    return node.name.full


def _props(props: Props) -> dict[str, JsonValue]:
    """Returns properties (attributes that Avro does not reserve) in sorted order, so that the order of keys in a schema
    does not change the message."""
    return dict(sorted(props))


def _field_json(field: Field) -> JsonValue:
    value = {"name": field.name, "type": _inner_json(field.type)}
    return {**value, "default": field.default} if field.has_default else value
