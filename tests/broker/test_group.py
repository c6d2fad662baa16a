"""State machine of classic groups, tested with explicit requests and times."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.broker.coordinator.group import MEMBERS_MAX, TRANSITIONS, Group, GroupEvent, GroupState
from headrace.broker.coordinator.members import MemberProtocol
from headrace.broker.coordinator.messages import GroupActions, JoinRequest, JoinResult, SyncRequest, SyncResult
from headrace.broker.errors import RequestRefused
from headrace.broker.protocol.error_codes import ErrorCode
from support.examples import examples

SESSION_MS, REBALANCE_MS = 10_000, 30_000


class Driver:
    """A group and the responses of its members, by ticket."""

    def __init__(self) -> None:
        numbers = itertools.count(1)
        self.group = Group("g", lambda prefix: f"{prefix}-{next(numbers)}")
        self.responses: dict[int, JoinResult | SyncResult] = {}
        self.stored = 0
        self._tickets = itertools.count(1)

    def record_replies(self, actions: GroupActions) -> None:
        for reply in actions.replies:
            assert reply.ticket not in self.responses, "a request gets one response"
            self.responses[reply.ticket] = reply.result
        self.stored += actions.must_store

    def join(
        self,
        member_id: str = "",
        *,
        at: int = 0,
        instance_id: str | None = None,
        protocols: Mapping[str, bytes] | None = None,
        session_ms: int = SESSION_MS,
        requires_id: bool = False,
    ) -> int:
        ticket = next(self._tickets)
        chosen = {"range": b"topic"} if protocols is None else protocols
        request = JoinRequest(
            member_id,
            instance_id,
            "client",
            "/127.0.0.1",
            session_ms,
            REBALANCE_MS,
            "consumer",
            tuple(MemberProtocol(name, metadata) for name, metadata in chosen.items()),
            requires_id,
        )
        self.record_replies(self.group.join(request, ticket, at))
        return ticket

    def sync(self, member_id: str, generation: int, assignments: Mapping[str, bytes] | None = None, at: int = 0) -> int:
        ticket = next(self._tickets)
        request = SyncRequest(member_id, None, generation, None, None, assignments or {})
        self.record_replies(self.group.sync(request, ticket, at))
        return ticket

    def joined(self, ticket: int) -> JoinResult:
        result = self.responses[ticket]
        assert isinstance(result, JoinResult)
        return result

    def synced(self, ticket: int) -> SyncResult:
        result = self.responses[ticket]
        assert isinstance(result, SyncResult)
        return result

    def tick(self, at: int) -> None:
        self.record_replies(self.group.tick(at))


def stable_pair() -> tuple[Driver, str, str]:
    """Returns a stable group of two members in generation 2, led by the first."""
    driver = Driver()
    leader = driver.joined(driver.join()).member_id
    second = driver.join()
    rejoined = driver.join(leader)
    other = driver.joined(second).member_id
    assert driver.joined(rejoined).generation == 2
    waiting = driver.sync(other, 2)
    assert waiting not in driver.responses
    driver.sync(leader, 2, {leader: b"L", other: b"O"})
    assert driver.synced(waiting).assignment == b"O"
    assert driver.group.state is GroupState.STABLE
    return driver, leader, other


def test_single_member_becomes_leader_at_once() -> None:
    driver = Driver()
    result = driver.joined(driver.join(protocols={"range": b"r", "sticky": b"s"}))
    assert (result.error, result.generation, result.protocol, result.leader) == (
        ErrorCode.NONE,
        1,
        "range",
        result.member_id,
    )
    assert [(member.member_id, member.metadata) for member in result.members] == [(result.member_id, b"r")]
    assert driver.synced(driver.sync(result.member_id, 1, {result.member_id: b"all"})).assignment == b"all"
    assert (driver.group.state, driver.stored) == (GroupState.STABLE, 1)


def test_new_member_gets_member_id_before_joining() -> None:
    driver = Driver()
    result = driver.joined(driver.join(requires_id=True))
    assert result.error is ErrorCode.MEMBER_ID_REQUIRED
    assert driver.group.state is GroupState.EMPTY
    assert driver.joined(driver.join(result.member_id, requires_id=True)).error is ErrorCode.NONE


def test_pending_member_id_blocks_group_only_for_its_session() -> None:
    driver = Driver()
    leader = driver.joined(driver.join()).member_id
    driver.sync(leader, 1)
    driver.join(requires_id=True, at=100)
    rejoin = driver.join(leader, at=200)
    assert rejoin not in driver.responses
    driver.tick(100 + SESSION_MS)
    assert driver.joined(rejoin).generation == 2


def test_second_member_triggers_rebalance() -> None:
    driver, leader, other = stable_pair()
    assert driver.group.heartbeat(leader, None, 2, 10) is ErrorCode.NONE
    driver.join(at=20)
    assert driver.group.heartbeat(leader, None, 2, 30) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.synced(driver.sync(other, 2)).error is ErrorCode.REBALANCE_IN_PROGRESS


def test_members_not_rejoining_are_removed_at_rebalance_timeout() -> None:
    driver, leader, other = stable_pair()
    third = driver.join(at=0)
    rejoin = driver.join(leader, at=5)
    driver.group.heartbeat(other, None, 2, 25_000)
    driver.tick(REBALANCE_MS - 1)
    assert rejoin not in driver.responses
    driver.tick(REBALANCE_MS)
    assert driver.joined(rejoin).generation == 3
    assert set(driver.group.members) == {leader, driver.joined(third).member_id}


def test_member_without_heartbeats_is_removed() -> None:
    driver, leader, other = stable_pair()
    assert driver.group.next_deadline_ms() == SESSION_MS
    driver.group.heartbeat(leader, None, 2, 6000)
    driver.tick(SESSION_MS)
    assert set(driver.group.members) == {leader}
    assert driver.group.state is GroupState.PREPARING_REBALANCE
    assert driver.group.heartbeat(other, None, 2, SESSION_MS) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.joined(driver.join(leader, at=SESSION_MS)).generation == 3


def test_leader_that_never_assigns_is_removed() -> None:
    driver = Driver()
    leader = driver.joined(driver.join()).member_id
    second = driver.join()
    driver.join(leader)
    other = driver.joined(second).member_id
    waiting = driver.sync(other, 2)
    driver.group.heartbeat(leader, None, 2, REBALANCE_MS - 1)
    driver.tick(REBALANCE_MS)
    assert driver.synced(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert set(driver.group.members) == {other}


def test_group_is_empty_after_last_member_leaves() -> None:
    driver, leader, other = stable_pair()
    for member in (other, leader):
        code, actions = driver.group.leave(member, None, 0)
        assert code is ErrorCode.NONE
        driver.record_replies(actions)
    assert (driver.group.state, driver.group.generation) == (GroupState.EMPTY, 3)
    driver.group.check_empty()
    assert driver.group.leave(leader, None, 0)[0] is ErrorCode.UNKNOWN_MEMBER_ID


def test_commit_requires_current_member_and_generation() -> None:
    driver, leader, _ = stable_pair()
    group = driver.group
    group.check_commit(leader, None, 2, 0)
    cases = [(leader, 1, ErrorCode.ILLEGAL_GENERATION), ("nobody", 2, ErrorCode.UNKNOWN_MEMBER_ID)]
    cases += [(leader, 3, ErrorCode.ILLEGAL_GENERATION), ("", -1, ErrorCode.UNKNOWN_MEMBER_ID)]
    for member_id, generation, code in cases:
        with pytest.raises(RequestRefused) as refused:
            group.check_commit(member_id, None, generation, 0)
        assert refused.value.code is code
    Driver().group.check_commit("", None, -1, 0)


def test_commit_between_join_and_assignment_is_refused() -> None:
    driver = Driver()
    member = driver.joined(driver.join()).member_id
    with pytest.raises(RequestRefused) as refused:
        driver.group.check_commit(member, None, 1, 0)
    assert refused.value.code is ErrorCode.REBALANCE_IN_PROGRESS


def test_selected_protocol_is_shared_and_most_preferred() -> None:
    driver = Driver()
    first = driver.joined(driver.join(protocols={"a": b"", "b": b"", "c": b""})).member_id
    second = driver.join(protocols={"b": b"2", "c": b"2"})
    rejoined = driver.join(first, protocols={"a": b"", "c": b"1", "b": b"1"})
    assert driver.joined(rejoined).protocol in ("b", "c")
    assert driver.joined(rejoined).protocol == driver.joined(second).protocol
    assert driver.joined(driver.join(protocols={"z": b""})).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001, 0, -1])
def test_session_timeout_outside_bounds_is_refused(session_ms: int) -> None:
    driver = Driver()
    assert driver.joined(driver.join(session_ms=session_ms)).error is ErrorCode.INVALID_SESSION_TIMEOUT
    assert not driver.group.members


def test_group_size_is_limited() -> None:
    driver = Driver()
    for _ in range(MEMBERS_MAX):
        driver.join(requires_id=True)
    assert driver.joined(driver.join()).error is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_unknown_member_and_wrong_protocol_are_refused() -> None:
    driver, leader, _ = stable_pair()
    assert driver.joined(driver.join("stranger")).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.joined(driver.join(protocols={})).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert driver.synced(driver.sync("stranger", 2)).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.synced(driver.sync(leader, 1)).error is ErrorCode.ILLEGAL_GENERATION
    assert driver.synced(driver.sync(leader, 3)).error is ErrorCode.ILLEGAL_GENERATION


def test_returning_static_member_causes_no_rebalance() -> None:
    driver = Driver()
    first = driver.joined(driver.join(instance_id="i")).member_id
    driver.sync(first, 1, {first: b"all"})
    back = driver.joined(driver.join(instance_id="i", at=5))
    assert (back.error, back.generation, back.skip_assignment) == (ErrorCode.NONE, 1, True)
    assert back.member_id != first
    assert driver.group.state is GroupState.STABLE
    assert driver.synced(driver.sync(back.member_id, 1)).assignment == b"all"
    assert driver.group.heartbeat(first, "i", 1, 6) is ErrorCode.FENCED_INSTANCE_ID
    assert driver.group.leave("", "i", 7)[0] is ErrorCode.NONE


def test_restored_group_continues_its_generation() -> None:
    driver, leader, other = stable_pair()
    restored = Driver()
    restored.group.generation, restored.group.protocol_type, restored.group.protocol = 2, "consumer", "range"
    restored.group.restore(list(driver.group.members.values()), 50_000)
    assert restored.group.heartbeat(leader, None, 2, 50_001) is ErrorCode.NONE
    assert restored.synced(restored.sync(other, 2, at=50_000)).assignment == b"O"
    assert restored.group.next_deadline_ms() == 50_000 + SESSION_MS


def test_every_transition_leads_to_a_state_with_an_exit() -> None:
    reachable = {GroupState.EMPTY, *TRANSITIONS.values()}
    assert reachable == set(GroupState)
    assert {state for state, _ in TRANSITIONS} == set(GroupState) - {GroupState.DEAD}
    assert {event for _, event in TRANSITIONS} == set(GroupEvent)


class GroupUnderLoad(RuleBasedStateMachine):
    """Members join, sync, send heartbeats, leave and expire in any order: every request gets exactly one response."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver()
        self.now = 0
        self.joins: dict[int, str] = {}

    @rule(requires_id=st.booleans())
    def newcomer(self, requires_id: bool) -> None:
        self.joins[self.driver.join(at=self.now, requires_id=requires_id)] = ""

    @precondition(lambda self: self.driver.responses)
    @rule(data=st.data())
    def rejoin(self, data: st.DataObject) -> None:
        responses = [response for response in self.driver.responses.values() if isinstance(response, JoinResult)]
        if responses:
            member_id = data.draw(st.sampled_from(responses)).member_id
            self.joins[self.driver.join(member_id, at=self.now)] = member_id

    @precondition(lambda self: self.driver.group.members)
    @rule(data=st.data())
    def sync(self, data: st.DataObject) -> None:
        member_id = data.draw(st.sampled_from(sorted(self.driver.group.members)))
        everybody = {each: each.encode() for each in self.driver.group.members}
        ticket = self.driver.sync(member_id, self.driver.group.generation, everybody, self.now)
        response = self.driver.responses.get(ticket)
        if isinstance(response, SyncResult) and response.error is ErrorCode.NONE:
            assert response.assignment in (member_id.encode(), b"")

    @precondition(lambda self: self.driver.group.members)
    @rule(data=st.data())
    def heartbeat_or_leave(self, data: st.DataObject) -> None:
        member_id = data.draw(st.sampled_from(sorted(self.driver.group.members)))
        if data.draw(st.booleans()):
            self.driver.group.heartbeat(member_id, None, self.driver.group.generation, self.now)
        else:
            self.driver.record_replies(self.driver.group.leave(member_id, None, self.now)[1])

    @rule(ms=st.integers(1, 20_000))
    def time_passes(self, ms: int) -> None:
        self.now += ms
        due = self.driver.group.next_deadline_ms()
        if due is not None and due <= self.now:
            self.driver.tick(self.now)
            next_due = self.driver.group.next_deadline_ms()
            assert next_due is None or next_due > self.now, "no deadline remains due after a tick"

    @invariant()
    def consistent(self) -> None:
        group = self.driver.group
        waiting = [member for member in group.members.values() if member.join_ticket is not None]
        if group.state is GroupState.EMPTY:
            assert not group.members
        else:
            assert group.members or group.state is GroupState.PREPARING_REBALANCE
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            assert group.leader in group.members
            assert not waiting
        if group.state is GroupState.PREPARING_REBALANCE:
            assert group.next_deadline_ms() is not None, "a rebalance always ends"
        held = {member.join_ticket for member in waiting}
        unanswered = {ticket for ticket in self.joins if ticket not in self.driver.responses}
        assert unanswered == held


GroupUnderLoad.TestCase.settings = settings(max_examples=examples(0.5), stateful_step_count=40)
TestGroupUnderLoad = GroupUnderLoad.TestCase


def test_disconnect_restarts_session_of_that_member_only() -> None:
    driver, leader, other = stable_pair()
    removed = driver.join(leader, at=10)
    driver.record_replies(driver.group.disconnect(removed, 1000))
    waiting = driver.join(other, at=20)
    assert waiting not in driver.responses
    driver.tick(999 + SESSION_MS)
    assert set(driver.group.members) == {leader, other}
    driver.tick(1000 + SESSION_MS)
    assert set(driver.group.members) == {other} and driver.joined(waiting).leader == other


def test_disconnected_sync_request_gets_no_reply() -> None:
    driver, leader, other = stable_pair()
    driver.join(leader)
    driver.join(other)
    removed = driver.sync(other, 3)
    driver.record_replies(driver.group.disconnect(removed, 5))
    assert driver.group.members[other].deadline_ms == 5 + SESSION_MS
    driver.sync(leader, 3, {leader: b"L", other: b"O"})
    assert removed not in driver.responses and driver.group.state is GroupState.STABLE
