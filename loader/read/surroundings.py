"""What the batches around one say of it: where the log goes on behind one that is corrupt, and whether the base offset
of a whole one, which its checksum does not cover, can be right.

A batch that is believed to be elsewhere would look like a gap, and be lost without a word.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Protocol

from headrace.kafka_wire.cluster import FetchSlice
from headrace.kafka_wire.errors import CorruptBatch, KafkaError, MisplacedBatch
from headrace.kafka_wire.record_batch import HEADER_BYTES, BatchFrame, offset_after, read_batch_header

LOOK_BEHIND_BYTES = (1 << 20, 1 << 24)  # fetched behind a batch to find the next one: first, and if need be


@dataclass(frozen=True, slots=True)
class CorruptSpan:
    """Offsets `[start, end)`, within a range, of a batch that cannot be read.

    `next_offset` is the one after all of it. `batch` are its bytes. `timestamp_ms` is the greatest time of its records
    as its header has it, however wrong.
    """

    start: int
    end: int
    next_offset: int
    reason: str
    batch: bytes
    timestamp_ms: int


class Fetch(Protocol):
    """Brings raw batches from an offset on; waits where a broker throttled the answer before."""

    def __call__(self, offset: int, bytes_max: int | None = None, /) -> FetchSlice:
        """
        Args:
            bytes_max: of the answer, when it is to be more than usual.
        """
        ...


class Surroundings:
    """The batches of one answer. `ahead` is what follows its last batch, if that was asked for.

    Args:
        asked: the offset fetched from.
        start: where reading began, which may be in the middle of a batch.
        end: where it is to end.
    """

    def __init__(self, piece: FetchSlice, asked: int, where: str, fetch: Fetch, *, start: int, end: int) -> None:
        self.ahead: FetchSlice | None = None
        self._piece = piece
        self._asked = asked
        self._where = where
        self._fetch = fetch
        self._start = start
        self._end = end

    def is_known(self, frame: BatchFrame, next_offset: int, position: int) -> bool:
        """Whether the place of a batch, up to `next_offset`, can be told; if not, it is to be asked for again: it comes
        with what follows it then, which tells whether the gap before it is one.

        The offset that a batch begins with lies outside of its checksum: one flipped bit there makes messages of other
        offsets, or of none. Compaction takes batches out, but moves none.

        Args:
            position: the offset that is due.

        Raises:
            MisplacedBatch: it ends before the offset that is due, goes back, or lies beyond the readable log.
        """
        first = frame.base_offset
        if first > position > self._asked and not frame.is_followed:
            return False
        if next_offset < self._end and not frame.is_followed:
            with contextlib.suppress(KafkaError):  # asked again when this batch is booked, it will come again
                self.ahead = self._fetch(next_offset)
        fault = self._fault(frame, next_offset, position)
        if fault:
            raise MisplacedBatch(
                f"{self._where} offset {first}: a batch takes the offsets [{first}, {next_offset}), but {fault}"
            )
        return True

    def _fault(self, frame: BatchFrame, next_offset: int, position: int) -> str:
        first = frame.base_offset
        following = _first_offset(self.ahead) if self.ahead else -1
        if next_offset <= position:
            return "" if self._leads_to(position, frame, next_offset) else f"offset {position} was due"
        if first < position != self._start:
            return f"the batch before it ended at {position}"
        if next_offset > self._piece.high_watermark:
            return f"the log is readable to {self._piece.high_watermark}"
        if 0 <= following < next_offset:
            return f"the next one begins at {following}"
        if first > position and not frame.is_followed and not _is_next_after(self._fetch(first - 1), first):
            return f"the log holds another batch before it, although {position} was due"
        return ""

    def _leads_to(self, position: int, frame: BatchFrame, next_offset: int) -> bool:
        """Whether what stands behind a batch of the past, in the same answer and in order, holds the offset now due.

        Some brokers begin with batches that were not asked for. One that is not where it says it is, is followed by
        what lies behind that offset.
        """
        data, at, reached = self._piece.records, frame.end, next_offset
        while len(data) - at >= HEADER_BYTES:
            header = read_batch_header(data, at)
            if header.size < HEADER_BYTES or header.base_offset < reached:
                return False
            if header.last_offset >= position:
                return header.base_offset <= position
            at, reached = at + header.size, header.last_offset + 1
        return False

    def span_of(self, error: CorruptBatch, frame: BatchFrame, position: int, end: int) -> CorruptSpan:
        """The offsets from `position` up to `end` that a corrupt batch takes.

        Raises:
            CorruptBatch: the same error, where the next offset cannot be told.
        """
        next_offset = self._next_offset(frame) if error.next_offset is None else error.next_offset
        if next_offset is None or next_offset <= position:
            raise CorruptBatch(str(error)) from error
        start = min(max(position, frame.base_offset), end)
        time_ms = read_batch_header(frame.view).max_timestamp
        return CorruptSpan(start, min(next_offset, end), next_offset, str(error), bytes(frame.view), time_ms)

    def _next_offset(self, frame: BatchFrame) -> int | None:
        """As the batch behind it says, or, where there is none, the end of the log and the corrupt one alike."""
        piece: FetchSlice | None = self._piece
        found = offset_after(self._piece.records, frame)
        for more in LOOK_BEHIND_BYTES:
            if found is not None:
                return found
            piece = self._more(frame, more)
            if piece is None:
                return None
            found = offset_after(piece.records, frame)
        assert piece is not None
        if found is None and len(piece.records) == frame.end:
            said = read_batch_header(frame.view).last_offset + 1
            return said if said in (piece.last_stable_offset, piece.high_watermark) else None
        return found

    def _more(self, frame: BatchFrame, more: int) -> FetchSlice | None:
        """The same fetch with more behind the frame; None where something else came, as from another replica."""
        piece = self._fetch(self._asked, frame.end + more)
        return piece if piece.records[frame.position : frame.end] == frame.view else None


def _first_offset(piece: FetchSlice) -> int:
    """Where the first batch of an answer begins, -1 when there is none."""
    return read_batch_header(piece.records).base_offset if len(piece.records) >= HEADER_BYTES else -1


def _is_next_after(piece: FetchSlice, first: int) -> bool:
    """Whether the answer for the offset before `first` agrees that there is nothing but the batch that begins there.

    A throttled answer is empty whatever the log holds.
    """
    return _first_offset(piece) == first or bool(piece.throttle_ms and not piece.records)
