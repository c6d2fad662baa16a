"""Admin requests: pages of DescribeTopicPartitions, leader elections, incremental changes of list configurations."""

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
from headrace.broker.topics import OFFSETS_TOPIC
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
    response = describe_topic_partitions.handle(context(node, 0), request)
    return DescribeTopicPartitionsResponse.decode(bytes(response.encode()), version=0)


def summary(response: Any) -> tuple[list[tuple[str, int, list[int]]], tuple[str, int] | None]:
    """Returns (topic, error, partitions) of each topic, and the cursor."""
    topics = [
        (topic.name, topic.error_code, [result.partition_index for result in topic.partitions])
        for topic in response.topics
    ]
    cursor = response.next_cursor
    return topics, None if cursor is None else (cursor.topic_name, cursor.partition_index)


def test_topics_are_sorted_by_name_including_unknown_ones(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("b", 2, {})
        topic = node.changes.create_topic("a", 1, {})
        response = described(node, "b", "nothing", "a", "a")
        assert summary(response) == ([("a", 0, [0]), ("b", 0, [0, 1]), ("nothing", 3, [])], None)
        first = response.topics[0]
        assert (first.topic_id, first.is_internal) == (topic.topic_id, False)
        (result,) = first.partitions
        assert (result.leader_id, result.replica_nodes, result.isr_nodes, result.offline_replicas) == (1, [1], [1], [])
        assert result.leader_epoch == node.topics.leader_epoch
        everything, _ = summary(described(node))
        assert [name for name, _, _ in everything] == ["__consumer_offsets", "a", "b"]
        assert node.topics.get("nothing") is None

    with_node(tmp_path, work)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 100])
def test_pages_contain_every_partition_once(tmp_path: Path, limit: int) -> None:
    async def work(node: BrokerNode) -> None:
        for name, partitions in (("a", 3), ("b", 1), ("c", 4)):
            node.changes.create_topic(name, partitions, {})
        seen: list[tuple[str, int]] = []
        cursor: tuple[str, int] | None = None
        for _ in range(20):
            topics, cursor = summary(described(node, "a", "b", "c", limit=limit, cursor=cursor))
            assert sum(len(indexes) for _, _, indexes in topics) <= limit
            seen += [(name, index) for name, _, indexes in topics for index in indexes]
            if cursor is None:
                break
        assert seen == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("c", 0), ("c", 1), ("c", 2), ("c", 3)]

    with_node(tmp_path, work)


def test_response_holds_at_most_partitions_max(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe_topic_partitions, "PARTITIONS_MAX", 5)

    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("a", 9, {})
        assert summary(described(node, "a", limit=10**6)) == ([("a", 0, [0, 1, 2, 3, 4])], ("a", 5))
        assert summary(described(node, "a", limit=10**6, cursor=("a", 5))) == ([("a", 0, [5, 6, 7, 8])], None)
        assert summary(described(node, "a", limit=-1)) == ([("a", 0, [0])], ("a", 1))

    with_node(tmp_path, work)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_elect_leaders_returns_election_not_needed(tmp_path: Path, version: int) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("a", 2, {})
        requested = ElectLeadersRequest.TopicPartitions
        request = ElectLeadersRequest(
            version=version,
            topic_partitions=[
                requested(version=version, topic="a", partitions=[1, 0, 7]),
                requested(version=version, topic="b", partitions=[0]),
            ],
        )
        response = elect_leaders.handle(context(node, version), request)
        read = ElectLeadersResponse.decode(bytes(response.encode()), version=version)
        assert [
            (topic.topic, [(result.partition_id, result.error_code) for result in topic.partition_result])
            for topic in read.replica_election_results
        ] == [("a", [(0, 84), (1, 84), (7, 3)]), ("b", [(0, 3)])]
        everything = elect_leaders.handle(
            context(node, version), ElectLeadersRequest(version=version, topic_partitions=None)
        )
        assert list(everything.replica_election_results) == []

    with_node(tmp_path, work)


async def alter(node: BrokerNode, *changes: tuple[str, int, str | None]) -> tuple[ErrorCode, dict[str, str]]:
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


def test_append_and_subtract_change_list_configs(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("a", 1, {})
        both = {"cleanup.policy": "delete,compact"}
        assert await alter(node, ("cleanup.policy", APPEND, "compact")) == (ErrorCode.NONE, both)
        assert await alter(node, ("cleanup.policy", APPEND, "compact")) == (ErrorCode.NONE, both)
        assert await alter(node, ("cleanup.policy", SUBTRACT, "compact")) == (
            ErrorCode.NONE,
            {"cleanup.policy": "delete"},
        )
        assert (await alter(node, ("cleanup.policy", SUBTRACT, "delete")))[0] is ErrorCode.INVALID_CONFIG
        assert (await alter(node, ("cleanup.policy", APPEND, "shred")))[0] is ErrorCode.INVALID_CONFIG
        assert (await alter(node, ("retention.ms", APPEND, "5")))[0] is ErrorCode.INVALID_CONFIG
        assert (await alter(node, ("nothing", SUBTRACT, "5")))[0] is ErrorCode.INVALID_CONFIG
        assert (await alter(node, ("cleanup.policy", 9, "delete")))[0] is ErrorCode.INVALID_REQUEST
        twice = await alter(node, ("retention.ms", SET, "5"), ("retention.ms", SET, "6"))
        assert twice == (ErrorCode.INVALID_REQUEST, {"cleanup.policy": "delete"})
        assert (await alter(node, ("retention.ms", SET, "5")))[1] == {"cleanup.policy": "delete", "retention.ms": "5"}

    with_node(tmp_path, work)


def test_unchanged_topic_config_is_not_written_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """MirrorMaker 2 sends the same configuration repeatedly."""
    caplog.set_level("INFO", logger="headrace.broker.topic_changes")

    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("a", 1, {"retention.ms": "5"})
        caplog.clear()
        written = (tmp_path / "topics.json").stat().st_ino
        assert await alter(node, ("retention.ms", SET, "5")) == (ErrorCode.NONE, {"retention.ms": "5"})
        assert ((tmp_path / "topics.json").stat().st_ino, caplog.messages) == (written, [])
        assert await alter(node, ("retention.ms", SET, "6")) == (ErrorCode.NONE, {"retention.ms": "6"})
        assert (tmp_path / "topics.json").stat().st_ino != written
        assert [record.args for record in caplog.records] == [("a", {"retention.ms": "6"})]

    with_node(tmp_path, work)


def test_internal_topics_get_no_further_partitions(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        before = node.topic(OFFSETS_TOPIC).partitions
        requested = CreatePartitionsRequest.CreatePartitionsTopic(name=OFFSETS_TOPIC, count=before + 1)
        request = CreatePartitionsRequest(topics=[requested], timeout_ms=1000, validate_only=False)
        [refused] = (await create_partitions.handle(context(node, 1), request)).results
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        assert node.topic(OFFSETS_TOPIC).partitions == before

    with_node(tmp_path, work)


def test_topic_named_twice_in_request_is_refused(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        for name in ("a", "b"):
            node.changes.create_topic(name, 1, {})
        requested = [CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=3) for name in ("a", "b", "a")]
        request = CreatePartitionsRequest(topics=requested, timeout_ms=1000, validate_only=False)
        extended = await create_partitions.handle(context(node, 1), request)
        assert {result.name: result.error_code for result in extended.results} == {
            "a": ErrorCode.INVALID_REQUEST,
            "b": 0,
        }
        assert (node.topic("a").partitions, node.topic("b").partitions) == (1, 3)
        deleted = await delete_topics.handle(
            context(node, 4), DeleteTopicsRequest(version=4, topic_names=["b", "a", "a"], timeout_ms=1000)
        )
        assert {result.name: result.error_code for result in deleted.responses} == {
            "a": ErrorCode.INVALID_REQUEST,
            "b": 0,
        }
        assert node.topics.get("b") is None and node.topic("a").partitions == 1
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource
        change = resource.AlterableConfig(name="retention.ms", config_operation=SET, value="7")
        twice = [resource(resource_type=2, resource_name="a", configs=[change]) for _ in range(2)]
        response = await incremental_alter_configs.handle(
            context(node, 1), IncrementalAlterConfigsRequest(resources=twice, validate_only=False)
        )
        assert [result.error_code for result in response.responses] == [ErrorCode.INVALID_REQUEST] * 2
        assert node.topic("a").configs == {}

    with_node(tmp_path, work)


def test_harmless_duplicates_in_request_get_one_result(tmp_path: Path) -> None:
    async def work(node: BrokerNode) -> None:
        node.changes.create_topic("t", 3, {})
        node.groups.store.add_group("g")
        deleted = await delete_groups.handle(context(node, 2), DeleteGroupsRequest(groups_names=["g", "g"]))
        assert [(result.group_id, result.error_code) for result in deleted.results] == [("g", ErrorCode.NONE)]
        requested = DescribeLogDirsRequest.DescribableLogDirTopic
        topics = [requested(topic="t", partitions=[index]) for index in (2, 0)]
        response = describe_log_dirs.handle(context(node, 4), DescribeLogDirsRequest(topics=topics))
        [topic] = response.results[0].topics
        assert [result.partition_index for result in topic.partitions] == [0, 2]

    with_node(tmp_path, work)
