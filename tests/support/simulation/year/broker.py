"""Kafka brokers in memory, whose logs are real record batches, and the events that can happen to a log."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kafka.record.default_records import DefaultRecordBatchBuilder

from headrace.kafka_wire.cluster import (
    AbortedTransaction,
    ClusterMetadata,
    EpochEnd,
    EpochEndLookup,
    EpochQuery,
    FetchSlice,
    OffsetLookup,
    PartitionMetadata,
    TopicMetadata,
)
from headrace.kafka_wire.errors import KafkaUnavailable, LogChanged, OffsetOutOfRange
from headrace.kafka_wire.topic_partition import TopicPartition
from support.broker.record_batches import make_batch, reseal

RECORDS_PER_BATCH = 50
CODECS = (0, 1, 2)  # none, gzip, snappy
SOME_TIME_MS = 1_000


@dataclass(frozen=True, slots=True)
class Sent:
    """A message as a producer sends it."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A record batch in a log, with the offsets `[base, next_offset)`.

    Attributes:
        data: the batch as bytes.
        epoch: its leader epoch.
        sent: its messages by offset; empty for a transaction marker.
    """

    base: int
    next_offset: int
    data: bytes
    epoch: int
    sent: Mapping[int, Sent]


class PartitionLog:
    """The log of a topic partition.

    Attributes:
        starts: its leader epochs as (epoch, first offset).
        open_from: first offset of an open transaction, which is the last stable offset; None without one.
        intact_batches: intact copies of corrupt batches, by base offset.
    """

    def __init__(self, leader: int, epoch: int = 0) -> None:
        self.leader = leader
        self.batches: list[StoredBatch] = []
        self.start = self.end = 0
        self.epoch = epoch
        self.starts = [(epoch, 0)]
        self.open_from: int | None = None
        self.aborted: list[tuple[AbortedTransaction, int]] = []
        self.intact_batches: dict[int, StoredBatch] = {}

    @property
    def stable_end(self) -> int:
        return self.end if self.open_from is None else min(self.open_from, self.end)

    def append(self, messages: Sequence[Sent], *, codec: int = 0, producer: int = -1) -> range:
        """Appends messages and returns their offsets."""
        first = self.end
        for at in range(0, len(messages), RECORDS_PER_BATCH):
            sent = dict(enumerate(messages[at : at + RECORDS_PER_BATCH], self.end))
            self._store(sent, self.end, self.end + len(sent), codec, producer)
        return range(first, self.end)

    def _store(self, sent: Mapping[int, Sent], base: int, next_offset: int, codec: int, producer: int) -> None:
        data = _batch(sent, base, next_offset, self.epoch, codec, producer)
        self.batches.append(StoredBatch(base, next_offset, data, self.epoch, sent))
        self.end = next_offset

    def open_transaction(self, messages: Sequence[Sent], producer: int) -> range:
        offsets = self.append(messages, producer=producer)
        self.open_from = offsets.start
        return offsets

    def end_transaction(self, producer: int, *, commits: bool) -> None:
        assert self.open_from is not None
        marker = make_batch([self.end], control=int(commits), transactional=True, producer_id=producer)
        if not commits:
            self.aborted.append((AbortedTransaction(producer, self.open_from), self.end))
        self.batches.append(StoredBatch(self.end, self.end + 1, _with_epoch(marker, self.epoch), self.epoch, {}))
        self.end += 1
        self.open_from = None

    def remove_before(self, offset: int) -> list[int]:
        """Deletes the messages before an offset, as retention does, and returns their offsets."""
        removed = [at for at in self.offsets() if at < offset]
        self.start = max(self.start, offset)
        self.batches = [one for one in self.batches if one.next_offset > offset]
        return removed

    def compact(self, removed: Collection[int]) -> None:
        """Removes the messages with these offsets from their batches, and batches that become empty."""
        retained = []
        for one in self.batches:
            sent = {offset: message for offset, message in one.sent.items() if offset not in removed}
            if len(sent) == len(one.sent):
                retained.append(one)
            elif sent:
                data = _batch(sent, one.base, one.next_offset, one.epoch, 0, -1)
                retained.append(dataclasses.replace(one, data=data, sent=sent))
        self.batches = retained

    def cut_back(self, to: int) -> list[int]:
        """Simulates an unclean election: a replica becomes leader whose log ends at the last batch boundary up to `to`.
        Returns the offsets of the lost messages."""
        to = max((one.next_offset for one in self.batches if one.next_offset <= to), default=self.start)
        removed = [at for at in self.offsets() if at >= to]
        self.batches = [one for one in self.batches if one.next_offset <= to]
        self.aborted = [one for one in self.aborted if one[1] < to]
        self.end, self.open_from = to, None
        self.starts = [one for one in self.starts if one[1] < to] or [(self.epoch, self.start)]
        self.new_leader()
        return removed

    def new_leader(self) -> None:
        self.epoch += 1
        self.starts = [*(one for one in self.starts if one[1] < self.end), (self.epoch, self.end)]

    def corrupt(self, at: int) -> StoredBatch:
        """Flips a bit in a batch and returns the batch.

        Args:
            at: which batch, counted from the newest, which is 0.
        """
        index = len(self.batches) - 1 - at
        one = self.batches[index]
        data = bytearray(one.data)
        data[-1] ^= 0x10
        self.intact_batches[one.base] = one
        self.batches[index] = dataclasses.replace(one, data=bytes(data))
        return self.batches[index]

    def repair_segment(self) -> None:
        """Simulates that a replica with an intact copy becomes leader: corrupt batches are intact again."""
        self.batches = [self.intact_batches.get(one.base, one) for one in self.batches]
        self.intact_batches = {}
        self.new_leader()

    def offsets(self) -> list[int]:
        return [offset for one in self.batches for offset in one.sent if offset >= self.start]

    def epoch_end(self, epoch: int) -> EpochEnd:
        """Returns the end of a leader epoch, as a broker's response would (OffsetsForLeaderEpoch)."""
        if epoch > self.epoch:
            return EpochEnd(-1, -1)
        ends = [*(start for _, start in self.starts[1:]), self.end]
        found = [(one, end) for (one, _), end in zip(self.starts, ends, strict=True) if one <= epoch]
        return EpochEnd(*found[-1]) if found else EpochEnd(epoch, self.starts[0][1])

    def read(self, offset: int, bytes_max: int) -> tuple[bytes, tuple[AbortedTransaction, ...]]:
        found: list[StoredBatch] = []
        size = 0
        for one in self.batches:
            if one.next_offset <= offset or one.base >= self.stable_end:
                continue
            if found and size + len(one.data) > bytes_max:
                break
            found.append(one)
            size += len(one.data)
        last = found[-1].next_offset if found else offset
        aborted = tuple(one for one, marker in self.aborted if marker >= offset and one.first_offset < last)
        return b"".join(one.data for one in found), aborted


def _batch(sent: Mapping[int, Sent], base: int, next_offset: int, epoch: int, codec: int, producer: int) -> bytes:
    builder = DefaultRecordBatchBuilder(2, codec, producer >= 0, producer, 0, 0, 1 << 24)
    for offset, one in sent.items():
        builder.append(offset - base, one.timestamp_ms, one.key, one.value, [])
    data = bytearray(builder.build())
    struct.pack_into(">q", data, 0, base)
    struct.pack_into(">i", data, 23, next_offset - 1 - base)
    return _with_epoch(reseal(data), epoch)


def _with_epoch(data: bytes, epoch: int) -> bytes:
    return data[:12] + struct.pack(">i", epoch) + data[16:]


@dataclass
class BrokerTopic:
    """A topic of the brokers.

    Attributes:
        reports_topic_id: whether the brokers report topic ids; old ones do not.
        shown_id: the topic id that the brokers report, or "".
    """

    topic_id: str
    logs: list[PartitionLog]
    reports_topic_id: bool = True

    @property
    def shown_id(self) -> str:
        return self.topic_id if self.reports_topic_id else ""


@dataclass
class YearCluster:
    """A cluster of brokers, which lead the partitions in turn.

    Attributes:
        down: numbers of the unavailable brokers.
        committed: the offsets committed by the loader's consumer group.
    """

    topics: dict[str, BrokerTopic] = field(default_factory=dict)
    brokers: int = 3
    down: set[int] = field(default_factory=set)
    committed: dict[TopicPartition, int] = field(default_factory=dict)

    def close(self) -> None:
        pass

    def _check(self) -> None:
        if len(self.down) == self.brokers:
            raise KafkaUnavailable("broker:1 connection refused")

    def metadata(self, topics: Sequence[str] | None = None) -> ClusterMetadata:
        self._check()
        found = {
            name: TopicMetadata(
                topic.shown_id,
                False,
                {number: PartitionMetadata(log.leader, log.epoch) for number, log in enumerate(topic.logs)},
            )
            for name, topic in self.topics.items()
            if topics is None or name in topics
        }
        return ClusterMetadata("cluster", {}, found)

    def _reachable_logs(
        self, topic_partitions: Iterable[TopicPartition]
    ) -> tuple[dict[TopicPartition, PartitionLog], dict[TopicPartition, str]]:
        self._check()
        logs, errors = {}, {}
        for tp in topic_partitions:
            log = self.topics[tp.topic].logs[tp.partition]
            if log.leader in self.down:
                errors[tp] = f"broker:{log.leader} connection refused"
            else:
                logs[tp] = log
        return logs, errors

    def lookup_offsets(
        self, topic_partitions: Iterable[TopicPartition], which: str, read_committed: bool = True
    ) -> OffsetLookup:
        logs, errors = self._reachable_logs(topic_partitions)
        if which == "earliest":
            return OffsetLookup({tp: log.start for tp, log in logs.items()}, errors)
        return OffsetLookup({tp: log.stable_end if read_committed else log.end for tp, log in logs.items()}, errors)

    def lookup_epoch_ends(self, queries: Mapping[TopicPartition, EpochQuery]) -> EpochEndLookup:
        logs, errors = self._reachable_logs(queries)
        return EpochEndLookup({tp: log.epoch_end(queries[tp].epoch) for tp, log in logs.items()}, errors)

    def commit_group_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, str]:
        self._check()
        self.committed.update(offsets)
        return {}

    def prefetch(self, *where: object, **named: object) -> None:
        pass

    def expect_topics(self, topics: object) -> None:
        pass

    def fetch(
        self,
        topic_partition: TopicPartition,
        offset: int,
        max_bytes: int,
        *,
        topic_id: str = "",
        leader_epoch: int = -1,
        max_wait_ms: int = 500,
    ) -> FetchSlice:
        logs, errors = self._reachable_logs([topic_partition])
        if errors:
            raise KafkaUnavailable(errors[topic_partition])
        log, topic = logs[topic_partition], self.topics[topic_partition.topic]
        if (topic_id and topic.shown_id and topic_id != topic.shown_id) or leader_epoch not in (-1, log.epoch):
            raise LogChanged(f"{topic_partition}: it is another log now")
        if not log.start <= offset <= log.end:
            raise OffsetOutOfRange(f"{topic_partition}: the log does not hold {offset}")
        records, aborted = log.read(offset, max_bytes)
        return FetchSlice(records, log.end, log.stable_end, log.start, aborted, f"broker:{log.leader}")
