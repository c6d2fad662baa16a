"""The state machine of one consumer group (classic protocol): no I/O, no clock.

Every call is given the time, in milliseconds of a clock that only goes forward, and returns what has to happen:
answers to requests that waited (named by their ticket), and whether the group's metadata has to be stored first. The
rules are Kafka's group coordinator's, with KIP-345 (static members) and KIP-394 (a member id before joining).

A group rebalances in two steps. PREPARING_REBALANCE waits until every member has joined or the rebalance timeout has
passed; then the generation goes up and all joins are answered. COMPLETING_REBALANCE waits for the leader's assignment;
then all syncs are answered and the group is STABLE.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum

from headrace.broker.coordinator.members import Member, Members, Ticket, common_protocols
from headrace.broker.coordinator.messages import (
    JoinedMember,
    JoinRequest,
    JoinResult,
    Outcome,
    Reply,
    SyncRequest,
    SyncResult,
)
from headrace.broker.errors import RequestRefused
from headrace.broker.protocol.error_codes import ErrorCode

SESSION_TIMEOUT_MS_MIN, SESSION_TIMEOUT_MS_MAX = 6_000, 1_800_000
"""Kafka's bounds, the lower one a setting: shorter sessions make heartbeats a load, longer ones keep partitions of the
dead unread."""
REBALANCE_TIMEOUT_MS_MIN = 1000
"""Members that ask for less are given this: nobody could join again in time."""
NAME_CHARS_MAX = 1000
"""Of a group id, an instance id or a protocol: in UTF-8 they must fit a string's two-byte length with room to spare."""
MEMBERS_MAX = 1000
"""Of one group; each rebalance sends every member's metadata to the leader."""


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


@dataclass(slots=True)
class Group:
    """See the module. Methods that raise `RequestRefused` leave the group as it was."""

    group_id: str
    new_member_id: Callable[[str], str]  # from the client id or the instance id
    rebalance_delay_ms: int = 0  # how long the first members wait for others, anew for each that comes
    session_timeout_ms_min: int = SESSION_TIMEOUT_MS_MIN
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: Members = field(default_factory=Members)
    _complete_from_ms: int = 0  # before that more first members may come
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

    def sync(self, request: SyncRequest, ticket: Ticket, now_ms: int) -> Outcome:
        """A member asks for its assignment; the leader brings everybody's."""
        try:
            member = self._member(request.member_id, request.instance_id, request.generation)
            if request.protocol_type not in (None, self.protocol_type) or request.protocol not in (None, self.protocol):
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
        if member.member_id == self.leader:
            self._assign(request.assignments, now_ms)
        return self._outcome()

    def hung_up(self, ticket: Ticket, now_ms: int) -> Outcome:
        """Whoever waited with this ticket is gone, and from now on lives by its session as one that does not wait."""
        for member in self.members.values():
            if member.join_ticket == ticket:
                member.join_ticket = None
                member.touch(now_ms)
            if member.sync_ticket == ticket:
                member.sync_ticket = None
                member.touch(now_ms)
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
        if self.members.promised.pop(member_id, None) is not None:
            self._join_if_complete(now_ms)
            return ErrorCode.NONE, self._outcome()
        try:
            owner = self.members.owner_of(instance_id) if member_id == "" else None
            member = owner or self.members.known(member_id, instance_id)
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
        deadlines = list(self.members.promised.values())
        deadlines += [member.deadline_ms for member in self.members.values() if not member.waits]
        if self.is_rebalancing:
            deadlines.append(self._rebalance_deadline_ms)
        if self.state is GroupState.PREPARING_REBALANCE and self._complete_from_ms:
            deadlines.append(self._complete_from_ms)
        return min(deadlines, default=None)

    def tick(self, now_ms: int) -> Outcome:
        """Lets go of members whose time is up."""
        for member_id in [member_id for member_id, deadline in self.members.promised.items() if deadline <= now_ms]:
            del self.members.promised[member_id]
        silent = [member for member in self.members.values() if member.is_silent(now_ms)]
        if silent:
            self._remove(silent, now_ms)
        if self.state is GroupState.PREPARING_REBALANCE:
            if self._complete_from_ms <= now_ms:
                self._complete_from_ms = 0
            if self._rebalance_deadline_ms <= now_ms:
                self._stop_waiting_for_joins(now_ms)
            else:
                self._join_if_complete(now_ms)
        elif self.state is GroupState.COMPLETING_REBALANCE and self._rebalance_deadline_ms <= now_ms:
            # Members that joined but do not sync, the leader above all, hold up the others.
            self._remove([member for member in self.members.values() if member.sync_ticket is None], now_ms)
        return self._outcome()

    # Joining

    def _check_join(self, request: JoinRequest) -> None:
        if not self.session_timeout_ms_min <= request.session_timeout_ms <= SESSION_TIMEOUT_MS_MAX:
            raise RequestRefused(
                ErrorCode.INVALID_SESSION_TIMEOUT,
                f"session timeout {request.session_timeout_ms} ms; expected between {self.session_timeout_ms_min} and "
                f"{SESSION_TIMEOUT_MS_MAX}",
            )
        names = (request.instance_id or "", request.protocol_type, *(each.name for each in request.protocols))
        if any(len(name) > NAME_CHARS_MAX for name in names):
            raise RequestRefused(ErrorCode.INVALID_REQUEST, f"a name of more than {NAME_CHARS_MAX} characters")
        if not request.protocol_type or not request.protocols:
            raise RequestRefused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "no protocol")
        others = [member for member_id, member in self.members.items() if member_id != request.member_id]
        if not others:
            return
        if request.protocol_type != self.protocol_type:
            raise RequestRefused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the group is of type {self.protocol_type}")
        if not common_protocols(others) & {protocol.name for protocol in request.protocols}:
            raise RequestRefused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "no protocol that all members know")

    def _join_newcomer(self, request: JoinRequest, ticket: Ticket, now_ms: int) -> None:
        owner = self.members.owner_of(request.instance_id)
        if owner is None and len(self.members) + len(self.members.promised) >= MEMBERS_MAX:
            raise RequestRefused(ErrorCode.GROUP_MAX_SIZE_REACHED, f"the group has {MEMBERS_MAX} members")
        member_id = self.new_member_id(request.instance_id or request.client_id)
        if owner is not None:
            self._replace_static(owner, request, member_id, ticket, now_ms)
        elif request.instance_id is None and request.needs_known_id:
            self.members.promised[member_id] = now_ms + request.session_timeout_ms
            self._reply(ticket, JoinResult(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add(request, member_id, ticket, now_ms)

    def _add(self, request: JoinRequest, member_id: str, ticket: Ticket, now_ms: int) -> None:
        self.protocol_type = request.protocol_type
        member = _new_member(request, member_id, now_ms)
        self.members.add(member)
        is_first = self.state is GroupState.EMPTY
        if self.rebalance_delay_ms and (is_first or self._complete_from_ms):
            began_at_ms = now_ms if is_first else self._rebalance_deadline_ms - self.members.longest_rebalance_ms
            latest_ms = began_at_ms + self.members.longest_rebalance_ms
            self._complete_from_ms = min(now_ms + self.rebalance_delay_ms, latest_ms)
        self._wait_for_join(member, ticket, now_ms)

    def _replace_static(self, old: Member, request: JoinRequest, member_id: str, ticket: Ticket, now_ms: int) -> None:
        """A static member came back under a new member id: the old one is fenced, its assignment stays."""
        self._supersede(old.join_ticket, JoinResult(ErrorCode.FENCED_INSTANCE_ID, old.member_id))
        self._supersede(old.sync_ticket, SyncResult(ErrorCode.FENCED_INSTANCE_ID))
        if self.leader == old.member_id:
            self.leader = member_id
        member = _new_member(request, member_id, now_ms)
        member.assignment = old.assignment
        self.members.remove(old)
        self.members.add(member)
        if self.state is GroupState.STABLE and old.metadata(self.protocol) == member.metadata(self.protocol):
            # Nothing changed for the others (KIP-345); the new id has to survive a restart, so it is stored.
            self._must_store = True
            self._reply(ticket, self._joined(member, skip_assignment=self.leader == member_id))
            return
        self._wait_for_join(member, ticket, now_ms)

    def _join_known(self, request: JoinRequest, ticket: Ticket, now_ms: int) -> None:
        if self.members.promised.pop(request.member_id, None) is not None:
            self._add(request, request.member_id, ticket, now_ms)
            return
        member = self.members.known(request.member_id, request.instance_id)
        member.touch(now_ms)
        changed = member.protocols != request.protocols
        was_answered = self.state is GroupState.COMPLETING_REBALANCE  # and the answer was lost
        is_follower = self.state is GroupState.STABLE and member.member_id != self.leader
        if not changed and (was_answered or is_follower):
            self._reply(ticket, self._joined(member))
            return
        member.protocols = request.protocols
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        self._supersede(member.join_ticket, JoinResult(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        self._wait_for_join(member, ticket, now_ms)

    def _wait_for_join(self, member: Member, ticket: Ticket, now_ms: int) -> None:
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
        self._rebalance_deadline_ms = now_ms + self.members.longest_rebalance_ms

    def _join_if_complete(self, now_ms: int) -> None:
        if self.state is not GroupState.PREPARING_REBALANCE or self.members.promised:
            return
        if now_ms < self._complete_from_ms:
            return
        if all(member.join_ticket is not None for member in self.members.values()):
            self._complete_join(now_ms)

    def _stop_waiting_for_joins(self, now_ms: int) -> None:
        """The rebalance timeout has passed: go on with those that joined. Static members keep their place."""
        for member in [member for member in self.members.values() if member.join_ticket is None]:
            if member.instance_id is None:
                self._drop(member)
        self.members.promised.clear()
        if self.members and all(member.join_ticket is None for member in self.members.values()):
            self._rebalance_deadline_ms = now_ms + self.members.longest_rebalance_ms
            return
        self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> None:
        self._complete_from_ms = 0
        self.generation += 1
        if not self.members:
            self._go(Event.ALL_LEFT)
            self.protocol = self.leader = None
            self._must_store = True
            return
        self.protocol = self.members.chosen_protocol()
        joined = [member for member in self.members.values() if member.join_ticket is not None]
        if self.leader not in {member.member_id for member in joined}:
            self.leader = joined[0].member_id
        self._go(Event.ALL_JOINED)
        self._rebalance_deadline_ms = now_ms + self.members.longest_rebalance_ms
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

    def _member(self, member_id: str, instance_id: str | None, generation: int) -> Member:
        member = self.members.known(member_id, instance_id)
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
        self.members.remove(member)

    @property
    def is_rebalancing(self) -> bool:
        return self.state in (GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE)

    @property
    def expects_members(self) -> bool:
        """Was somebody told a member id that it has not joined with yet?"""
        return bool(self.members.promised)

    def restore(self, members: Sequence[Member], now_ms: int) -> None:
        """Takes over members that were stored before a restart; each has a session's time to be heard of."""
        for member in members:
            member.touch(now_ms)
            self.members.add(member)
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


def _new_member(request: JoinRequest, member_id: str, now_ms: int) -> Member:
    return Member(
        member_id,
        request.instance_id,
        request.client_id,
        request.client_host,
        request.session_timeout_ms,
        request.rebalance_timeout_ms,
        request.protocols,
        now_ms + request.session_timeout_ms,
    )
