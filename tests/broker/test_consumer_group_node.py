"""Consumer groups (KIP-848) in a broker node: storage in the log, coexistence with classic groups, and requests."""

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

from headrace.broker.access.login import ANONYMOUS, Login
from headrace.broker.access.permissions import BrokerPermissions, Grant
from headrace.broker.config import BrokerConfig
from headrace.broker.coordinator import group_store as group_store_module
from headrace.broker.coordinator.consumer_group import ConsumerGroup
from headrace.broker.coordinator.consumer_messages import HeartbeatRequest
from headrace.broker.coordinator.members import MemberProtocol
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

CLASSIC = JoinRequest("", None, "c", "/h", 10_000, 10_000, "consumer", (MemberProtocol("range", b""),), False)
JOINING = HeartbeatRequest("m", 0, rebalance_timeout_ms=10_000, topics=frozenset({"t"}), owned=frozenset())


class GrantedLogin(Login):
    """A login with these permissions only."""

    def __init__(self, lines: Iterable[tuple[str, str]]) -> None:
        super().__init__(None)
        self._rights = BrokerPermissions(Grant.parse(*line) for line in lines)

    @property
    def permissions(self) -> BrokerPermissions:
        return self._rights


class Clock:
    def __init__(self) -> None:
        self.ms = NOW_MS

    def __call__(self) -> int:
        return self.ms


def run(directory: Path, *steps: Callable[[BrokerNode], Coroutine[Any, Any, None]], clock: Clock | None = None) -> None:
    """Runs each step on a node opened on `directory`, which is afterwards abandoned as by a kill."""

    async def main(work: Callable[[BrokerNode], Coroutine[Any, Any, None]]) -> None:
        node = BrokerNode(BrokerConfig(directory), now_ms=clock or Clock())
        try:
            await work(node)
        finally:
            await node.close()
            (directory / CLEAN_MARKER).unlink(missing_ok=True)

    for work in steps:
        asyncio.run(main(work))


def refusal(call: Any, *arguments: Any) -> ErrorCode:
    with pytest.raises(RequestRefused) as refused:
        call(*arguments)
    return refused.value.code


async def handle_request(node: BrokerNode, request: Any, *lines: tuple[str, str]) -> Any:
    """Returns the handler's response; `lines` are the client's grants, all permissions if empty."""
    login = GrantedLogin(lines) if lines else ANONYMOUS
    context = RequestContext(node, request.version, "client", "127.0.0.1", login)
    response = HANDLERS[request.API_KEY].handle(context, request)
    return await response if inspect.isawaitable(response) else response


def heartbeat_request(version: int = 1, **fields: Any) -> Any:
    joining = {"member_epoch": 0, "rebalance_timeout_ms": 10_000, "subscribed_topic_names": ["t"]}
    response: dict[str, Any] = {"group_id": "g", "member_id": "m", "topic_partitions": [], **joining, **fields}
    return ConsumerGroupHeartbeatRequest(version=version, **response)


def test_consumer_groups_survive_kill(tmp_path: Path) -> None:
    async def first(node: BrokerNode) -> None:
        node.changes.create_topic("t", 4, {})
        node.groups.consumer_heartbeat("g", JOINING)
        node.groups.consumer_heartbeat("g", replace(JOINING, member_id="n"))
        owned = node.groups.consumer_heartbeat("g", HeartbeatRequest("m", 1)).assigned
        assert node.groups.consumer_heartbeat("g", HeartbeatRequest("m", 1, owned=owned)).epoch == 2
        assert len(node.groups.consumer_heartbeat("g", HeartbeatRequest("n", 2)).assigned or ()) == 2

    async def after_restart(node: BrokerNode) -> None:
        for member_id in ("m", "n"):
            response = node.groups.consumer_heartbeat("g", HeartbeatRequest(member_id, 2))
            assert (response.epoch, response.assigned) == (2, None)
        group = node.groups.groups["g"]
        assert isinstance(group, ConsumerGroup)
        assert (str(group.state), group.epoch) == ("Stable", 2)
        await node.groups.store.compact()

    async def emptied(node: BrokerNode) -> None:
        for member_id in ("m", "n"):
            node.groups.consumer_heartbeat("g", HeartbeatRequest(member_id, -1))
        await node.groups.delete_group("g")

    async def removed(node: BrokerNode) -> None:
        assert not node.groups.groups

    run(tmp_path, first, after_restart, after_restart, emptied, removed)


def test_empty_group_changes_protocol(tmp_path: Path) -> None:
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


def test_unused_since_is_stored_and_never_joined_group_is_not(tmp_path: Path) -> None:
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


def test_expired_members_are_removed_and_empty_groups_deleted(tmp_path: Path) -> None:
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
        await node.groups.run_housekeeping()
        assert set(node.groups.groups) == {"g", "h"}

    async def later(node: BrokerNode) -> None:
        clock.ms += 2000
        await node.groups.run_housekeeping()
        assert set(node.groups.groups) == {"h"}

    run(tmp_path, work, later, later, clock=clock)


def test_unstored_change_is_stored_with_next_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_group_ids_and_group_count_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_consumer_group_requests_and_responses(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        topic_id = node.changes.create_topic("t", 2, {}).topic_id
        response = await handle_request(node, heartbeat_request(0, member_id=""))
        assert uuid.UUID(response.member_id)
        assert (response.error_code, response.member_epoch, response.heartbeat_interval_ms) == (0, 1, 5000)
        assert [(one.topic_id, one.partitions) for one in response.assignment.topic_partitions] == [(topic_id, [0, 1])]
        assert (await handle_request(node, heartbeat_request(member_id=""))).error_code == ErrorCode.INVALID_REQUEST
        quiet = {"topic_partitions": None, "rebalance_timeout_ms": -1, "subscribed_topic_names": None}
        same = heartbeat_request(member_id=response.member_id, member_epoch=1, **quiet)
        assert (await handle_request(node, same)).assignment is None
        listed = (
            await handle_request(node, ListGroupsRequest(version=5, states_filter=[], types_filter=["consumer"]))
        ).groups
        assert [(one.group_id, one.group_state, one.group_type, one.protocol_type) for one in listed] == [
            ("g", "Stable", "consumer", "consumer")
        ]
        assert not (
            await handle_request(node, ListGroupsRequest(version=5, states_filter=[], types_filter=["classic"]))
        ).groups
        assert not (await handle_request(node, ListGroupsRequest(version=4, states_filter=["Empty"]))).groups
        (old,) = (await handle_request(node, DescribeGroupsRequest(version=5, groups=["g"]))).groups
        assert (old.group_state, old.members) == ("Dead", [])
        describe = ConsumerGroupDescribeRequest(version=1, group_ids=["g", "g", "x"], include_authorized_operations=1)
        found, missing = (await handle_request(node, describe)).groups
        assert (found.error_code, found.group_state, found.group_epoch, found.assignment_epoch) == (0, "Stable", 1, 1)
        assert (found.assignor_name, found.authorized_operations) == ("uniform", {3, 6, 8})
        (member,) = found.members
        assert (member.member_epoch, member.client_id, member.client_host) == (1, "client", "/127.0.0.1")
        assert (member.subscribed_topic_names, member.subscribed_topic_regex, member.member_type) == (["t"], "", 1)
        for assignment in (member.assignment, member.target_assignment):
            assert [(one.topic_name, one.partitions) for one in assignment.topic_partitions] == [("t", [0, 1])]
        assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND

    run(tmp_path, work)


def test_offset_requests_check_member_and_epoch(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 1, {})
        node.groups.consumer_heartbeat("g", JOINING)

        async def commit(member_id: str, epoch: int) -> int:
            topic = OffsetCommitRequest.OffsetCommitRequestTopic
            partition = topic.OffsetCommitRequestPartition(version=9, partition_index=0, committed_offset=5)
            request = OffsetCommitRequest(
                version=9,
                group_id="g",
                generation_id_or_member_epoch=epoch,
                member_id=member_id,
                topics=[topic(version=9, name="t", partitions=[partition])],
            )
            return int((await handle_request(node, request)).topics[0].partitions[0].error_code)

        async def fetch(member_id: str | None, epoch: int) -> tuple[int, list[int]]:
            group = OffsetFetchRequest.OffsetFetchRequestGroup
            requested = group(version=9, group_id="g", member_id=member_id, member_epoch=epoch, topics=None)
            (response,) = (await handle_request(node, OffsetFetchRequest(version=9, groups=[requested]))).groups
            return response.error_code, [one.committed_offset for topic in response.topics for one in topic.partitions]

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
        partition = topic.OffsetDeleteRequestPartition(version=0, partition_index=0)
        delete = OffsetDeleteRequest(
            version=0, group_id="g", topics=[topic(version=0, name="t", partitions=[partition])]
        )
        (response,) = (await handle_request(node, delete)).topics[0].partitions
        assert response.error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        partition = topic.OffsetDeleteRequestPartition(version=0, partition_index=99)
        delete = OffsetDeleteRequest(
            version=0, group_id="g", topics=[topic(version=0, name="t", partitions=[partition])]
        )
        (response,) = (await handle_request(node, delete)).topics[0].partitions
        assert response.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(tmp_path, work)


def test_consumer_group_members_need_permissions(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        for name in ("t", "u"):
            node.changes.create_topic(name, 1, {})
        group, topic = ("read", "group:g"), ("read", "topic:t")
        assert (
            await handle_request(node, heartbeat_request(), topic)
        ).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        assert (
            await handle_request(node, heartbeat_request(), group)
        ).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert (await handle_request(node, heartbeat_request(), group, topic)).error_code == 0
        pattern = heartbeat_request(member_id="n", subscribed_topic_names=[], subscribed_topic_regex=".*")
        assert (await handle_request(node, pattern, group, topic)).error_code == 0
        found = node.groups.groups["g"]
        assert isinstance(found, ConsumerGroup)
        assert found.subscribed == {"t"}
        describe = ConsumerGroupDescribeRequest(version=1, group_ids=["g"])
        codes = [
            (await handle_request(node, describe, *lines)).groups[0].error_code
            for lines in ([topic], [group], [group, topic])
        ]
        assert codes == [ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0]

    run(tmp_path, work)
