"""Uses neighboring batches to find the offset after a corrupt batch, and to validate the base offset of a batch, which
its checksum does not cover.

A batch with a wrong base offset would look like a gap and be lost silently.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Protocol

from headrace.kafka_wire.cluster import FetchSlice
from headrace.kafka_wire.errors import CorruptBatch, KafkaError, MisplacedBatch
from headrace.kafka_wire.record_batch import HEADER_BYTES, BatchFrame, offset_after, read_batch_header

LOOK_BEHIND_BYTES = (1 << 20, 1 << 24)  # fetched after a batch to find the next one: first attempt, second attempt


@dataclass(frozen=True, slots=True)
class CorruptSpan:
    """Offsets `[start, end)`, within a range, of a corrupt batch.

    `next_offset` is the one after the whole batch. `batch` are its bytes. `timestamp_ms` is the maximum timestamp in
    its header, which may be wrong.
    """

    start: int
    end: int
    next_offset: int
    reason: str
    batch: bytes
    timestamp_ms: int


class Fetch(Protocol):
    """Fetches raw batches from an offset on. Waits if the broker throttled the previous response."""

    def __call__(self, offset: int, bytes_max: int | None = None, /) -> FetchSlice:
        """Args:
        bytes_max: of the response, if larger than usual.
        """
        ...


class BatchNeighbors:
    """The batches of one response. `ahead` is the response after its last batch, if it was fetched.

    Args:
        asked: the offset that was fetched.
        start: the offset where reading began, which may be inside a batch.
        end: the end offset of the range.
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
        """Whether the position of a batch, up to `next_offset`, is certain. If not, fetch it again: the response then
        includes the following batch, which shows whether the gap before this one is real.

        The base offset is not covered by the checksum: one flipped bit turns the batch into messages of other offsets,
        or of none. Compaction removes batches but does not move them.

        Args:
            position: the next expected offset.

        Raises:
            MisplacedBatch: it ends before the expected offset, goes back, or is beyond the readable log.
        """
        first = frame.base_offset
        if first > position > self._asked and not frame.is_followed:
            return False
        if next_offset < self._end and not frame.is_followed:
            with contextlib.suppress(KafkaError):  # raised again when this batch is booked
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
        """Whether the batches after one from before the range, in the same response and in order, contain the expected
        offset.

        Some brokers begin with batches before the requested offset. A batch with a wrong base offset is followed by the
        batches after that offset.
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
        """Returns the offsets from `position` up to `end` that a corrupt batch occupies.

        Raises:
            CorruptBatch: the same error, if the next offset is unknown.
        """
        next_offset = self._next_offset(frame) if error.next_offset is None else error.next_offset
        if next_offset is None or next_offset <= position:
            raise CorruptBatch(str(error)) from error
        start = min(max(position, frame.base_offset), end)
        time_ms = read_batch_header(frame.view).max_timestamp
        return CorruptSpan(start, min(next_offset, end), next_offset, str(error), bytes(frame.view), time_ms)

    def _next_offset(self, frame: BatchFrame) -> int | None:
        """Returns the base offset of the following batch; without one, the log end offset if the corrupt batch
        agrees."""
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
        """Repeats the fetch with more bytes after the frame. None if the response differs, as from another replica."""
        piece = self._fetch(self._asked, frame.end + more)
        return piece if piece.records[frame.position : frame.end] == frame.view else None


def _first_offset(piece: FetchSlice) -> int:
    """Returns the base offset of the first batch in a response, -1 for an empty response."""
    return read_batch_header(piece.records).base_offset if len(piece.records) >= HEADER_BYTES else -1


def _is_next_after(piece: FetchSlice, first: int) -> bool:
    """Whether the response for the offset before `first` confirms that the next batch begins at `first`.

    A throttled response is empty in any case.
    """
    return _first_offset(piece) == first or bool(piece.throttle_ms and not piece.records)
