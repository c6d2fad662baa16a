"""What admin clients ask that a single node has a short answer to: portions of topics, elections, lists altered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.admin import (
    CreatePartitionsRequest,
    DeleteGroupsRequest,
    DeleteTopicsRequest,
    DescribeLogDirsRequest,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    IncrementalAlterConfigsRequest,
)

from headrace.broker.config import BrokerConfig
from headrace.broker.handlers import (
    create_partitions,
    delete_groups,
    delete_topics,
    describe_log_dirs,
    describe_topic_partitions,
    elect_leaders,
    incremental_alter_configs,
)
from headrace.broker.handlers.context import RequestContext
from headrace.broker.handlers.incremental_alter_configs import APPEND, SET, SUBTRACT
from headrace.broker.node import BrokerNode
from headrace.broker.protocol.error_codes import ErrorCode
from support.broker.broker_samples import NOW_MS


def with_node(directory: Path, work: Callable[[BrokerNode], Awaitable[None]]) -> None:
    async def main() -> None:
        node = BrokerNode(BrokerConfig(directory), now_ms=lambda: NOW_MS)
        try:
            await work(node)
        finally:
            await node.close()

    asyncio.run(main())


def context(node: BrokerNode, version: int) -> RequestContext:
    return RequestContext(node, version, "client", "127.0.0.1")


def described(node: BrokerNode, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> Any:
    request = DescribeTopicPartitionsRequest(
        version=0,
        topics=[DescribeTopicPartitionsRequest.TopicRequest(version=0, name=name) for name in names],
        response_partition_limit=limit,
        cursor=cursor
        and DescribeTopicPartitionsRequest.Cursor(version=0, topic_name=cursor[0], partition_index=cursor[1]),
    )
    answer = describe_topic_partitions.handle(context(node, 0), request)
    return DescribeTopicPartitionsResponse.decode(bytes(answer.encode()), version=0)


def shown(answer: Any) -> tuple[list[tuple[str, int, list[int]]], tuple[str, int] | None]:
    """Topics with their error and partitions, and where the next answer begins."""
    topics = [
        (topic.name, topic.error_code, [one.partition_index for one in topic.partitions]) for topic in answer.topics
    ]
    cursor = answer.next_cursor
    return topics, None if cursor is None else (cursor.topic_name, cursor.partition_index)


def test_topics_come_by_name_with_what_is_unknown_among_them(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("b", 2, {})
        topic = node.changes.create_topic("a", 1, {})
        answer = described(node, "b", "nothing", "a", "a")
        assert shown(answer) == ([("a", 0, [0]), ("b", 0, [0, 1]), ("nothing", 3, [])], None)
        first = answer.topics[0]
        assert (first.topic_id, first.is_internal) == (topic.topic_id, False)
        (one,) = first.partitions
        assert (one.leader_id, one.replica_nodes, one.isr_nodes, one.offline_replicas) == (1, [1], [1], [])
        assert one.leader_epoch == node.topics.leader_epoch
        everything, _ = shown(described(node))
        assert [name for name, _, _ in everything] == ["__consumer_offsets", "a", "b"]
        assert node.topics.get("nothing") is None

    with_node(tmp_path, work)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 100])
def test_portions_make_up_the_whole_with_nothing_twice(tmp_path: Path, limit: int) -> None:
    async def work(node: BrokerNode) -> None:
        for name, partitions in (("a", 3), ("b", 1), ("c", 4)):
            node.changes.create_topic(name, partitions, {})
        seen: list[tuple[str, int]] = []
        cursor: tuple[str, int] | None = None
        for _ in range(20):
            topics, cursor = shown(described(node, "a", "b", "c", limit=limit, cursor=cursor))
            assert sum(len(indexes) for _, _, indexes in topics) <= limit
            seen += [(name, index) for name, _, indexes in topics for index in indexes]
            if cursor is None:
                break
        assert seen == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("c", 0), ("c", 1), ("c", 2), ("c", 3)]

    with_node(tmp_path, work)


def test_one_answer_has_no_more_than_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe_topic_partitions, "PARTITIONS_MAX", 5)

    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("a", 9, {})
        assert shown(described(node, "a", limit=10**6)) == ([("a", 0, [0, 1, 2, 3, 4])], ("a", 5))
        assert shown(described(node, "a", limit=10**6, cursor=("a", 5))) == ([("a", 0, [5, 6, 7, 8])], None)
        assert shown(described(node, "a", limit=-1)) == ([("a", 0, [0])], ("a", 1))

    with_node(tmp_path, work)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_no_election_is_needed(tmp_path: Path, version: int) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("a", 2, {})
        wanted = ElectLeadersRequest.TopicPartitions
        request = ElectLeadersRequest(
            version=version,
            topic_partitions=[
                wanted(version=version, topic="a", partitions=[1, 0, 7]),
                wanted(version=version, topic="b", partitions=[0]),
            ],
        )
        answer = elect_leaders.handle(context(node, version), request)
        read = ElectLeadersResponse.decode(bytes(answer.encode()), version=version)
        assert [
            (topic.topic, [(one.partition_id, one.error_code) for one in topic.partition_result])
            for topic in read.replica_election_results
        ] == [("a", [(0, 84), (1, 84), (7, 3)]), ("b", [(0, 3)])]
        everything = elect_leaders.handle(
            context(node, version), ElectLeadersRequest(version=version, topic_partitions=None)
        )
        assert list(everything.replica_election_results) == []

    with_node(tmp_path, work)


async def altered(node: BrokerNode, *changes: tuple[str, int, str | None]) -> tuple[ErrorCode, dict[str, str]]:
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    request = IncrementalAlterConfigsRequest(
        version=1,
        resources=[
            resource(
                version=1,
                resource_type=2,
                resource_name="a",
                configs=[
                    resource.AlterableConfig(version=1, name=name, config_operation=operation, value=value)
                    for name, operation, value in changes
                ],
            )
        ],
    )
    (result,) = (await incremental_alter_configs.handle(context(node, 1), request)).responses
    return ErrorCode(result.error_code), dict(node.topic("a").configs)


def test_items_are_added_to_lists_and_taken_from_them(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("a", 1, {})
        both = {"cleanup.policy": "delete,compact"}
        assert await altered(node, ("cleanup.policy", APPEND, "compact")) == (ErrorCode.NONE, both)
        assert await altered(node, ("cleanup.policy", APPEND, "compact")) == (ErrorCode.NONE, both)
        assert await altered(node, ("cleanup.policy", SUBTRACT, "compact")) == (
            ErrorCode.NONE,
            {"cleanup.policy": "delete"},
        )
        assert (await altered(node, ("cleanup.policy", SUBTRACT, "delete")))[0] is ErrorCode.INVALID_CONFIG
        assert (await altered(node, ("cleanup.policy", APPEND, "shred")))[0] is ErrorCode.INVALID_CONFIG
        assert (await altered(node, ("retention.ms", APPEND, "5")))[0] is ErrorCode.INVALID_CONFIG
        assert (await altered(node, ("nothing", SUBTRACT, "5")))[0] is ErrorCode.INVALID_CONFIG
        assert (await altered(node, ("cleanup.policy", 9, "delete")))[0] is ErrorCode.INVALID_REQUEST
        twice = await altered(node, ("retention.ms", SET, "5"), ("retention.ms", SET, "6"))
        assert twice == (ErrorCode.INVALID_REQUEST, {"cleanup.policy": "delete"})
        assert (await altered(node, ("retention.ms", SET, "5")))[1] == {"cleanup.policy": "delete", "retention.ms": "5"}

    with_node(tmp_path, work)


def test_a_topic_that_is_altered_to_what_it_is_is_not_written_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """MirrorMaker 2 asks for the same configuration over and over."""
    caplog.set_level("INFO", logger="headrace.broker.topic_changes")

    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("a", 1, {"retention.ms": "5"})
        caplog.clear()
        written = (tmp_path / "topics.json").stat().st_ino
        assert await altered(node, ("retention.ms", SET, "5")) == (ErrorCode.NONE, {"retention.ms": "5"})
        assert ((tmp_path / "topics.json").stat().st_ino, caplog.messages) == (written, [])
        assert await altered(node, ("retention.ms", SET, "6")) == (ErrorCode.NONE, {"retention.ms": "6"})
        assert (tmp_path / "topics.json").stat().st_ino != written
        assert [record.args for record in caplog.records] == [("a", {"retention.ms": "6"})]

    with_node(tmp_path, work)


def test_a_topic_that_is_named_twice_in_a_request_is_left_alone(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        for name in ("a", "b"):
            node.changes.create_topic(name, 1, {})
        wanted = [CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=3) for name in ("a", "b", "a")]
        request = CreatePartitionsRequest(topics=wanted, timeout_ms=1000, validate_only=False)
        grown = await create_partitions.handle(context(node, 1), request)
        assert {one.name: one.error_code for one in grown.results} == {"a": ErrorCode.INVALID_REQUEST, "b": 0}
        assert (node.topic("a").partitions, node.topic("b").partitions) == (1, 3)
        gone = await delete_topics.handle(
            context(node, 4), DeleteTopicsRequest(version=4, topic_names=["b", "a", "a"], timeout_ms=1000)
        )
        assert {one.name: one.error_code for one in gone.responses} == {"a": ErrorCode.INVALID_REQUEST, "b": 0}
        assert node.topics.get("b") is None and node.topic("a").partitions == 1
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource
        change = resource.AlterableConfig(name="retention.ms", config_operation=SET, value="7")
        twice = [resource(resource_type=2, resource_name="a", configs=[change]) for _ in range(2)]
        told = await incremental_alter_configs.handle(
            context(node, 1), IncrementalAlterConfigsRequest(resources=twice, validate_only=False)
        )
        assert [one.error_code for one in told.responses] == [ErrorCode.INVALID_REQUEST] * 2
        assert node.topic("a").configs == {}

    with_node(tmp_path, work)


def test_what_is_named_twice_where_that_does_no_harm_is_answered_once(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 3, {})
        node.groups.store.add_group("g")
        gone = await delete_groups.handle(context(node, 2), DeleteGroupsRequest(groups_names=["g", "g"]))
        assert [(one.group_id, one.error_code) for one in gone.results] == [("g", ErrorCode.NONE)]
        wanted = DescribeLogDirsRequest.DescribableLogDirTopic
        topics = [wanted(topic="t", partitions=[index]) for index in (2, 0)]
        told = describe_log_dirs.handle(context(node, 4), DescribeLogDirsRequest(topics=topics))
        [topic] = told.results[0].topics
        assert [one.partition_index for one in topic.partitions] == [0, 2]

    with_node(tmp_path, work)
