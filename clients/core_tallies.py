"""Adds up the messages of a client for the audit with the compiled core. `audit.tally` defines the results."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from headrace.audit.count import MessageTally
from headrace.audit.latency import LatencyHistogram
from headrace.audit.tally import REFERENCE, DeliveredMessage, Tallies, Tally, tally_delivered, tally_sent
from headrace.audit.window import WINDOW_MS
from headrace.avro_codec.core.library import LATENCY_BUCKET, TALLIED_TOGETHER, TALLY, CTallyOutput, Library

_TALLY = struct.Struct(TALLY)
_BUCKET = struct.Struct(LATENCY_BUCKET)
_SENT_MESSAGE = ("row", "size_bytes", "fingerprint", "latency_s")


def core_tallies(core: Library | None) -> Tallies:
    """Returns the functions that add up messages, of the compiled core if it can be used. The functions are not
    thread-safe."""
    if core is None or not core.can_tally:
        return REFERENCE
    buffers = _Buffers()

    def of_sent(messages: list[Any]) -> Iterator[Tally]:
        return buffers.add_up(
            len(messages),
            partial(core.tally_sent, messages, _SENT_MESSAGE, None),
            lambda start, end: tally_sent(messages[start:end]),
        )

    def of_delivered(messages: list[DeliveredMessage], now_ms: int, late_after_ms: int) -> Iterator[Tally]:
        return buffers.add_up(
            len(messages),
            partial(core.tally_delivered, messages, None, now_ms, late_after_ms, WINDOW_MS),
            lambda start, end: tally_delivered(messages[start:end], now_ms, late_after_ms),
        )

    return Tallies(core.hash_message, of_sent, of_delivered)


class _Buffers:
    """The output of the core."""

    def __init__(self) -> None:
        self._tallies = ctypes.create_string_buffer(TALLIED_TOGETHER * _TALLY.size)
        self._buckets = ctypes.create_string_buffer(TALLIED_TOGETHER * _BUCKET.size)
        self._output = CTallyOutput(ctypes.addressof(self._tallies), ctypes.addressof(self._buckets))

    def add_up(
        self, count: int, of_core: Callable[..., int], of_reference: Callable[[int, int], list[Tally]]
    ) -> Iterator[Tally]:
        """Yields the tallies of `count` messages.

        Args:
            of_core: the function of the core, with all arguments but the range of messages and the output.
            of_reference: adds up a range of messages that the core does not support, for example with a message time of
                more than 64 bits.
        """
        for start in range(0, count, TALLIED_TOGETHER):
            end = min(count, start + TALLIED_TOGETHER)
            tallies = self._of_range(of_core, start, end)
            if tallies is None:
                tallies = [each._replace(first=start + each.first) for each in of_reference(start, end)]
            yield from tallies

    def _of_range(self, of_core: Callable[..., int], start: int, end: int) -> list[Tally] | None:
        output = self._output
        try:
            if of_core(start, end, ctypes.byref(output)):
                return None
        except (OverflowError, TypeError):
            return None
        tallies, histograms = [], []
        for position in range(0, output.tally_count * _TALLY.size, _TALLY.size):
            first, window_start_ms, count, size, fingerprint, late, low, high, *latencies = _TALLY.unpack_from(
                self._tallies, position
            )
            messages = MessageTally(count, size, fingerprint)
            messages.late = late
            messages.latencies = LatencyHistogram(*latencies)
            histograms.append(messages.latencies)
            tallies.append(Tally(first, window_start_ms, messages, low, high))
        for position in range(0, output.bucket_count * _BUCKET.size, _BUCKET.size):
            number, bucket, count = _BUCKET.unpack_from(self._buckets, position)
            histograms[number].buckets[bucket] = count
        return tallies
