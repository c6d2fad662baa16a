"""Parses JSON texts: whole bodies, and streams of concatenated objects, which arrive in chunks.

The objects of a chunk are parsed one after the other. An object that is not complete is not parsed again with each
chunk: its structure is examined, each byte once, until its end was received.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

from headrace.gateway.turn import Turn

_OUTSIDE_STRING: Final = re.compile(rb'["{}\[\]]')
_INSIDE_STRING: Final = re.compile(rb'["\\]')
_SPACE: Final = re.compile(rb"[ \t\r\n]*")
_LEADING_SPACE: Final = re.compile(r"[ \t\r\n]*")
AT_ONCE_BYTES_MAX: Final = 64 * 1024
"""Size of a text that is parsed in less than a millisecond."""
ITEMS_MAX: Final = 100_000
"""Maximum number of items of a list in a body, such as records: small ones take much more memory than their text."""
TEXT_BYTES_MAX: Final = 2**15 - 1
"""Maximum size of a text in Kafka's protocol."""
OPENING_BRACE, QUOTE, BACKSLASH = b'{"\\'


class MalformedJson(ValueError):
    """A text is no JSON, or has a value that JSON cannot represent. The message is a sentence."""


class TooManyItems(ValueError):
    """A list has more items than permitted. The message is a sentence."""


class ObjectTooLarge(ValueError):
    """An object has more bytes than permitted."""


class UnusableText(ValueError):
    """A text cannot be part of a request to the brokers. The message is a phrase."""


class JsonStream:
    """Collects the chunks of a stream, and returns the objects that are complete.

    Args:
        object_bytes_max: most bytes of an object.
    """

    def __init__(self, object_bytes_max: int) -> None:
        self._object_bytes_max = object_bytes_max
        self._text = bytearray()
        self._start = 0
        """Where the first object begins that is not complete."""
        self._at = 0
        """Up to where the text was examined."""
        self._depth = 0
        self._is_in_string = False

    def feed(self, chunk: bytes) -> Iterator[tuple[Any, int]]:
        """Adds a chunk, and yields the objects that it completes, each with the size of its text.

        Raises:
            MalformedJson: there is something else than an object at the level of the objects.
            ObjectTooLarge: an object has too many bytes.
        """
        self._text += chunk
        if not self._depth and self._text.isascii():
            yield from self._complete_objects()
        while self._finds_end():
            text = self._checked(bytes(self._text[self._start : self._at]))
            self._start = self._at
            yield parse_json(text), len(text)
        del self._text[: self._start]
        self._at -= self._start
        self._start = 0
        self._checked(self._text)

    def _complete_objects(self) -> Iterator[tuple[Any, int]]:
        """Parses objects up to one that is not complete or not valid. In ASCII, characters are bytes."""
        text = self._text.decode("ascii")
        while True:
            begin = _LEADING_SPACE.match(text, self._start).end()  # type: ignore[union-attr]
            if text[begin : begin + 1] != "{":
                return
            try:
                value, end = _DECODER.raw_decode(text, begin)
            except (ValueError, RecursionError):
                return  # the examination of its structure decides
            if end - begin > self._object_bytes_max:
                return
            self._start = self._at = end
            yield value, end - begin

    def end(self) -> None:
        """Ends the stream.

        Raises:
            MalformedJson: the last object is incomplete.
        """
        if self._text:
            raise MalformedJson("the body ends within an object")

    def _checked(self, text: Any) -> Any:
        if len(text) > self._object_bytes_max:
            raise ObjectTooLarge(f"an object has more than {self._object_bytes_max:,} bytes")
        return text

    def _finds_end(self) -> bool:
        """Examines the text up to the end of the first object. Returns whether the object is complete."""
        text = self._text
        if not self._depth:
            self._start = self._at = _SPACE.match(text, self._start).end()  # type: ignore[union-attr]
            if self._at < len(text) and text[self._at] != OPENING_BRACE:
                raise MalformedJson(f"expected an object, found {bytes(text[self._at : self._at + 20])!r}")
        while True:
            found = (_INSIDE_STRING if self._is_in_string else _OUTSIDE_STRING).search(text, self._at)
            if found is None:
                self._at = len(text)
                return False
            byte = text[found.start()]
            self._at = found.end()
            if byte == BACKSLASH:
                if self._at == len(text):  # the next chunk begins with the escaped character
                    self._at -= 1
                    return False
                self._at += 1
            elif byte == QUOTE:
                self._is_in_string = not self._is_in_string
            elif byte in b"{[":
                self._depth += 1
            else:
                self._depth -= 1
                if not self._depth:
                    return True


def parse_json(text: bytes) -> Any:
    """Parses a JSON text.

    Raises:
        MalformedJson: it is no JSON, has a number like NaN, or is nested too deeply.
    """
    with _malformed():
        return json.loads(text, parse_constant=_refuse_constant)


async def parse_json_in_turns(text: bytes, turn: Turn) -> Any:
    """Parses a JSON text like `parse_json`. In a large object, other requests run between the items of lists that are
    its members, such as the records of a request.

    Raises:
        MalformedJson: as `parse_json`; or the text is large and no object.
        TooManyItems: such a list has more than `ITEMS_MAX` items.
    """
    if len(text) <= AT_ONCE_BYTES_MAX:
        return parse_json(text)
    with _malformed():
        found = _Members(text.decode(json.detect_encoding(text), "surrogatepass"))
        if not found.begins("{"):
            raise MalformedJson("expected a JSON object")
        members: dict[str, Any] = {}
        is_at_end = found.begins("}")
        while not is_at_end:
            name = found.name()
            if found.begins("["):
                members[name] = await _items(name, found, turn)
            else:
                members[name] = found.value()
            is_at_end = found.ends_with("}")
        found.end()
        return members


async def _items(name: str, found: _Members, turn: Turn) -> list[Any]:
    items: list[Any] = []
    is_at_end = found.begins("]")
    while not is_at_end:
        if len(items) == ITEMS_MAX:
            raise TooManyItems(f"{name!r:.80} has more than {ITEMS_MAX:,} items; send them in several requests")
        items.append(found.value())
        is_at_end = found.ends_with("]")
        if turn.is_over:
            await turn.next()
    return items


class _Members:
    """Parses the parts of an object, from its begin to its end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = self._after_space(0)

    def _after_space(self, at: int) -> int:
        return _LEADING_SPACE.match(self._text, at).end()  # type: ignore[union-attr]

    def begins(self, bracket: str) -> bool:
        """Reads a bracket and the space after it. Returns whether it was there."""
        is_there = self._text.startswith(bracket, self._at)
        if is_there:
            self._at = self._after_space(self._at + 1)
        return is_there

    def value(self) -> Any:
        """Reads a value and the space after it."""
        value, end = _DECODER.raw_decode(self._text, self._at)
        self._at = self._after_space(end)
        return value

    def name(self) -> str:
        """Reads the name of a member and its colon."""
        if not self._text.startswith('"', self._at):
            raise self._error("Expecting property name enclosed in double quotes")
        name = self.value()
        if not self.begins(":"):
            raise self._error("Expecting ':' delimiter")
        return str(name)

    def ends_with(self, bracket: str) -> bool:
        """Reads a comma, or the bracket after the last member or item. Returns whether it was the bracket."""
        if self.begins(","):
            return False
        if not self.begins(bracket):
            raise self._error("Expecting ',' delimiter")
        return True

    def end(self) -> None:
        if self._at < len(self._text):
            raise self._error("Extra data")

    def _error(self, problem: str) -> ValueError:
        return json.JSONDecodeError(problem, self._text, self._at)


@contextmanager
def _malformed() -> Iterator[None]:
    """Translates the errors of the JSON library."""
    try:
        yield
    except RecursionError:
        raise MalformedJson("the JSON is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise MalformedJson(f"the JSON is not UTF-8: {error.reason} at byte {error.start}") from None
    except (MalformedJson, TooManyItems):
        raise
    except ValueError as error:
        raise MalformedJson(f"the body is no JSON: {error}") from None


def check_texts(value: Any) -> None:
    """Checks all texts of a JSON value, which the Kafka client takes as C strings: it would end them at a NUL, and
    end the process at half of a surrogate pair.

    Raises:
        UnusableText: a text has no UTF-8 form, contains a NUL, or is longer than the protocol allows.
    """
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            check_text(one)
        elif isinstance(one, list):
            waiting += one
        elif isinstance(one, dict):
            waiting += [*one, *one.values()]


def check_text(text: str) -> None:
    """Checks one text as `check_texts` does.

    Raises:
        UnusableText: see there.
    """
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise UnusableText("the text contains half of a surrogate pair") from None
    if "\0" in text:
        raise UnusableText("the text contains a NUL")
    if size > TEXT_BYTES_MAX:
        raise UnusableText(f"the text has {size:,} bytes, at most {TEXT_BYTES_MAX:,} are accepted")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f'{name} is no JSON; write the text "{name}" for an Avro float or double')


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)
