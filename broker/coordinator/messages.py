"""What members ask of a group and what they are answered, as values: JoinGroup and SyncGroup without their versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.broker.coordinator.members import Protocol, Ticket
from headrace.broker.protocol.error_codes import ErrorCode

NO_GENERATION = -1


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """`member_id` is "" for a newcomer. `needs_known_id`: a newcomer is first told an id and joins again with it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    needs_known_id: bool


@dataclass(frozen=True, slots=True)
class JoinedMember:
    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinResult:
    """`members` is for the leader alone; with `skip_assignment` it is only told, and need not assign."""

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
    """`protocol_type` and `protocol` are None where the version does not tell them; `assignments` is the leader's."""

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
    """The answer to the request that holds `ticket`."""

    ticket: Ticket
    result: JoinResult | SyncResult


@dataclass(frozen=True, slots=True)
class Outcome:
    """What has to happen after a call: store the group if asked to, then send the replies."""

    replies: tuple[Reply, ...] = ()
    must_store: bool = False
