"""The state machine of one consumer group of KIP-848: no I/O, no clock.

There is one request, the heartbeat, and every heartbeat is answered at once. Three epochs, which only grow, say where
everybody stands: the group's goes up whenever members, subscriptions or topics change; the target assignment is of the
group epoch for which it was made, at the next heartbeat of anybody; a member takes over the target's epoch when it has
given up what is no longer its own. A partition is a member's from when the member is told of it until the member says
that it has given it up, or is gone: so no two members ever have one at the same time.

Who does not answer in its session, or does not give up partitions in its rebalance timeout, is removed by `tick`, and
finds out by its next heartbeat.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Set
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from headrace.broker.coordinator.assignors import (
    ASSIGNORS,
    DEFAULT_ASSIGNOR,
    SubscribedTopic,
    TopicIdPartition,
)
from headrace.broker.coordinator.consumer_members import (
    JOINS,
    LEAVES,
    LEAVES_FOR_A_WHILE,
    ConsumerMember,
    MemberState,
    next_step,
)
from headrace.broker.coordinator.consumer_messages import HeartbeatRequest, HeartbeatResult, check_heartbeat
from headrace.broker.coordinator.group import MEMBERS_MAX, REBALANCE_TIMEOUT_MS_MIN
from headrace.broker.coordinator.messages import Outcome
from headrace.broker.coordinator.topic_patterns import matching_topics
from headrace.broker.errors import RequestRefused
from headrace.broker.protocol.error_codes import ErrorCode


class ConsumerGroupState(StrEnum):
    """Named as ConsumerGroupDescribe shows them."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class TopicSeen(Protocol):
    @property
    def topic_id(self) -> uuid.UUID: ...

    @property
    def partitions(self) -> int: ...


class Topics(Protocol):
    """The topics there are; `changes` counts how often that changed."""

    changes: int

    def get(self, name: str) -> TopicSeen | None: ...

    def names(self) -> Iterable[str]: ...


@dataclass(slots=True)
class Unstored:
    """What of a group has changed since it was stored: member ids, and whether the epochs did."""

    epochs: bool = False
    members: set[str] = field(default_factory=set)
    targets: set[str] = field(default_factory=set)
    steps: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.epochs or self.members or self.targets or self.steps)

    def clear(self) -> None:
        self.epochs = False
        self.members, self.targets, self.steps = set(), set(), set()


@dataclass(slots=True)
class ConsumerGroup:
    """See the module. What raises `RequestRefused` leaves the group as it was."""

    group_id: str
    session_timeout_ms: int
    epoch: int = 0
    target_epoch: int = 0
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    target: dict[str, frozenset[TopicIdPartition]] = field(default_factory=dict)
    unstored: Unstored = field(default_factory=Unstored)
    _static_ids: dict[str, str] = field(default_factory=dict)  # instance id -> member id
    _owners: dict[TopicIdPartition, str] = field(default_factory=dict)
    _subscribers: dict[str, dict[str, None]] = field(default_factory=dict)  # topic -> member ids
    _topics: dict[str, TopicSeen] = field(default_factory=dict)  # those of the subscriptions that are there
    _topics_seen: int = -1  # `changes` when `_topics` was made; -1: it is to be made anew
    _is_deleted: bool = False

    @property
    def state(self) -> ConsumerGroupState:
        if self._is_deleted:
            return ConsumerGroupState.DEAD
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.target_epoch < self.epoch:
            return ConsumerGroupState.ASSIGNING
        settled = (MemberState.STABLE, self.target_epoch)
        if any((member.state, member.epoch) != settled for member in self.members.values()):
            return ConsumerGroupState.RECONCILING
        return ConsumerGroupState.STABLE

    @property
    def assignor(self) -> str:
        """The one that most members prefer."""
        votes = Counter(member.assignor for member in self.members.values() if member.assignor is not None)
        return max(ASSIGNORS, key=lambda name: votes[name]) if votes else DEFAULT_ASSIGNOR

    @property
    def subscribed(self) -> Set[str]:
        """Topics that some member reads."""
        return self._subscribers.keys()

    # Requests

    def heartbeat(self, request: HeartbeatRequest, topics: Topics, now_ms: int) -> HeartbeatResult:
        """A member joins, shows that it lives, tells what it gave up, or leaves; it learns what it is to read.

        Raises:
            RequestRefused: it is no member of this epoch, or what it asks for is not allowed.
        """
        if request.epoch in (LEAVES, LEAVES_FOR_A_WHILE):
            return self._leave(request)
        check_heartbeat(request)
        member = self._joining(request) if request.epoch == JOINS else self._known(request)
        matched = self._matched(member, request, topics)
        # Nothing is refused from here on.
        if member.member_id not in self.members:
            self._add(member, request)
        self._update(member, request, matched)
        member.matched_at = topics.changes
        member.session_deadline_ms = now_ms + self.session_timeout_ms
        self._look_at(topics)
        if self.target_epoch < self.epoch:
            self._assign()
        is_changed = self._reconcile(member, request.owned, now_ms)
        tells = is_changed or request.tells_everything
        return HeartbeatResult(member.member_id, member.epoch, frozenset(member.assigned) if tells else None)

    def check_commit(
        self,
        member_id: str,
        epoch: int,
        places: Collection[tuple[str, int]],
        topics: Topics,
    ) -> None:
        """May this member in this epoch commit offsets of these partitions?

        A member that has not heard yet of its newest epoch may, of what it had then and has still (KIP-1251). A
        consumer that assigns itself has no epoch; it may as long as the group has no members.

        Raises:
            RequestRefused: it may not.
        """
        if epoch < 0 and not self.members:
            return
        member = self._member(member_id)
        if epoch == member.epoch:
            return
        since = {**member.assigned, **member.revoking}
        named = {name: topics.get(name) for name, _ in places}
        for name, index in places:
            topic = named[name]
            came = since.get((topic.topic_id.bytes, index)) if topic is not None else None
            if epoch > member.epoch or epoch < 0 or came is None or came > epoch:
                raise RequestRefused(ErrorCode.STALE_MEMBER_EPOCH, f"epoch {epoch}; the member's is {member.epoch}")

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """May this member in this epoch ask for offsets? Who says that it is none may.

        Raises:
            RequestRefused: it may not.
        """
        if member_id is None and epoch < 0:
            return
        member = self._member(member_id or "")
        if epoch != member.epoch:
            raise RequestRefused(ErrorCode.STALE_MEMBER_EPOCH, f"epoch {epoch}; the member's is {member.epoch}")

    def check_empty(self) -> None:
        """Raises:
        RequestRefused: the group has members, so it cannot be deleted.
        """
        if self.members:
            raise RequestRefused(ErrorCode.NON_EMPTY_GROUP, f"group {self.group_id!r} has members")

    def delete(self) -> None:
        self._is_deleted = True

    # Time

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do at the earliest; None when nothing is due."""
        return min((member.deadline_ms for member in self.members.values()), default=None)

    def tick(self, now_ms: int) -> Outcome:
        """Lets go of members whose time is up."""
        for member in [member for member in self.members.values() if member.deadline_ms <= now_ms]:
            self._remove(member)
        return Outcome(must_store=bool(self.unstored))

    # Coming and going

    def _joining(self, request: HeartbeatRequest) -> ConsumerMember:
        """The member that joins, as it is so far; a new one is not yet among the others."""
        if request.rebalance_timeout_ms is None or request.owned is None or request.owned:
            raise RequestRefused(ErrorCode.INVALID_REQUEST, "who joins tells its rebalance timeout and owns nothing")
        if request.topics is None and request.pattern is None:
            raise RequestRefused(ErrorCode.INVALID_REQUEST, "who joins tells its subscription")
        owner_id = self._static_ids.get(request.instance_id) if request.instance_id is not None else None
        if owner_id is not None and owner_id != request.member_id and not self.members[owner_id].is_away:
            raise RequestRefused(ErrorCode.UNRELEASED_INSTANCE_ID, f"{request.instance_id} is {owner_id}'s")
        present = self.members.get(request.member_id)
        if present is not None:
            if request.instance_id != present.instance_id:
                raise RequestRefused(ErrorCode.INVALID_REQUEST, f"{request.member_id} is of another instance")
            return present
        if owner_id is None and len(self.members) >= MEMBERS_MAX:
            raise RequestRefused(ErrorCode.GROUP_MAX_SIZE_REACHED, f"the group has {MEMBERS_MAX} members")
        return ConsumerMember(request.member_id)

    def _known(self, request: HeartbeatRequest) -> ConsumerMember:
        if request.instance_id is not None:
            self._check_instance(request.instance_id, request.member_id)
        member = self._member(request.member_id)
        if request.epoch == member.epoch:
            return member
        # The answer that brought the newer epoch may have been lost.
        is_behind = request.epoch == member.previous_epoch and request.epoch < member.epoch
        if not is_behind or request.owned is None or not request.owned <= member.assigned.keys():
            raise RequestRefused(
                ErrorCode.FENCED_MEMBER_EPOCH, f"epoch {request.epoch}; the member's is {member.epoch}"
            )
        return member

    def _member(self, member_id: str) -> ConsumerMember:
        member = self.members.get(member_id)
        if member is None:
            raise RequestRefused(ErrorCode.UNKNOWN_MEMBER_ID, f"no member {member_id!r}")
        return member

    def _check_instance(self, instance_id: str, member_id: str) -> None:
        owner_id = self._static_ids.get(instance_id)
        if owner_id is None:
            raise RequestRefused(ErrorCode.UNKNOWN_MEMBER_ID, f"no member of instance {instance_id!r}")
        if owner_id != member_id:
            raise RequestRefused(ErrorCode.FENCED_INSTANCE_ID, f"{instance_id} is now {owner_id}")

    def _add(self, member: ConsumerMember, request: HeartbeatRequest) -> None:
        owner_id = self._static_ids.get(request.instance_id) if request.instance_id is not None else None
        member.instance_id = request.instance_id
        if owner_id is not None:
            self._replace(self.members[owner_id], member)
        else:
            self.members[member.member_id] = member
            self._change_epoch()
        if member.instance_id is not None:
            self._static_ids[member.instance_id] = member.member_id
        self.unstored.members.add(member.member_id)
        self.unstored.steps.add(member.member_id)

    def _replace(self, old: ConsumerMember, new: ConsumerMember) -> None:
        """A static member is back under another id: what was the old one's is the new one's, and nobody else notices.

        It gave up what it had when it went, or its process ended: so what was unrevoked is nobody's now.
        """
        new.assigned, new.assignor = dict(old.assigned), old.assignor
        new.topics, new.pattern, new.matched = old.topics, old.pattern, old.matched
        self._forget(old)
        self.members[new.member_id] = new
        self._own(new)
        for name in new.subscribed:
            self._subscribers.setdefault(name, {})[new.member_id] = None
        if old.member_id in self.target:
            self.target[new.member_id] = self.target.pop(old.member_id)
        self.unstored.targets |= {old.member_id, new.member_id}

    def _leave(self, request: HeartbeatRequest) -> HeartbeatResult:
        if request.instance_id is not None:
            self._check_instance(request.instance_id, request.member_id)
        elif request.epoch == LEAVES_FOR_A_WHILE:
            raise RequestRefused(ErrorCode.INVALID_REQUEST, "only a static member may come back")
        member = self._member(request.member_id)
        if request.epoch == LEAVES_FOR_A_WHILE:
            self._disown(member)
            member.epoch, member.revoking, member.state = LEAVES_FOR_A_WHILE, {}, MemberState.STABLE
            self._own(member)
            self.unstored.steps.add(member.member_id)
        else:
            self._remove(member)
        return HeartbeatResult(request.member_id, request.epoch)

    def _remove(self, member: ConsumerMember) -> None:
        self._forget(member)
        if self.target.pop(member.member_id, None) is not None:
            self.unstored.targets.add(member.member_id)
        self._change_epoch()

    def _forget(self, member: ConsumerMember) -> None:
        self._disown(member)
        for name in member.subscribed:
            self._unsubscribe(member, name)
        del self.members[member.member_id]
        if member.instance_id is not None:
            self._static_ids.pop(member.instance_id, None)
        self.unstored.members.add(member.member_id)
        self.unstored.steps.add(member.member_id)

    def _change_epoch(self) -> None:
        self.epoch += 1
        self.unstored.epochs = True

    # Subscriptions

    def _matched(self, member: ConsumerMember, request: HeartbeatRequest, topics: Topics) -> frozenset[str]:
        pattern = member.pattern if request.pattern is None else request.pattern
        if not pattern:
            return frozenset()
        if request.pattern is None and member.matched_at == topics.changes:
            return member.matched
        return matching_topics(pattern, filter(request.sees, topics.names()))

    def _update(self, member: ConsumerMember, request: HeartbeatRequest, matched: frozenset[str]) -> None:
        before = _told(member)
        self._subscribe(member, member.topics if request.topics is None else request.topics, matched)
        if request.pattern is not None:
            member.pattern = request.pattern or None
        if request.rebalance_timeout_ms is not None:
            member.rebalance_timeout_ms = max(request.rebalance_timeout_ms, REBALANCE_TIMEOUT_MS_MIN)
        member.rack_id = member.rack_id if request.rack_id is None else request.rack_id
        member.assignor = member.assignor if request.assignor is None else request.assignor
        member.client_id, member.client_host = request.client_id, request.client_host
        if request.epoch == JOINS and member.is_away:
            member.epoch = JOINS
        if _told(member) != before:
            self.unstored.members.add(member.member_id)

    def _subscribe(self, member: ConsumerMember, topics: frozenset[str], matched: frozenset[str]) -> None:
        before, after = member.subscribed, topics | matched
        member.topics, member.matched = topics, matched
        if before == after:
            return
        for name in before - after:
            self._unsubscribe(member, name)
        for name in after - before:
            self._subscribers.setdefault(name, {})[member.member_id] = None
        self._topics_seen = -1
        if self.target_epoch == self.epoch:
            self._change_epoch()

    def _unsubscribe(self, member: ConsumerMember, name: str) -> None:
        subscribers = self._subscribers[name]
        del subscribers[member.member_id]
        if not subscribers:
            del self._subscribers[name]

    def _look_at(self, topics: Topics) -> None:
        """Notices topics that are new, larger or gone since the target was made."""
        if self._topics_seen == topics.changes:
            return
        found = {name: topic for name in self._subscribers if (topic := topics.get(name)) is not None}
        self._topics, self._topics_seen = found, topics.changes
        if self.target_epoch == self.epoch and self._wanted() != set(self._targeted()):
            self._change_epoch()

    def _wanted(self) -> set[TopicIdPartition]:
        sizes = [(topic.topic_id.bytes, topic.partitions) for topic in self._topics.values()]
        return {(topic_id, index) for topic_id, partitions in sizes for index in range(partitions)}

    def _targeted(self) -> Iterator[TopicIdPartition]:
        return (partition for partitions in self.target.values() for partition in partitions)

    # Assigning

    def _assign(self) -> None:
        order = {member_id: (member.instance_id or member_id) for member_id, member in self.members.items()}
        in_order: dict[frozenset[str], tuple[str, ...]] = {}
        subscribed: list[SubscribedTopic] = []
        for name, topic in sorted(self._topics.items()):
            if name in self._subscribers:
                subscribers = frozenset(self._subscribers[name])
                if subscribers not in in_order:
                    in_order[subscribers] = tuple(sorted(subscribers, key=order.__getitem__))
                subscribed.append(SubscribedTopic(topic.topic_id.bytes, topic.partitions, in_order[subscribers]))
        before = self.target
        self.target = ASSIGNORS[self.assignor](subscribed, before)
        self.target_epoch = self.epoch
        self.unstored.epochs = True
        nothing: frozenset[TopicIdPartition] = frozenset()
        self.unstored.targets |= {
            member_id
            for member_id in before.keys() | self.target.keys()
            if before.get(member_id, nothing) != self.target.get(member_id, nothing)
        }

    def _reconcile(self, member: ConsumerMember, owned: frozenset[TopicIdPartition] | None, now_ms: int) -> bool:
        """Takes the member's next step; says whether what it is to read changed."""
        if member.state is MemberState.STABLE and member.epoch == self.target_epoch:
            return False
        target = self.target.get(member.member_id, frozenset())
        taken = {partition for partition in target if self._owners.get(partition, member.member_id) != member.member_id}
        step = next_step(member, target, self.target_epoch, owned, taken)
        assigned_before = member.assigned
        if step == member.step:
            return False
        self._disown(member)
        if step.epoch != member.epoch:
            member.previous_epoch, member.epoch = member.epoch, step.epoch
        member.state, member.assigned, member.revoking = step.state, step.assigned, step.revoking
        self._own(member)
        if step.state is MemberState.UNREVOKED_PARTITIONS:
            member.revocation_deadline_ms = now_ms + member.rebalance_timeout_ms
        self.unstored.steps.add(member.member_id)
        return member.assigned.keys() != assigned_before.keys()

    def _own(self, member: ConsumerMember) -> None:
        for partition in (*member.assigned, *member.revoking):
            assert partition not in self._owners
            self._owners[partition] = member.member_id

    def _disown(self, member: ConsumerMember) -> None:
        for partition in (*member.assigned, *member.revoking):
            del self._owners[partition]

    # Restarts

    def restore(self, members: Iterable[ConsumerMember], now_ms: int) -> None:
        """Takes over members that were stored before a restart; each has a session's time to be heard of.

        Where some of the log was lost, a partition may seem to be two members'. The one that came to it last stays, and
        the other has to join again.
        """
        for member in sorted(members, key=_newest_epoch, reverse=True):
            if any(partition in self._owners for partition in (*member.assigned, *member.revoking)):
                self._change_epoch()
                continue
            self.members[member.member_id] = member
            if member.instance_id is not None:
                self._static_ids[member.instance_id] = member.member_id
            member.session_deadline_ms = now_ms + self.session_timeout_ms
            member.revocation_deadline_ms = now_ms + member.rebalance_timeout_ms
            self._own(member)
            for name in member.subscribed:
                self._subscribers.setdefault(name, {})[member.member_id] = None


def _newest_epoch(member: ConsumerMember) -> int:
    return max((*member.assigned.values(), *member.revoking.values()), default=0)


def _told(member: ConsumerMember) -> tuple[object, ...]:
    """What is stored of what a member told."""
    return (
        member.instance_id,
        member.rack_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        member.topics,
        member.pattern,
        member.matched,
        member.assignor,
    )
