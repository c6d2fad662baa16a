"""The state machine of one consumer group (classic protocol): no I/O, no clock.

Every call is given the time, in milliseconds of a clock that only goes forward, and returns what has to happen:
answers to requests that waited (named by their ticket), and whether the group's metadata has to be stored first. The
rules are Kafka's group coordinator's, with KIP-345 (static members) and KIP-394 (a member id before joining).

A group rebalances in two steps. PREPARING_REBALANCE waits until every member has joined or the rebalance timeout has
passed; then the generation goes up and all joins are answered. COMPLETING_REBALANCE waits for the leader's assignment;
then all syncs are answered and the group is STABLE.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum

from broker.errors import RequestRefused
from broker.protocol.error_codes import ErrorCode

SESSION_TIMEOUT_MS_MIN, SESSION_TIMEOUT_MS_MAX = 6_000, 1_800_000
"""Kafka's bounds: shorter sessions make heartbeats a load, longer ones keep partitions of the dead unread."""
MEMBERS_MAX = 1000
"""Of one group; each rebalance sends every member's metadata to the leader."""
NO_GENERATION = -1

Ticket = int


class GroupState(StrEnum):
    """Named as DescribeGroups shows them."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Event(Enum):
    REBALANCE_NEEDED = "a member came, changed or went"
    ALL_JOINED = "every member that will join has joined"
    ASSIGNED = "the leader has assigned"
    ALL_LEFT = "the last member went"
    DELETED = "the group was deleted"


TRANSITIONS: Mapping[tuple[GroupState, Event], GroupState] = {
    (GroupState.EMPTY, Event.REBALANCE_NEEDED): GroupState.PREPARING_REBALANCE,
    (GroupState.STABLE, Event.REBALANCE_NEEDED): GroupState.PREPARING_REBALANCE,
    (GroupState.COMPLETING_REBALANCE, Event.REBALANCE_NEEDED): GroupState.PREPARING_REBALANCE,
    (GroupState.PREPARING_REBALANCE, Event.REBALANCE_NEEDED): GroupState.PREPARING_REBALANCE,
    (GroupState.PREPARING_REBALANCE, Event.ALL_JOINED): GroupState.COMPLETING_REBALANCE,
    (GroupState.COMPLETING_REBALANCE, Event.ASSIGNED): GroupState.STABLE,
    (GroupState.PREPARING_REBALANCE, Event.ALL_LEFT): GroupState.EMPTY,
    (GroupState.EMPTY, Event.DELETED): GroupState.DEAD,
}
"""What is not here cannot happen: an empty group passes through PREPARING_REBALANCE like any other."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """One way of assigning that a member can do, with what it tells the leader for it."""

    name: str
    metadata: bytes


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

    def metadata(self, protocol: str | None) -> bytes:
        return next((each.metadata for each in self.protocols if each.name == protocol), b"")

    def touch(self, now_ms: int) -> None:
        self.deadline_ms = now_ms + self.session_timeout_ms


@dataclass(slots=True)
class Group:
    """See the module. Methods that raise `RequestRefused` leave the group as it was."""

    group_id: str
    new_member_id: Callable[[str], str]  # from the client id or the instance id
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    _static_ids: dict[str, str] = field(default_factory=dict)  # instance id -> member id
    _promised: dict[str, int] = field(default_factory=dict)  # member id given out, not joined yet -> deadline
    _rebalance_deadline_ms: int = 0  # of joining while preparing, of assigning while completing
    _replies: list[Reply] = field(default_factory=list)
    _must_store: bool = False

    # Requests

    def join(self, request: JoinRequest, ticket: Ticket, now_ms: int) -> Outcome:
        """A member wants to be part of the next generation."""
        try:
            self._check_join(request)
            if request.member_id == "":
                self._join_newcomer(request, ticket, now_ms)
            else:
                self._join_known(request, ticket, now_ms)
        except RequestRefused as refused:
            self._reply(ticket, JoinResult(refused.code, request.member_id))
        return self._outcome()

    def sync(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        protocol_type: str | None,
        protocol: str | None,
        assignments: Mapping[str, bytes],
        ticket: Ticket,
        now_ms: int,
    ) -> Outcome:
        """A member asks for its assignment; the leader brings everybody's."""
        try:
            member = self._member(member_id, instance_id, generation)
            if protocol_type not in (None, self.protocol_type) or protocol not in (None, self.protocol):
                raise RequestRefused(
                    ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the group has chosen {self.protocol_type}/{self.protocol}"
                )
            if self.state is GroupState.PREPARING_REBALANCE:
                raise RequestRefused(ErrorCode.REBALANCE_IN_PROGRESS, "the group rebalances")
        except RequestRefused as refused:
            self._reply(ticket, SyncResult(refused.code))
            return self._outcome()
        member.touch(now_ms)
        if self.state is GroupState.STABLE:
            self._reply(ticket, self._assigned(member))
            return self._outcome()
        self._supersede(member.sync_ticket, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync_ticket = ticket
        if member_id == self.leader:
            self._assign(assignments, now_ms)
        return self._outcome()

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> ErrorCode:
        """A member shows that it lives, and learns whether it has to join again."""
        try:
            self._member(member_id, instance_id, generation).touch(now_ms)
        except RequestRefused as refused:
            return refused.code
        preparing = self.state is GroupState.PREPARING_REBALANCE
        return ErrorCode.REBALANCE_IN_PROGRESS if preparing else ErrorCode.NONE

    def leave(self, member_id: str, instance_id: str | None, now_ms: int) -> tuple[ErrorCode, Outcome]:
        """A member goes. A static one may be named by its instance id alone."""
        if self._promised.pop(member_id, None) is not None:
            self._join_if_complete(now_ms)
            return ErrorCode.NONE, self._outcome()
        if instance_id is not None and member_id == "":
            member_id = self._static_ids.get(instance_id, "")
        try:
            member = self._known(member_id, instance_id)
        except RequestRefused as refused:
            return refused.code, Outcome()
        self._remove([member], now_ms)
        return ErrorCode.NONE, self._outcome()

    def check_commit(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> None:
        """May this member of this generation commit offsets?

        A consumer that assigns itself has no generation; it may commit as long as the group has no members.

        Raises:
            RequestRefused: it may not.
        """
        if generation < 0 and not self.members:
            return
        member = self._member(member_id, instance_id, generation)
        if self.state is GroupState.COMPLETING_REBALANCE:
            raise RequestRefused(ErrorCode.REBALANCE_IN_PROGRESS, "the group rebalances")
        member.touch(now_ms)

    def check_empty(self) -> None:
        """Raises:
        RequestRefused: the group has members, so it cannot be deleted.
        """
        if self.state is not GroupState.EMPTY:
            raise RequestRefused(ErrorCode.NON_EMPTY_GROUP, f"group {self.group_id!r} has members")

    def delete(self) -> None:
        self._go(Event.DELETED)

    # Time

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do at the earliest; None when nothing is due."""
        deadlines = list(self._promised.values())
        deadlines += [member.deadline_ms for member in self.members.values() if not self._waits(member)]
        if self.state in (GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE):
            deadlines.append(self._rebalance_deadline_ms)
        return min(deadlines, default=None)

    def tick(self, now_ms: int) -> Outcome:
        """Lets go of members whose time is up."""
        for member_id in [member_id for member_id, deadline in self._promised.items() if deadline <= now_ms]:
            del self._promised[member_id]
        silent = [
            member for member in self.members.values() if member.deadline_ms <= now_ms and not self._waits(member)
        ]
        if silent:
            self._remove(silent, now_ms)
        if self.state is GroupState.PREPARING_REBALANCE:
            if self._rebalance_deadline_ms <= now_ms:
                self._stop_waiting_for_joins(now_ms)
            else:
                self._join_if_complete(now_ms)
        elif self.state is GroupState.COMPLETING_REBALANCE and self._rebalance_deadline_ms <= now_ms:
            # Members that joined but do not sync, the leader above all, hold up the others.
            self._remove([member for member in self.members.values() if member.sync_ticket is None], now_ms)
        return self._outcome()

    @staticmethod
    def _waits(member: Member) -> bool:
        return member.join_ticket is not None or member.sync_ticket is not None

    # Joining

    def _check_join(self, request: JoinRequest) -> None:
        if not SESSION_TIMEOUT_MS_MIN <= request.session_timeout_ms <= SESSION_TIMEOUT_MS_MAX:
            raise RequestRefused(
                ErrorCode.INVALID_SESSION_TIMEOUT,
                f"session timeout {request.session_timeout_ms} ms; expected between {SESSION_TIMEOUT_MS_MIN} and "
                f"{SESSION_TIMEOUT_MS_MAX}",
            )
        if not request.protocol_type or not request.protocols:
            raise RequestRefused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "no protocol")
        others = [member for member_id, member in self.members.items() if member_id != request.member_id]
        if not others:
            return
        if request.protocol_type != self.protocol_type:
            raise RequestRefused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the group is of type {self.protocol_type}")
        if not _common(others) & {protocol.name for protocol in request.protocols}:
            raise RequestRefused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "no protocol that all members know")

    def _join_newcomer(self, request: JoinRequest, ticket: Ticket, now_ms: int) -> None:
        if len(self.members) + len(self._promised) >= MEMBERS_MAX and request.instance_id not in self._static_ids:
            raise RequestRefused(ErrorCode.GROUP_MAX_SIZE_REACHED, f"the group has {MEMBERS_MAX} members")
        member_id = self.new_member_id(request.instance_id or request.client_id)
        if request.instance_id is None:
            if request.needs_known_id:
                self._promised[member_id] = now_ms + request.session_timeout_ms
                self._reply(ticket, JoinResult(ErrorCode.MEMBER_ID_REQUIRED, member_id))
                return
            self._add(request, member_id, ticket, now_ms)
        elif request.instance_id in self._static_ids:
            self._replace_static(request, member_id, ticket, now_ms)
        else:
            self._static_ids[request.instance_id] = member_id
            self._add(request, member_id, ticket, now_ms)

    def _add(self, request: JoinRequest, member_id: str, ticket: Ticket, now_ms: int) -> None:
        self.protocol_type = request.protocol_type
        self.members[member_id] = Member(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            request.protocols,
            now_ms + request.session_timeout_ms,
            join_ticket=ticket,
        )
        self._rebalance(now_ms)
        self._join_if_complete(now_ms)

    def _replace_static(self, request: JoinRequest, member_id: str, ticket: Ticket, now_ms: int) -> None:
        """A static member came back under a new member id: the old one is fenced, its assignment stays."""
        assert request.instance_id is not None
        old = self.members.pop(self._static_ids[request.instance_id])
        self._supersede(old.join_ticket, JoinResult(ErrorCode.FENCED_INSTANCE_ID, old.member_id))
        self._supersede(old.sync_ticket, SyncResult(ErrorCode.FENCED_INSTANCE_ID))
        self._static_ids[request.instance_id] = member_id
        if self.leader == old.member_id:
            self.leader = member_id
        unchanged = old.metadata(self.protocol) == _metadata(request.protocols, self.protocol)
        member = Member(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            request.protocols,
            now_ms + request.session_timeout_ms,
            assignment=old.assignment,
        )
        self.members[member_id] = member
        if self.state is GroupState.STABLE and unchanged:
            # Nothing changed for the others (KIP-345); the new id has to survive a restart, so it is stored.
            self._must_store = True
            self._reply(ticket, self._joined(member, skip_assignment=self.leader == member_id))
            return
        member.join_ticket = ticket
        self._rebalance(now_ms)
        self._join_if_complete(now_ms)

    def _join_known(self, request: JoinRequest, ticket: Ticket, now_ms: int) -> None:
        if self._promised.pop(request.member_id, None) is not None:
            self._add(request, request.member_id, ticket, now_ms)
            return
        member = self._known(request.member_id, request.instance_id)
        member.touch(now_ms)
        changed = member.protocols != request.protocols
        if self.state is GroupState.COMPLETING_REBALANCE and not changed:
            # The answer to its join was lost.
            self._reply(ticket, self._joined(member))
            return
        if self.state is GroupState.STABLE and not changed and member.member_id != self.leader:
            self._reply(ticket, self._joined(member))
            return
        member.protocols = request.protocols
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        self._supersede(member.join_ticket, JoinResult(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        member.join_ticket = ticket
        self._rebalance(now_ms)
        self._join_if_complete(now_ms)

    def _rebalance(self, now_ms: int) -> None:
        if self.state is GroupState.PREPARING_REBALANCE:
            return
        for member in self.members.values():
            if member.sync_ticket is not None:
                # It was silent because it waited for us: its session begins anew.
                member.touch(now_ms)
                self._supersede(member.sync_ticket, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
                member.sync_ticket = None
        self._go(Event.REBALANCE_NEEDED)
        self._rebalance_deadline_ms = now_ms + self._longest_rebalance_ms()

    def _longest_rebalance_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def _join_if_complete(self, now_ms: int) -> None:
        if self.state is not GroupState.PREPARING_REBALANCE or self._promised:
            return
        if all(member.join_ticket is not None for member in self.members.values()):
            self._complete_join(now_ms)

    def _stop_waiting_for_joins(self, now_ms: int) -> None:
        """The rebalance timeout has passed: go on with those that joined. Static members keep their place."""
        for member in [member for member in self.members.values() if member.join_ticket is None]:
            if member.instance_id is None:
                self._drop(member)
        self._promised.clear()
        if self.members and all(member.join_ticket is None for member in self.members.values()):
            self._rebalance_deadline_ms = now_ms + self._longest_rebalance_ms()
            return
        self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> None:
        self.generation += 1
        if not self.members:
            self._go(Event.ALL_LEFT)
            self.protocol = self.leader = None
            self._must_store = True
            return
        self.protocol = _chosen_protocol(list(self.members.values()))
        joined = [member for member in self.members.values() if member.join_ticket is not None]
        if self.leader not in {member.member_id for member in joined}:
            self.leader = joined[0].member_id
        self._go(Event.ALL_JOINED)
        self._rebalance_deadline_ms = now_ms + self._longest_rebalance_ms()
        for member in joined:
            member.touch(now_ms)
            self._supersede(member.join_ticket, self._joined(member))
            member.join_ticket = None

    def _joined(self, member: Member, *, skip_assignment: bool = False) -> JoinResult:
        members: tuple[JoinedMember, ...] = ()
        if member.member_id == self.leader:
            members = tuple(
                JoinedMember(each.member_id, each.instance_id, each.metadata(self.protocol))
                for each in self.members.values()
            )
        return JoinResult(
            ErrorCode.NONE,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader or "",
            skip_assignment,
            members,
        )

    # Assigning

    def _assign(self, assignments: Mapping[str, bytes], now_ms: int) -> None:
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        self._go(Event.ASSIGNED)
        self._must_store = True
        for member in self.members.values():
            if member.sync_ticket is not None:
                member.touch(now_ms)
                self._supersede(member.sync_ticket, self._assigned(member))
                member.sync_ticket = None

    def _assigned(self, member: Member) -> SyncResult:
        return SyncResult(ErrorCode.NONE, member.assignment, self.protocol_type, self.protocol)

    # Members

    def _known(self, member_id: str, instance_id: str | None) -> Member:
        if instance_id is not None:
            current = self._static_ids.get(instance_id)
            if current is not None and current != member_id:
                raise RequestRefused(ErrorCode.FENCED_INSTANCE_ID, f"{instance_id} is now {current}")
        member = self.members.get(member_id)
        if member is None:
            raise RequestRefused(ErrorCode.UNKNOWN_MEMBER_ID, f"no member {member_id!r}")
        return member

    def _member(self, member_id: str, instance_id: str | None, generation: int) -> Member:
        member = self._known(member_id, instance_id)
        if generation != self.generation:
            raise RequestRefused(
                ErrorCode.ILLEGAL_GENERATION, f"generation {generation}; the group is at {self.generation}"
            )
        return member

    def _remove(self, gone: Sequence[Member], now_ms: int) -> None:
        for member in gone:
            self._drop(member)
        self._rebalance(now_ms)
        self._join_if_complete(now_ms)

    def _drop(self, member: Member) -> None:
        self._supersede(member.join_ticket, JoinResult(ErrorCode.UNKNOWN_MEMBER_ID, member.member_id))
        self._supersede(member.sync_ticket, SyncResult(ErrorCode.UNKNOWN_MEMBER_ID))
        del self.members[member.member_id]
        if member.instance_id is not None:
            self._static_ids.pop(member.instance_id, None)

    @property
    def expects_members(self) -> bool:
        """Was somebody told a member id that it has not joined with yet?"""
        return bool(self._promised)

    def restore(self, members: Sequence[Member], now_ms: int) -> None:
        """Takes over members that were stored before a restart; each has a session's time to be heard of."""
        for member in members:
            member.touch(now_ms)
            self.members[member.member_id] = member
            if member.instance_id is not None:
                self._static_ids[member.instance_id] = member.member_id
        self.state = GroupState.STABLE if self.members else GroupState.EMPTY

    # Bookkeeping

    def _go(self, event: Event) -> None:
        self.state = TRANSITIONS[self.state, event]

    def _reply(self, ticket: Ticket, result: JoinResult | SyncResult) -> None:
        self._replies.append(Reply(ticket, result))

    def _supersede(self, ticket: Ticket | None, result: JoinResult | SyncResult) -> None:
        if ticket is not None:
            self._reply(ticket, result)

    def _outcome(self) -> Outcome:
        outcome = Outcome(tuple(self._replies), self._must_store)
        self._replies, self._must_store = [], False
        return outcome


def _metadata(protocols: Sequence[Protocol], name: str | None) -> bytes:
    return next((protocol.metadata for protocol in protocols if protocol.name == name), b"")


def _common(members: Sequence[Member]) -> set[str]:
    return set.intersection(*({protocol.name for protocol in member.protocols} for member in members))


def _chosen_protocol(members: Sequence[Member]) -> str:
    """Each member votes for the first of its protocols that all know; ties go to the first by the first member."""
    common = _common(members)
    votes = Counter(next(each.name for each in member.protocols if each.name in common) for member in members)
    order = [protocol.name for protocol in members[0].protocols if protocol.name in common]
    return max(order, key=lambda name: votes[name])
