"""The members of one group: who they are, which ids are theirs, and which protocol all of them know.

Static members are known by an instance id, which at any time stands for one member id (KIP-345); who comes with an
older member id is fenced. A newcomer may be promised a member id before it joins with it (KIP-394).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from headrace.broker.errors import RequestRefused
from headrace.broker.protocol.error_codes import ErrorCode

Ticket = int


@dataclass(frozen=True, slots=True)
class Protocol:
    """One way of assigning that a member can do, with what it tells the leader for it."""

    name: str
    metadata: bytes


@dataclass(slots=True)
class Member:
    """`deadline_ms` is when its session ends unless it is heard of; a member that waits for us is alive."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    deadline_ms: int
    assignment: bytes = b""
    join_ticket: Ticket | None = None
    sync_ticket: Ticket | None = None

    @property
    def waits(self) -> bool:
        return self.join_ticket is not None or self.sync_ticket is not None

    def metadata(self, protocol: str | None) -> bytes:
        return next((each.metadata for each in self.protocols if each.name == protocol), b"")

    def touch(self, now_ms: int) -> None:
        self.deadline_ms = now_ms + self.session_timeout_ms

    def is_silent(self, now_ms: int) -> bool:
        """Has its session ended without a word of it?"""
        return self.deadline_ms <= now_ms and not self.waits


class Members(Mapping[str, Member]):
    """Member id -> member, in the order they came. `promised` has ids given out but not joined with -> deadline."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._static_ids: dict[str, str] = {}  # instance id -> member id
        self.promised: dict[str, int] = {}

    def __getitem__(self, member_id: str) -> Member:
        return self._members[member_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def add(self, member: Member) -> None:
        """Takes in a member; a static one from now on owns its instance id."""
        self._members[member.member_id] = member
        if member.instance_id is not None:
            self._static_ids[member.instance_id] = member.member_id

    def remove(self, member: Member) -> None:
        del self._members[member.member_id]
        if member.instance_id is not None:
            self._static_ids.pop(member.instance_id, None)

    def owner_of(self, instance_id: str | None) -> Member | None:
        """The static member of this instance id."""
        member_id = self._static_ids.get(instance_id) if instance_id is not None else None
        return self._members[member_id] if member_id is not None else None

    def known(self, member_id: str, instance_id: str | None) -> Member:
        """Raises:
        RequestRefused: there is no such member, or another one has taken over its instance id.
        """
        owner = self.owner_of(instance_id)
        if owner is not None and owner.member_id != member_id:
            raise RequestRefused(ErrorCode.FENCED_INSTANCE_ID, f"{instance_id} is now {owner.member_id}")
        member = self._members.get(member_id)
        if member is None:
            raise RequestRefused(ErrorCode.UNKNOWN_MEMBER_ID, f"no member {member_id!r}")
        return member

    @property
    def longest_rebalance_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self._members.values()), default=0)

    def chosen_protocol(self) -> str:
        """Each member votes for the first of its protocols that all know; ties go to the first by the first member."""
        common = common_protocols(self._members.values())
        votes = Counter(
            next(each.name for each in member.protocols if each.name in common) for member in self._members.values()
        )
        first = next(iter(self._members.values()))
        order = [protocol.name for protocol in first.protocols if protocol.name in common]
        return max(order, key=lambda name: votes[name])


def common_protocols(members: Iterable[Member]) -> set[str]:
    """The names of the protocols that each of these members, of which there are some, knows."""
    return set.intersection(*({protocol.name for protocol in member.protocols} for member in members))
