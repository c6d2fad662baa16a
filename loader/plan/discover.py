"""Finds the topics on the brokers, and the offsets of their partitions.

The offsets are read before any request to the registry, so that every message in a planned range is older than the
schemas of the plan.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol

from headrace.kafka_wire.requests import TOPIC_AUTHORIZATION_FAILED
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.commit.state import EMPTY, LoaderState
from headrace.loader.plan.divergence import SuspectPartition, is_suspect, shared_ends

if TYPE_CHECKING:
    from headrace.kafka_wire.cluster import ClusterMetadata, EpochEndLookup, EpochQuery, OffsetLookup, TopicMetadata

NEVER_LOADED = re.compile(r"__.*|_schemas")
"""Names of topics that are never loaded: those that begin with `__`, as Kafka's internal topics do, and the topic in
which a Confluent registry stores its schemas."""

TOPIC_NAME_PATTERN = re.compile(r"(?:[A-Za-z0-9._-]|\\[._-])+")
"""Regular expressions that are names of topics, with or without escapes. A dot counts as itself."""


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """The offsets `[start, end)` of a partition that can be read now. `end` is the last stable offset (or `start`, if
    that is greater), so no transaction in this range is open.

    Offsets from `end` to `high_watermark` belong to an open transaction or come after its start, and cannot be read
    yet. `high_watermark` is requested before `end`. `shared_end` is the offset up to which the partition's log still
    has the batches that were loaded; None if this was not checked or is unknown.
    """

    partition: int
    leader_epoch: int
    start: int
    end: int
    high_watermark: int
    shared_end: int | None = None

    @property
    def held_back(self) -> int:
        """The number of offsets that the first open transaction makes unreadable."""
        return max(0, self.high_watermark - self.end)


@dataclass(frozen=True, slots=True)
class DiscoveredTopic:
    """A topic on the brokers. `topic_id` is "" if the broker reports none. `errors` has the partitions that are missing
    in `partitions`, each with the reason why its offsets or leader epochs could not be fetched."""

    topic: str
    topic_id: str
    partitions: tuple[PartitionOffsets, ...]
    errors: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Discovery:
    """The result of `discover`. `unusable` are topics that should be loaded but that the cluster cannot serve now, with
    the reasons."""

    cluster_id: str
    topics: Mapping[str, DiscoveredTopic]
    unusable: Mapping[str, str]


class Cluster(Protocol):
    """The requests that the driver sends to the Kafka cluster; implemented by `kafka_wire.cluster`."""

    def metadata(self, topics: Sequence[str] | None = None) -> ClusterMetadata: ...

    def lookup_offsets(
        self,
        topic_partitions: Iterable[TopicPartition],
        position: Literal["earliest", "latest"],
        read_committed: bool = True,
    ) -> OffsetLookup: ...

    def lookup_epoch_ends(self, queries: Mapping[TopicPartition, EpochQuery]) -> EpochEndLookup: ...

    def commit_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, str]: ...


def is_wanted(topic: str, include: Sequence[str], exclude: Sequence[str]) -> bool:
    """Whether the loader should load a topic of this name.

    Args:
        include: regular expressions; the whole name must match one of them.
        exclude: regular expressions; the whole name must match none of them.
    """
    if NEVER_LOADED.fullmatch(topic):
        return False
    return any(re.fullmatch(p, topic) for p in include) and not any(re.fullmatch(p, topic) for p in exclude)


def discover(cluster: Cluster, include: Sequence[str], exclude: Sequence[str], state: LoaderState = EMPTY) -> Discovery:
    """Fetches the topics of the cluster, and the offsets of the topics to be loaded.

    Args:
        include: regular expressions of topics to load; the whole name must match one of them.
        exclude: regular expressions of topics not to load, also if `include` matches.
        state: state of the commit log; used to detect logs that have diverged.

    Raises:
        KafkaUnavailable: no broker answers.
    """
    metadata = cluster.metadata()
    wanted = {
        name: topic
        for name, topic in sorted(metadata.topics.items())
        if not topic.is_internal and is_wanted(name, include, exclude)
    }
    wanted |= _forbidden_topics(cluster, _unlisted_topics(metadata.topics, include, exclude, state))
    usable = {name: topic for name, topic in wanted.items() if not topic.error}
    topic_partitions = [
        TopicPartition(name, number) for name, topic in usable.items() for number in sorted(topic.partitions)
    ]
    # A partition that failed once is not requested again.
    high_watermarks = cluster.lookup_offsets(topic_partitions, "latest", read_committed=False)
    ends = cluster.lookup_offsets(high_watermarks.offsets, "latest")
    starts = cluster.lookup_offsets(ends.offsets, "earliest")
    found = {
        # Retention may have moved the log start offset past the end that was read a moment earlier.
        tp: PartitionOffsets(
            partition=tp.partition,
            leader_epoch=usable[tp.topic].partitions[tp.partition].leader_epoch,
            start=start,
            end=max(start, ends.offsets[tp]),
            high_watermark=high_watermarks.offsets[tp],
        )
        for tp, start in starts.offsets.items()
    }
    shared = shared_ends(cluster, _suspect_partitions(usable, found, state))
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
            {tp.partition: reason for tp, reason in errors.items() if tp.topic == name},
        )
    return Discovery(metadata.cluster_id, topics, {name: topic.error for name, topic in wanted.items() if topic.error})


def _unlisted_topics(
    listed: Container[str], include: Sequence[str], exclude: Sequence[str], state: LoaderState
) -> tuple[str, ...]:
    """Returns the topics that should be loaded and that the brokers did not list: topics with commits, and topics that
    the settings name in full.

    Args:
        listed: the names that the brokers listed.
        include: regular expressions of topics to load.
        exclude: regular expressions of topics not to load.
        state: state of the commit log.
    """
    named = {pattern.replace("\\", "") for pattern in include if TOPIC_NAME_PATTERN.fullmatch(pattern)}
    unlisted = {name for name in {*state.topics, *named} if name not in listed}
    return tuple(sorted(name for name in unlisted if is_wanted(name, include, exclude)))


def _forbidden_topics(cluster: Cluster, names: Sequence[str]) -> dict[str, TopicMetadata]:
    """Returns those of the topics that exist and that the loader may not read. Brokers leave them out of the list of
    all topics, and report the missing permission only for a topic that is requested by name."""
    if not names:
        return {}
    topics = cluster.metadata(names).topics
    return {name: topic for name, topic in topics.items() if topic.error_code == TOPIC_AUTHORIZATION_FAILED}


def _suspect_partitions(
    topics: Mapping[str, TopicMetadata], found: Mapping[TopicPartition, PartitionOffsets], state: LoaderState
) -> dict[TopicPartition, SuspectPartition]:
    """Returns the partitions with logs that may have diverged from the logs that were loaded. Excludes topics with a
    new topic id, since their logs are new anyway.

    Args:
        topics: the topics on the brokers.
        found: the offsets on the brokers.
        state: the state of the commit log, with the offsets and leader epochs that were loaded.
    """
    suspects, others = {}, {}
    for tp, offsets in found.items():
        known = state.topics.get(tp.topic)
        topic_id = topics[tp.topic].topic_id
        if known is None or (known.topic_id and topic_id not in ("", known.topic_id)):
            continue
        partition = known.partitions.get(tp.partition)
        if partition is None:
            continue
        suspect = SuspectPartition(partition, offsets.leader_epoch, bool(topic_id and known.topic_id))
        if is_suspect(partition, offsets.leader_epoch, offsets.start, offsets.end):
            suspects[tp] = suspect
        elif offsets.start < partition.next_offset:
            others[tp] = suspect
    # If one partition shows that the topic was re-created, so were all, although the epochs of some may be equal by
    # chance.
    recreated = {tp.topic for tp, suspect in suspects.items() if suspect.is_recreated}
    of_recreated = {tp: suspect for tp, suspect in (suspects | others).items() if tp.topic in recreated}
    return suspects | {tp: replace(suspect, is_of_new_topic=True) for tp, suspect in of_recreated.items()}
