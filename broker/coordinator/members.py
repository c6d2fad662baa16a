"""Members of a classic group: member ids, static members and shared protocols.

A static member has an instance id, which belongs to one member id at a time (KIP-345); an older member id is fenced. A
new member may receive its member id before it joins (KIP-394).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from headrace.broker.errors import RequestRefused
from headrace.broker.protocol.error_codes import ErrorCode

Ticket = int
"""Number that identifies a JoinGroup or SyncGroup request while it waits for its result."""


@dataclass(frozen=True, slots=True)
class MemberProtocol:
    """An assignment protocol that a member supports, with the member's metadata for the leader."""

    name: str
    metadata: bytes


@dataclass(slots=True)
class GroupMember:
    """A member of a classic group. Its session ends at `deadline_ms` unless a heartbeat or another request of the
    member extends it, or a request of the member waits for a response."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[MemberProtocol, ...]
    deadline_ms: int
    assignment: bytes = b""
    join_ticket: Ticket | None = None
    sync_ticket: Ticket | None = None

    @property
    def is_waiting(self) -> bool:
        return self.join_ticket is not None or self.sync_ticket is not None

    def metadata(self, protocol: str | None) -> bytes:
        return next((each.metadata for each in self.protocols if each.name == protocol), b"")

    def touch(self, now_ms: int) -> None:
        self.deadline_ms = now_ms + self.session_timeout_ms

    def is_expired(self, now_ms: int) -> bool:
        """True if the member's session has ended at the time `now_ms` (monotonic clock), and no request of the member
        waits for a response."""
        return self.deadline_ms <= now_ms and not self.is_waiting


class GroupMembers(Mapping[str, GroupMember]):
    """Members of a group by member id, in the order in which they joined. `pending_member_ids` maps each member id that
    the broker has assigned, but with which no client has joined yet, to its deadline."""

    def __init__(self) -> None:
        self._members: dict[str, GroupMember] = {}
        self._static_ids: dict[str, str] = {}  # instance id -> member id
        self.pending_member_ids: dict[str, int] = {}

    def __getitem__(self, member_id: str) -> GroupMember:
        return self._members[member_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def add(self, member: GroupMember) -> None:
        """Adds a member; a static member becomes the owner of its instance id."""
        self._members[member.member_id] = member
        if member.instance_id is not None:
            self._static_ids[member.instance_id] = member.member_id

    def remove(self, member: GroupMember) -> None:
        del self._members[member.member_id]
        if member.instance_id is not None:
            self._static_ids.pop(member.instance_id, None)

    def static_member(self, instance_id: str | None) -> GroupMember | None:
        """Returns the static member with this instance id, or None."""
        member_id = self._static_ids.get(instance_id) if instance_id is not None else None
        return self._members[member_id] if member_id is not None else None

    def require(self, member_id: str, instance_id: str | None) -> GroupMember:
        """Returns the member with this id.

        Raises:
            RequestRefused: the member does not exist, or another one has taken over its instance id.
        """
        owner = self.static_member(instance_id)
        if owner is not None and owner.member_id != member_id:
            raise RequestRefused(
                ErrorCode.FENCED_INSTANCE_ID,
                f"instance id {instance_id} is now in use by member {owner.member_id}; give each consumer its own "
                "group.instance.id",
            )
        member = self._members.get(member_id)
        if member is None:
            raise RequestRefused(ErrorCode.UNKNOWN_MEMBER_ID, f"member {member_id!r} does not exist")
        return member

    @property
    def rebalance_timeout_ms_max(self) -> int:
        return max((member.rebalance_timeout_ms for member in self._members.values()), default=0)

    def select_protocol(self) -> str:
        """Returns the protocol with the most votes. Each member votes for the first of its protocols that all members
        support. If two have equally many votes, the one that the first member prefers is used."""
        common = shared_protocols(self._members.values())
        votes = Counter(
            next(each.name for each in member.protocols if each.name in common) for member in self._members.values()
        )
        first = next(iter(self._members.values()))
        order = [protocol.name for protocol in first.protocols if protocol.name in common]
        return max(order, key=lambda name: votes[name])


def shared_protocols(members: Iterable[GroupMember]) -> set[str]:
    """Returns the names of the assignment protocols that all members support; there must be at least one member."""
    return set.intersection(*({protocol.name for protocol in member.protocols} for member in members))
