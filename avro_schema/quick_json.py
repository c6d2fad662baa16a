"""JSON at the speed of the standard library's own reader, with the place of a value found only when somebody asks.

Nearly every schema text is fine and nearly no position in it is ever shown. So a text is first read without positions,
which takes a fifth of the time; a position is then a JSON pointer, and the first one whose line is asked for has the
text read again by `json_reader`. What that reader refuses, or says in its own words, is refused here without a word:
the caller then reads the text with it.
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
    Document,
    JsonArray,
    JsonObject,
    read_json,
)
from headrace.avro_schema.model import JsonValue, Position


class QuickDocument(Document):
    """A text and its value; offsets mean nothing in it, and positions know only their pointer until they are asked."""

    __slots__ = ("_positioned",)

    def __init__(self, text: str, source: str) -> None:
        super().__init__(text, source)
        self._positioned: Document | None = None

    def position(self, pointer: str, offset: int) -> Position:
        position = _new(LazyPosition)
        _set_pointer(position, pointer)
        _set_document(position, self)
        return position

    def fail(self, message: str, offset: int, pointer: str = "") -> NoReturn:
        """Says that something is wrong; what, the careful reading will say."""
        raise SchemaParseError(message, source=self.source)

    def locate(self, pointer: str) -> Position:
        """The position of the value that a pointer means; its parts are keys of schemas, and so not escaped."""
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
    """A position whose line and column are found when they are asked for."""

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
    """Reads one JSON value, or gives None where `read_json` is to decide, as it always does on what is not valid."""
    if len(text) > TEXT_CHARS_MAX or "\\u" in text:  # an escape may be half a character
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
