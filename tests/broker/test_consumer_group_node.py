"""Consumer groups of KIP-848 in a node: kept in the log, beside classic groups, and asked by requests."""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.admin import DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest

from headrace.broker.access.login import ANYBODY, Login
from headrace.broker.access.rights import Grant, Rights
from headrace.broker.config import BrokerConfig
from headrace.broker.coordinator import group_store as group_store_module
from headrace.broker.coordinator.consumer_group import ConsumerGroup
from headrace.broker.coordinator.consumer_messages import HeartbeatRequest
from headrace.broker.coordinator.members import Protocol
from headrace.broker.coordinator.messages import JoinRequest, SyncRequest
from headrace.broker.coordinator.records import CommittedOffset
from headrace.broker.data_directory import CLEAN_MARKER
from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext
from headrace.broker.handlers.dispatch import HANDLERS
from headrace.broker.node import BrokerNode
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.kafka_wire.messages import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest
from support.broker.broker_samples import NOW_MS

CLASSIC = JoinRequest("", None, "c", "/h", 10_000, 10_000, "consumer", (Protocol("range", b""),), False)
JOINING = HeartbeatRequest("m", 0, rebalance_timeout_ms=10_000, topics=frozenset({"t"}), owned=frozenset())


class GrantedLogin(Login):
    """Of a user who may do what these lines say."""

    def __init__(self, lines: Iterable[tuple[str, str]]) -> None:
        super().__init__(None)
        self._rights = Rights(Grant.parse(*line) for line in lines)

    @property
    def rights(self) -> Rights:
        return self._rights


class Clock:
    def __init__(self) -> None:
        self.ms = NOW_MS

    def __call__(self) -> int:
        return self.ms


def run(directory: Path, *works: Callable[[BrokerNode], Coroutine[Any, Any, None]], clock: Clock | None = None) -> None:
    """Opens a node on `directory` for each of these, and drops it after as a kill would."""

    async def main(work: Callable[[BrokerNode], Coroutine[Any, Any, None]]) -> None:
        node = BrokerNode(BrokerConfig(directory), now_ms=clock or Clock())
        try:
            await work(node)
        finally:
            await node.close()
            (directory / CLEAN_MARKER).unlink(missing_ok=True)

    for work in works:
        asyncio.run(main(work))


def refusal(call: Any, *arguments: Any) -> ErrorCode:
    with pytest.raises(RequestRefused) as refused:
        call(*arguments)
    return refused.value.code


async def ask(node: BrokerNode, request: Any, *lines: tuple[str, str]) -> Any:
    """What the handler answers; `lines` grant rights where not everything is allowed."""
    login = GrantedLogin(lines) if lines else ANYBODY
    context = RequestContext(node, request.version, "client", "127.0.0.1", login)
    answer = HANDLERS[request.API_KEY].handle(context, request)
    return await answer if inspect.isawaitable(answer) else answer


def beat(version: int = 1, **fields: Any) -> Any:
    joining = {"member_epoch": 0, "rebalance_timeout_ms": 10_000, "subscribed_topic_names": ["t"]}
    told: dict[str, Any] = {"group_id": "g", "member_id": "m", "topic_partitions": [], **joining, **fields}
    return ConsumerGroupHeartbeatRequest(version=version, **told)


def test_groups_go_on_after_a_kill(tmp_path: Path) -> None:
    async def first(node: BrokerNode) -> None:
        node.changes.create_topic("t", 4, {})
        node.groups.consumer_heartbeat("g", JOINING)
        node.groups.consumer_heartbeat("g", replace(JOINING, member_id="n"))
        owned = node.groups.consumer_heartbeat("g", HeartbeatRequest("m", 1)).assigned
        assert node.groups.consumer_heartbeat("g", HeartbeatRequest("m", 1, owned=owned)).epoch == 2
        assert len(node.groups.consumer_heartbeat("g", HeartbeatRequest("n", 2)).assigned or ()) == 2

    async def again(node: BrokerNode) -> None:
        for member_id in ("m", "n"):
            told = node.groups.consumer_heartbeat("g", HeartbeatRequest(member_id, 2))
            assert (told.epoch, told.assigned) == (2, None)
        group = node.groups.groups["g"]
        assert isinstance(group, ConsumerGroup)
        assert (str(group.state), group.epoch) == ("Stable", 2)
        await node.groups.store.compact()

    async def emptied(node: BrokerNode) -> None:
        for member_id in ("m", "n"):
            node.groups.consumer_heartbeat("g", HeartbeatRequest(member_id, -1))
        await node.groups.delete_group("g")

    async def gone(node: BrokerNode) -> None:
        assert not node.groups.groups

    run(tmp_path, first, again, again, emptied, gone)


def test_an_empty_group_becomes_one_of_the_other_protocol(tmp_path: Path) -> None:
    offset = {("t", 0): CommittedOffset(5, -1, "", NOW_MS)}

    async def first(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {})
        member = await node.groups.join("g", CLASSIC)
        await node.groups.sync("g", SyncRequest(member.member_id, None, 1, None, None, {member.member_id: b""}))
        await node.groups.commits.store("g", offset)
        assert refusal(node.groups.consumer_heartbeat, "g", JOINING) is ErrorCode.GROUP_ID_NOT_FOUND
        node.groups.leave("g", member.member_id, None)
        node.groups.consumer_heartbeat("g", JOINING)

    async def second(node: BrokerNode) -> None:
        assert isinstance(node.groups.groups["g"], ConsumerGroup)
        assert dict(node.groups.offsets.of_group("g")) == offset
        assert (await node.groups.join("g", CLASSIC)).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert node.groups.heartbeat("g", "m", None, 1) is ErrorCode.UNKNOWN_MEMBER_ID
        assert node.groups.leave("g", "m", None) is ErrorCode.UNKNOWN_MEMBER_ID
        sync = SyncRequest("m", None, 1, None, None, {})
        assert (await node.groups.sync("g", sync)).error is ErrorCode.UNKNOWN_MEMBER_ID
        node.groups.consumer_heartbeat("g", HeartbeatRequest("m", -1))
        member = await node.groups.join("g", CLASSIC)
        await node.groups.sync("g", SyncRequest(member.member_id, None, 1, None, None, {member.member_id: b""}))

    async def third(node: BrokerNode) -> None:
        assert str(node.groups.groups["g"].state) == "Stable"
        assert not isinstance(node.groups.groups["g"], ConsumerGroup)
        assert dict(node.groups.offsets.of_group("g")) == offset

    run(tmp_path, first, second, third)


def test_since_when_a_group_is_unused_is_stored_with_it_and_nothing_of_one_that_never_was(tmp_path: Path) -> None:
    clock = Clock()

    async def used(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {})
        assert node.groups.store.unused_since_ms("g") == 0
        node.groups.consumer_heartbeat("g", JOINING)
        assert node.groups.store.unused_since_ms("g") == 0

    async def left(node: BrokerNode) -> None:
        assert node.groups.store.unused_since_ms("g") == 0
        node.groups.consumer_heartbeat("g", HeartbeatRequest("m", -1))
        clock.ms += 1000

    async def unused(node: BrokerNode) -> None:
        assert node.groups.store.unused_since_ms("g") == NOW_MS

    run(tmp_path, used, left, unused, clock=clock)


def test_silent_members_are_let_go_and_empty_groups_forgotten(tmp_path: Path) -> None:
    clock = Clock()

    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {})
        node.groups._consumer_session_timeout_ms = 50
        node.start()
        node.groups.consumer_heartbeat("g", JOINING)
        node.groups.consumer_heartbeat("h", JOINING)
        await node.groups.commits.store("h", {("t", 0): CommittedOffset(5, -1, "", NOW_MS)})
        while any(str(group.state) != "Empty" for group in node.groups.groups.values()):
            await asyncio.sleep(0.005)
        clock.ms += 599_000
        await node.groups.keep_house()
        assert set(node.groups.groups) == {"g", "h"}

    async def later(node: BrokerNode) -> None:
        clock.ms += 2000
        await node.groups.keep_house()
        assert set(node.groups.groups) == {"h"}

    run(tmp_path, work, later, later, clock=clock)


def test_what_could_not_be_stored_is_stored_with_the_next_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def first(node: BrokerNode) -> None:
        node.changes.create_topic("t", 2, {})
        with monkeypatch.context() as full:
            full.setattr(node.groups.store, "append", refuse)
            assert refusal(node.groups.consumer_heartbeat, "g", JOINING) is ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert "g" not in node.groups.groups
        node.groups.consumer_heartbeat("g", JOINING)
        with monkeypatch.context() as full:
            full.setattr(node.groups.store, "append", refuse)
            other = replace(JOINING, member_id="n")
            assert refusal(node.groups.consumer_heartbeat, "g", other) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert node.groups.consumer_heartbeat("g", other).epoch == 2

    async def second(node: BrokerNode) -> None:
        assert node.groups.consumer_heartbeat("g", HeartbeatRequest("n", 2)).epoch == 2

    def refuse(entries: Any) -> None:
        raise RequestRefused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "full")

    run(tmp_path, first, second)


def test_bounds_and_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_store_module, "GROUPS_MAX", 1)

    async def work(node: BrokerNode) -> None:
        groups = node.groups
        assert refusal(groups.consumer_heartbeat, "", JOINING) is ErrorCode.INVALID_REQUEST
        assert refusal(groups.consumer_heartbeat, "x" * 1001, JOINING) is ErrorCode.INVALID_GROUP_ID
        groups.consumer_heartbeat("g", JOINING)
        assert refusal(groups.consumer_heartbeat, "h", JOINING) is ErrorCode.POLICY_VIOLATION
        assert refusal(groups.consumer_heartbeat, "h", replace(JOINING, epoch=3)) is ErrorCode.UNKNOWN_MEMBER_ID
        assert set(groups.groups) == {"g"}

    run(tmp_path, work)


def test_requests_and_their_answers(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        topic_id = node.changes.create_topic("t", 2, {}).topic_id
        told = await ask(node, beat(0, member_id=""))
        assert uuid.UUID(told.member_id)
        assert (told.error_code, told.member_epoch, told.heartbeat_interval_ms) == (0, 1, 5000)
        assert [(one.topic_id, one.partitions) for one in told.assignment.topic_partitions] == [(topic_id, [0, 1])]
        assert (await ask(node, beat(member_id=""))).error_code == ErrorCode.INVALID_REQUEST
        quiet = {"topic_partitions": None, "rebalance_timeout_ms": -1, "subscribed_topic_names": None}
        same = beat(member_id=told.member_id, member_epoch=1, **quiet)
        assert (await ask(node, same)).assignment is None
        listed = (await ask(node, ListGroupsRequest(version=5, states_filter=[], types_filter=["consumer"]))).groups
        assert [(one.group_id, one.group_state, one.group_type, one.protocol_type) for one in listed] == [
            ("g", "Stable", "consumer", "consumer")
        ]
        assert not (await ask(node, ListGroupsRequest(version=5, states_filter=[], types_filter=["classic"]))).groups
        assert not (await ask(node, ListGroupsRequest(version=4, states_filter=["Empty"]))).groups
        (old,) = (await ask(node, DescribeGroupsRequest(version=5, groups=["g"]))).groups
        assert (old.group_state, old.members) == ("Dead", [])
        describe = ConsumerGroupDescribeRequest(version=1, group_ids=["g", "g", "x"], include_authorized_operations=1)
        found, missing = (await ask(node, describe)).groups
        assert (found.error_code, found.group_state, found.group_epoch, found.assignment_epoch) == (0, "Stable", 1, 1)
        assert (found.assignor_name, found.authorized_operations) == ("uniform", {3, 6, 8})
        (member,) = found.members
        assert (member.member_epoch, member.client_id, member.client_host) == (1, "client", "/127.0.0.1")
        assert (member.subscribed_topic_names, member.subscribed_topic_regex, member.member_type) == (["t"], "", 1)
        for assignment in (member.assignment, member.target_assignment):
            assert [(one.topic_name, one.partitions) for one in assignment.topic_partitions] == [("t", [0, 1])]
        assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND

    run(tmp_path, work)


def test_commits_and_questions_name_the_member(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {})
        node.groups.consumer_heartbeat("g", JOINING)

        async def commit(member_id: str, epoch: int) -> int:
            topic = OffsetCommitRequest.OffsetCommitRequestTopic
            place = topic.OffsetCommitRequestPartition(version=9, partition_index=0, committed_offset=5)
            request = OffsetCommitRequest(
                version=9,
                group_id="g",
                generation_id_or_member_epoch=epoch,
                member_id=member_id,
                topics=[topic(version=9, name="t", partitions=[place])],
            )
            return int((await ask(node, request)).topics[0].partitions[0].error_code)

        async def fetch(member_id: str | None, epoch: int) -> tuple[int, list[int]]:
            group = OffsetFetchRequest.OffsetFetchRequestGroup
            wanted = group(version=9, group_id="g", member_id=member_id, member_epoch=epoch, topics=None)
            (told,) = (await ask(node, OffsetFetchRequest(version=9, groups=[wanted]))).groups
            return told.error_code, [one.committed_offset for topic in told.topics for one in topic.partitions]

        assert await commit("m", 1) == 0
        assert await commit("m", 2) == ErrorCode.STALE_MEMBER_EPOCH
        assert await commit("x", 1) == ErrorCode.UNKNOWN_MEMBER_ID
        assert await fetch("m", 1) == (0, [5])
        assert await fetch(None, -1) == (0, [5])
        assert await fetch("m", 2) == (ErrorCode.STALE_MEMBER_EPOCH, [])
        assert await fetch("x", 1) == (ErrorCode.UNKNOWN_MEMBER_ID, [])
        assert (
            refusal(node.groups.commits.check_transaction, "g", "m", None, 2, [("t", 0)])
            is ErrorCode.ILLEGAL_GENERATION
        )
        assert (
            refusal(node.groups.commits.check_transaction, "g", "x", None, 1, [("t", 0)]) is ErrorCode.UNKNOWN_MEMBER_ID
        )
        node.groups.commits.check_transaction("g", "m", None, 1, [("t", 0)])
        topic = OffsetDeleteRequest.OffsetDeleteRequestTopic
        place = topic.OffsetDeleteRequestPartition(version=0, partition_index=0)
        delete = OffsetDeleteRequest(version=0, group_id="g", topics=[topic(version=0, name="t", partitions=[place])])
        (told,) = (await ask(node, delete)).topics[0].partitions
        assert told.error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        place = topic.OffsetDeleteRequestPartition(version=0, partition_index=99)
        delete = OffsetDeleteRequest(version=0, group_id="g", topics=[topic(version=0, name="t", partitions=[place])])
        (told,) = (await ask(node, delete)).topics[0].partitions
        assert told.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(tmp_path, work)


def test_members_need_rights(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        for name in ("t", "u"):
            node.changes.create_topic(name, 1, {})
        group, topic = ("read", "group:g"), ("read", "topic:t")
        assert (await ask(node, beat(), topic)).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        assert (await ask(node, beat(), group)).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert (await ask(node, beat(), group, topic)).error_code == 0
        pattern = beat(member_id="n", subscribed_topic_names=[], subscribed_topic_regex=".*")
        assert (await ask(node, pattern, group, topic)).error_code == 0
        found = node.groups.groups["g"]
        assert isinstance(found, ConsumerGroup)
        assert found.subscribed == {"t"}
        describe = ConsumerGroupDescribeRequest(version=1, group_ids=["g"])
        codes = [
            (await ask(node, describe, *lines)).groups[0].error_code for lines in ([topic], [group], [group, topic])
        ]
        assert codes == [ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0]

    run(tmp_path, work)
