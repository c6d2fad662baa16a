"""State machine of one consumer group of the consumer protocol (KIP-848). No I/O, no clock.

The only request is the heartbeat, and it gets its response at once. Three epochs describe the progress of a rebalance.
They only increase, except that the member epoch of a member that joins, or that leaves temporarily, starts again.

- The group epoch increases when members, subscriptions or subscribed topics change. A static member that returns is no
  change.
- The target assignment epoch is the group epoch for which the target was computed, at the next heartbeat of any member.
- The member epoch becomes the target's when the member has released the partitions that are no longer its own.

A member owns a partition from the response that assigns it until the member reports its release, leaves or is removed.
A static member that leaves temporarily retains its partitions, except the ones that it had to release. So two members
never own the same partition at the same time.

`tick` removes members that miss their session timeout or do not release partitions within their rebalance timeout. They
learn it from the response to their next heartbeat.
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
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerMember,
    MemberState,
    next_assignment,
)
from headrace.broker.coordinator.consumer_messages import HeartbeatRequest, HeartbeatResult, check_heartbeat
from headrace.broker.coordinator.group import MEMBERS_MAX, REBALANCE_TIMEOUT_MS_MIN
from headrace.broker.coordinator.messages import GroupActions
from headrace.broker.coordinator.topic_patterns import matching_topics
from headrace.broker.errors import RequestRefused
from headrace.broker.protocol.error_codes import ErrorCode


class ConsumerGroupState(StrEnum):
    """State of a consumer group, by the name that ConsumerGroupDescribe shows."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class CatalogTopic(Protocol):
    @property
    def topic_id(self) -> uuid.UUID: ...

    @property
    def partitions(self) -> int: ...


class TopicCatalog(Protocol):
    """The existing topics. `changes` is the number of changes to topics since the start. A group stores the number that
    it saw last, and compares it with the current one to detect changes."""

    changes: int

    def get(self, name: str) -> CatalogTopic | None: ...

    def names(self) -> Iterable[str]: ...


@dataclass(slots=True)
class UnstoredChanges:
    """Changes of a group that are not in the log yet. `epochs` is True if the group epoch or target assignment epoch
    has changed. The sets contain ids of members: `members` with changed metadata, `targets` with a changed target
    assignment, `current_assignments` with a changed current assignment."""

    epochs: bool = False
    members: set[str] = field(default_factory=set)
    targets: set[str] = field(default_factory=set)
    current_assignments: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.epochs or self.members or self.targets or self.current_assignments)

    def clear(self) -> None:
        self.epochs = False
        self.members, self.targets, self.current_assignments = set(), set(), set()


@dataclass(slots=True)
class ConsumerGroup:
    """A consumer group of the consumer protocol; the module describes the rebalance. Methods that raise
    `RequestRefused` leave it unchanged.

    Attributes:
        epoch: the group epoch.
        target_epoch: the target assignment epoch.
        target: the target assignment by member id.
        unstored: changes that the caller must store.
    """

    group_id: str
    session_timeout_ms: int
    epoch: int = 0
    target_epoch: int = 0
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    target: dict[str, frozenset[TopicIdPartition]] = field(default_factory=dict)
    unstored: UnstoredChanges = field(default_factory=UnstoredChanges)
    _static_ids: dict[str, str] = field(default_factory=dict)  # instance id -> member id
    _owners: dict[TopicIdPartition, str] = field(default_factory=dict)
    _subscribers: dict[str, dict[str, None]] = field(default_factory=dict)  # topic -> member ids
    _topics: dict[str, CatalogTopic] = field(default_factory=dict)  # existing topics with subscribers
    _topics_version: int = -1  # `changes` when `_topics` was computed; -1 if it is outdated
    _is_deleted: bool = False

    @property
    def state(self) -> ConsumerGroupState:
        if self._is_deleted:
            return ConsumerGroupState.DEAD
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.target_epoch < self.epoch:
            return ConsumerGroupState.ASSIGNING
        reconciled = (MemberState.STABLE, self.target_epoch)
        if any((member.state, member.epoch) != reconciled for member in self.members.values()):
            return ConsumerGroupState.RECONCILING
        return ConsumerGroupState.STABLE

    @property
    def assignor(self) -> str:
        """The assignor that most members prefer, the default one if equally many do; the default if no member prefers
        one."""
        votes = Counter(member.assignor for member in self.members.values() if member.assignor is not None)
        return max(ASSIGNORS, key=lambda name: votes[name]) if votes else DEFAULT_ASSIGNOR

    @property
    def subscribed(self) -> Set[str]:
        """Names of the topics that at least one member subscribes to."""
        return self._subscribers.keys()

    # Requests

    def heartbeat(self, request: HeartbeatRequest, topics: TopicCatalog, now_ms: int) -> HeartbeatResult:
        """Processes a heartbeat: a member joins, stays, reports released partitions, or leaves. Returns the member's
        epoch, and its assignment if that must be sent (see `HeartbeatResult`).

        Args:
            topics: the existing topics.
            now_ms: monotonic clock; the member's session timeout starts again at this time, and so does the time to
                release partitions if it must now release some.

        Raises:
            RequestRefused: the member or its epoch is not current, the member may not join, or the request is invalid.
        """
        if request.epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
            return self._leave(request)
        check_heartbeat(request)
        member = self._joining_member(request) if request.epoch == JOIN_EPOCH else self._require_current(request)
        matched = self._match_pattern(member, request, topics)
        # No refusals from here on: the group changes.
        if member.member_id not in self.members:
            self._add(member, request)
        self._update(member, request, matched)
        member.matched_at_change = topics.changes
        member.session_deadline_ms = now_ms + self.session_timeout_ms
        self._refresh_topics(topics)
        if self.target_epoch < self.epoch:
            self._assign()
        is_changed = self._reconcile(member, request.owned, now_ms)
        includes_assignment = is_changed or request.needs_full_response
        return HeartbeatResult(
            member.member_id, member.epoch, frozenset(member.assigned) if includes_assignment else None
        )

    def check_commit(
        self,
        member_id: str,
        epoch: int,
        partitions: Collection[tuple[str, int]],
        topics: TopicCatalog,
    ) -> None:
        """Checks that a member may commit offsets of these partitions.

        A member may have an older epoch, if it has not received the newest one yet. It may then commit for partitions
        that it owned in the older epoch and still owns (KIP-1251). A consumer that assigns partitions manually has no
        epoch; it may commit while the group has no members.

        Args:
            epoch: the member epoch in the request; negative if it has none.
            partitions: (topic name, partition number) of each offset.
            topics: the existing topics.

        Raises:
            RequestRefused: the member does not exist, or its epoch is stale.
        """
        if epoch < 0 and not self.members:
            return
        member = self._require_member(member_id)
        if epoch == member.epoch:
            return
        held_since = {**member.assigned, **member.revoking}
        named = {name: topics.get(name) for name, _ in partitions}
        for name, index in partitions:
            topic = named[name]
            assigned_epoch = held_since.get((topic.topic_id.bytes, index)) if topic is not None else None
            if epoch > member.epoch or epoch < 0 or assigned_epoch is None or assigned_epoch > epoch:
                raise RequestRefused(
                    ErrorCode.STALE_MEMBER_EPOCH,
                    f"the request has member epoch {epoch}, but the member's current epoch is {member.epoch}; retry "
                    "after a heartbeat",
                )

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Checks that a member may fetch committed offsets. A client that names neither a member nor an epoch may
        always fetch them.

        Args:
            member_id: None if the client names no member.
            epoch: the member epoch in the request; negative if it has none.

        Raises:
            RequestRefused: the member does not exist, or its epoch is stale.
        """
        if member_id is None and epoch < 0:
            return
        member = self._require_member(member_id or "")
        if epoch != member.epoch:
            raise RequestRefused(
                ErrorCode.STALE_MEMBER_EPOCH,
                f"the request has member epoch {epoch}, but the member's current epoch is {member.epoch}; retry after "
                "a heartbeat",
            )

    def check_empty(self) -> None:
        """Checks that the group can be deleted.

        Raises:
            RequestRefused: the group has members.
        """
        if self.members:
            raise RequestRefused(ErrorCode.NON_EMPTY_GROUP, f"group {self.group_id!r} has members; stop them first")

    def delete(self) -> None:
        self._is_deleted = True

    # Time

    def next_deadline_ms(self) -> int | None:
        """Returns the time at which `tick` must be called next; None if no deadline is set."""
        return min((member.deadline_ms for member in self.members.values()), default=None)

    def tick(self, now_ms: int) -> GroupActions:
        """Removes the members that, at the time `now_ms` (monotonic clock), have sent no heartbeat within their session
        timeout or have not released revoked partitions in time. Returns the actions to perform: whether the group must
        be stored."""
        for member in [member for member in self.members.values() if member.deadline_ms <= now_ms]:
            self._remove(member)
        return GroupActions(must_store=bool(self.unstored))

    # Joining and leaving

    def _joining_member(self, request: HeartbeatRequest) -> ConsumerMember:
        """Returns the member that a join request describes. A new member is not added to the group yet."""
        if request.rebalance_timeout_ms is None or request.owned is None or request.owned:
            raise RequestRefused(
                ErrorCode.INVALID_REQUEST,
                "a joining member must send its rebalance timeout and an empty list of owned partitions",
            )
        if request.topics is None and request.pattern is None:
            raise RequestRefused(
                ErrorCode.INVALID_REQUEST, "a joining member must send topic names or a pattern to subscribe to"
            )
        owner_id = self._static_ids.get(request.instance_id) if request.instance_id is not None else None
        if owner_id is not None and owner_id != request.member_id and not self.members[owner_id].is_temporarily_absent:
            raise RequestRefused(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"instance id {request.instance_id} is in use by member {owner_id}; stop that member or use another "
                "group.instance.id",
            )
        existing = self.members.get(request.member_id)
        if existing is not None:
            if request.instance_id != existing.instance_id:
                raise RequestRefused(
                    ErrorCode.INVALID_REQUEST, f"member {request.member_id} joined with another instance id before"
                )
            return existing
        if owner_id is None and len(self.members) >= MEMBERS_MAX:
            raise RequestRefused(
                ErrorCode.GROUP_MAX_SIZE_REACHED, f"the group has reached its maximum of {MEMBERS_MAX} members"
            )
        return ConsumerMember(request.member_id)

    def _require_current(self, request: HeartbeatRequest) -> ConsumerMember:
        if request.instance_id is not None:
            self._check_instance(request.instance_id, request.member_id)
        member = self._require_member(request.member_id)
        if request.epoch == member.epoch:
            return member
        # The previous epoch is accepted too, because the response with the newer one may have been lost.
        is_behind = request.epoch == member.previous_epoch and request.epoch < member.epoch
        if not is_behind or request.owned is None or not request.owned <= member.assigned.keys():
            raise RequestRefused(
                ErrorCode.FENCED_MEMBER_EPOCH,
                f"the request has member epoch {request.epoch}, but the member's current epoch is {member.epoch}; join "
                "again",
            )
        return member

    def _require_member(self, member_id: str) -> ConsumerMember:
        member = self.members.get(member_id)
        if member is None:
            raise RequestRefused(ErrorCode.UNKNOWN_MEMBER_ID, f"member {member_id!r} does not exist")
        return member

    def _check_instance(self, instance_id: str, member_id: str) -> None:
        owner_id = self._static_ids.get(instance_id)
        if owner_id is None:
            raise RequestRefused(ErrorCode.UNKNOWN_MEMBER_ID, f"no member has instance id {instance_id!r}")
        if owner_id != member_id:
            raise RequestRefused(
                ErrorCode.FENCED_INSTANCE_ID,
                f"instance id {instance_id} is now in use by member {owner_id}; give each consumer its own "
                "group.instance.id",
            )

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
        self.unstored.current_assignments.add(member.member_id)

    def _replace(self, old: ConsumerMember, new: ConsumerMember) -> None:
        """Replaces a static member that returned with a new member id. The new one inherits the assignment; other
        members are not affected.

        The old member has left temporarily, so the partitions that it had to release are free already.
        """
        new.assigned, new.assignor = dict(old.assigned), old.assignor
        new.topics, new.pattern, new.matched = old.topics, old.pattern, old.matched
        self._detach(old)
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
        elif request.epoch == LEAVE_STATIC_EPOCH:
            raise RequestRefused(
                ErrorCode.INVALID_REQUEST,
                "member epoch -2, leaving temporarily, requires a static member; set group.instance.id in the client",
            )
        member = self._require_member(request.member_id)
        if request.epoch == LEAVE_STATIC_EPOCH:
            self._disown(member)
            member.epoch, member.revoking, member.state = LEAVE_STATIC_EPOCH, {}, MemberState.STABLE
            self._own(member)
            self.unstored.current_assignments.add(member.member_id)
        else:
            self._remove(member)
        return HeartbeatResult(request.member_id, request.epoch)

    def _remove(self, member: ConsumerMember) -> None:
        self._detach(member)
        if self.target.pop(member.member_id, None) is not None:
            self.unstored.targets.add(member.member_id)
        self._change_epoch()

    def _detach(self, member: ConsumerMember) -> None:
        self._disown(member)
        for name in member.subscribed:
            self._unsubscribe(member, name)
        del self.members[member.member_id]
        if member.instance_id is not None:
            self._static_ids.pop(member.instance_id, None)
        self.unstored.members.add(member.member_id)
        self.unstored.current_assignments.add(member.member_id)

    def _change_epoch(self) -> None:
        self.epoch += 1
        self.unstored.epochs = True

    # Subscriptions

    def _match_pattern(self, member: ConsumerMember, request: HeartbeatRequest, topics: TopicCatalog) -> frozenset[str]:
        pattern = member.pattern if request.pattern is None else request.pattern
        if not pattern:
            return frozenset()
        if request.pattern is None and member.matched_at_change == topics.changes:
            return member.matched
        return matching_topics(pattern, filter(request.can_see_topic, topics.names()))

    def _update(self, member: ConsumerMember, request: HeartbeatRequest, matched: frozenset[str]) -> None:
        before = _stored_fields(member)
        self._subscribe(member, member.topics if request.topics is None else request.topics, matched)
        if request.pattern is not None:
            member.pattern = request.pattern or None
        if request.rebalance_timeout_ms is not None:
            member.rebalance_timeout_ms = max(request.rebalance_timeout_ms, REBALANCE_TIMEOUT_MS_MIN)
        member.rack_id = member.rack_id if request.rack_id is None else request.rack_id
        member.assignor = member.assignor if request.assignor is None else request.assignor
        member.client_id, member.client_host = request.client_id, request.client_host
        if request.epoch == JOIN_EPOCH and member.is_temporarily_absent:
            member.epoch = JOIN_EPOCH
        if _stored_fields(member) != before:
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
        self._topics_version = -1
        if self.target_epoch == self.epoch:
            self._change_epoch()

    def _unsubscribe(self, member: ConsumerMember, name: str) -> None:
        subscribers = self._subscribers[name]
        del subscribers[member.member_id]
        if not subscribers:
            del self._subscribers[name]

    def _refresh_topics(self, topics: TopicCatalog) -> None:
        """Increases the group epoch if a subscribed topic was created, extended or deleted since the target assignment
        was computed."""
        if self._topics_version == topics.changes:
            return
        found = {name: topic for name in self._subscribers if (topic := topics.get(name)) is not None}
        self._topics, self._topics_version = found, topics.changes
        if self.target_epoch == self.epoch and self._subscribed_partitions() != set(self._target_partitions()):
            self._change_epoch()

    def _subscribed_partitions(self) -> set[TopicIdPartition]:
        sizes = [(topic.topic_id.bytes, topic.partitions) for topic in self._topics.values()]
        return {(topic_id, index) for topic_id, partitions in sizes for index in range(partitions)}

    def _target_partitions(self) -> Iterator[TopicIdPartition]:
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
        empty: frozenset[TopicIdPartition] = frozenset()
        self.unstored.targets |= {
            member_id
            for member_id in before.keys() | self.target.keys()
            if before.get(member_id, empty) != self.target.get(member_id, empty)
        }

    def _reconcile(self, member: ConsumerMember, owned: frozenset[TopicIdPartition] | None, now_ms: int) -> bool:
        """Changes the member's current assignment toward its target, as far as is possible now (see `next_assignment`);
        returns True if its partitions changed.

        Args:
            owned: partitions that the heartbeat reports as owned, None if it does not report them.
        """
        if member.state is MemberState.STABLE and member.epoch == self.target_epoch:
            return False
        target = self.target.get(member.member_id, frozenset())
        owned_by_others = {
            partition for partition in target if self._owners.get(partition, member.member_id) != member.member_id
        }
        next_current = next_assignment(member, target, self.target_epoch, owned, owned_by_others)
        assigned_before = member.assigned
        if next_current == member.current_assignment:
            return False
        self._disown(member)
        if next_current.epoch != member.epoch:
            member.previous_epoch, member.epoch = member.epoch, next_current.epoch
        member.state, member.assigned, member.revoking = (
            next_current.state,
            next_current.assigned,
            next_current.revoking,
        )
        self._own(member)
        if next_current.state is MemberState.UNREVOKED_PARTITIONS:
            member.revocation_deadline_ms = now_ms + member.rebalance_timeout_ms
        self.unstored.current_assignments.add(member.member_id)
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
        """Adds the members that were loaded from the log at start. The next heartbeat of each is due one session
        timeout after `now_ms` (monotonic clock).

        If a part of the log was lost, two members may seem to own the same partition. Only the member with the newest
        assignment is added, so the earlier owner must join again.
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


def _stored_fields(member: ConsumerMember) -> tuple[object, ...]:
    """Returns the fields of a member that its member metadata record stores."""
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
