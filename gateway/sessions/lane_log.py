"""The logs of a lane: takes the lane over from another gateway, writes records, and stores checkpoints.

Invariants:

1. A lane has one transactional id, so its owners have rising epochs. All writes of a lane carry its producer id and
   epoch, and a partition rejects epochs that are older than the newest one in it.
2. A takeover first fences the lane's partition of the state topic, then loads it: no earlier owner can change it since.
3. A partition is fenced, then scanned from the checkpoint to the fence. Every record of an earlier owner is before the
   fence, so the scan finds it. A request of an earlier owner that arrives later is rejected.
4. A record goes only to a partition that is registered in the state topic. So a takeover knows all partitions in which
   an earlier owner may have written.
5. `SourceState.last_seqno` grows only after the brokers have acknowledged the records.
6. After any failure whose outcome is unknown, the owner begins again with a takeover.

Brokers forget the epoch of a partition a day after the last write of the producer id (`producer.id.expiration.ms`).
Therefore the owner writes to the state topic before other writes if it has no acknowledgement from there for
`CONFIRMED_S`, and takes the lane over from itself each `RENEW_S`.

A coordinator forgets an unused transactional id after 7 days, and changes the producer id after 32,767 epochs. Epochs
of another producer id fence nothing, so the new owner then fences all earlier producer ids in the state topic itself,
and waits `RETIRE_S` until each earlier owner has stopped for lack of an acknowledgement.

`tests/gateway/sessions/test_takeover_model.py` explores all interleavings of these steps.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from headrace.gateway.sessions.sources import (
    SEQNO_HEADER,
    SOURCE_HEADER,
    LaneState,
    SourceKey,
    StateRecord,
    checkpoint_records,
    owner_record,
    partition_record,
    producer_record,
)
from headrace.kafka_wire.batch_producer import BatchProducer, ProducerEpoch, produce_as
from headrace.kafka_wire.cluster import KafkaCluster, OffsetLookup
from headrace.kafka_wire.errors import CorruptBatch, ErrorResponse, KafkaUnavailable, OffsetOutOfRange
from headrace.kafka_wire.record_batch import (
    CONTROL,
    NO_HEADERS,
    TRANSACTIONAL,
    Batch,
    batch_of_records,
    parse_headers,
    read_batch,
    split_batches,
)
from headrace.kafka_wire.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

CONFIRMED_S: Final = 15.0
RETIRE_S: Final = 60.0
RENEW_S: Final = 12 * 3600.0
EPOCH_MAX: Final = 32_767
FETCH_BYTES: Final = 4 * 1024 * 1024
BATCH_BYTES_MAX: Final = 256 * 1024 * 1024
"""Limit of a decompressed batch while scanning."""
STATE_BATCH_RECORDS: Final = 2_000
PRODUCE_TIMEOUT_MS: Final = 10_000
TRANSACTION_TIMEOUT_MS: Final = 10_000
_SEQNO: Final = struct.Struct(">q")


def boot_time_s() -> float:
    """Returns a monotonic time that includes the time in which the machine was suspended."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


class LaneLog:
    """The logs of a lane. Not thread-safe. Any `KafkaError` except a refusal makes it unusable until `take_over`.

    Args:
        cluster: the client whose connections are used.
        state_topic: name of the state topic.
        lane: number of the lane, which is its partition of the state topic.
        clock: monotonic clock in seconds.
        sleep: sleeps for a number of seconds; may raise to give up.
        now_ms: milliseconds since 1970, for timestamps of records.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        state_topic: str,
        lane: int,
        *,
        clock: Callable[[], float] = boot_time_s,
        sleep: Callable[[float], None] = time.sleep,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._cluster = cluster
        self._at = TopicPartition(state_topic, lane)
        self._producer = BatchProducer(
            cluster,
            f"{state_topic}-{lane}",
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            produce_timeout_ms=PRODUCE_TIMEOUT_MS,
        )
        self._clock = clock
        self._sleep = sleep
        self._now_ms = now_ms
        self.state = LaneState()
        self._fenced: set[TopicPartition] = set()
        self._changed_sources: set[SourceKey] = set()
        self._changed_partitions: set[TopicPartition] = set()
        self._confirmed_at = self._taken_at = float("-inf")

    @property
    def must_renew(self) -> bool:
        """Whether the lane must be taken over again, before the coordinator forgets its transactional id."""
        return self._clock() - self._taken_at > RENEW_S

    @property
    def has_changes(self) -> bool:
        """Whether a checkpoint would write anything."""
        return bool(self._changed_sources or self._changed_partitions)

    def take_over(self) -> None:
        """Takes the lane over from its earlier owner, which may still run, and loads its state.

        Raises:
            ProducerFenced: a later owner has taken it over.
            KafkaError: a broker does not respond, or refuses a request.
        """
        started_at = self._clock()
        self.state, self._fenced = LaneState(), set()
        self._changed_sources, self._changed_partitions = set(), set()
        identity = self._producer.start()
        self._cluster.metadata([self._at.topic])
        end = self._write_state([producer_record(*identity)])
        self._load(0, end)
        if self.state.owner not in (None, identity.producer_id):
            end = self._retire_others(identity, end)
        self._write_state([owner_record(identity.producer_id)])
        loaded_at = self._clock()
        self._fence_and_scan(self._existing(self.state.reflected))
        self._taken_at = self._clock()
        logger.info(
            "lane_taken lane=%d epoch=%d sources=%d partitions=%d load_ms=%d scan_ms=%d",
            self._at.partition,
            identity.epoch,
            len(self.state.sources),
            len(self._fenced),
            (loaded_at - started_at) * 1000,
            (self._taken_at - loaded_at) * 1000,
        )

    def close(self) -> None:
        """Closes the connections."""
        self._cluster.close()

    def prepare(self, topic_partition: TopicPartition) -> None:
        """Makes a partition usable: registers a new one; fences and scans one that did not exist at the takeover.

        Raises:
            KafkaError: as in `take_over`.
        """
        if topic_partition in self._fenced:
            return
        if topic_partition in self.state.reflected:
            self._fence_and_scan([topic_partition])
            return
        offset = log_end(self._cluster, topic_partition)
        self._write_state([partition_record(topic_partition, offset)])
        self.state.reflected[topic_partition] = offset
        self._fenced.add(topic_partition)

    def write_states(self, records: Sequence[StateRecord]) -> None:
        """Writes records to the state topic.

        Raises:
            KafkaError: as in `take_over`.
        """
        for start in range(0, len(records), STATE_BATCH_RECORDS):
            self._write_state(records[start : start + STATE_BATCH_RECORDS])

    def write(self, batches: Mapping[TopicPartition, bytes]) -> dict[TopicPartition, int | ErrorResponse]:
        """Writes a batch to each partition, all of them prepared. Returns the base offset, or the error of a refused
        batch, which is not stored.

        Raises:
            KafkaError: as in `take_over`.
        """
        assert self._fenced.issuperset(batches), "a partition is not prepared"
        if self._clock() - self._confirmed_at > CONFIRMED_S:
            self._write_state([owner_record(self._producer.identity.producer_id)])
        found = self._producer.produce(batches)
        for topic_partition, result in found.items():
            if result == -1:
                raise KafkaUnavailable(f"{topic_partition}: a broker found an earlier batch with the same number")
        return found

    def stored(self, topic_partition: TopicPartition, end: int, sources: Iterable[SourceKey]) -> None:
        """Notes that the states of `sources` reflect the records of a partition before `end`."""
        self.state.reflected[topic_partition] = end
        self._changed_partitions.add(topic_partition)
        self._changed_sources.update(sources)

    def checkpoint(self) -> None:
        """Writes the states that have changed since the last checkpoint.

        Raises:
            KafkaError: as in `take_over`.
        """
        sources, partitions = self._changed_sources, self._changed_partitions
        self.write_states(
            checkpoint_records(
                (self.state.sources[key] for key in sources),
                ((topic_partition, self.state.reflected[topic_partition]) for topic_partition in partitions),
            )
        )
        self._changed_sources, self._changed_partitions = set(), set()

    def _write_state(self, records: Sequence[StateRecord]) -> int:
        """Writes records to the state topic; returns the offset after them."""
        sent_at = self._clock()
        batch = batch_of_records([(key, value, NO_HEADERS) for key, value in records], self._now_ms())
        base = base_offset(self._producer.produce({self._at: batch}), self._at)
        self._confirmed_at = sent_at
        return base + len(records)

    def _load(self, start: int, end: int) -> None:
        for batch in read_batches(self._cluster, self._at, start, end):
            if batch.attributes & (TRANSACTIONAL | CONTROL):
                continue
            for _, _, key, value, _ in batch.records:
                try:
                    self.state.load(key, value)
                except ValueError as error:
                    # A record that is skipped could be a sequence number, and its records would be stored twice.
                    raise ErrorResponse("", f"the state of lane {self._at.partition}", -1, str(error)) from error

    def _retire_others(self, identity: ProducerEpoch, loaded: int) -> int:
        """Fences all earlier producer ids in the state topic and waits until their owners have stopped. Returns the
        offset up to which the state is loaded."""
        logger.warning(
            "lane_producer_changed lane=%d producer_id=%d wait_s=%d", self._at.partition, identity.producer_id, RETIRE_S
        )
        end = loaded
        for producer_id, epoch in sorted(self.state.epochs.items()):
            if producer_id == identity.producer_id or epoch >= EPOCH_MAX:
                continue
            fence = ProducerEpoch(producer_id, epoch + 1)
            batch = batch_of_records([(*producer_record(*fence), NO_HEADERS)], self._now_ms())
            written = produce_as(self._cluster, fence, {self._at: (batch, 0)}, None, PRODUCE_TIMEOUT_MS)
            end = base_offset(written, self._at) + 1
        self._load(loaded, end)
        self._sleep(RETIRE_S)
        return end

    def _existing(self, topic_partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Returns the partitions that exist now. `prepare` fences the others when they are used."""
        wanted = list(topic_partitions)
        metadata = self._cluster.metadata(sorted({one.topic for one in wanted})) if wanted else None
        return [
            one
            for one in wanted
            if metadata is not None
            and one.topic in metadata.topics
            and not metadata.topics[one.topic].error
            and one.partition in metadata.topics[one.topic].partitions
        ]

    def _fence_and_scan(self, topic_partitions: Sequence[TopicPartition]) -> None:
        fences = self._producer.fence(topic_partitions, self._now_ms())
        for topic_partition, fence in fences.items():
            keys: set[SourceKey] = set()
            start = self.state.reflected[topic_partition]
            if start > fence:  # the topic was deleted and created again
                start = log_start(self._cluster, topic_partition)
            for batch in read_batches(self._cluster, topic_partition, start, fence):
                if batch.producer_id in self.state.epochs and not batch.attributes & (TRANSACTIONAL | CONTROL):
                    keys.update(self._reflect(topic_partition, batch))
            self.stored(topic_partition, fence, keys)
        self._fenced.update(fences)

    def _reflect(self, topic_partition: TopicPartition, batch: Batch) -> Iterable[SourceKey]:
        for offset, _, _, _, headers in batch.records:
            found = dict(parse_headers(headers))
            source_id, seqno = found.get(SOURCE_HEADER), found.get(SEQNO_HEADER)
            if source_id is not None and seqno is not None:
                yield self.state.found(topic_partition, offset, source_id.decode(), _SEQNO.unpack(seqno)[0])


def read_batches(cluster: KafkaCluster, topic_partition: TopicPartition, start: int, end: int) -> Iterable[Batch]:
    """Yields the batches with offsets in [start, end), also those of open and aborted transactions. An offset outside
    of the log begins at the log's start: records have expired, or the topic was re-created."""
    where, position = f"topic {topic_partition.topic} partition {topic_partition.partition}", start
    while position < end:
        try:
            found = cluster.fetch(topic_partition, position, FETCH_BYTES, read_committed=False)
        except OffsetOutOfRange:
            earliest = log_start(cluster, topic_partition)
            if position == earliest:
                raise
            position = earliest
            continue
        at = position
        for frame in split_batches(found.records, where):
            batch = read_batch(frame, where, BATCH_BYTES_MAX)
            position = batch.next_offset
            yield batch
        if position == at and found.high_watermark >= end:
            raise CorruptBatch(f"{where}: the log has no batch at offset {at}, before its end {end}")


def log_start(cluster: KafkaCluster, topic_partition: TopicPartition) -> int:
    return _looked_up(cluster.lookup_offsets([topic_partition], "earliest"), topic_partition)


def log_end(cluster: KafkaCluster, topic_partition: TopicPartition) -> int:
    return _looked_up(cluster.lookup_offsets([topic_partition], "latest", read_committed=False), topic_partition)


def _looked_up(found: OffsetLookup, topic_partition: TopicPartition) -> int:
    if topic_partition not in found.offsets:
        raise KafkaUnavailable(f"no offset of {topic_partition}: {found.errors.get(topic_partition, '')}")
    return found.offsets[topic_partition]


def base_offset(found: Mapping[TopicPartition, int | ErrorResponse], topic_partition: TopicPartition) -> int:
    result = found[topic_partition]
    if isinstance(result, ErrorResponse):
        raise result
    if result < 0:
        raise KafkaUnavailable(f"{topic_partition}: a broker found an earlier batch with the same number")
    return result
