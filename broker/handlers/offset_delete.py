"""OffsetDelete, version 0: forgets a group's offsets in topics that none of its members reads.

As by Kafka it takes the right to read the topic, too; else the answer would tell which topics there are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Set
from typing import Any

from kafka.protocol.consumer import OffsetDeleteResponse
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from headrace.broker.access.rights import Right
from headrace.broker.coordinator.consumer_group import ConsumerGroup
from headrace.broker.coordinator.group import Group
from headrace.broker.coordinator.records import OffsetKey
from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext
from headrace.broker.protocol.error_codes import ErrorCode

_Topic = OffsetDeleteResponse.OffsetDeleteResponseTopic


def handle(context: RequestContext, request: Any) -> Awaitable[Any]:
    return _delete(context, request)


async def _delete(context: RequestContext, request: Any) -> Any:
    groups, group_id = context.node.groups, request.group_id or ""
    error = context.group_error(group_id, Right.ADMIN)
    if error:
        return OffsetDeleteResponse(version=0, error_code=error, topics=[])
    group = groups.groups.get(group_id)
    if group is None:
        return OffsetDeleteResponse(version=0, error_code=ErrorCode.GROUP_ID_NOT_FOUND, topics=[])
    read = _subscribed(group)
    doomed = [
        OffsetKey(group_id, topic.name or "", wanted.partition_index)
        for topic in request.topics or ()
        if read is not None and topic.name not in read and not context.topic_error(topic.name or "", Right.READ)
        for wanted in topic.partitions or ()
    ]
    try:
        await groups.commits.delete(doomed)
    except RequestRefused as refused:
        return OffsetDeleteResponse(version=0, error_code=refused.code, topics=[])
    topics = [
        _Topic(
            version=0,
            name=topic.name or "",
            partitions=[
                _Topic.OffsetDeleteResponsePartition(
                    version=0,
                    partition_index=wanted.partition_index,
                    error_code=_refusal(context, read, topic.name or "", wanted.partition_index),
                )
                for wanted in topic.partitions or ()
            ],
        )
        for topic in request.topics or ()
    ]
    return OffsetDeleteResponse(version=0, error_code=ErrorCode.NONE, topics=topics)


def _refusal(context: RequestContext, read: Set[str] | None, topic: str, partition: int) -> ErrorCode:
    unreadable = context.topic_error(topic, Right.READ)
    if unreadable:
        return unreadable
    if (topic, partition) not in context.node.logs:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE if read is not None and topic not in read else ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


def _subscribed(group: Group | ConsumerGroup) -> Set[str] | None:
    """The topics that members of the group read; None when what they told cannot be read, so any may be."""
    if isinstance(group, ConsumerGroup):
        return group.subscribed
    topics: set[str] = set()
    for member in group.members.values():
        try:
            subscription = ConsumerProtocolSubscription.decode(member.metadata(group.protocol))
        except Exception:
            # Groups of other protocol types (Kafka Connect's, for one) say other things there.
            return None
        topics.update(subscription.topics or ())
    return topics
