"""OffsetDelete, version 0: deletes a group's offsets in topics that no member of the group reads.

As in Kafka this requires the read permission on the topic too; otherwise the response would reveal which topics exist.
"""

from __future__ import annotations

from collections.abc import Awaitable, Set
from typing import Any

from kafka.protocol.consumer import OffsetDeleteResponse
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from headrace.broker.access.permissions import BrokerPermission
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
    error = context.group_error(group_id, BrokerPermission.ADMIN)
    if error:
        return OffsetDeleteResponse(version=0, error_code=error, topics=[])
    group = groups.groups.get(group_id)
    if group is None:
        return OffsetDeleteResponse(version=0, error_code=ErrorCode.GROUP_ID_NOT_FOUND, topics=[])
    subscribed = _subscribed_topics(group)
    deletable = [
        OffsetKey(group_id, topic.name or "", requested.partition_index)
        for topic in request.topics or ()
        if subscribed is not None
        and topic.name not in subscribed
        and not context.topic_error(topic.name or "", BrokerPermission.READ)
        for requested in topic.partitions or ()
    ]
    try:
        await groups.commits.delete(deletable)
    except RequestRefused as refused:
        return OffsetDeleteResponse(version=0, error_code=refused.code, topics=[])
    topics = [
        _Topic(
            version=0,
            name=topic.name or "",
            partitions=[
                _Topic.OffsetDeleteResponsePartition(
                    version=0,
                    partition_index=requested.partition_index,
                    error_code=_refusal(context, subscribed, topic.name or "", requested.partition_index),
                )
                for requested in topic.partitions or ()
            ],
        )
        for topic in request.topics or ()
    ]
    return OffsetDeleteResponse(version=0, error_code=ErrorCode.NONE, topics=topics)


def _refusal(context: RequestContext, subscribed: Set[str] | None, topic: str, partition: int) -> ErrorCode:
    unreadable = context.topic_error(topic, BrokerPermission.READ)
    if unreadable:
        return unreadable
    if (topic, partition) not in context.node.logs:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE if subscribed is not None and topic not in subscribed else ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


def _subscribed_topics(group: Group | ConsumerGroup) -> Set[str] | None:
    """Returns the topics that the group's members read. Returns None if a subscription cannot be decoded: every topic
    may then be subscribed, and no offset is deleted."""
    if isinstance(group, ConsumerGroup):
        return group.subscribed
    topics: set[str] = set()
    for member in group.members.values():
        try:
            subscription = ConsumerProtocolSubscription.decode(member.metadata(group.protocol))
        except Exception:
            # Groups of other protocol types, such as Kafka Connect's, store other metadata here.
            return None
        topics.update(subscription.topics or ())
    return topics
