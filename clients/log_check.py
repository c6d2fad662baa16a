"""Reads the logs of partitions without librdkafka, to find out why it returns no messages of them.

librdkafka retries most failures for ever. Observed with the releases that `setup.py` allows, and one flipped bit in a
batch:

- in its checksum or the bytes that it covers: reports `_BAD_MSG` every 0.5 seconds, and returns nothing after it
- in its magic: reports `_NOT_IMPLEMENTED` every second
- in its length: often reports nothing
- in its base offset, which no checksum covers: returns the messages with wrong offsets

The records of a batch are not decompressed here: the extra `producer` does not install the codecs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Final, NamedTuple

from headrace.clients.errors import DamagedBatch, SourceUnavailable
from headrace.clients.partitions import TopicAndPartition
from headrace.kafka_wire.cluster import FetchSlice, KafkaCluster
from headrace.kafka_wire.errors import CorruptBatch, ErrorResponse, OffsetOutOfRange
from headrace.kafka_wire.errors import KafkaError as WireError
from headrace.kafka_wire.from_settings import kafka_security
from headrace.kafka_wire.record_batch import (
    MAGIC,
    BatchFrame,
    BatchHeader,
    has_valid_crc,
    offset_after,
    read_batch_header,
    split_batches,
)
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.settings import Settings
from headrace.settings.addresses import resolve_bootstrap_servers

TIMEOUT_S: Final = 5.0
FETCH_BYTES: Final = 1 << 20
CORRUPT_MESSAGE: Final = 2
"""Kafka's error code of a broker that finds a batch of its log corrupt."""


class UnreadPartition(NamedTuple):
    """A partition with messages in the offsets [position, end) that the consumer has not returned."""

    topic_partition: TopicAndPartition
    position: int
    end: int


class BatchFault(NamedTuple):
    """A damaged batch of a fetch response: its claimed offset, the problem, and the offset after it, -1 if unknown."""

    offset: int
    reason: str
    next_offset: int


class LogCheck:
    """Checks the logs that one consumer reads. Each check connects to the brokers and closes the connections.

    Args:
        settings: addresses and credentials of the brokers.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def unread(self, topics: Iterable[str], positions: Mapping[TopicAndPartition, int]) -> tuple[UnreadPartition, ...]:
        """Returns the partitions whose last stable offset is after the consumer's position.

        Args:
            topics: names of the topics that the consumer reads.
            positions: the next offset to read of each partition; a negative one is the start of the log.

        Raises:
            SourceUnavailable: the brokers do not respond or reject the client, or a topic or partition does not exist
                or has no leader.
        """
        names = list(topics)
        with self._cluster(f"topic{'s' if len(names) > 1 else ''} {', '.join(names)}") as cluster:
            for name, topic in cluster.metadata(names).topics.items():
                if topic.error:
                    raise SourceUnavailable(f"topic {name}: {topic.error}", topic=name)
            wanted = {TopicPartition(*each): offset for each, offset in positions.items()}
            ends = _offsets(cluster, wanted, "latest")
            starts = _offsets(cluster, [each for each, offset in wanted.items() if offset < 0], "earliest")
        found = (
            UnreadPartition((each.topic, each.partition), starts.get(each, offset), ends[each])
            for each, offset in wanted.items()
        )
        return tuple(each for each in found if each.position < each.end)

    def damage(self, topic_partition: TopicAndPartition, offset: int, reported: str = "") -> DamagedBatch | None:
        """Reads the batch with `offset`, and returns the error if it is damaged.

        Args:
            offset: the next offset to read of the partition.
            reported: the problem of this batch that the Kafka client reports persistently. If the batch seems valid
                here, for example because only its compressed records are damaged, the error has this reason.

        Raises:
            SourceUnavailable: the brokers do not respond or reject the request.
        """
        topic, partition = topic_partition
        with self._cluster(f"topic {topic} partition {partition}") as cluster:
            fault = _batch_fault(cluster, TopicPartition(topic, partition), offset, reported)
        if fault is None:
            return None
        return DamagedBatch(
            fault.reason, topic=topic, partition=partition, offset=fault.offset, next_offset=fault.next_offset
        )

    @contextmanager
    def _cluster(self, where: str) -> Iterator[KafkaCluster]:
        """Connects to the brokers. Raises the errors of the block as SourceUnavailable, with `where` in the message."""
        servers = resolve_bootstrap_servers(self._settings)
        try:
            with KafkaCluster(servers, TIMEOUT_S, security=kafka_security(self._settings)) as cluster:
                yield cluster
        except WireError as error:
            raise SourceUnavailable(f"{where}: messages cannot be read: {error}") from error


def _offsets(cluster: KafkaCluster, wanted: Iterable[TopicPartition], position: str) -> Mapping[TopicPartition, int]:
    """Returns the first ("earliest") or end ("latest") offsets of partitions.

    Raises:
        SourceUnavailable: the offset of a partition cannot be requested.
    """
    found = cluster.lookup_offsets(wanted, "earliest" if position == "earliest" else "latest")
    for each, reason in found.errors.items():
        raise SourceUnavailable(
            f"topic {each.topic} partition {each.partition}: messages cannot be read: {reason}",
            topic=each.topic,
            partition=each.partition,
        )
    return found.offsets


def _batch_fault(cluster: KafkaCluster, at: TopicPartition, offset: int, reported: str) -> BatchFault | None:
    """Returns the fault of the batch with `offset`, None for a valid one or if the log has no such offset."""
    try:
        fetched = cluster.fetch(at, offset, FETCH_BYTES)
        fault = find_fault(fetched, offset, reported)
        if fault is None and offset > 0:
            # If the base offset is too small, only the batch before shows it.
            fault = _find_overlap(cluster.fetch(at, offset - 1, FETCH_BYTES), offset)
    except OffsetOutOfRange:
        return None
    except ErrorResponse as error:
        if error.code != CORRUPT_MESSAGE:
            raise
        return BatchFault(offset, f"the broker reports that it is corrupt: {error}", -1)
    return fault


def find_fault(fetched: FetchSlice, offset: int, reported: str = "") -> BatchFault | None:
    """Returns the fault of the first batch of a fetch response that was requested from `offset` on.

    Args:
        reported: the reason if the batch seems valid; "" for none.
    """
    if offset >= fetched.last_stable_offset or (fetched.throttle_ms and not fetched.records):
        return None
    try:
        frame = next(split_batches(fetched.records, "the broker"), None)
    except CorruptBatch as error:
        return BatchFault(offset, str(error), -1)
    if frame is None:  # brokers return the first batch complete, whatever its size
        return BatchFault(offset, f"the broker returns {len(fetched.records)} bytes, which are no complete batch", -1)
    header = read_batch_header(frame.view)
    reason = _reason(frame, header, fetched.high_watermark)
    if not reason and header.last_offset >= offset and reported:
        return BatchFault(max(header.base_offset, 0), reported, header.last_offset + 1)
    return BatchFault(offset, reason, _next_offset(fetched, frame, header, offset)) if reason else None


def _reason(frame: BatchFrame, header: BatchHeader, high_watermark: int) -> str:
    if header.magic != MAGIC:
        return f"it has the unknown message format (magic) {header.magic}, expected {MAGIC}"
    if not has_valid_crc(frame.view, header):
        return "its checksum is wrong"
    if not 0 <= header.base_offset <= header.last_offset < high_watermark:
        return (
            f"it states the offsets [{header.base_offset}, {header.last_offset + 1}), but the log ends at "
            f"{high_watermark}"
        )
    return ""


def _next_offset(fetched: FetchSlice, frame: BatchFrame, header: BatchHeader, offset: int) -> int:
    """Returns the offset after a damaged batch, -1 if the bytes do not show it.

    Args:
        offset: the offset that was requested, which a batch with a valid checksum but a wrong base offset begins with.
    """
    if has_valid_crc(frame.view, header):
        expected = offset + header.last_offset_delta + 1
        return expected if expected == (frame.next_base_offset or fetched.high_watermark) else -1
    following = offset_after(fetched.records, frame)
    if following is not None:
        return following
    is_last = frame.end == len(fetched.records) and header.last_offset + 1 == fetched.high_watermark
    return fetched.high_watermark if is_last else -1


def _find_overlap(fetched: FetchSlice, offset: int) -> BatchFault | None:
    """Returns the fault of a batch that states offsets of the batch before it.

    Args:
        fetched: the response to a request from before `offset` on.
        offset: the offset after the batch before.
    """
    try:
        frames = list(split_batches(fetched.records, "the broker"))
    except CorruptBatch:
        return None
    for before, frame in pairwise(frames):
        header = read_batch_header(before.view)
        if has_valid_crc(before.view, header) and frame.base_offset < header.last_offset + 1 == offset:
            following = offset_after(fetched.records, frame)
            reason = f"it states the base offset {frame.base_offset}, but the batch before it ends at {offset}"
            return BatchFault(offset, reason, -1 if following is None or following <= offset else following)
    return None
