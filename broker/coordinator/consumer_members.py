"""Members of a consumer group of KIP-848: what they told, what they have, and what they are to have next."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from enum import IntEnum

from headrace.broker.coordinator.assignors import TopicIdPartition

JOINS, LEAVES, LEAVES_FOR_A_WHILE = 0, -1, -2
"""Member epochs of requests. The last one is a static member's that will be back within its session."""


class MemberState(IntEnum):
    """Numbered as Kafka's records have them."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1  # it has to give up partitions before it goes on to the next epoch
    UNRELEASED_PARTITIONS = 2  # it waits for partitions that others have to give up


@dataclass(frozen=True, slots=True)
class Step:
    """Where a member stands on the way to its target."""

    epoch: int
    state: MemberState
    assigned: dict[TopicIdPartition, int]
    revoking: dict[TopicIdPartition, int]


@dataclass(slots=True)
class ConsumerMember:
    """`assigned` has for each partition the member epoch in which it came; `revoking` are those to be given up.

    What is in either of them is the member's, and nobody else's.
    """

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = 0
    topics: frozenset[str] = frozenset()  # by name
    pattern: str | None = None
    matched: frozenset[str] = frozenset()  # topics that the pattern stands for
    matched_at: int = -1  # which of the changes of topics was the last one when it was looked for them
    assignor: str | None = None
    epoch: int = JOINS
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: dict[TopicIdPartition, int] = field(default_factory=dict)
    revoking: dict[TopicIdPartition, int] = field(default_factory=dict)
    session_deadline_ms: int = 0
    revocation_deadline_ms: int = 0  # counts while partitions are unrevoked

    @property
    def subscribed(self) -> frozenset[str]:
        return self.topics | self.matched

    @property
    def is_away(self) -> bool:
        """Has this static member said that it will be back?"""
        return self.epoch == LEAVES_FOR_A_WHILE

    @property
    def step(self) -> Step:
        return Step(self.epoch, self.state, self.assigned, self.revoking)

    @property
    def deadline_ms(self) -> int:
        if self.state is MemberState.UNREVOKED_PARTITIONS:
            return min(self.session_deadline_ms, self.revocation_deadline_ms)
        return self.session_deadline_ms


def next_step(
    member: ConsumerMember,
    target: Set[TopicIdPartition],
    target_epoch: int,
    owned: Set[TopicIdPartition] | None,
    taken: Set[TopicIdPartition],
) -> Step:
    """Brings a member that is not there yet as far towards its target as the others let it (KIP-848, Rebalance
    Process).

    Args:
        owned: what it says that it reads, None where it says nothing about that.
        taken: partitions of the target that are others'.
    """
    if member.state is MemberState.UNREVOKED_PARTITIONS and (owned is None or owned & member.revoking.keys()):
        return member.step
    kept = {partition: epoch for partition, epoch in member.assigned.items() if partition in target}
    revoking = {partition: epoch for partition, epoch in member.assigned.items() if partition not in target}
    if revoking and (owned is None or owned & revoking.keys()):
        return Step(member.epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
    free = {partition: target_epoch for partition in sorted(target) if partition not in kept and partition not in taken}
    state = MemberState.UNRELEASED_PARTITIONS if taken else MemberState.STABLE
    return Step(target_epoch, state, {**kept, **free}, {})
