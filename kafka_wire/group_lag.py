"""The lags of consumer groups: the offsets of each partition that a group has not committed yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.kafka_wire.admin import GroupDescription, groups
from headrace.kafka_wire.cluster import KafkaCluster
from headrace.kafka_wire.errors import KafkaUnavailable
from headrace.kafka_wire.topic_partition import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """The lag of a consumer group in one partition. `committed` is None if the group has no committed offset there.
    `end` is the end offset of the partition; None if unknown. `member` is the id of the member to which the partition
    is assigned, or ""."""

    topic: str
    partition: int
    committed: int | None
    end: int | None
    member: str

    @property
    def lag(self) -> int | None:
        return None if self.committed is None or self.end is None else max(self.end - self.committed, 0)


@dataclass(frozen=True, slots=True)
class GroupLag:
    """A group and its partitions: those with a committed offset, and those assigned to a member."""

    group: GroupDescription
    partitions: tuple[PartitionLag, ...]

    @property
    def lag(self) -> int | None:
        """The sum of the known lags; None if none is known."""
        known = [one.lag for one in self.partitions if one.lag is not None]
        return sum(known) if known else None


@dataclass(frozen=True, slots=True)
class GroupLags:
    """The groups by name, and sentences about those that could not be read."""

    groups: tuple[GroupLag, ...]
    notes: tuple[str, ...]


def group_lags(cluster: KafkaCluster, only: str | None = None) -> GroupLags:
    """Returns the groups of all brokers with their members and all their partitions.

    Args:
        only: name of the only group to return; None for all.

    Raises:
        KafkaUnavailable: no broker could be read.
    """
    found, notes = _groups(cluster, only=only)
    topic_partitions = sorted({tp for one in found for tp in _topic_partitions(one)})
    ends = cluster.lookup_offsets(topic_partitions, "latest", read_committed=False)
    lags = tuple(_group_lag(one, ends.offsets) for one in found)
    return GroupLags(lags, (*notes, *(f"{tp.topic}-{tp.partition}: {text}" for tp, text in ends.errors.items())))


def topic_group_lags(cluster: KafkaCluster, ends: Mapping[TopicPartition, int | None]) -> GroupLags:
    """Returns the groups with a committed offset in one of the given partitions, without members. Sends two requests to
    each broker, and a further one for each 500 groups that it coordinates.

    Args:
        ends: the partitions with their ends, None for an unknown end.

    Raises:
        KafkaUnavailable: no broker could be read.
    """
    found, notes = _groups(cluster, topic_partitions=sorted(ends))
    return GroupLags(tuple(_group_lag(one, ends) for one in found if one.committed), tuple(notes))


def _groups(
    cluster: KafkaCluster, *, only: str | None = None, topic_partitions: Sequence[TopicPartition] | None = None
) -> tuple[list[GroupDescription], list[str]]:
    cluster.metadata(())
    by_node, errors = cluster.request_all(
        lambda connection: groups(
            connection, only, with_members=topic_partitions is None, topic_partitions=topic_partitions
        )
    )
    if not by_node and errors:
        raise KafkaUnavailable("; ".join(errors.values()))
    found = sorted((one for of_node in by_node.values() for one in of_node), key=lambda one: one.group_id)
    notes = [f"groups of node {node}: {error}" for node, error in errors.items()]
    return found, notes + [f"group {one.group_id}: {one.error}" for one in found if one.error]


def _topic_partitions(group: GroupDescription) -> set[TopicPartition]:
    return {*group.committed, *(tp for member in group.members for tp in member.assigned)}


def _group_lag(group: GroupDescription, ends: Mapping[TopicPartition, int | None]) -> GroupLag:
    members = {tp: member.member_id for member in group.members for tp in member.assigned}
    return GroupLag(
        group,
        tuple(
            PartitionLag(tp.topic, tp.partition, group.committed.get(tp), ends.get(tp), members.get(tp, ""))
            for tp in sorted(_topic_partitions(group))
        ),
    )
