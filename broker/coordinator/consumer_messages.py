"""What members ask of a consumer group of KIP-848 and what they are answered, as values: the heartbeat."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.broker.coordinator.assignors import ASSIGNORS, TopicIdPartition
from headrace.broker.coordinator.consumer_members import JOINS
from headrace.broker.coordinator.group import NAME_CHARS_MAX
from headrace.broker.errors import RequestRefused
from headrace.broker.protocol.error_codes import ErrorCode

SUBSCRIPTION_TOPICS_MAX = 10_000
"""Of one member, by name."""


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    """What is None did not change since the last heartbeat. `sees` says of a topic whether this client may know it."""

    member_id: str
    epoch: int
    client_id: str = ""
    client_host: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int | None = None
    topics: frozenset[str] | None = None
    pattern: str | None = None  # "" is none any more
    assignor: str | None = None
    owned: frozenset[TopicIdPartition] | None = None
    sees: Callable[[str], bool] = lambda name: True

    @property
    def tells_everything(self) -> bool:
        """Does it come from a member that has not heard of us for a while, perhaps?"""
        is_subscription = self.topics is not None or self.pattern is not None
        is_full = self.rebalance_timeout_ms is not None and is_subscription and self.owned is not None
        return self.epoch == JOINS or is_full


@dataclass(frozen=True, slots=True)
class HeartbeatResult:
    """`assigned` is None where it is as it was told before."""

    member_id: str
    epoch: int
    assigned: frozenset[TopicIdPartition] | None = None


def check_heartbeat(request: HeartbeatRequest) -> None:
    """Raises:
    RequestRefused: it can be of no member.
    """
    if not request.member_id or request.epoch < 0 or "" in (request.instance_id, request.rack_id):
        raise RequestRefused(ErrorCode.INVALID_REQUEST, "an id is empty, or the epoch negative")
    names = (request.member_id, request.instance_id, request.rack_id, request.pattern, *(request.topics or ()))
    if any(name is not None and len(name) > NAME_CHARS_MAX for name in names):
        raise RequestRefused(ErrorCode.INVALID_REQUEST, f"a name of more than {NAME_CHARS_MAX} characters")
    if request.topics is not None and len(request.topics) > SUBSCRIPTION_TOPICS_MAX:
        raise RequestRefused(ErrorCode.INVALID_REQUEST, f"more than {SUBSCRIPTION_TOPICS_MAX} topics")
    if request.assignor is not None and request.assignor not in ASSIGNORS:
        raise RequestRefused(
            ErrorCode.UNSUPPORTED_ASSIGNOR, f"assignor {request.assignor!r}; there are {', '.join(ASSIGNORS)}"
        )
