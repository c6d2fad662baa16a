"""Adds up the messages of a consumer in batches.

`tally_delivered` defines the result, and is used without the compiled core. With it, `clients.core_tallies` adds up the
messages; a batch then costs little more than its hashes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from headrace.audit.count import MessageTally, message_hash
from headrace.audit.window import WINDOW_MS, is_time, window_start

DeliveredMessage = tuple[Any, int]
"""A record, with the fields of `headrace.clients.decoding.FetchedRecord`, and its message time."""


class Tally(NamedTuple):
    """The count of some messages of a batch.

    Attributes:
        first: index of its first message in the batch.
        window_start_ms: start of their window, not yet limited by `WINDOWS_MAX`.
        start, end: the first offset, and the offset after the last one.
    """

    first: int
    window_start_ms: int
    messages: MessageTally
    start: int
    end: int


TallyDelivered = Callable[[list[DeliveredMessage], int, int], Iterable[Tally]]
"""Returns the tallies of delivered messages, from the messages, the current time and the time after the end of a window
after which its messages are late. A partition and window may have several tallies."""


def tally_delivered(messages: Sequence[DeliveredMessage], now_ms: int, late_after_ms: int) -> list[Tally]:
    """Adds up delivered messages; see `TallyDelivered`."""
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
