"""Members of a consumer group (KIP-848): subscription, current assignment and the next assignment."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from enum import IntEnum

from headrace.broker.coordinator.assignors import TopicIdPartition

JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH = 0, -1, -2
"""Special member epochs in requests: join, leave, and leave of a static member that will return within its session
timeout."""


class MemberState(IntEnum):
    """Progress of a member toward its target assignment, with Kafka's numbers."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1  # must release partitions before it moves to the next epoch
    UNRELEASED_PARTITIONS = 2  # waits for partitions that other members must release


@dataclass(frozen=True, slots=True)
class CurrentAssignment:
    """The partitions that a member may use, and its progress toward the target assignment.

    Attributes:
        epoch: the member epoch.
        assigned: its partitions, each with the member epoch in which it was assigned.
        revoking: partitions that the member must release but still owns, each with the member epoch in which it was
            assigned.
    """

    epoch: int
    state: MemberState
    assigned: dict[TopicIdPartition, int]
    revoking: dict[TopicIdPartition, int]


@dataclass(slots=True)
class ConsumerMember:
    """A member of a consumer group.

    `assigned` and `revoking` are its current assignment (see `CurrentAssignment`). The member owns the partitions in
    `assigned` and those in `revoking`, and no other member owns any of them.
    """

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = 0
    topics: frozenset[str] = frozenset()  # by name
    pattern: str | None = None
    matched: frozenset[str] = frozenset()  # topics that match the pattern
    matched_at_change: int = -1  # `TopicCatalog.changes` when the pattern was last matched
    assignor: str | None = None
    epoch: int = JOIN_EPOCH
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: dict[TopicIdPartition, int] = field(default_factory=dict)
    revoking: dict[TopicIdPartition, int] = field(default_factory=dict)
    session_deadline_ms: int = 0
    revocation_deadline_ms: int = 0  # applies while partitions are being revoked

    @property
    def subscribed(self) -> frozenset[str]:
        return self.topics | self.matched

    @property
    def is_temporarily_absent(self) -> bool:
        """True if this static member has left and announced that it will return."""
        return self.epoch == LEAVE_STATIC_EPOCH

    @property
    def current_assignment(self) -> CurrentAssignment:
        return CurrentAssignment(self.epoch, self.state, self.assigned, self.revoking)

    @property
    def deadline_ms(self) -> int:
        if self.state is MemberState.UNREVOKED_PARTITIONS:
            return min(self.session_deadline_ms, self.revocation_deadline_ms)
        return self.session_deadline_ms


def next_assignment(
    member: ConsumerMember,
    target: Set[TopicIdPartition],
    target_epoch: int,
    owned: Set[TopicIdPartition] | None,
    owned_by_others: Set[TopicIdPartition],
) -> CurrentAssignment:
    """Returns the assignment that a member has after its heartbeat, one step closer to its target (KIP-848, Rebalance
    Process). First the member releases the partitions that are not in the target; until then it gets no others. Then it
    gets the partitions of the target that no other member owns.

    Args:
        target: the partitions that the member shall have.
        target_epoch: the epoch for which the target was computed.
        owned: partitions that the member reports as owned; None if it reports none in this heartbeat.
        owned_by_others: partitions of the target that other members still own.
    """
    if member.state is MemberState.UNREVOKED_PARTITIONS and (owned is None or owned & member.revoking.keys()):
        return member.current_assignment
    retained = {partition: epoch for partition, epoch in member.assigned.items() if partition in target}
    revoking = {partition: epoch for partition, epoch in member.assigned.items() if partition not in target}
    if revoking and (owned is None or owned & revoking.keys()):
        return CurrentAssignment(member.epoch, MemberState.UNREVOKED_PARTITIONS, retained, revoking)
    free = {
        partition: target_epoch
        for partition in sorted(target)
        if partition not in retained and partition not in owned_by_others
    }
    state = MemberState.UNRELEASED_PARTITIONS if owned_by_others else MemberState.STABLE
    return CurrentAssignment(target_epoch, state, {**retained, **free}, {})
