"""Heartbeat request and result of consumer groups (KIP-848), independent of the wire format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.broker.coordinator.assignors import ASSIGNORS, TopicIdPartition
from headrace.broker.coordinator.consumer_members import JOIN_EPOCH
from headrace.broker.coordinator.group import NAME_CHARS_MAX
from headrace.broker.errors import RequestRefused
from headrace.broker.protocol.error_codes import ErrorCode

SUBSCRIPTION_TOPICS_MAX = 10_000
"""Maximum number of topic names in a member's subscription."""


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    """A heartbeat of a member. A field is None if it has not changed since the last heartbeat. `can_see_topic` returns
    whether the client has any permission on a topic."""

    member_id: str
    epoch: int
    client_id: str = ""
    client_host: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int | None = None
    topics: frozenset[str] | None = None
    pattern: str | None = None  # "" removes the pattern
    assignor: str | None = None
    owned: frozenset[TopicIdPartition] | None = None
    can_see_topic: Callable[[str], bool] = lambda name: True

    @property
    def needs_full_response(self) -> bool:
        """True if the member may have missed earlier responses: it joins, or sends its rebalance timeout, subscription
        and owned partitions. The response then contains the assignment."""
        is_subscription = self.topics is not None or self.pattern is not None
        is_full = self.rebalance_timeout_ms is not None and is_subscription and self.owned is not None
        return self.epoch == JOIN_EPOCH or is_full


@dataclass(frozen=True, slots=True)
class HeartbeatResult:
    """Response to a heartbeat. `assigned` is None if it need not be sent: the assignment has not changed since the last
    response and the request needs no full response, or the member leaves."""

    member_id: str
    epoch: int
    assigned: frozenset[TopicIdPartition] | None = None


def check_heartbeat(request: HeartbeatRequest) -> None:
    """Validates the fields of a heartbeat.

    Raises:
        RequestRefused: a field is invalid.
    """
    if not request.member_id or request.epoch < 0 or "" in (request.instance_id, request.rack_id):
        raise RequestRefused(
            ErrorCode.INVALID_REQUEST, "the member, instance or rack id is empty, or the member epoch is negative"
        )
    names = (request.member_id, request.instance_id, request.rack_id, request.pattern, *(request.topics or ()))
    if any(name is not None and len(name) > NAME_CHARS_MAX for name in names):
        raise RequestRefused(
            ErrorCode.INVALID_REQUEST,
            f"the member, instance or rack id, a topic name or the pattern has more than {NAME_CHARS_MAX} characters",
        )
    if request.topics is not None and len(request.topics) > SUBSCRIPTION_TOPICS_MAX:
        raise RequestRefused(
            ErrorCode.INVALID_REQUEST, f"the subscription has more than {SUBSCRIPTION_TOPICS_MAX} topics"
        )
    if request.assignor is not None and request.assignor not in ASSIGNORS:
        raise RequestRefused(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"assignor {request.assignor!r} does not exist; use {' or '.join(ASSIGNORS)}",
        )
