"""DescribeTopicPartitions, version 0 (KIP-966): topics and their partitions, in pages. It never creates topics.

Topics are sorted by name. If a response is full, its cursor is the first partition of the next page.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import DescribeTopicPartitionsResponse

from headrace.broker.access.permissions import ResourceType
from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.protocol.operations import topic_operations

PARTITIONS_MAX = 2000
"""Partitions per response: Kafka's `max.request.partition.size.limit`."""

_Topic = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
_Partition = _Topic.DescribeTopicPartitionsResponsePartition


def handle(context: RequestContext, request: Any) -> Any:
    names = {topic.name or "" for topic in request.topics or ()}
    if not names:
        names = {
            topic.name
            for topic in context.node.topics
            if context.permissions.granted_on(ResourceType.TOPIC, topic.name)
        }
    first_name, first_index = "", 0
    if request.cursor is not None:
        first_name, first_index = request.cursor.topic_name or "", max(request.cursor.partition_index, 0)
    partitions_left = min(max(request.response_partition_limit, 1), PARTITIONS_MAX)
    topics: list[Any] = []
    for name in sorted(name for name in names if name >= first_name):
        if partitions_left == 0:
            return _response(context, topics, name, 0)
        begin = first_index if name == first_name else 0
        described, count = _described_topic(context, name, begin, partitions_left)
        topics.append(described)
        partitions_left -= count
        topic = context.node.topics.get(name)
        if count and topic is not None and begin + count < topic.partitions:
            return _response(context, topics, name, begin + count)
    return _response(context, topics)


def _response(context: RequestContext, topics: list[Any], name: str | None = None, index: int = 0) -> Any:
    cursor = DescribeTopicPartitionsResponse.Cursor
    return DescribeTopicPartitionsResponse(
        version=context.version,
        topics=topics,
        next_cursor=None if name is None else cursor(version=context.version, topic_name=name, partition_index=index),
    )


def _described_topic(context: RequestContext, name: str, begin: int, count_max: int) -> tuple[Any, int]:
    """Returns the response's entry for the topic of this name, with at most `count_max` partitions from number `begin`
    on, and the number of partitions in this entry. If the topic does not exist, or the client has no permission on it,
    the entry has an error code and no partitions."""
    version = context.version
    try:
        context.check_topic(name)
        topic = context.node.topic(name)
    except RequestRefused as refused:
        return _Topic(version=version, error_code=refused.code, name=name, partitions=[]), 0
    indexes = range(begin, min(begin + count_max, topic.partitions))
    described = _Topic(
        version=version,
        error_code=ErrorCode.NONE,
        name=name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=[_partition(context, index) for index in indexes],
        topic_authorized_operations=_bits(topic_operations(context.permissions, name)),
    )
    return described, len(indexes)


def _bits(operations: Any) -> int:
    return sum(1 << int(operation) for operation in operations)


def _partition(context: RequestContext, index: int) -> Any:
    node_id = context.node.config.node_id
    return _Partition(
        version=context.version,
        error_code=ErrorCode.NONE,
        partition_index=index,
        leader_id=node_id,
        leader_epoch=context.node.topics.leader_epoch,
        replica_nodes=[node_id],
        isr_nodes=[node_id],
        eligible_leader_replicas=[],
        last_known_elr=[],
        offline_replicas=[],
    )
