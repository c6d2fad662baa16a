"""Commits the transactions of one lane.

The ledger is a topic. Each of its partitions is a lane with a transactional id of its own, which only transactions use:
a session's batches must not be in them, and must not wait for them. One Kafka transaction writes the records of a chunk
and a row of the ledger, so the row is visible exactly if the records are.

Invariants:

1. A takeover gets the next epoch of the lane's transactional id. Then the transactions of all earlier owners are
   decided, and none of these owners can commit another one.
2. It reads the ledger after that. So an owner that can commit knows all committed transactions of its lane.
3. An owner writes a chunk only if it knows no row for its transaction.
4. If no response to a request for a commit arrives, the epoch ends. Otherwise the late request could commit the next
   transaction of the same epoch before it is complete.

The row of an aborted transaction stays in the partition; its marker decides. A transactional id that the brokers have
forgotten gets a new producer id, and its earlier owners cannot commit either. So unlike sessions, lanes of the ledger
need no fences in the partitions that they write to: without a commit, a late record is never visible.

`tests/gateway/transactions/test_commit_model.py` explores all interleavings of these steps.
"""

from __future__ import annotations

import json
import logging
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Final

from headrace.audit.open_row import Ticket
from headrace.gateway.audit import GatewayAudit
from headrace.gateway.sessions.errors import WriteRefused
from headrace.gateway.sessions.lane_log import BATCH_BYTES_MAX, base_offset, log_end, read_batches
from headrace.gateway.sessions.request import fail, resolve
from headrace.gateway.transactions.identity import LEDGER_MS, TransactionKey, transaction_key
from headrace.gateway.transactions.spool import StoredChunk
from headrace.kafka_wire.batch_producer import BatchProducer
from headrace.kafka_wire.cluster import KafkaCluster
from headrace.kafka_wire.errors import CorruptBatch, ErrorResponse, KafkaError, KafkaUnavailable
from headrace.kafka_wire.record_batch import (
    CONTROL,
    LENGTH_OVERHEAD,
    NO_HEADERS,
    PREFIX_BYTES,
    TRANSACTIONAL,
    Batch,
    Record,
    batch_of_records,
    decode_batch,
    has_valid_crc,
    read_batch_header,
)
from headrace.kafka_wire.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

TRANSACTION_TIMEOUT_MS: Final = 30_000
"""After this time the broker aborts a transaction whose gateway has died. A takeover aborts it earlier."""
IDLE_S: Final = 5.0
PRUNE_S: Final = 3600.0
LARGE_RECORDS: Final = 50_000
TOPIC_AUTHORIZATION_FAILED: Final = 29
COMMIT_MARKER: Final = 1
_LENGTH: Final = struct.Struct(">8xi")
_MARKER: Final = struct.Struct(">hh")
_LARGE: Final = threading.Semaphore(2)
"""Limits how many large chunks the lanes of the process write at a time: counting takes as much memory as the chunk."""


class ChunkMissing(Exception):
    """The transaction is not committed, and this gateway has no chunk of it."""


class NotConverted(Exception):
    """The chunk is stored, but its transaction was not requested."""


class OtherContent(Exception):
    """The transaction was committed with another chunk."""


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed transaction; `ranges` are its offsets in the partition, each `[start, end)`."""

    topic: str
    partition: int
    ranges: tuple[tuple[int, int], ...]
    record_count: int
    length: int
    crc32: int

    def to_json(self) -> bytes:
        return json.dumps(
            {
                "topic": self.topic,
                "partition": self.partition,
                "offsets": self.ranges,
                "records": self.record_count,
                "length": self.length,
                "crc32": self.crc32,
            },
            separators=(",", ":"),
        ).encode()

    @classmethod
    def of_json(cls, content: bytes) -> Committed:
        """Raises:
        ValueError, KeyError, TypeError: the content is malformed.
        """
        own = json.loads(content)
        ranges = tuple((int(start), int(end)) for start, end in own["offsets"])
        return cls(own["topic"], own["partition"], ranges, own["records"], own["length"], own["crc32"])


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """A request to commit a transaction.

    Attributes:
        client, transaction_id: the key of its row in the ledger.
        chunk: the chunk on the disk of this gateway; None without one.
    """

    client: str
    transaction_id: str
    chunk: StoredChunk | None
    result: Future[Committed] = field(default_factory=Future)

    @property
    def key(self) -> TransactionKey:
        return transaction_key(self.client, self.transaction_id)


class LedgerLane:
    """A lane of the ledger, in the thread that serves it.

    Args:
        cluster: the client whose connections are used.
        ledger_topic: name of the ledger.
        number: number of the lane, which is its partition of the ledger.
        audit: counts the records.
        now_ms: milliseconds since 1970.
        clock: monotonic clock in seconds.
    """

    wait_s: Final = IDLE_S

    def __init__(
        self,
        cluster: KafkaCluster,
        ledger_topic: str,
        number: int,
        audit: GatewayAudit,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._at = TopicPartition(ledger_topic, number)
        self._audit = audit
        self._now_ms = now_ms
        self._clock = clock
        self._producer = BatchProducer(
            cluster, f"{ledger_topic}-{number}", transaction_timeout_ms=TRANSACTION_TIMEOUT_MS
        )
        self._rows: dict[TransactionKey, tuple[int, bytes]] = {}
        """By transaction, when it was committed, in milliseconds since 1970, and the value of its row."""
        self._pruned_at = clock()

    def take_over(self) -> None:
        """Takes the lane over from its earlier owner, which may still run, and reads the ledger.

        Raises:
            KafkaError: a broker does not respond, or refuses a request.
        """
        identity = self._producer.start()
        self._load(log_end(self._cluster, self._at))
        logger.info(
            "ledger_lane_taken lane=%d epoch=%d transactions=%d", self._at.partition, identity.epoch, len(self._rows)
        )

    def close(self) -> None:
        """Closes the connections."""
        self._cluster.close()

    def checkpoint(self) -> None:
        """Does nothing: the ledger is complete after each commit."""

    def run_due(self) -> None:
        """Removes the rows from memory that the ledger topic does not keep any more."""
        if self._clock() - self._pruned_at > PRUNE_S:
            self._pruned_at, since_ms = self._clock(), self._now_ms() - LEDGER_MS
            self._rows = {key: row for key, row in self._rows.items() if row[0] >= since_ms}

    def serve(self, requests: Sequence[CommitRequest]) -> None:
        """Commits transactions and resolves their results.

        Raises:
            KafkaError: the lane must be taken over again. Results may be unresolved.
        """
        for commit in requests:
            try:
                resolve(commit.result, self._commit(commit))
            except (ChunkMissing, NotConverted, OtherContent, WriteRefused) as error:
                fail(commit.result, error)
            except KafkaError:
                raise
            except Exception as error:  # a defect: the client must not repeat the request as after a lost lane
                fail(commit.result, error)
                raise

    def _commit(self, commit: CommitRequest) -> Committed:
        row, chunk = self._rows.get(commit.key), commit.chunk
        if row is not None:
            found = Committed.of_json(row[1])
            if chunk is not None and (chunk.length, chunk.crc32) != (found.length, found.crc32):
                raise OtherContent(
                    f"the transaction was committed with {found.length:,} bytes, crc32={found.crc32:08x}; "
                    "store other content in a new transaction"
                )
            return found
        if chunk is None:
            raise ChunkMissing("this gateway has no chunk of the transaction; store it again with the same id")
        if chunk.record_count is None:
            raise NotConverted("send commit_request before commit")
        with _LARGE if chunk.record_count > LARGE_RECORDS else nullcontext():
            return self._write(commit, chunk)

    def _write(self, commit: CommitRequest, chunk: StoredChunk) -> Committed:
        target, tickets = TopicPartition(chunk.wanted.topic, chunk.partition), self._count(chunk)
        started_at = time.monotonic()
        try:
            committed = self._produce(target, chunk)
            row_ms, row = self._now_ms(), committed.to_json()
            key = json.dumps([commit.client, commit.transaction_id]).encode()
            batch = batch_of_records([(key, row, NO_HEADERS)], row_ms)
            base_offset(self._producer.produce({self._at: batch}), self._at)
        except Exception:
            self._audit.count_failed(tickets)
            raise
        self._producer.end(is_commit=True)
        self._audit.acknowledge(tickets, time.monotonic() - started_at)
        self._rows[commit.key] = row_ms, row
        return committed

    def _produce(self, target: TopicPartition, chunk: StoredChunk) -> Committed:
        """Begins a transaction and writes the records.

        Raises:
            ChunkMissing, WriteRefused: no transaction is open afterwards.
            KafkaError: the lane must be taken over again.
        """
        try:
            self._producer.begin([target, self._at])
        except ErrorResponse as error:
            if error.code == TOPIC_AUTHORIZATION_FAILED:  # then no partition was added
                raise WriteRefused(str(error), error.code) from error
            raise
        ranges: list[tuple[int, int]] = []
        try:
            for content in _batches(chunk):
                base = base_offset(self._producer.produce({target: content}), target)
                end = base + read_batch_header(content).record_count
                if ranges and ranges[-1][1] == base:
                    ranges[-1] = ranges[-1][0], end
                else:
                    ranges.append((base, end))
        except ChunkMissing:
            self._producer.end(is_commit=False)
            raise
        except ErrorResponse as error:
            self._producer.end(is_commit=False)
            raise WriteRefused(str(error), error.code) from error
        assert chunk.record_count is not None
        return Committed(target.topic, target.partition, tuple(ranges), chunk.record_count, chunk.length, chunk.crc32)

    def _count(self, chunk: StoredChunk) -> list[Ticket | None]:
        """Counts the records for the audit, and thereby reads the whole file before the transaction begins."""
        topic = chunk.wanted.topic
        tickets = [
            self._audit.count_sent(topic, key, value, time_ms)
            for content in _batches(chunk)
            for _, time_ms, key, value, _ in _records(content, chunk)
        ]
        if len(tickets) != chunk.record_count:
            raise ChunkMissing("the chunk is damaged on the disk of the gateway; store it again with the same id")
        return tickets

    def _load(self, end: int) -> None:
        """Reads the rows of committed transactions before the offset `end`."""
        waiting: dict[int, list[tuple[TransactionKey, tuple[int, bytes]]]] = {}
        since_ms = self._now_ms() - LEDGER_MS
        for batch in read_batches(self._cluster, self._at, 0, end):
            if not batch.attributes & TRANSACTIONAL:
                continue  # not written by a lane
            if not batch.attributes & CONTROL:
                rows = waiting.setdefault(batch.producer_id, [])
                rows += [row for row in map(self._row, batch.records) if row[1][0] >= since_ms]
            elif _is_commit(batch):
                self._rows.update(waiting.pop(batch.producer_id, []))
            else:
                waiting.pop(batch.producer_id, None)
        if waiting:
            raise KafkaUnavailable(f"{self._at}: a transaction of an earlier owner is not decided yet")

    def _row(self, record: Record) -> tuple[TransactionKey, tuple[int, bytes]]:
        _, time_ms, key, value, _ = record
        try:
            client, transaction_id = json.loads(key or b"")
            Committed.of_json(value or b"")
        except (ValueError, KeyError, TypeError) as error:
            # A row that is skipped could be one whose records would be stored twice.
            raise ErrorResponse(
                "", f"the ledger's lane {self._at.partition}", -1, f"malformed row: {error!r}"
            ) from error
        return transaction_key(client, transaction_id), (time_ms, value or b"")


def _is_commit(batch: Batch) -> bool:
    key = batch.records[0][2]
    return key is not None and _MARKER.unpack_from(key)[1] == COMMIT_MARKER


def _batches(chunk: StoredChunk) -> Iterator[bytes]:
    """Yields the batches of a converted chunk.

    Raises:
        ChunkMissing: the file was deleted, or is damaged.
    """
    try:
        with chunk.data.open("rb") as file:
            while head := file.read(PREFIX_BYTES):
                (length,) = _LENGTH.unpack_from(head)
                content = head + file.read(max(0, length + LENGTH_OVERHEAD - PREFIX_BYTES))
                header = read_batch_header(content)
                if header.size != len(content) or not has_valid_crc(memoryview(content), header):
                    raise CorruptBatch("a batch is truncated, or has the wrong checksum")
                yield content
    except (OSError, CorruptBatch, struct.error) as error:
        raise _missing(chunk, error) from error


def _records(content: bytes, chunk: StoredChunk) -> Sequence[Record]:
    try:
        return decode_batch(memoryview(content), read_batch_header(content), str(chunk.data), BATCH_BYTES_MAX)
    except CorruptBatch as error:
        raise _missing(chunk, error) from error


def _missing(chunk: StoredChunk, error: Exception) -> ChunkMissing:
    logger.warning("chunk_unreadable path=%s cause=%s", chunk.data, error)
    return ChunkMissing(
        "the chunk was deleted or is damaged on the disk of the gateway; store it again with the same id"
    )
