"""Uses the batches before and after a batch to find the next offset after a corrupt batch, and to validate the base
offset of a batch, which the checksum does not cover.

A batch with a wrong base offset would be taken for a gap in the log, and its messages would be lost without an error.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Protocol

from headrace.kafka_wire.cluster import FetchSlice
from headrace.kafka_wire.errors import CorruptBatch, KafkaError, MisplacedBatch
from headrace.kafka_wire.record_batch import HEADER_BYTES, BatchFrame, BatchHeader, offset_after, read_batch_header

LOOKAHEAD_BYTES = (1 << 20, 1 << 24)  # fetched after a batch to find the next one: first attempt, second attempt


@dataclass(frozen=True, slots=True)
class CorruptSpan:
    """The offsets `[start, end)` of a corrupt batch inside a range.

    `next_offset` is the offset after the whole batch. `batch` is the batch's content. `timestamp_ms` is the maximum
    timestamp in its header, which may be wrong.
    """

    start: int
    end: int
    next_offset: int
    reason: str
    batch: bytes
    timestamp_ms: int


class Fetch(Protocol):
    """Fetches raw batches from an offset on. Waits first if the broker throttled the previous response."""

    def __call__(self, offset: int, bytes_max: int | None = None, /) -> FetchSlice:
        """Sends one fetch request from `offset` on, and returns its response.

        Args:
            bytes_max: maximum size of the response, if it must be larger than usual.
        """
        ...


class BatchNeighbors:
    """Checks the batches of a fetch response by the batches before and after them. `requested_offset` is the offset
    from which the response was requested. `next_response` is the response that begins after the last batch of the
    response, None if that was not fetched.

    Args:
        where: broker and partition, for error messages.
        start: the offset where reading began, which may be inside a batch.
        end: the end offset of the range.
    """

    def __init__(
        self, response: FetchSlice, requested_offset: int, where: str, fetch: Fetch, *, start: int, end: int
    ) -> None:
        self.next_response: FetchSlice | None = None
        self._response = response
        self._requested_offset = requested_offset
        self._where = where
        self._fetch = fetch
        self._start = start
        self._end = end

    def is_confirmed(self, frame: BatchFrame, next_offset: int, position: int) -> bool:
        """Returns whether the offsets of a batch, `[base offset, next_offset)`, are certain. If not, the caller must
        fetch the batch again: the new response includes the following batch, which shows whether the gap before the
        batch is real.

        The base offset is not covered by the checksum: one flipped bit would give the messages the offsets of others,
        or offsets outside the log. Compaction removes batches but does not move them.

        Args:
            frame: the batch.
            next_offset: the offset after the batch.
            position: the next expected offset.

        Raises:
            MisplacedBatch: the batch ends before the expected offset and does not lead to it, overlaps the batch before
                or after it, is beyond the readable end of the log, or another batch is in the gap before it.
            KafkaError: raised by a fetch that checks the gap before the batch, or the batch before it.
        """
        first = frame.base_offset
        if first > position > self._requested_offset and not frame.is_followed:
            return False
        # The last batch of the range needs no following batch, unless its own base offset is doubtful.
        is_open = next_offset < self._end or (first != position and next_offset < self._response.high_watermark)
        if is_open and not frame.is_followed:
            with contextlib.suppress(KafkaError):  # raised by the next fetch, after this batch was counted
                self.next_response = self._fetch(next_offset)
        fault = self._fault(frame, next_offset, position)
        if fault:
            raise MisplacedBatch(
                f"{self._where} offset {first}: a batch states the offsets [{first}, {next_offset}), but {fault}"
            )
        return True

    def _fault(self, frame: BatchFrame, next_offset: int, position: int) -> str:
        first = frame.base_offset
        following = _first_offset(self.next_response) if self.next_response else -1
        if next_offset <= position:
            return "" if self._leads_to(position, frame, next_offset) else f"offset {position} was expected"
        if first < position != self._start:
            return f"the batch before it ended at {position}"
        if next_offset > self._response.high_watermark:
            return f"the log is readable to {self._response.high_watermark}"
        if 0 <= following < next_offset:
            return f"the next batch begins at {following}"
        if first > position and not frame.is_followed and not _shows_gap_before(self._fetch(first - 1), first):
            return f"the log holds another batch between {position}, which was expected, and {first}"
        return self._fault_at_start(frame, position) if frame.position == 0 else ""

    def _fault_at_start(self, frame: BatchFrame, position: int) -> str:
        """Returns the reason why the offset of the first batch of a response is wrong, as shown by the batch before it;
        "" if there is none. The other batches of a response follow each other in the log.

        Only a batch that does not begin at the expected offset needs another fetch. If it begins before, the reading
        begins inside it. If it begins later, compaction has removed what was before, or the broker did not find the
        batch before, because that has a wrong base offset.

        Args:
            frame: the batch.
            position: the next expected offset.

        Raises:
            KafkaError: raised by the fetch.
        """
        first = frame.base_offset
        before = min(first, position) - 1
        if first == position or before < self._response.log_start_offset:
            return ""
        headers = _headers_from(self._fetch(before, LOOKAHEAD_BYTES[0]), before)
        if headers and headers[0].last_offset >= first:
            return f"the batch before it has the offsets [{headers[0].base_offset}, {headers[0].last_offset + 1})"
        if first > position and len(headers) > 1 and headers[1].base_offset != first:
            return f"after the batch before it, the log holds a batch with the base offset {headers[1].base_offset}"
        return ""

    def _leads_to(self, position: int, frame: BatchFrame, next_offset: int) -> bool:
        """Whether a batch that ends before the expected offset belongs at its place. This is so if the batches after it
        in the response are in order and lead to one that contains the expected offset.

        Some brokers begin a response with batches before the requested offset; these pass the test. A batch with a
        wrong base offset fails it, because the batches after it are beyond the expected offset.

        Args:
            position: the next expected offset.
            frame: the batch.
            next_offset: the offset after the batch.
        """
        data, at, reached = self._response.records, frame.end, next_offset
        while len(data) - at >= HEADER_BYTES:
            header = read_batch_header(data, at)
            if header.size < HEADER_BYTES or header.base_offset < reached:
                return False
            if header.last_offset >= position:
                return header.base_offset <= position
            at, reached = at + header.size, header.last_offset + 1
        return False

    def corrupt_span(self, error: CorruptBatch, frame: BatchFrame, position: int, end: int) -> CorruptSpan:
        """Returns the offsets that a corrupt batch occupies, from `position` and at most up to `end`.

        Args:
            error: the error that was raised when the batch was parsed.
            frame: the corrupt batch.
            position: the next offset to read.
            end: the end offset of the range.

        Raises:
            CorruptBatch: the offset after the batch is unknown or not after `position`; the message is that of `error`.
            KafkaError: raised by a fetch that looks for the next batch.
        """
        next_offset = self._next_offset(frame) if error.next_offset is None else error.next_offset
        if next_offset is None or next_offset <= position:
            raise CorruptBatch(str(error)) from error
        start = min(max(position, frame.base_offset), end)
        time_ms = read_batch_header(frame.view).max_timestamp
        return CorruptSpan(start, min(next_offset, end), next_offset, str(error), bytes(frame.view), time_ms)

    def _next_offset(self, frame: BatchFrame) -> int | None:
        """Returns the offset after the corrupt batch `frame`: the base offset of the following batch. If the corrupt
        batch is the last one of the log, returns the log end offset, provided that the batch's header states the same.
        Returns None if the offset remains unknown."""
        response: FetchSlice | None = self._response
        found = offset_after(self._response.records, frame)
        for extra_bytes in LOOKAHEAD_BYTES:
            if found is not None:
                return found
            response = self._fetch_longer(frame, extra_bytes)
            if response is None:
                return None
            found = offset_after(response.records, frame)
        assert response is not None
        if found is None and len(response.records) == frame.end:
            stated_next_offset = read_batch_header(frame.view).last_offset + 1
            return (
                stated_next_offset
                if stated_next_offset in (response.last_stable_offset, response.high_watermark)
                else None
            )
        return found

    def _fetch_longer(self, frame: BatchFrame, extra_bytes: int) -> FetchSlice | None:
        """Fetches the corrupt batch `frame` again, with `extra_bytes` of the log after it. Returns None if the response
        has another batch in its place, as it may from another replica."""
        response = self._fetch(self._requested_offset, frame.end + extra_bytes)
        return response if response.records[frame.position : frame.end] == frame.view else None


def check_empty_tail(fetch: Fetch, empty: FetchSlice, where: str, position: int, end: int) -> None:
    """Checks that the log has no batch after the one that ends at `position`, although the broker finds none: it does
    not find a batch with a wrong base offset.

    Args:
        empty: the response without batches.
        where: broker and partition, for error messages.
        position: the next expected offset.
        end: the end offset of the range. A batch from there on was appended later.

    Raises:
        MisplacedBatch: the log has a batch there, with a base offset below `end`.
        KafkaError: raised by `fetch`.
    """
    if position - 1 < empty.log_start_offset:
        return
    headers = _headers_from(fetch(position - 1, LOOKAHEAD_BYTES[0]), position - 1)
    if len(headers) > 1 and headers[1].base_offset < end:
        raise MisplacedBatch(
            f"{where} offset {position}: after the batch before it, the log holds a batch with the base offset "
            f"{headers[1].base_offset}"
        )


def _headers_from(response: FetchSlice, offset: int) -> list[BatchHeader]:
    """Returns the headers of the batches in a fetch response, from the batch with the offset to the first one that is
    incomplete or impossible. Returns nothing if no batch in the response has the offset.

    Args:
        offset: the requested offset. Some brokers begin a response with earlier batches.
    """
    headers: list[BatchHeader] = []
    at = 0
    while len(response.records) - at >= HEADER_BYTES:
        header = read_batch_header(response.records, at)
        if headers or header.base_offset <= offset <= header.last_offset:
            headers.append(header)
        if header.size < HEADER_BYTES:
            break
        at += header.size
    return headers


def _first_offset(response: FetchSlice) -> int:
    """Returns the base offset of the first batch in a fetch response; -1 if it is empty."""
    return read_batch_header(response.records).base_offset if len(response.records) >= HEADER_BYTES else -1


def _shows_gap_before(response: FetchSlice, first: int) -> bool:
    """Whether the log has a batch that begins at `first` and none that contains `first - 1`.

    Args:
        response: the response to a fetch from the offset `first - 1`. If the broker throttled it and sent no batch,
            the result is true, because nothing contradicts it.
        first: the base offset of a batch.
    """
    return _first_offset(response) == first or bool(response.throttle_ms and not response.records)
