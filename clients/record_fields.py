"""Converts record timestamps, keys and headers that applications pass to the types that the Kafka client needs."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, Final

from headrace.clients.errors import KeyRefused, ProducerError

NOW_MS: Final = 0
"""The timestamp for which librdkafka uses the current time."""
_MS_MAX: Final = 2**63 - 1


def as_timestamp(topic: str, timestamp_ms: Any) -> int:
    """Returns `timestamp_ms` for the Kafka client, after checking that it is a valid record timestamp.

    Args:
        topic: the topic of the record, for the error.

    Raises:
        ProducerError: it is 0, or not a 64-bit integer.
    """
    try:
        number_ms = operator.index(timestamp_ms)
    except TypeError:
        number_ms = None
    if number_ms is None or not -_MS_MAX <= number_ms <= _MS_MAX:
        raise ProducerError(
            f"topic {topic}: expected timestamp_ms to be an integer of 64 bits, found "
            f"{type(timestamp_ms).__name__} {timestamp_ms!r:.60}",
            topic=topic,
        )
    if number_ms == NOW_MS:
        raise ProducerError(
            f"topic {topic}: timestamp_ms=0 would be sent as the current time; pass another number", topic=topic
        )
    return number_ms


def as_key_bytes(topic: str, key: Any) -> bytes:
    """Returns as bytes the record key that an application has passed. (The caller handles None and `bytes`.)

    Args:
        topic: the topic of the record, for the error.

    Raises:
        KeyRefused: the key is not text or a bytes-like object, or is text without a UTF-8 form.
    """
    if isinstance(key, str):
        try:
            return key.encode()
        except UnicodeEncodeError as error:
            raise KeyRefused(f"topic {topic}: the key has no UTF-8 form: {error}", topic=topic) from error
    if isinstance(key, (bytes, bytearray, memoryview)):
        return bytes(key)
    raise KeyRefused(
        f"topic {topic}: expected the key to be text, bytes or None, found {type(key).__name__} {key!r:.60}",
        topic=topic,
    )


def as_header_list(topic: str, headers: Iterable[tuple[str, str | bytes]]) -> list[tuple[str, bytes]]:
    """Returns record headers as the list of names and bytes that the Kafka client needs.

    Args:
        topic: the topic of the record, for the error.

    Raises:
        ProducerError: a header is not a pair of a name and text or bytes, has no UTF-8 form, or its name contains a
            zero character.
    """
    try:
        given = list(headers)
    except TypeError as error:
        raise _header_refused(topic, headers) from error
    found = []
    for header in given:
        name, value = header if isinstance(header, tuple) and len(header) == 2 else (None, None)
        if not isinstance(name, str) or not isinstance(value, (str, bytes)):
            raise _header_refused(topic, header)
        try:
            name.encode()  # the Kafka client does not check this, and crashes
            content = value.encode() if isinstance(value, str) else value
        except UnicodeEncodeError as error:
            problem = f"the header {header!a:.60} has no UTF-8 form: {error}"
            raise ProducerError(f"topic {topic}: {problem}", topic=topic) from error
        if "\0" in name:
            raise ProducerError(
                f"topic {topic}: the name of the header {header!a:.60} contains a zero character, at which it would be "
                "truncated",
                topic=topic,
            )
        found.append((name, content))
    return found


def _header_refused(topic: str, found: object) -> ProducerError:
    return ProducerError(
        f"topic {topic}: expected headers as pairs of a name and text or bytes, found {found!r:.60}", topic=topic
    )
