"""Serves one lane: opens sessions, filters and writes their chunks, and stores checkpoints.

All state of a lane belongs to one thread (`lane_thread`). Requests wait in a queue; the thread takes all that wait and
writes their records with one request per broker, so more traffic makes larger batches. It processes the chunks before
the openings: after a response to an opening, no chunk of an earlier session is written.

A source's records stay in order because a failure ends its session, and a session's next chunk fails, too. The client
then opens a session and continues after `last_seqno`.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from zlib import crc32

from headrace.audit.open_row import Ticket
from headrace.avro_codec.core.library import Library
from headrace.gateway.audit import GatewayAudit
from headrace.gateway.encoding import Unencodable
from headrace.gateway.errors import GatewayError
from headrace.gateway.sessions.errors import (
    SessionChanged,
    SessionEnded,
    SessionUnknown,
    WriteRefused,
    WrongMediaType,
)
from headrace.gateway.sessions.lane_log import LaneLog
from headrace.gateway.sessions.log_line import BlockEncoder, LineBlock, LineEncoder
from headrace.gateway.sessions.request import (
    Chunk,
    Closing,
    Encode,
    Opened,
    Opening,
    Request,
    SessionId,
    fail,
    resolve,
)
from headrace.gateway.sessions.sources import (
    SEQNO_HEADER,
    SOURCE_HEADER,
    UNKNOWN_CHECKSUM,
    SourceKey,
    SourceState,
    partition_of,
    source_key,
)
from headrace.kafka_wire.errors import ErrorResponse
from headrace.kafka_wire.record_batch import batch_of_encoded, encode_headers, encode_record
from headrace.kafka_wire.topic_partition import TopicPartition

CHECKPOINT_S: Final = 1.0
CHECKPOINT_RECORDS: Final = 10_000
IDLE_S: Final = 5.0
SESSION_IDLE_S: Final = 3600.0
"""A session without chunks for this long is removed from memory; its client opens another."""
BATCH_BYTES: Final = 512 * 1024
"""Size of records before compression at which a batch is written."""
RECORD_OVERHEAD: Final = 64
LZ4: Final = 3
PART_HEADER: Final = "hr.part"
"""Record header with `PART/PARTS` of a record that the client has cut."""
TIME_HEADER: Final = "time"
"""Record header with the client's time of a record; the record's own time is that of arrival."""
NO_SEQNO: Final = bytes(8)
_SEQNO: Final = struct.Struct(">q")

MessageTime = tuple[int | None, bool]
"""The result of `MessageTimes.time_of`."""


@dataclass(slots=True)
class Session:
    """An open session. `queued_seqno` is the highest number that is stored or in a batch that is not written yet."""

    source: SourceState
    key: SourceKey
    number: int
    encoder: Callable[[int], Encode]
    accepts_values: bool
    has_arrival_times: bool
    record_bytes_max: int
    headers: tuple[tuple[str, bytes], ...]
    used_at: float
    queued_seqno: int
    before_seqno: bytes = field(init=False)
    """The encoded headers up to the value of the last one, the sequence number."""

    def __post_init__(self) -> None:
        self.before_seqno = encode_headers((*self.headers, (SEQNO_HEADER, NO_SEQNO)))[: -len(NO_SEQNO)]

    def encode_headers(self, seqno: int, part: str, time_text: str) -> bytes:
        if not part and not time_text:
            return self.before_seqno + _SEQNO.pack(seqno)
        named = ((PART_HEADER, part), (TIME_HEADER, time_text))
        extra = [(name, text.encode()) for name, text in named if text]
        return encode_headers((*self.headers, *extra, (SEQNO_HEADER, _SEQNO.pack(seqno))))


_Encoded = tuple[int, Any, bytes | None, bytes, int]
"""A record of a chunk: sequence number, content, encoded value and headers, and their size before compression."""


@dataclass(slots=True)
class _Batch:
    """Encoded records for one partition that are not written yet. The audit counts `values` one by one, with their
    message times, and `blocks` together. `last` has, by source, the session, the number and
    content of the last record, and its index."""

    records: list[bytes] = field(default_factory=list)
    count: int = 0
    values: list[tuple[bytes | None, MessageTime | None]] = field(default_factory=list)
    blocks: list[tuple[LineBlock, MessageTime]] = field(default_factory=list)
    size: int = 0
    chunks: dict[int, Chunk] = field(default_factory=dict)
    last: dict[SourceKey, tuple[Session, int, Any, int]] = field(default_factory=dict)


class Lane:
    """The state of a lane in the thread that serves it. All methods belong to this thread.

    Args:
        log: the lane's logs.
        audit: counts the records.
        clock: monotonic clock in seconds.
        core: encodes lines; without it, and other records, `_encoded` does, which is the specification.
    """

    def __init__(
        self,
        log: LaneLog,
        audit: GatewayAudit,
        clock: Callable[[], float] = time.monotonic,
        core: Library | None = None,
    ) -> None:
        self._log = log
        self._audit = audit
        self._clock = clock
        self._blocks = None if core is None else BlockEncoder(core, BATCH_BYTES, RECORD_OVERHEAD)
        self._sessions: dict[SourceKey, Session] = {}
        self._batches: dict[TopicPartition, _Batch] = {}
        self._refused: dict[TopicPartition, WriteRefused] = {}
        self._since_checkpoint = 0
        self._checkpoint_at = clock()

    def take_over(self) -> None:
        """Raises:
        KafkaError: see `LaneLog.take_over`.
        """
        self._sessions.clear()
        self._batches.clear()
        self._since_checkpoint = 0
        self._log.take_over()

    def close(self) -> None:
        """Closes the connections."""
        self._log.close()

    def serve(self, requests: Sequence[Request]) -> None:
        """Processes requests and resolves their futures.

        Raises:
            KafkaError: the lane must be taken over again. Futures may be unresolved.
        """
        self._refused.clear()
        chunks = [one for one in requests if isinstance(one, Chunk)]
        for chunk in chunks:
            self._add(chunk)
        self._flush()
        for chunk in chunks:
            self._respond(chunk)
        self._open([one for one in requests if isinstance(one, Opening)])
        for closing in requests:
            if isinstance(closing, Closing):
                self._close(closing)

    def _close(self, closing: Closing) -> None:
        try:
            session = self._session(closing.session, closing.authorize)
        except (SessionEnded, SessionUnknown):
            pass  # it is closed
        except GatewayError as error:
            fail(closing.result, error)
            return
        else:
            del self._sessions[session.key]
        resolve(closing.result, None)

    @property
    def wait_s(self) -> float:
        """How long the thread may wait for requests before `run_due`."""
        if not self._log.has_changes:
            return IDLE_S
        return max(0.0, self._checkpoint_at + CHECKPOINT_S - self._clock())

    def run_due(self) -> None:
        """Stores a checkpoint, takes the lane over again, and removes idle sessions, if it is time for them.

        Raises:
            KafkaError: the lane must be taken over again.
        """
        now = self._clock()
        is_due = now - self._checkpoint_at >= CHECKPOINT_S or self._since_checkpoint >= CHECKPOINT_RECORDS
        if not is_due:
            return
        self._checkpoint_at = now
        if self._log.has_changes:
            self.checkpoint()
        if self._log.must_renew:
            self.take_over()
        for key in [key for key, session in self._sessions.items() if now - session.used_at > SESSION_IDLE_S]:
            del self._sessions[key]

    def checkpoint(self) -> None:
        """Raises:
        KafkaError: the lane must be taken over again.
        """
        self._since_checkpoint = 0
        self._log.checkpoint()

    def _session(self, wanted: SessionId, authorize: Callable[[str], None]) -> Session:
        source = self._log.state.sources.get(wanted.key)
        if source is not None:
            authorize(source.topic)
        if source is not None and wanted.number < source.session:
            raise SessionEnded(source.host, source.opened_ms)
        session = self._sessions.get(wanted.key)
        if session is None or session.number != wanted.number:
            raise SessionUnknown(f"session {wanted} does not exist; open a session of the source")
        return session

    def _add(self, chunk: Chunk) -> None:
        """Adds the records of a chunk that are not stored to the batches, and writes full batches."""
        try:
            session = self._session(chunk.session, chunk.authorize)
        except (SessionEnded, SessionUnknown, GatewayError) as error:
            chunk.error = error
            return
        if chunk.body.has_values and not session.accepts_values:
            chunk.error = WrongMediaType("the session has a format of bytes; it takes application/json only with json")
            return
        session.used_at = self._clock()
        position = self._put_lines(session, chunk)
        if chunk.error is not None:
            return
        try:
            records = _encoded(session, chunk, position)
        except Exception as error:  # a defect must end this session, not all of the lane
            self._sessions.pop(session.key, None)
            chunk.error = error
            return
        if records:
            self._put(session, chunk, records)

    def _put_lines(self, session: Session, chunk: Chunk) -> int:
        """Adds lines that the core encodes to the batch of their partition, and writes the batch whenever it is full.
        Returns the position in the chunk of the first line that is left for `_encoded`: 0 if no line can be encoded by
        the core, or one may be stored."""
        body, position = chunk.body, 0
        if self._blocks is None or not (session.has_arrival_times and body.is_lines and body.content):
            return 0
        if body.begin < session.queued_seqno:
            return 0
        encoder, topic_partition = session.encoder(chunk.received_us), session.source.topic_partition
        assert isinstance(encoder, LineEncoder)
        message_time = self._audit.times.time_of(topic_partition.topic, encoder(body.content.partition(b"\n")[0]))
        record_size_max = session.record_bytes_max
        size_max = min(BATCH_BYTES, record_size_max)
        while position < len(body.content):
            if topic_partition in self._refused:
                chunk.error = self._refused[topic_partition]
                break
            batch = self._batches.setdefault(topic_partition, _Batch())
            limits = record_size_max, max(0, size_max - batch.size)
            block = self._blocks.encode(body, position, encoder, session.before_seqno, *limits, batch.count)
            if block.count:
                _put_block(batch, session, chunk, block, message_time)
                position = block.end
            if not block.is_full or not batch.count:
                break
            self._flush(topic_partition)
        return position

    def _put(self, session: Session, chunk: Chunk, records: Sequence[_Encoded]) -> None:
        """Adds records to the batch of their partition. Writes the batch whenever it is full."""
        topic_partition = session.source.topic_partition
        message_time: MessageTime | None = None
        if session.has_arrival_times and (first := records[0][2]) is not None:
            message_time = self._audit.times.time_of(topic_partition.topic, first)
        size_max = min(BATCH_BYTES, session.record_bytes_max)
        sizes = [size for _, _, _, _, size in records]
        at = 0
        while at < len(records):
            batch = self._batches.setdefault(topic_partition, _Batch())
            if batch.count and batch.size + sizes[at] > size_max:
                self._flush(topic_partition)
                continue
            if topic_partition in self._refused:
                chunk.error = self._refused[topic_partition]
                return
            end, size = at, batch.size
            while end < len(records) and (end == at or size + sizes[end] <= size_max):
                size += sizes[end]
                end += 1
            batch.size = size
            added = records[at:end]
            batch.records += [
                encode_record(delta, None, value, headers)
                for delta, (_, _, value, headers, _) in enumerate(added, batch.count)
            ]
            batch.values += [(value, message_time) for _, _, value, _, _ in added]
            batch.count += len(added)
            seqno, content, _, _, _ = added[-1]
            batch.last[session.key] = session, seqno, content, batch.count - 1
            batch.chunks[id(chunk)] = chunk
            session.queued_seqno = seqno
            chunk.outcome.written += end - at
            at = end

    def _flush(self, only: TopicPartition | None = None) -> None:
        """Writes the batches, or the one of a partition, and reflects the acknowledged records."""
        if only is None:
            batches, self._batches = self._batches, {}
        else:
            batches = {only: self._batches.pop(only)}
        batches = {tp: batch for tp, batch in batches.items() if batch.count}
        if not batches:
            return
        now_ms, started_at = time.time_ns() // 1_000_000, time.monotonic()
        tickets = {tp: self._count(tp.topic, batch, now_ms) for tp, batch in batches.items()}
        encoded = {
            tp: batch_of_encoded(b"".join(batch.records), batch.count, now_ms, LZ4) for tp, batch in batches.items()
        }
        results = self._log.write(encoded)
        for topic_partition, batch in batches.items():
            result = results[topic_partition]
            if isinstance(result, ErrorResponse):
                self._audit.count_failed(tickets[topic_partition])
                self._refuse(topic_partition, batch, result)
            else:
                self._audit.acknowledge(tickets[topic_partition], time.monotonic() - started_at)
                self._reflect(topic_partition, batch, result)

    def _count(self, topic: str, batch: _Batch, now_ms: int) -> list[Ticket | None]:
        count_sent, count_together = self._audit.count_sent, self._audit.count_sent_together
        return [
            *(count_sent(topic, None, value, now_ms, message_time) for value, message_time in batch.values),
            *(
                count_together(topic, block.count, block.value_bytes, block.fingerprint, now_ms, message_time)
                for block, message_time in batch.blocks
            ),
        ]

    def _reflect(self, topic_partition: TopicPartition, batch: _Batch, base: int) -> None:
        for session, seqno, content, index in batch.last.values():
            source = session.source
            source.last_seqno, source.offset, source.checksum = seqno, base + index, _checksum(content)
        self._log.stored(topic_partition, base + batch.count, batch.last)
        self._since_checkpoint += batch.count

    def _refuse(self, topic_partition: TopicPartition, batch: _Batch, error: ErrorResponse) -> None:
        """Fails the chunks of a refused batch, and all later ones of the same requests for its partition. Their
        sessions end, so that no later chunk is stored without these records."""
        refused = self._refused[topic_partition] = WriteRefused(str(error), error.code)
        for chunk in batch.chunks.values():
            chunk.error = refused
        for key in batch.last:
            self._sessions.pop(key, None)

    def _respond(self, chunk: Chunk) -> None:
        if chunk.error is not None:
            if isinstance(chunk.error, WriteRefused):
                self._sessions.pop(chunk.session.key, None)
            fail(chunk.result, chunk.error)
            return
        source = self._log.state.sources[chunk.session.key]
        chunk.outcome.last_seqno = max(chunk.outcome.last_seqno, source.last_seqno)
        resolve(chunk.result, chunk.outcome)

    def _open(self, openings: Sequence[Opening]) -> None:
        """Opens sessions. Their numbers are stored before the responses, so that no gateway serves an earlier one. An
        opening that was delayed on its way names an earlier session, and is refused: it would end the session that its
        client has opened since."""
        opened: dict[SourceKey, SourceState] = {}
        sessions: list[tuple[Opening, SourceKey, int]] = []
        for opening in openings:
            key = source_key(opening.topic, opening.source_id)
            newest = opened.get(key) or self._log.state.sources.get(key)
            number = newest.session if newest is not None else 0
            if opening.previous not in (None, number):
                fail(opening.result, SessionChanged(number))
                continue
            partition = self._partition(key, opening)
            try:
                self._log.prepare(TopicPartition(opening.topic, partition))
            except ErrorResponse as error:
                fail(opening.result, WriteRefused(str(error), error.code))
                continue
            source = opened.get(key) or self._copy(key, opening, partition)
            source.session += 1
            source.opened_ms, source.host = opening.opened_ms, opening.host
            opened[key] = source
            sessions.append((opening, key, source.session))
        self._log.write_states([source.record() for source in opened.values()])
        for opening, key, number in sessions:
            stored = self._log.state.sources.setdefault(key, opened[key])
            stored.session, stored.partition = opened[key].session, opened[key].partition
            stored.opened_ms, stored.host = opened[key].opened_ms, opened[key].host
            source_header = (SOURCE_HEADER, opening.source_id.encode())
            self._sessions[key] = Session(
                stored,
                key,
                number,
                opening.encoder,
                opening.accepts_values,
                opening.has_arrival_times,
                opening.record_bytes_max,
                (source_header, *opening.headers),
                self._clock(),
                stored.last_seqno,
            )
            resolve(opening.result, Opened(SessionId(key, number), stored.partition, stored.last_seqno))

    def _partition(self, key: SourceKey, opening: Opening) -> int:
        """Returns the partition of a source: that of its first session. A source whose partition does not exist any
        more, because its topic was created again with fewer, gets another one."""
        found = self._log.state.sources.get(key)
        if found is not None and found.partition < opening.partition_count:
            return found.partition
        return partition_of(key, opening.partition_count)

    def _copy(self, key: SourceKey, opening: Opening, partition: int) -> SourceState:
        found = self._log.state.sources.get(key)
        if found is None:
            return SourceState(opening.topic, opening.source_id, partition)
        return replace(found, partition=partition)


def _put_block(batch: _Batch, session: Session, chunk: Chunk, block: LineBlock, message_time: MessageTime) -> None:
    content, seqno = chunk.body.content, chunk.body.begin + block.end
    batch.records.append(block.records)
    batch.blocks.append((block, message_time))
    batch.count += block.count
    batch.size += block.size
    last = content[content.rfind(b"\n", 0, block.end - 1) + 1 : block.end - 1]
    batch.last[session.key] = session, seqno, last, batch.count - 1
    batch.chunks[id(chunk)] = chunk
    session.queued_seqno = chunk.outcome.last_seqno = seqno
    chunk.outcome.written += block.count


def _encoded(session: Session, chunk: Chunk, position: int) -> list[_Encoded]:
    """Returns the records of a chunk that are not stored, and notes the others in its outcome.

    Args:
        position: where the first line begins; 0 for all records.
    """
    encode, outcome, source = session.encoder(chunk.received_us), chunk.outcome, session.source
    queued_seqno, size_max = session.queued_seqno, session.record_bytes_max
    found: list[_Encoded] = []
    for seqno, content, part, time_text in chunk.body.lines_from(position) if position else chunk.body:
        outcome.last_seqno = seqno
        if seqno <= queued_seqno:
            outcome.skipped += 1
            if seqno == source.last_seqno and source.checksum not in (UNKNOWN_CHECKSUM, _checksum(content)):
                outcome.conflict = True
            continue
        try:
            value = encode(content)
        except Unencodable as error:
            outcome.rejected.append((seqno, str(error)))
            continue
        headers = session.encode_headers(seqno, part, time_text)
        size = len(value or b"") + len(headers) + RECORD_OVERHEAD
        if size > size_max:
            reason = f"the record has {size:,} bytes, the topic accepts {size_max:,}"
            outcome.rejected.append((seqno, reason))
            continue
        found.append((seqno, content, value, headers, size))
    return found


def _checksum(content: Any) -> int:
    return crc32(content if isinstance(content, bytes) else repr(content).encode())
