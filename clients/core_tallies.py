"""Counts the messages of a client for the audit with the compiled core. `audit.open_row` and `audit.tally` define the
results."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from headrace.audit.count import MessageTally
from headrace.audit.latency import LatencyHistogram
from headrace.audit.open_row import OpenRow, RowType
from headrace.audit.spool import Spool
from headrace.audit.tally import DeliveredMessage, Tally, TallyDelivered, tally_delivered
from headrace.audit.window import WINDOW_MS
from headrace.avro_codec.core.library import (
    LATENCY_BUCKET,
    SENT_ROW,
    TALLIED_TOGETHER,
    TALLY,
    CTallyOutput,
    Library,
)

_TALLY: Final = struct.Struct(TALLY)
_BUCKET: Final = struct.Struct(LATENCY_BUCKET)
_ROW: Final = struct.Struct(SENT_ROW)
_ROW_HEAD: Final = struct.Struct("qqqqPP")


class CoreRow(OpenRow):
    """The running count of a producer, with the functions `count` and `acknowledge` of the core. They hold the
    interpreter lock, so they need no other."""

    __slots__ = ("_block", "acknowledge", "count")

    def __init__(
        self,
        core: Library,
        topic: str,
        start_ms: int,
        late_from_ms: int | None,
        sequence: int,
        slot: int,
        spool: Spool | None,
    ) -> None:
        super().__init__(topic, start_ms, late_from_ms, sequence, slot, spool)
        self._block = bytearray(_ROW.size)
        self._update_block()
        self.count, self.acknowledge = core.row_functions(self._block)  # type: ignore[method-assign]

    def _update_block(self) -> None:
        late_from_ms = 2**63 - 1 if self.late_from_ms is None else self.late_from_ms
        sums = ctypes.addressof(ctypes.c_uint64.from_buffer(self.words, self.at * 8))
        _ROW_HEAD.pack_into(self._block, 0, self.is_open, self.start_ms, self.end_ms, late_from_ms, sums, id(None))

    def close(self) -> None:
        was_open = self.is_open
        super().close()
        self._update_block()
        if not was_open:
            return
        _, _, _, _, _, _, late, count, total_ms, max_ms, *buckets = _ROW.unpack_from(self._block)
        latencies = LatencyHistogram(count, total_ms, max_ms)
        latencies.buckets = {bucket: number for bucket, number in enumerate(buckets) if number}
        self.late += late
        self.latencies.merge(latencies)

    def leave_spool(self) -> None:
        super().leave_spool()
        self._update_block()


def row_type(core: Library | None) -> RowType:
    """Returns the class of a producer's running counts, of the compiled core if it can be used."""
    return OpenRow if core is None or not core.can_tally else partial(CoreRow, core)


def delivered_tallies(core: Library | None) -> TallyDelivered:
    """Returns the function that adds up delivered messages, of the compiled core if it can be used. It is not
    thread-safe."""
    if core is None or not core.can_tally:
        return tally_delivered
    buffers = _Buffers()

    def of_delivered(messages: list[DeliveredMessage], now_ms: int, late_after_ms: int) -> Iterator[Tally]:
        return buffers.add_up(
            len(messages),
            partial(core.tally_delivered, messages, None, now_ms, late_after_ms, WINDOW_MS),
            lambda start, end: tally_delivered(messages[start:end], now_ms, late_after_ms),
        )

    return of_delivered


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
