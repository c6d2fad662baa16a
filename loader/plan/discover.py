"""Which topics there are and which offsets they hold.

The offsets are read before anything is asked of the registry, so that no message inside a planned range is newer
than the schemas known to the plan.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol

from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.commit.state import EMPTY, LoaderState
from headrace.loader.plan.divergence import Doubt, is_doubtful, shared_ends

if TYPE_CHECKING:
    from headrace.kafka_wire.cluster import ClusterMetadata, EpochEndLookup, EpochQuery, OffsetLookup, TopicMetadata

NEVER_LOADED = re.compile(r"__.*|_schemas")
"""Topics that belong to the brokers and to a Confluent registry."""


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """The log holds offsets `[start, end)`; `end` is the last stable offset, so no open transaction is inside.

    `high_watermark` is the end without that condition, read a moment before: what lies beyond `end` is held back by a
    transaction and has not merely come in between. `shared_end` is up to where the log is the one that was read, None
    where there was no reason to ask or nobody could tell.
    """

    partition: int
    leader_epoch: int
    start: int
    end: int
    high_watermark: int
    shared_end: int | None = None

    @property
    def held_back(self) -> int:
        """How many offsets lie behind the first open transaction, or are its own."""
        return max(0, self.high_watermark - self.end)


@dataclass(frozen=True, slots=True)
class DiscoveredTopic:
    """`topic_id` is "" when the broker gives none; `errors` says why a partition could not be asked."""

    topic: str
    topic_id: str
    partitions: tuple[PartitionOffsets, ...]
    errors: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Discovery:
    """`unusable` says of a wanted topic why the cluster cannot serve it now."""

    cluster_id: str
    topics: Mapping[str, DiscoveredTopic]
    unusable: Mapping[str, str]


class Cluster(Protocol):
    """What the driver asks of Kafka."""

    def metadata(self, topics: Sequence[str] | None = None) -> ClusterMetadata: ...

    def lookup_offsets(
        self,
        topic_partitions: Iterable[TopicPartition],
        which: Literal["earliest", "latest"],
        read_committed: bool = True,
    ) -> OffsetLookup: ...

    def lookup_epoch_ends(self, questions: Mapping[TopicPartition, EpochQuery]) -> EpochEndLookup: ...

    def commit_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, str]: ...


def is_wanted(topic: str, include: Sequence[str], exclude: Sequence[str]) -> bool:
    """Whether a topic of this name is loaded; the patterns match whole names."""
    if NEVER_LOADED.fullmatch(topic):
        return False
    return any(re.fullmatch(p, topic) for p in include) and not any(re.fullmatch(p, topic) for p in exclude)


def discover(cluster: Cluster, include: Sequence[str], exclude: Sequence[str], state: LoaderState = EMPTY) -> Discovery:
    """Asks the cluster for its topics and for the offsets of the wanted ones.

    Args:
        state: what was read before; logs that are no longer the same are found by it.

    Raises:
        KafkaUnavailable: no broker answers.
    """
    metadata = cluster.metadata()
    wanted = {
        name: topic
        for name, topic in sorted(metadata.topics.items())
        if not topic.is_internal and is_wanted(name, include, exclude)
    }
    usable = {name: topic for name, topic in wanted.items() if not topic.error}
    asked = [TopicPartition(name, number) for name, topic in usable.items() for number in sorted(topic.partitions)]
    # What did not answer one question is not asked the next.
    high_watermarks = cluster.lookup_offsets(asked, "latest", read_committed=False)
    ends = cluster.lookup_offsets(high_watermarks.offsets, "latest")
    starts = cluster.lookup_offsets(ends.offsets, "earliest")
    found = {
        # Retention may have moved the start past the end that was read a moment before.
        tp: PartitionOffsets(
            partition=tp.partition,
            leader_epoch=usable[tp.topic].partitions[tp.partition].leader_epoch,
            start=start,
            end=max(start, ends.offsets[tp]),
            high_watermark=high_watermarks.offsets[tp],
        )
        for tp, start in starts.offsets.items()
    }
    shared = shared_ends(cluster, _doubts(usable, found, state))
    errors = {**high_watermarks.errors, **ends.errors, **starts.errors, **shared.errors}
    topics = {}
    for name, topic in usable.items():
        partitions = [TopicPartition(name, number) for number in sorted(topic.partitions)]
        topics[name] = DiscoveredTopic(
            name,
            topic.topic_id,
            tuple(
                replace(found[tp], shared_end=shared.offsets.get(tp))
                for tp in partitions
                if tp in found and tp not in shared.errors
            ),
            {tp.partition: why for tp, why in errors.items() if tp.topic == name},
        )
    return Discovery(metadata.cluster_id, topics, {name: topic.error for name, topic in wanted.items() if topic.error})


def _doubts(
    topics: Mapping[str, TopicMetadata], found: Mapping[TopicPartition, PartitionOffsets], state: LoaderState
) -> dict[TopicPartition, Doubt]:
    """The partitions whose logs may be others than those that were read; of a re-created topic that is known anyway."""
    doubts, others = {}, {}
    for tp, offsets in found.items():
        known = state.topics.get(tp.topic)
        topic_id = topics[tp.topic].topic_id
        if known is None or (known.topic_id and topic_id not in ("", known.topic_id)):
            continue
        partition = known.partitions.get(tp.partition)
        if partition is None:
            continue
        doubt = Doubt(partition, offsets.leader_epoch, bool(topic_id and known.topic_id))
        if is_doubtful(partition, offsets.leader_epoch, offsets.start, offsets.end):
            doubts[tp] = doubt
        elif offsets.start < partition.next_offset:
            others[tp] = doubt
    # A topic is made anew as a whole, and not every partition need tell: its epochs may be what they were.
    anew = {tp.topic for tp, doubt in doubts.items() if doubt.is_made_anew}
    of_new = {tp: doubt for tp, doubt in (doubts | others).items() if tp.topic in anew}
    return doubts | {tp: replace(doubt, is_of_new_topic=True) for tp, doubt in of_new.items()}
