"""Fast JSON parsing with the standard library; positions of values are computed on demand.

Nearly all schema texts are valid, and positions are rarely shown. A text is therefore read without positions first,
which takes a fifth of the time. A position is then only a JSON pointer; the first access to a line parses the text
again with `json_reader`. Texts that `json_reader` rejects, or for which it has its own error messages, are rejected
here without a message; the caller then parses them with `json_reader`.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final, NoReturn

from headrace.avro_schema.errors import SchemaParseError
from headrace.avro_schema.json_reader import (
    DEPTH_MAX,
    NUMBER_CHARS_MAX,
    TEXT_CHARS_MAX,
    JsonArray,
    JsonDocument,
    JsonObject,
    read_json,
)
from headrace.avro_schema.model import JsonValue, Position


class QuickDocument(JsonDocument):
    """A text and its JSON value, read without positions: offsets are always 0, and line and column of a position are
    computed on demand."""

    __slots__ = ("_positioned",)

    def __init__(self, text: str, source: str) -> None:
        super().__init__(text, source)
        self._positioned: JsonDocument | None = None

    def position(self, pointer: str, offset: int) -> Position:
        position = _new(LazyPosition)
        _set_pointer(position, pointer)
        _set_document(position, self)
        return position

    def fail(self, message: str, offset: int, pointer: str = "") -> NoReturn:
        """Raises SchemaParseError with the message but without a position; the caller parses the text again to get one.
        `offset` and `pointer` are ignored; they are arguments because `JsonDocument.fail` has them."""
        raise SchemaParseError(message, source=self.source)

    def locate(self, pointer: str) -> Position:
        """Returns the position of the value at a JSON pointer. The parts of the pointer are keys of schemas, which need
        no unescaping."""
        if self._positioned is None:
            self._positioned = read_json(self.text, self.source)
        value, offset = self._positioned.root, self._positioned.offset
        for part in pointer.split("/")[1:]:
            if isinstance(value, JsonArray):
                offset, value = value.offsets[int(part)], value[int(part)]
            else:
                offset, value = value.offsets[part], value[part]
        return self._positioned.position(pointer, offset)


class LazyPosition(Position):
    """A position that computes line and column on access."""

    __slots__ = ("_document",)
    _document: QuickDocument

    @property
    def line(self) -> int:
        return self._document.locate(self.pointer).line

    @property
    def column(self) -> int:
        return self._document.locate(self.pointer).column

    def __reduce__(self) -> tuple[type[Position], tuple[str, int, int]]:
        return Position, (self.pointer, self.line, self.column)


_new = object.__new__
_set_pointer = Position.__dict__["pointer"].__set__
_set_document = LazyPosition.__dict__["_document"].__set__


def read_without_positions(text: str, source: str) -> QuickDocument | None:
    """Parses a text that is one JSON value. Returns None if the caller must use the slower `read_json`: for every
    invalid text and for a few valid ones, such as those with Unicode escapes.

    Args:
        source: a file name or subject, for messages.
    """
    if len(text) > TEXT_CHARS_MAX or "\\u" in text:  # the escape may be a lone surrogate
        return None
    document = QuickDocument(text, source)
    try:
        if not text.isascii():
            text.encode("utf-8")
        document.root = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None
    if text.count("{") + text.count("[") > DEPTH_MAX and _is_too_deep(document.root):
        return None
    return document


def _is_too_deep(value: JsonValue) -> bool:
    level = [value]
    for _ in range(DEPTH_MAX):
        level = [
            item
            for outer in level
            if isinstance(outer, dict | list)
            for item in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return any(isinstance(item, dict | list) for item in level)


def _object(pairs: list[tuple[str, Any]]) -> JsonObject:
    value = JsonObject(pairs)
    if len(value) < len(pairs):
        raise ValueError("duplicate key")
    return value


def _int(digits: str) -> int:
    if len(digits) > NUMBER_CHARS_MAX:
        raise ValueError("long number")
    return int(digits)


def _float(digits: str) -> float:
    number = float(digits)
    if len(digits) > NUMBER_CHARS_MAX or math.isinf(number):
        raise ValueError("large number")
    return number


def _constant(word: str) -> NoReturn:
    raise ValueError(word)


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_int, parse_float=_float, parse_constant=_constant
)
