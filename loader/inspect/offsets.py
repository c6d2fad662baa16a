"""The next offset of every partition from the commit log, with the brokers' offsets if they are available.

`all_offsets` sends one request for the metadata of all topics and two requests to each broker, however many partitions
there are. `topic_offsets` sends as many for one topic, and one for its retention time. It also finds when the oldest
unread message may expire. A third request goes to the leaders of logs that end before their next offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.commit.state import LoaderState, PartitionState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal, TypeVar

    from headrace.kafka_wire.cluster import ClusterMetadata, LogHeadLookup, OffsetLookup
    from headrace.kafka_wire.connection import BrokerConnection

    T = TypeVar("T")


class OffsetSource(Protocol):
    """The requests that this module sends; implemented by `kafka_wire.cluster`."""

    def metadata(self, topics: Sequence[str] | None = None) -> ClusterMetadata: ...

    def lookup_offsets(
        self,
        topic_partitions: Iterable[TopicPartition],
        position: Literal["earliest", "latest"],
        read_committed: bool = True,
    ) -> OffsetLookup: ...


class TopicSource(OffsetSource, Protocol):
    """The further requests for one topic."""

    def lookup_log_heads(self, positions: Mapping[TopicPartition, int]) -> LogHeadLookup: ...

    def request_any(self, call: Callable[[BrokerConnection], T]) -> T: ...


@dataclass(frozen=True, slots=True)
class BrokerOffsets:
    """The offsets of a partition on the brokers.

    Attributes:
        leader: node id of the leader, -1 without one.
        start, end: the log start offset and the last stable offset, None for the reason `problem`.
        high_watermark: the end of the log with open transactions; None if it was not requested.
        first_unread_ms: the newest time in the first batch with unread messages, in milliseconds since 1970; None if
            all are read, if it was not requested, or if the batch is too large.
        problem: "" or the reason why something is unknown.
    """

    leader: int
    start: int | None = None
    end: int | None = None
    high_watermark: int | None = None
    first_unread_ms: int | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """The partitions of one topic on the brokers. `retention_ms` is -1 if messages do not expire, None if unknown.
    `problem` is "", or the reason why the topic cannot be read."""

    partitions: Mapping[TopicPartition, BrokerOffsets]
    retention_ms: int | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """The offsets of one partition.

    `next_offset` is the offset at which the next load begins, None if that is the log start offset. `is_loaded` is
    False for a partition without loaded offsets; its `next_offset` is then None or one set by the operator.
    `leader_epoch` is that of the last commit, -1 if unknown. `log_end` is the last stable offset. `log_start`,
    `log_end` and `lag` are None if unknown, for example without a connection to the brokers.
    """

    topic: str
    partition: int
    next_offset: int | None
    is_loaded: bool
    leader_epoch: int
    log_start: int | None
    log_end: int | None
    lag: int | None

    @property
    def is_outside_log(self) -> bool:
        """Whether the next offset is not in the log: it was deleted, or the log ends before it."""
        if self.next_offset is None or self.log_start is None or self.log_end is None:
            return False
        return not self.log_start <= self.next_offset <= self.log_end


def all_offsets(cluster: OffsetSource, is_shown: Callable[[str], bool]) -> dict[TopicPartition, BrokerOffsets]:
    """Returns the offsets of the partitions of all topics on the brokers, except internal ones.

    Args:
        is_shown: whether to include a topic with a name.

    Raises:
        KafkaError: no broker responds, or they reject the connection.
    """
    topics = {
        name: topic
        for name, topic in cluster.metadata().topics.items()
        if not topic.is_internal and not topic.error and is_shown(name)
    }
    leaders = {
        TopicPartition(name, number): partition.leader
        for name, topic in sorted(topics.items())
        for number, partition in sorted(topic.partitions.items())
    }
    # A partition that failed once is not requested again. The end comes second, so it is never before the start.
    starts = cluster.lookup_offsets(leaders, "earliest")
    ends = cluster.lookup_offsets(starts.offsets, "latest")
    errors = {**starts.errors, **ends.errors}
    return {
        tp: BrokerOffsets(leader, starts.offsets.get(tp), ends.offsets.get(tp), problem=errors.get(tp, ""))
        for tp, leader in leaders.items()
    }


def topic_offsets(cluster: TopicSource, topic: str, next_offsets: Mapping[int, int]) -> TopicOffsets:
    """Returns the offsets of the partitions of one topic on the brokers, with the time of the first unread messages.

    Args:
        next_offsets: the first unread offset by partition; that of others is the log start offset.

    Raises:
        KafkaError: no broker responds, or they reject the connection.
    """
    found = cluster.metadata([topic]).topics.get(topic)
    if found is None or found.error:
        return TopicOffsets({}, problem=found.error if found else "the brokers return no metadata of the topic")
    leaders = {TopicPartition(topic, number): one.leader for number, one in sorted(found.partitions.items())}
    starts = cluster.lookup_offsets(leaders, "earliest")
    positions = {tp: max(start, next_offsets.get(tp.partition, start)) for tp, start in sorted(starts.offsets.items())}
    heads = cluster.lookup_log_heads(positions)
    shorter = [tp for tp, head in heads.heads.items() if head is None]
    ends = cluster.lookup_offsets(shorter, "latest") if shorter else None
    errors = {**starts.errors, **heads.errors, **(ends.errors if ends else {})}
    partitions = {}
    for tp, leader in leaders.items():
        head = heads.heads.get(tp)
        end = ends.offsets.get(tp) if head is None and ends is not None else None
        partitions[tp] = BrokerOffsets(
            leader,
            starts.offsets.get(tp),
            end if head is None else head.last_stable_offset,
            end if head is None else head.high_watermark,
            None if head is None else head.first_ms,
            errors.get(tp, ""),
        )
    return TopicOffsets(partitions, _retention_ms(cluster, topic))


def _retention_ms(cluster: TopicSource, topic: str) -> int | None:
    from headrace.kafka_wire.admin import retention_times
    from headrace.kafka_wire.errors import ErrorResponse

    try:
        return cluster.request_any(lambda connection: retention_times(connection, [topic])).get(topic)
    except ErrorResponse:
        return None


def partition_statuses(
    state: LoaderState, found: Mapping[TopicPartition, BrokerOffsets] | None
) -> tuple[PartitionStatus, ...]:
    """Returns the offsets of each partition that is in the commit log or on the brokers.

    Args:
        found: the partitions on the brokers, None if the brokers are unavailable.
    """
    loaded = {
        TopicPartition(name, number): partition_state
        for name, topic_state in state.topics.items()
        for number, partition_state in topic_state.partitions.items()
    }
    start_offsets = {
        TopicPartition(name, number): start
        for name, numbers in state.starts.items()
        for number, start in numbers.items()
    }
    on_brokers = found or {}
    return tuple(
        _status(tp, loaded.get(tp), start_offsets.get(tp), on_brokers.get(tp))
        for tp in sorted({*on_brokers, *loaded, *start_offsets})
    )


def next_offsets_of(state: LoaderState, topic: str) -> dict[int, int]:
    """Returns the next offset by partition of a topic, as far as loads or the operator determined it."""
    known = state.topics.get(topic)
    loaded = {number: one.next_offset for number, one in known.partitions.items()} if known else {}
    return {**state.starts.get(topic, {}), **loaded}


def _status(
    tp: TopicPartition, loaded: PartitionState | None, start_offset: int | None, offsets: BrokerOffsets | None
) -> PartitionStatus:
    next_offset = loaded.next_offset if loaded else start_offset
    start, end = (offsets.start, offsets.end) if offsets else (None, None)
    lag = None
    if start is not None and end is not None:
        lag = max(0, end - (start if next_offset is None else next_offset))
    return PartitionStatus(
        tp.topic,
        tp.partition,
        next_offset,
        loaded is not None,
        loaded.leader_epoch if loaded else -1,
        start,
        end,
        lag,
    )
