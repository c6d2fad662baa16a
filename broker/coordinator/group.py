"""State machine of one consumer group of the classic protocol. No I/O, no clock.

Methods get the time in ms of a monotonic clock. They return the actions to perform: responses to waiting requests
(identified by their ticket), and whether the group's metadata must be stored first. The rules are those of Kafka's
group coordinator, with KIP-345 (static members) and KIP-394 (member id before joining).

A group rebalances in two steps. PREPARING_REBALANCE waits until every member has joined or the rebalance timeout has
passed; then the generation increases and all joins get their response. COMPLETING_REBALANCE waits for the leader's
assignment; then all syncs get their response and the group is STABLE.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum

from headrace.broker.coordinator.members import GroupMember, GroupMembers, Ticket, shared_protocols
from headrace.broker.coordinator.messages import (
    GroupActions,
    JoinedMember,
    JoinRequest,
    JoinResult,
    Reply,
    SyncRequest,
    SyncResult,
)
from headrace.broker.errors import RequestRefused
from headrace.broker.protocol.error_codes import ErrorCode

SESSION_TIMEOUT_MS_MIN, SESSION_TIMEOUT_MS_MAX = 6_000, 1_800_000
"""Kafka's bounds of session timeouts; the lower one is a setting. Shorter sessions cause many heartbeats; with longer
ones the partitions of a dead member stay unread."""
REBALANCE_TIMEOUT_MS_MIN = 1000
"""Minimum rebalance timeout; smaller values are raised to it, because members could not rejoin in time."""
NAME_CHARS_MAX = 1000
"""Longest name in a request of a group member, such as a group id, an instance id, a protocol name or a pattern. In
UTF-8 it fits into a string with a 2-byte length."""
MEMBERS_MAX = 1000
"""Most members of a group of either protocol. Each rebalance of a classic group sends the metadata of every member to
the leader."""


class GroupState(StrEnum):
    """State of a group, by the name that DescribeGroups shows."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class GroupEvent(Enum):
    REBALANCE_NEEDED = "a member joined, changed or left"
    ALL_JOINED = "every expected member has joined"
    ASSIGNED = "the leader has sent the assignment"
    ALL_LEFT = "the last member left"
    DELETED = "the group was deleted"


TRANSITIONS: Mapping[tuple[GroupState, GroupEvent], GroupState] = {
    (GroupState.EMPTY, GroupEvent.REBALANCE_NEEDED): GroupState.PREPARING_REBALANCE,
    (GroupState.STABLE, GroupEvent.REBALANCE_NEEDED): GroupState.PREPARING_REBALANCE,
    (GroupState.COMPLETING_REBALANCE, GroupEvent.REBALANCE_NEEDED): GroupState.PREPARING_REBALANCE,
    (GroupState.PREPARING_REBALANCE, GroupEvent.REBALANCE_NEEDED): GroupState.PREPARING_REBALANCE,
    (GroupState.PREPARING_REBALANCE, GroupEvent.ALL_JOINED): GroupState.COMPLETING_REBALANCE,
    (GroupState.COMPLETING_REBALANCE, GroupEvent.ASSIGNED): GroupState.STABLE,
    (GroupState.PREPARING_REBALANCE, GroupEvent.ALL_LEFT): GroupState.EMPTY,
    (GroupState.EMPTY, GroupEvent.DELETED): GroupState.DEAD,
}
"""All state transitions, except that a start sets the state of a loaded group directly. A group whose last member
leaves passes through PREPARING_REBALANCE too."""


@dataclass(slots=True)
class Group:
    """A consumer group of the classic protocol; the module describes the rebalance. Methods that raise `RequestRefused`
    leave it unchanged."""

    group_id: str
    new_member_id: Callable[[str], str]  # argument: client id or instance id
    rebalance_delay_ms: int = 0  # wait of an empty group for more members after the latest one has joined
    session_timeout_ms_min: int = SESSION_TIMEOUT_MS_MIN
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: GroupMembers = field(default_factory=GroupMembers)
    _initial_delay_until_ms: int = 0  # until then the first rebalance waits for more members
    _rebalance_deadline_ms: int = 0  # preparing: for joins; completing: for the leader's assignment
    _replies: list[Reply] = field(default_factory=list)
    _must_store: bool = False

    # Requests

    def join(self, request: JoinRequest, ticket: Ticket, now_ms: int) -> GroupActions:
        """Processes a member's JoinGroup request, which `ticket` identifies, and returns the actions to perform. The
        response to the request may be among the actions of a later call."""
        try:
            self._check_join(request)
            if request.member_id == "":
                self._join_new_member(request, ticket, now_ms)
            else:
                self._rejoin(request, ticket, now_ms)
        except RequestRefused as refused:
            self._reply(ticket, JoinResult(refused.code, request.member_id))
        return self._take_actions()

    def sync(self, request: SyncRequest, ticket: Ticket, now_ms: int) -> GroupActions:
        """Processes a member's SyncGroup request, which `ticket` identifies, and returns the actions to perform. The
        leader's request contains the assignments of all members. The response to the request may be among the actions
        of a later call."""
        try:
            member = self._require_current(request.member_id, request.instance_id, request.generation)
            if request.protocol_type not in (None, self.protocol_type) or request.protocol not in (None, self.protocol):
                raise RequestRefused(
                    ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                    f"the group uses protocol {self.protocol_type}/{self.protocol}, but the request has "
                    f"{request.protocol_type}/{request.protocol}; join again",
                )
            if self.state is GroupState.PREPARING_REBALANCE:
                raise RequestRefused(ErrorCode.REBALANCE_IN_PROGRESS, "the group is rebalancing; join again")
        except RequestRefused as refused:
            self._reply(ticket, SyncResult(refused.code))
            return self._take_actions()
        member.touch(now_ms)
        if self.state is GroupState.STABLE:
            self._reply(ticket, self._sync_result(member))
            return self._take_actions()
        self._reply_if_waiting(member.sync_ticket, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync_ticket = ticket
        if member.member_id == self.leader:
            self._assign(request.assignments, now_ms)
        return self._take_actions()

    def disconnect(self, ticket: Ticket, now_ms: int) -> GroupActions:
        """Records that the connection of the waiting request that `ticket` identifies was closed. From now on the
        session of its member may time out. Returns the actions to perform."""
        for member in self.members.values():
            if member.join_ticket == ticket:
                member.join_ticket = None
                member.touch(now_ms)
            if member.sync_ticket == ticket:
                member.sync_ticket = None
                member.touch(now_ms)
        return self._take_actions()

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> ErrorCode:
        """Records that a member is alive: its session timeout starts again at `now_ms` (monotonic clock). Returns NONE,
        or an error code: the member must join again, or another one has taken over its instance id.

        Args:
            instance_id: the instance id of a static member, else None.
            generation: the group generation that the member knows.
        """
        try:
            self._require_current(member_id, instance_id, generation).touch(now_ms)
        except RequestRefused as refused:
            return refused.code
        is_preparing = self.state is GroupState.PREPARING_REBALANCE
        return ErrorCode.REBALANCE_IN_PROGRESS if is_preparing else ErrorCode.NONE

    def leave(self, member_id: str, instance_id: str | None, now_ms: int) -> tuple[ErrorCode, GroupActions]:
        """Removes a member at the time `now_ms` (monotonic clock). A static member may be named by its instance id
        alone, with "" as member id. Returns the error code for the response, NONE if the member was removed, and the
        actions to perform."""
        if self.members.pending_member_ids.pop(member_id, None) is not None:
            self._complete_join_if_ready(now_ms)
            return ErrorCode.NONE, self._take_actions()
        try:
            owner = self.members.static_member(instance_id) if member_id == "" else None
            member = owner or self.members.require(member_id, instance_id)
        except RequestRefused as refused:
            return refused.code, GroupActions()
        self._remove([member], now_ms)
        return ErrorCode.NONE, self._take_actions()

    def check_commit(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> None:
        """Checks that a member may commit offsets, and starts its session timeout again at `now_ms` (monotonic clock).

        A consumer that assigns partitions manually has no generation; it may commit while the group has no members.

        Args:
            instance_id: the instance id of a static member, else None.
            generation: the group generation that the member knows; negative if it has none.

        Raises:
            RequestRefused: the member or its generation is not current, or the group waits for the leader's assignment.
        """
        if generation < 0 and not self.members:
            return
        member = self._require_current(member_id, instance_id, generation)
        if self.state is GroupState.COMPLETING_REBALANCE:
            raise RequestRefused(ErrorCode.REBALANCE_IN_PROGRESS, "the group is rebalancing; join again")
        member.touch(now_ms)

    def check_empty(self) -> None:
        """Checks that the group can be deleted.

        Raises:
            RequestRefused: the group has members or is rebalancing.
        """
        if self.state is not GroupState.EMPTY:
            raise RequestRefused(ErrorCode.NON_EMPTY_GROUP, f"group {self.group_id!r} has members; stop them first")

    def delete(self) -> None:
        self._transition(GroupEvent.DELETED)

    # Time

    def next_deadline_ms(self) -> int | None:
        """Returns the time at which `tick` must be called next; None if no deadline is set."""
        deadlines = list(self.members.pending_member_ids.values())
        deadlines += [member.deadline_ms for member in self.members.values() if not member.is_waiting]
        if self.is_rebalancing:
            deadlines.append(self._rebalance_deadline_ms)
        if self.state is GroupState.PREPARING_REBALANCE and self._initial_delay_until_ms:
            deadlines.append(self._initial_delay_until_ms)
        return min(deadlines, default=None)

    def tick(self, now_ms: int) -> GroupActions:
        """Removes the members that have missed their deadline at the time `now_ms` (monotonic clock), and continues a
        rebalance that waited for them, or that has reached the end of its delay or timeout. Returns the actions to
        perform."""
        for member_id in [
            member_id for member_id, deadline in self.members.pending_member_ids.items() if deadline <= now_ms
        ]:
            del self.members.pending_member_ids[member_id]
        expired = [member for member in self.members.values() if member.is_expired(now_ms)]
        if expired:
            self._remove(expired, now_ms)
        if self.state is GroupState.PREPARING_REBALANCE:
            if self._initial_delay_until_ms <= now_ms:
                self._initial_delay_until_ms = 0
            if self._rebalance_deadline_ms <= now_ms:
                self._on_join_timeout(now_ms)
            else:
                self._complete_join_if_ready(now_ms)
        elif self.state is GroupState.COMPLETING_REBALANCE and self._rebalance_deadline_ms <= now_ms:
            # Members that joined but did not sync block the rest of the group, above all the leader.
            self._remove([member for member in self.members.values() if member.sync_ticket is None], now_ms)
        return self._take_actions()

    # Joining

    def _check_join(self, request: JoinRequest) -> None:
        if not self.session_timeout_ms_min <= request.session_timeout_ms <= SESSION_TIMEOUT_MS_MAX:
            raise RequestRefused(
                ErrorCode.INVALID_SESSION_TIMEOUT,
                f"the session timeout is {request.session_timeout_ms} ms; expected {self.session_timeout_ms_min} to "
                f"{SESSION_TIMEOUT_MS_MAX}; set session.timeout.ms in the client",
            )
        names = (request.instance_id or "", request.protocol_type, *(each.name for each in request.protocols))
        if any(len(name) > NAME_CHARS_MAX for name in names):
            raise RequestRefused(
                ErrorCode.INVALID_REQUEST,
                f"the instance id, the protocol type or a protocol name has more than {NAME_CHARS_MAX} characters",
            )
        if not request.protocol_type or not request.protocols:
            raise RequestRefused(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                "the request names no protocol type or no assignment protocol; configure partition.assignment.strategy "
                "in the client",
            )
        others = [member for member_id, member in self.members.items() if member_id != request.member_id]
        if not others:
            return
        if request.protocol_type != self.protocol_type:
            raise RequestRefused(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"the request has protocol type {request.protocol_type!r}, but the group uses {self.protocol_type!r}; "
                "use another group id",
            )
        if not shared_protocols(others) & {protocol.name for protocol in request.protocols}:
            raise RequestRefused(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                "no assignor is supported by all members; configure a common partition.assignment.strategy",
            )

    def _join_new_member(self, request: JoinRequest, ticket: Ticket, now_ms: int) -> None:
        owner = self.members.static_member(request.instance_id)
        if owner is None and len(self.members) + len(self.members.pending_member_ids) >= MEMBERS_MAX:
            raise RequestRefused(
                ErrorCode.GROUP_MAX_SIZE_REACHED, f"the group has reached its maximum of {MEMBERS_MAX} members"
            )
        member_id = self.new_member_id(request.instance_id or request.client_id)
        if owner is not None:
            self._replace_static(owner, request, member_id, ticket, now_ms)
        elif request.instance_id is None and request.requires_known_member_id:
            self.members.pending_member_ids[member_id] = now_ms + request.session_timeout_ms
            self._reply(ticket, JoinResult(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add(request, member_id, ticket, now_ms)

    def _add(self, request: JoinRequest, member_id: str, ticket: Ticket, now_ms: int) -> None:
        self.protocol_type = request.protocol_type
        member = _new_member(request, member_id, now_ms)
        self.members.add(member)
        is_first = self.state is GroupState.EMPTY
        if self.rebalance_delay_ms and (is_first or self._initial_delay_until_ms):
            began_at_ms = now_ms if is_first else self._rebalance_deadline_ms - self.members.rebalance_timeout_ms_max
            latest_ms = began_at_ms + self.members.rebalance_timeout_ms_max
            self._initial_delay_until_ms = min(now_ms + self.rebalance_delay_ms, latest_ms)
        self._wait_for_join(member, ticket, now_ms)

    def _replace_static(
        self, old: GroupMember, request: JoinRequest, member_id: str, ticket: Ticket, now_ms: int
    ) -> None:
        """Replaces the static member `old`, which returned with the new id `member_id`. The new member inherits the
        assignment; requests with the old id are refused.

        Args:
            request: the JoinGroup request of the new member.
            ticket: identifies this request for its response.
            now_ms: monotonic clock; the new member's session timeout starts at this time.
        """
        self._reply_if_waiting(old.join_ticket, JoinResult(ErrorCode.FENCED_INSTANCE_ID, old.member_id))
        self._reply_if_waiting(old.sync_ticket, SyncResult(ErrorCode.FENCED_INSTANCE_ID))
        if self.leader == old.member_id:
            self.leader = member_id
        member = _new_member(request, member_id, now_ms)
        member.assignment = old.assignment
        self.members.remove(old)
        self.members.add(member)
        if self.state is GroupState.STABLE and old.metadata(self.protocol) == member.metadata(self.protocol):
            # The other members are not affected (KIP-345). The new id is stored because it must survive a restart.
            self._must_store = True
            self._reply(ticket, self._join_result(member, skip_assignment=self.leader == member_id))
            return
        self._wait_for_join(member, ticket, now_ms)

    def _rejoin(self, request: JoinRequest, ticket: Ticket, now_ms: int) -> None:
        if self.members.pending_member_ids.pop(request.member_id, None) is not None:
            self._add(request, request.member_id, ticket, now_ms)
            return
        member = self.members.require(request.member_id, request.instance_id)
        member.touch(now_ms)
        has_changed = member.protocols != request.protocols
        is_lost_response = self.state is GroupState.COMPLETING_REBALANCE  # joins were answered, so it did not arrive
        is_follower = self.state is GroupState.STABLE and member.member_id != self.leader
        if not has_changed and (is_lost_response or is_follower):
            self._reply(ticket, self._join_result(member))
            return
        member.protocols = request.protocols
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        self._reply_if_waiting(member.join_ticket, JoinResult(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        self._wait_for_join(member, ticket, now_ms)

    def _wait_for_join(self, member: GroupMember, ticket: Ticket, now_ms: int) -> None:
        member.join_ticket = ticket
        self._start_rebalance(now_ms)
        self._complete_join_if_ready(now_ms)

    def _start_rebalance(self, now_ms: int) -> None:
        if self.state is GroupState.PREPARING_REBALANCE:
            return
        for member in self.members.values():
            if member.sync_ticket is not None:
                # The member waited for the sync response, so its session restarts now.
                member.touch(now_ms)
                self._reply_if_waiting(member.sync_ticket, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
                member.sync_ticket = None
        self._transition(GroupEvent.REBALANCE_NEEDED)
        self._rebalance_deadline_ms = now_ms + self.members.rebalance_timeout_ms_max

    def _complete_join_if_ready(self, now_ms: int) -> None:
        if self.state is not GroupState.PREPARING_REBALANCE or self.members.pending_member_ids:
            return
        if now_ms < self._initial_delay_until_ms:
            return
        if all(member.join_ticket is not None for member in self.members.values()):
            self._complete_join(now_ms)

    def _on_join_timeout(self, now_ms: int) -> None:
        """Continues a rebalance after its timeout with the members that have joined. Of the others, static members stay
        in the group and all others are removed. If static members remain and none of them has joined, waits for another
        timeout."""
        for member in [member for member in self.members.values() if member.join_ticket is None]:
            if member.instance_id is None:
                self._drop(member)
        self.members.pending_member_ids.clear()
        if self.members and all(member.join_ticket is None for member in self.members.values()):
            self._rebalance_deadline_ms = now_ms + self.members.rebalance_timeout_ms_max
            return
        self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> None:
        self._initial_delay_until_ms = 0
        self.generation += 1
        if not self.members:
            self._transition(GroupEvent.ALL_LEFT)
            self.protocol = self.leader = None
            self._must_store = True
            return
        self.protocol = self.members.select_protocol()
        joined = [member for member in self.members.values() if member.join_ticket is not None]
        if self.leader not in {member.member_id for member in joined}:
            self.leader = joined[0].member_id
        self._transition(GroupEvent.ALL_JOINED)
        self._rebalance_deadline_ms = now_ms + self.members.rebalance_timeout_ms_max
        for member in joined:
            member.touch(now_ms)
            self._reply_if_waiting(member.join_ticket, self._join_result(member))
            member.join_ticket = None

    def _join_result(self, member: GroupMember, *, skip_assignment: bool = False) -> JoinResult:
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
        self._transition(GroupEvent.ASSIGNED)
        self._must_store = True
        for member in self.members.values():
            if member.sync_ticket is not None:
                member.touch(now_ms)
                self._reply_if_waiting(member.sync_ticket, self._sync_result(member))
                member.sync_ticket = None

    def _sync_result(self, member: GroupMember) -> SyncResult:
        return SyncResult(ErrorCode.NONE, member.assignment, self.protocol_type, self.protocol)

    # Members

    def _require_current(self, member_id: str, instance_id: str | None, generation: int) -> GroupMember:
        member = self.members.require(member_id, instance_id)
        if generation != self.generation:
            raise RequestRefused(
                ErrorCode.ILLEGAL_GENERATION,
                f"the request has generation {generation}, but the group's current generation is {self.generation}; "
                "join again",
            )
        return member

    def _remove(self, removed: Sequence[GroupMember], now_ms: int) -> None:
        for member in removed:
            self._drop(member)
        self._start_rebalance(now_ms)
        self._complete_join_if_ready(now_ms)

    def _drop(self, member: GroupMember) -> None:
        self._reply_if_waiting(member.join_ticket, JoinResult(ErrorCode.UNKNOWN_MEMBER_ID, member.member_id))
        self._reply_if_waiting(member.sync_ticket, SyncResult(ErrorCode.UNKNOWN_MEMBER_ID))
        self.members.remove(member)

    @property
    def is_rebalancing(self) -> bool:
        return self.state in (GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE)

    @property
    def has_pending_members(self) -> bool:
        """True if a new member has received its member id and has not joined with it yet."""
        return bool(self.members.pending_member_ids)

    def restore(self, members: Sequence[GroupMember], now_ms: int) -> None:
        """Adds the members that were loaded from the log at start. The next heartbeat of each is due one session
        timeout after `now_ms` (monotonic clock)."""
        for member in members:
            member.touch(now_ms)
            self.members.add(member)
        self.state = GroupState.STABLE if self.members else GroupState.EMPTY

    # Bookkeeping

    def _transition(self, event: GroupEvent) -> None:
        self.state = TRANSITIONS[self.state, event]

    def _reply(self, ticket: Ticket, result: JoinResult | SyncResult) -> None:
        self._replies.append(Reply(ticket, result))

    def _reply_if_waiting(self, ticket: Ticket | None, result: JoinResult | SyncResult) -> None:
        if ticket is not None:
            self._reply(ticket, result)

    def _take_actions(self) -> GroupActions:
        actions = GroupActions(tuple(self._replies), self._must_store)
        self._replies, self._must_store = [], False
        return actions


def _new_member(request: JoinRequest, member_id: str, now_ms: int) -> GroupMember:
    return GroupMember(
        member_id,
        request.instance_id,
        request.client_id,
        request.client_host,
        request.session_timeout_ms,
        request.rebalance_timeout_ms,
        request.protocols,
        now_ms + request.session_timeout_ms,
    )
