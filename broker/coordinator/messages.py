"""JoinGroup and SyncGroup requests and results of the classic protocol, independent of the wire format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.broker.coordinator.members import MemberProtocol, Ticket
from headrace.broker.protocol.error_codes import ErrorCode

NO_GENERATION = -1


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A JoinGroup request. `member_id` is "" for a new member. With `requires_known_member_id`, a new member without an
    instance id first receives a member id and joins again with it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[MemberProtocol, ...]
    requires_known_member_id: bool


@dataclass(frozen=True, slots=True)
class JoinedMember:
    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinResult:
    """Result of a JoinGroup request. `members` is set only in the leader's result. With `skip_assignment` the leader
    need not assign partitions."""

    error: ErrorCode
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """A SyncGroup request. `protocol_type` and `protocol` are None in versions without these fields; `assignments` is
    set only by the leader."""

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class SyncResult:
    error: ErrorCode
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """The result for the waiting JoinGroup or SyncGroup request that `ticket` identifies."""

    ticket: Ticket
    result: JoinResult | SyncResult


@dataclass(frozen=True, slots=True)
class GroupActions:
    """Actions that the caller of a group's method must perform: store the group if `must_store`, then send the
    responses in `replies`, with an error if the group could not be stored."""

    replies: tuple[Reply, ...] = ()
    must_store: bool = False
