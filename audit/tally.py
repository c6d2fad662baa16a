"""Adds up the messages of a client in batches.

The functions here define the result, and are used without the compiled core. With it, `clients.core_tallies` adds up
the messages; a batch then costs little more than its hashes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from headrace.audit.count import MessageTally, message_hash
from headrace.audit.window import WINDOW_MS, is_time, window_start


class SentMessage(Protocol):
    """A message that a producer counts when it is acknowledged.

    Attributes:
        row: the running count (`OpenRow`) of its topic and window.
        size_bytes: bytes of key and value.
        fingerprint: its hash.
        latency_s: seconds from sending to acknowledgement; None if unknown.
    """

    row: Any
    size_bytes: int
    fingerprint: int
    latency_s: float | None


DeliveredMessage = tuple[Any, int]
"""A record, with the fields of `headrace.clients.decoding.FetchedRecord`, and its message time."""


class Tally(NamedTuple):
    """The count of some messages of a batch.

    Attributes:
        first: index of its first message in the batch.
        window_start_ms: start of the window of delivered messages, not yet limited by `WINDOWS_MAX`; 0 for sent ones.
        start, end: delivered messages: the first offset, and the offset after the last one; 0 for sent ones.
    """

    first: int
    window_start_ms: int
    messages: MessageTally
    start: int = 0
    end: int = 0


class Tallies(NamedTuple):
    """The functions that add up batches: `ReferenceTallies`, or those of the compiled core.

    Attributes:
        hash: the function `message_hash`.
        of_sent: returns the tallies of acknowledged messages by row. A row may have several.
        of_delivered: returns the tallies of delivered messages, from the messages, the current time and the time after
            the end of a window after which its messages are late. A partition and window may have several tallies.
    """

    hash: Callable[[bytes | None, bytes], int]
    of_sent: Callable[[list[Any]], Iterable[Tally]]
    of_delivered: Callable[[list[DeliveredMessage], int, int], Iterable[Tally]]


def tally_sent(messages: Sequence[SentMessage]) -> list[Tally]:
    """Adds up acknowledged messages; see `Tallies`."""
    tallies: dict[int, Tally] = {}
    for index, message in enumerate(messages):
        tally = tallies.get(id(message.row))
        if tally is None:
            tally = tallies[id(message.row)] = Tally(index, 0, MessageTally())
        tally.messages.add(1, message.size_bytes, message.fingerprint)
        if message.latency_s is not None:
            tally.messages.latencies.add(int(message.latency_s * 1000))
    return list(tallies.values())


def tally_delivered(messages: Sequence[DeliveredMessage], now_ms: int, late_after_ms: int) -> list[Tally]:
    """Adds up delivered messages; see `Tallies`."""
    tallies: dict[tuple[str, int, int], Tally] = {}
    for index, (record, time_ms) in enumerate(messages):
        place = record.topic, record.partition, window_start(time_ms)
        tally = tallies.get(place)
        if tally is None:
            tally = Tally(index, place[2], MessageTally(), record.offset, record.offset)
        counted = tally.messages
        counted.add(1, message_size(record.key, record.value), message_hash(record.key, record.value))
        if is_time(time_ms):
            counted.latencies.add(now_ms - time_ms)
            counted.late += now_ms - place[2] - WINDOW_MS > late_after_ms
        start, end = min(tally.start, record.offset), max(tally.end, record.offset + 1)
        tallies[place] = tally._replace(start=start, end=end)
    return list(tallies.values())


def message_size(key: bytes | None, value: bytes) -> int:
    """Returns the bytes of key and value."""
    return len(value) if key is None else len(key) + len(value)


REFERENCE = Tallies(message_hash, tally_sent, tally_delivered)
