"""Lanes of the ledger against brokers: takeovers, fences, transactions that are decided by a successor, and expiry."""

from __future__ import annotations

import dataclasses
import json
import os
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.gateway.sessions.errors import WriteRefused
from headrace.gateway.sessions.routes import OpenRequest
from headrace.gateway.transactions import ledger
from headrace.gateway.transactions.conversion import convert
from headrace.gateway.transactions.identity import LEDGER_MS, new_transaction_id, transaction_key
from headrace.gateway.transactions.ledger import (
    ChunkMissing,
    CommitRequest,
    Committed,
    LedgerLane,
    NotConverted,
    OtherContent,
)
from headrace.gateway.transactions.spool import StoredChunk
from headrace.kafka_wire.batch_producer import BatchProducer, ProducerFenced
from headrace.kafka_wire.cluster import KafkaCluster
from headrace.kafka_wire.errors import ErrorResponse, KafkaError, KafkaUnavailable
from headrace.kafka_wire.record_batch import NO_HEADERS, batch_of_records
from headrace.kafka_wire.topic_partition import TopicPartition
from support.gateway import stored

pytestmark = pytest.mark.servers


class CountingAudit:
    """Counts as `GatewayAudit` does."""

    def __init__(self) -> None:
        self.sent = self.acknowledged = self.failed = 0

    def count_sent(self, topic: str, key: bytes | None, value: bytes | None, record_ms: int) -> object:
        self.sent += 1
        return object()

    def acknowledge(self, tickets: Sequence[Any], latency_s: float) -> None:
        self.acknowledged += len(tickets)

    def count_failed(self, tickets: Iterable[Any]) -> None:
        self.failed += len(list(tickets))


class Owners:
    """Creates owners of one lane, each with connections of its own, and chunks."""

    def __init__(self, address: str, directory: Path) -> None:
        self.address = address
        self.audit = CountingAudit()
        self.now_ms = time.time_ns() // 1_000_000
        self.topic = f"data-{uuid.uuid4().hex[:8]}"
        self.clusters: list[KafkaCluster] = []
        self.ledger = f"ledger-{uuid.uuid4().hex[:8]}"
        self._directory = directory
        self.create(self.ledger)
        self.create(self.topic)

    def create(self, topic: str, **config: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.address})
        admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(30)

    def owner(self) -> LedgerLane:
        self.clusters.append(KafkaCluster(self.address))
        lane = LedgerLane(self.clusters[-1], self.ledger, 0, self.audit, now_ms=lambda: self.now_ms)
        lane.take_over()
        return lane

    def chunk(self, *values: bytes, topic: str = "", transaction_id: str = "") -> StoredChunk:
        """A converted chunk of one batch for each value."""
        body = b"".join(value + b"\n" for value in values)
        transaction_id = transaction_id or new_transaction_id(self.now_ms)
        wanted = OpenRequest(topic or self.topic, transaction_id, format="binary")
        path = self._directory / f"{uuid.uuid4().hex}.raw"
        path.write_bytes(body)
        raw = StoredChunk(
            transaction_key("", transaction_id),
            "user",
            wanted,
            0,
            "text/plain",
            len(body),
            zlib.crc32(body),
            0,
            path,
            len(body),
        )
        return convert(raw, lambda content: content, 150, self.now_ms, 0, lambda size: None)


@pytest.fixture
def owners(each_broker: str, tmp_path: Path) -> Iterator[Owners]:
    owners = Owners(each_broker, tmp_path)
    yield owners
    for cluster in owners.clusters:
        cluster.close()


def commit(lane: LedgerLane, chunk: StoredChunk | None, transaction_id: str = "") -> Committed:
    request = CommitRequest("", transaction_id or chunk.transaction_id if chunk else transaction_id, chunk)
    lane.serve([request])
    return request.result.result(0)


def values(owners: Owners, count: int) -> list[bytes | None]:
    return [message.value() for message in stored(owners.address, owners.topic, count)]


def test_only_the_last_owner_commits_and_knows_earlier_commits(owners: Owners) -> None:
    one, other = owners.chunk(b"1", b"2"), owners.chunk(b"3")
    first = owners.owner()
    committed = commit(first, one)
    assert (committed.ranges, committed.record_count) == (((0, 2),), 2)
    second = owners.owner()
    with pytest.raises(ProducerFenced):
        commit(first, other)
    assert commit(second, None, one.transaction_id) == committed, "without the chunk"
    assert commit(second, other).record_count == 1
    first.take_over()
    assert commit(first, other) == commit(first, None, other.transaction_id)
    assert values(owners, 3) == [b"1", b"2", b"3"]
    assert (owners.audit.sent, owners.audit.acknowledged, owners.audit.failed) == (4, 3, 1)


@pytest.mark.parametrize("lost", ["end before the broker", "end after the broker", "row"])
def test_successor_finds_out_whether_a_transaction_was_committed(
    owners: Owners, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    chunk, lane = owners.chunk(b"1", b"2"), owners.owner()
    producer = lane._producer
    end, produce = producer.end, producer.produce
    ends = []

    def lose_end(*, is_commit: bool) -> None:
        ends.append(is_commit)
        if lost == "end after the broker":
            end(is_commit=is_commit)
        raise KafkaUnavailable("no response")

    def lose_row(batches: Any) -> Any:
        if lost == "row" and lane._at in batches:
            produce(batches)
            raise KafkaUnavailable("no response")
        return produce(batches)

    monkeypatch.setattr(producer, "end", lose_end)
    monkeypatch.setattr(producer, "produce", lose_row)
    with pytest.raises(KafkaError):
        commit(lane, chunk)
    assert ends == ([] if lost == "row" else [True]), "a lost request is not repeated in its epoch"
    successor = owners.owner()
    if lost == "end after the broker":
        assert commit(successor, None, chunk.transaction_id).record_count == 2
    else:
        with pytest.raises(ChunkMissing):
            commit(successor, None, chunk.transaction_id)
    found = commit(successor, chunk)
    assert commit(owners.owner(), chunk) == found
    assert values(owners, 2) == [b"1", b"2"]


def test_chunk_of_several_batches_has_their_offsets_and_is_visible_at_once(
    owners: Owners, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane, chunk = owners.owner(), owners.chunk(*(b"%d" % number for number in range(5)))
    producer = lane._producer
    end = producer.end
    ends: list[int] = []

    def check(*, is_commit: bool) -> None:
        at = TopicPartition(owners.topic, 0)
        ends.append(owners.clusters[0].lookup_offsets([at], "latest").offsets[at])
        end(is_commit=is_commit)

    monkeypatch.setattr(producer, "end", check)
    committed = commit(lane, chunk)
    assert ends == [0], "no record is visible before the commit"
    assert (committed.ranges, committed.record_count) == (((0, 5),), 5)
    assert values(owners, 5) == [b"0", b"1", b"2", b"3", b"4"]


def test_refused_batch_leaves_nothing_and_the_lane_goes_on(owners: Owners) -> None:
    compacted = f"{owners.topic}-compacted"
    owners.create(compacted, **{"cleanup.policy": "compact"})
    lane = owners.owner()
    with pytest.raises(WriteRefused):
        commit(lane, owners.chunk(b"1", topic=compacted))
    assert commit(lane, owners.chunk(b"2")).record_count == 1
    assert (owners.audit.sent, owners.audit.acknowledged, owners.audit.failed) == (2, 1, 1)


@pytest.mark.parametrize(("code", "expected"), [(29, WriteRefused), (53, ErrorResponse)])
def test_missing_permission_on_the_topic_fails_the_request_and_one_on_the_lane_fails_the_lane(
    owners: Owners, monkeypatch: pytest.MonkeyPatch, code: int, expected: type[Exception]
) -> None:
    def refuse(partitions: Any) -> None:
        raise ErrorResponse("broker", "AddPartitionsToTxn", code, "not authorized")

    lane, chunk = owners.owner(), owners.chunk(b"1")
    with monkeypatch.context() as patched:
        patched.setattr(lane._producer, "begin", refuse)
        with pytest.raises(expected):
            commit(lane, chunk)
    assert owners.audit.failed == 1
    assert commit(lane, chunk).record_count == 1


@pytest.mark.parametrize("problem", ["refused", "deleted"])
def test_batches_before_a_problem_are_not_visible(
    owners: Owners, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    lane, chunk = owners.owner(), owners.chunk(*(b"%d" % number for number in range(5)))
    produce = lane._producer.produce
    written: list[Any] = []

    def fail_second(batches: Any) -> Any:
        if written and problem == "refused":
            return {at: ErrorResponse("broker", "a batch", 10, "too large") for at in batches}
        written.append(produce(batches))
        if problem == "deleted":
            chunk.data.write_bytes(b"")
            os.truncate(chunk.data, 100_000)
        return written[-1]

    monkeypatch.setattr(lane._producer, "produce", fail_second)
    with pytest.raises(WriteRefused if problem == "refused" else ChunkMissing):
        commit(lane, chunk)
    assert written
    monkeypatch.undo()
    assert commit(lane, owners.chunk(b"next")).record_count == 1
    assert values(owners, 1) == [b"next"]


def test_damaged_and_deleted_chunks_are_missing_and_the_lane_goes_on(
    owners: Owners, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = owners.owner()
    deleted, flipped, truncated, late = (owners.chunk(b"1", b"2", b"3") for _ in range(4))
    deleted.data.unlink()
    content = bytearray(flipped.data.read_bytes())
    content[30] ^= 1  # only the checksum covers the timestamp
    flipped.data.write_bytes(content)
    truncated.data.write_bytes(truncated.data.read_bytes()[: -len(content) // 3])
    for chunk in (deleted, flipped, truncated):
        with pytest.raises(ChunkMissing):
            commit(lane, chunk)
    begin = lane._producer.begin

    def delete(partitions: Any) -> None:
        begin(partitions)
        late.data.unlink()

    monkeypatch.setattr(lane._producer, "begin", delete)
    with pytest.raises(ChunkMissing):
        commit(lane, late)
    monkeypatch.undo()
    assert commit(lane, owners.chunk(b"4")).record_count == 1
    assert values(owners, 1) == [b"4"]


def test_defect_fails_the_request_and_ends_the_epoch(owners: Owners, monkeypatch: pytest.MonkeyPatch) -> None:
    lane, chunk = owners.owner(), owners.chunk(b"1")
    monkeypatch.setattr(Committed, "to_json", lambda committed: 1 // 0)
    request = CommitRequest("", chunk.transaction_id, chunk)
    with pytest.raises(ZeroDivisionError):
        lane.serve([request])
    assert isinstance(request.result.exception(0), ZeroDivisionError)
    monkeypatch.undo()
    lane.take_over()
    assert commit(lane, chunk).record_count == 1
    assert values(owners, 1) == [b"1"]


def test_records_that_no_lane_wrote_are_ignored_in_the_ledger(owners: Owners) -> None:
    producer = Producer({"bootstrap.servers": owners.address})
    producer.produce(owners.ledger, b"no row", b"key")
    assert producer.flush(30) == 0
    chunk = owners.chunk(b"1")
    committed = commit(owners.owner(), chunk)
    assert commit(owners.owner(), None, chunk.transaction_id) == committed


def test_lane_is_not_taken_over_before_every_transaction_is_decided(owners: Owners) -> None:
    """The row of an open transaction may become valid after the takeover has read it."""
    at, transaction_id = TopicPartition(owners.ledger, 0), new_transaction_id(owners.now_ms)
    committed = Committed(owners.topic, 0, ((0, 1),), 1, 2, 3)
    owners.clusters.append(KafkaCluster(owners.address))
    producer = BatchProducer(owners.clusters[-1], f"other-{owners.ledger}", transaction_timeout_ms=30_000)
    producer.start()
    producer.begin([at])
    row = (json.dumps(["", transaction_id]).encode(), committed.to_json(), NO_HEADERS)
    producer.produce({at: batch_of_records([row], owners.now_ms)})
    with pytest.raises(KafkaUnavailable):
        owners.owner()
    producer.end(is_commit=True)
    deadline = time.monotonic() + 30
    while True:
        try:
            assert commit(owners.owner(), None, transaction_id) == committed
            break
        except KafkaUnavailable:  # Apache Kafka writes the marker after its response
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_malformed_row_stops_the_lane(owners: Owners, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could be a row whose records would be stored twice."""
    with monkeypatch.context() as patched:
        patched.setattr(Committed, "to_json", lambda committed: b"[]")
        commit(owners.owner(), owners.chunk(b"1"))
    with pytest.raises(ErrorResponse, match="malformed row"):
        owners.owner()


def test_large_chunk_is_written_like_others(owners: Owners, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "LARGE_RECORDS", 1)
    lane = owners.owner()
    for _ in range(3):
        assert commit(lane, owners.chunk(b"1", b"2")).record_count == 2


def test_request_is_checked_against_the_ledger_and_the_chunk(owners: Owners) -> None:
    lane, chunk = owners.owner(), owners.chunk(b"1")
    commit(lane, chunk)
    with pytest.raises(OtherContent):
        commit(lane, owners.chunk(b"2", transaction_id=chunk.transaction_id))
    raw = owners.chunk(b"3")
    with pytest.raises(NotConverted):
        commit(lane, dataclasses.replace(raw, record_count=None))


def test_rows_are_forgotten_when_the_ledger_topic_deletes_them(owners: Owners) -> None:
    clock = [0.0]
    lane, chunk = owners.owner(), owners.chunk(b"1")
    lane._clock = lambda: clock[0]
    commit(lane, chunk)
    clock[0] = 4000.0 + time.monotonic()
    lane.run_due()
    assert len(lane._rows) == 1
    owners.now_ms += LEDGER_MS + 1
    clock[0] += 4000.0
    lane.run_due()
    assert lane._rows == {}
    assert owners.owner()._rows == {}
    owners.now_ms -= 2
    assert len(owners.owner()._rows) == 1
