"""JSON parser that records the offset of each value.

`read_json` returns plain scalars, and objects and arrays that also hold the offset of every member, so that the schema
parser can report exact positions. It is stricter than `json.loads`: duplicate keys, NaN, infinities and lone surrogates
are errors, and the text's length, nesting and numbers are limited. Only lenient reading accepts comments and duplicate
keys, like Avro Java.

One regular expression matches a complete `"key": "text",`, because most of a schema consists of such members. A schema
of 40 fields is therefore read in about a millisecond.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any, NoReturn

from headrace.avro_schema.errors import SchemaParseError
from headrace.avro_schema.model import JsonValue, Position

TEXT_CHARS_MAX = 4_000_000
"""Longest schema text that is read. Kafka by default refuses messages of more than 1 MB, a quarter of it."""

DEPTH_MAX = 200
"""Deepest nesting of objects and arrays (some 65 nested records); bounds the recursion of every walk."""

NUMBER_CHARS_MAX = 400
"""Longest number; no double needs more digits, and parsing huge integers takes quadratic time."""

_SPACE = re.compile(r"[ \t\n\r]*")
_KEY = re.compile(r'[ \t\n\r]*"([^"\\\x00-\x1f]*)"[ \t\n\r]*:[ \t\n\r]*(?:"([^"\\\x00-\x1f]*)"[ \t\n\r]*([,}]))?')
_ITEM = re.compile(r'[ \t\n\r]*"([^"\\\x00-\x1f]*)"[ \t\n\r]*([,\]])')
_STRING = re.compile(r'"[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*"')
_STRING_BODY = re.compile(r'[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)((?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)")
_WORD = re.compile(r"[A-Za-z0-9_.+-]{1,40}")
_LITERALS = {"true": True, "false": False, "null": None}
# An unclosed string or comment extends to the end of the text. Possessive quantifiers make it linear for any text.
_TEXT_OR_COMMENT = re.compile(r'"(?:[^"\\]++|\\.)*+"?|/\*(?:[^*]++|\*(?!/))*+(?P<end>\*/)?|//[^\r\n]*+', re.DOTALL)
_NOT_A_LINE_END = re.compile(r"[^\r\n]")
_UNPAIRED_SURROGATE = r"an unpaired surrogate (\ud800 to \udfff), which UTF-8 cannot represent; remove it"


class JsonObject(dict[str, JsonValue]):
    """A JSON object that was read without positions: the schema parser finds the offset 0 for each of its members."""

    __slots__ = ()
    offset = 0
    offsets: Mapping[str, int] = dict.fromkeys(
        ("type", "name", "fields", "items", "values", "symbols", "size", "default", "order", "aliases"), 0
    )


class PositionedObject(JsonObject):
    """A JSON object with offsets in the source text: `offset` of the object, `offsets` of its members' values."""

    __slots__ = ("offset", "offsets")
    offset: int
    offsets: dict[str, int]

    def __init__(self, offset: int) -> None:
        super().__init__()
        self.offset = offset
        self.offsets: dict[str, int] = {}


class JsonArray(list[JsonValue]):
    """A JSON array with offsets in the source text: `offset` of the array, `offsets` of its items."""

    __slots__ = ("offset", "offsets")

    def __init__(self, offset: int) -> None:
        super().__init__()
        self.offset = offset
        self.offsets: list[int] = []


class JsonDocument:
    """A text, its JSON value, and the mapping from offsets to lines and columns."""

    __slots__ = ("_lines", "offset", "repeats_keys", "root", "source", "text")

    def __init__(self, text: str, source: str, *, repeats_keys: bool = False) -> None:
        self.text = text
        self.source = source
        self.repeats_keys = repeats_keys
        """Whether an object may have a key several times; the last value counts."""
        self.root: JsonValue = None
        self.offset = 0
        self._lines: list[int] = []

    def position(self, pointer: str, offset: int) -> Position:
        """Returns the position with this JSON pointer: line and column of the offset, counted from 1."""
        lines = self._lines
        if not lines:
            lines.append(0)
            lines.extend(match.end() for match in re.finditer("\n", self.text))
        line = bisect_right(lines, offset)
        return Position(pointer, line, offset - lines[line - 1] + 1)

    def fail(self, message: str, offset: int, pointer: str = "") -> NoReturn:
        raise SchemaParseError(message, self.position(pointer, offset), self.source)


def blank_out_comments(text: str) -> str:
    """Returns a JSON text with its comments (`/* */` and `//`) replaced by blanks, so that positions do not change.

    Strings and unclosed comments stay unchanged.
    """
    if "/*" not in text and "//" not in text:
        return text
    return _TEXT_OR_COMMENT.sub(_without_comment, text)


def _without_comment(found: re.Match[str]) -> str:
    part = found[0]
    is_comment = part.startswith("//") or found["end"] is not None
    return _NOT_A_LINE_END.sub(" ", part) if is_comment else part


def read_json(text: str, source: str = "", *, lenient: bool = False) -> JsonDocument:
    """Parses a text that is one JSON value; returns the document with the value (`root`) and its positions.

    Args:
        source: a file name or subject, for messages.
        lenient: also accept comments, and keys that an object has several times: the last value counts. Avro Java
            does both. The document's text then has blanks instead of comments.

    Raises:
        SchemaParseError: the text is not one JSON value within the limits of this module.
    """
    document = JsonDocument(text, source, repeats_keys=lenient)
    if len(text) > TEXT_CHARS_MAX:
        document.fail(f"the text has {len(text)} characters; the limit is {TEXT_CHARS_MAX}", 0)
    if text.startswith("\ufeff"):
        document.fail("the text begins with a byte order mark; save it as UTF-8 without byte order mark", 0)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        document.fail(_UNPAIRED_SURROGATE, error.start)
    if lenient:
        document.text = text = blank_out_comments(text)
    start = _skip(text, 0)
    document.offset = start
    document.root, end = _read_value(document, start, 1)
    end = _skip(text, end)
    if end != len(text):
        document.fail(f"expected the end of the text after the value, found {_describe_at(text, end)}", end)
    return document


def item_offset(items: list[JsonValue], index: int) -> int:
    """Returns the offset of the array item `index` in the source text; 0 if the array was read without positions."""
    return items.offsets[index] if isinstance(items, JsonArray) else 0


def to_plain(value: JsonValue) -> JsonValue:
    """Converts a parsed JSON value to plain dicts and lists, without offsets in the source text."""
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [to_plain(item) for item in value]
    return value


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def _read_value(document: JsonDocument, at: int, depth: int) -> tuple[JsonValue, int]:
    char = document.text[at : at + 1]
    if char == "{":
        return _read_object(document, at, depth)
    if char == "[":
        return _read_array(document, at, depth)
    if char == '"':
        return _read_string(document, at)
    return _read_scalar(document, at)


def _read_object(document: JsonDocument, start: int, depth: int) -> tuple[JsonValue, int]:
    if depth > DEPTH_MAX:
        document.fail(f"objects and arrays are nested deeper than {DEPTH_MAX} levels", start)
    text = document.text
    value = PositionedObject(start)
    offsets = value.offsets
    at = _skip(text, start + 1)
    if text.startswith("}", at):
        return value, at + 1
    while True:
        match = _KEY.match(text, at)
        if match is None:
            key, value_at = _read_key(document, at)
            short, closer = None, None
        else:
            key, short, closer = match.groups()
            value_at = match.end()
        if key in offsets and not document.repeats_keys:
            document.fail(f'duplicate key "{key}" in one object', _skip(text, at))
        item: Any = short
        if closer is None:
            offsets[key] = value_at
            item, end = _read_value(document, value_at, depth + 1)
            at, closer = _closer(document, end, "}", f'after the value of "{key}"')
        else:
            assert match is not None
            offsets[key] = match.start(2) - 1
            at = match.end()
        value[key] = item
        if closer == "}":
            return value, at


def _read_key(document: JsonDocument, at: int) -> tuple[str, int]:
    """Reads the key at the offset `at` of the text and the colon after it; returns the key and the offset of the value.
    Used for keys that the fast regular expression does not match, such as those with escapes."""
    text = document.text
    at = _skip(text, at)
    if not text.startswith('"', at):
        document.fail(f"expected a key in double quotes, found {_describe_at(text, at)}", at)
    key, at = _read_string(document, at)
    at = _skip(text, at)
    if not text.startswith(":", at):
        document.fail(f'expected ":" after the key "{key}", found {_describe_at(text, at)}', at)
    return key, _skip(text, at + 1)


def _read_array(document: JsonDocument, start: int, depth: int) -> tuple[JsonValue, int]:
    if depth > DEPTH_MAX:
        document.fail(f"objects and arrays are nested deeper than {DEPTH_MAX} levels", start)
    text = document.text
    value = JsonArray(start)
    at = _skip(text, start + 1)
    if text.startswith("]", at):
        return value, at + 1
    while True:
        match = _ITEM.match(text, at)
        if match is None:
            at = _skip(text, at)
            if value and text.startswith("]", at):
                document.fail('expected an item after the comma, found "]"; remove the comma', at)
            value.offsets.append(at)
            item, end = _read_value(document, at, depth + 1)
            at, closer = _closer(document, end, "]", "after an item of an array")
        else:
            item, closer = match.groups()
            value.offsets.append(match.start(1) - 1)
            at = match.end()
        value.append(item)
        if closer == "]":
            return value, at


def _closer(document: JsonDocument, at: int, closing: str, where: str) -> tuple[int, str]:
    """Reads the comma or closing bracket after an item; returns the next offset and the character that was read.

    Args:
        at: the offset after the item.
        closing: the closing bracket, `}` or `]`.
        where: describes the place in an error message, such as "after an item of an array".
    """
    text = document.text
    at = _skip(text, at)
    char = text[at : at + 1]
    if char == closing:
        return at + 1, char
    if char != ",":
        document.fail(f'expected "," or "{closing}" {where}, found {_describe_at(text, at)}', at)
    return at + 1, char


def _read_string(document: JsonDocument, at: int) -> tuple[str, int]:
    text = document.text
    match = _STRING.match(text, at)
    if match is None:
        body = _STRING_BODY.match(text, at + 1)
        assert body is not None
        bad = body.end()
        if bad >= len(text):
            document.fail("a string is not closed; expected a double quote", at)
        if text[bad] == "\\":
            document.fail(f"invalid escape {text[bad : bad + 2]!r} in a string", bad)
        document.fail("a control character (such as a line break) in a string; escape it", bad)
    value: str = json.loads(match.group())
    if "\\u" in match.group():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            document.fail(_UNPAIRED_SURROGATE, at)
    return value, match.end()


def _read_scalar(document: JsonDocument, at: int) -> tuple[JsonValue, int]:
    text = document.text
    word = _WORD.match(text, at)
    if word is not None and word.group() in _LITERALS:
        return _LITERALS[word.group()], word.end()
    match = _NUMBER.match(text, at)
    if match is None or (text[match.end() : match.end() + 1] or " ") not in " \t\n\r,]}":
        document.fail(f"expected a JSON value, found {_describe_at(text, at)}", at)
    digits = match.group()
    if len(digits) > NUMBER_CHARS_MAX:
        document.fail(f"the number has {len(digits)} characters; the limit is {NUMBER_CHARS_MAX}", at)
    if not match.group(1):
        return int(digits), match.end()
    number = float(digits)
    if math.isinf(number):
        document.fail(f"the number {_describe_at(text, at)} is too large for a double", at)
    return number, match.end()


def _describe_at(text: str, at: int) -> str:
    """Returns a description of the text at an offset, such as "the end of the text", for an error message."""
    if at >= len(text):
        return "the end of the text"
    if text.startswith("/*", at) and "*/" not in text[at + 2 :]:
        return "a comment that is not closed"
    if text.startswith(("//", "/*"), at):
        return 'a comment, which JSON does not have; use "doc"'
    word = _WORD.match(text, at)
    return f'"{word.group() if word else text[at]}"' if text[at] != '"' else "a string"
