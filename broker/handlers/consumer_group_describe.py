"""ConsumerGroupDescribe, versions 0 and 1 (KIP-848): epochs and members of a consumer group, with current and target
assignments.

Version 1 adds the member type. Groups of the classic protocol are described by DescribeGroups.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.broker.access.permissions import ResourceType
from headrace.broker.coordinator.assignors import TopicIdPartition
from headrace.broker.coordinator.consumer_group import ConsumerGroup
from headrace.broker.coordinator.consumer_members import ConsumerMember
from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.consumer_group_heartbeat import by_topic
from headrace.broker.handlers.context import RequestContext
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.protocol.operations import group_operations
from headrace.kafka_wire.messages import ConsumerGroupDescribeResponse

OF_CONSUMER_PROTOCOL = 1
_TYPE_FROM = 1
_Group = ConsumerGroupDescribeResponse.DescribedGroup
_Member = _Group.Member


def handle(context: RequestContext, request: Any) -> Any:
    # A group that is named twice is described once, because its description lists all members and may be large.
    requested = dict.fromkeys(group_id or "" for group_id in request.group_ids or ())
    return ConsumerGroupDescribeResponse(
        version=context.version, groups=[_described(context, group_id, request) for group_id in requested]
    )


def _described(context: RequestContext, group_id: str, request: Any) -> Any:
    version = context.version
    operations = group_operations(context.permissions, group_id) if request.include_authorized_operations else None
    try:
        group = _existing_group(context, group_id)
    except RequestRefused as refused:
        return _Group(
            version=version,
            error_code=refused.code,
            error_message=refused.message,
            group_id=group_id,
            authorized_operations=operations,
        )
    return _Group(
        version=version,
        error_code=ErrorCode.NONE,
        group_id=group_id,
        group_state=str(group.state),
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.assignor,
        members=[_member(context, group, member) for member in group.members.values()],
        authorized_operations=operations,
    )


def _existing_group(context: RequestContext, group_id: str) -> ConsumerGroup:
    """Returns the consumer group with this id, after checking the client's permissions.

    Raises:
        RequestRefused: the group does not exist, or the client lacks a permission on the group or on a topic that the
            group reads.
    """
    context.check_group(group_id)
    group = context.node.groups.groups.get(group_id)
    if not isinstance(group, ConsumerGroup):
        raise RequestRefused(ErrorCode.GROUP_ID_NOT_FOUND, f"consumer group {group_id!r} does not exist")
    if not all(context.permissions.granted_on(ResourceType.TOPIC, name) for name in group.subscribed):
        raise RequestRefused(
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            "the client has no permission on a topic that the group reads; add a grant on the topic to the users file",
        )
    return group


def _member(context: RequestContext, group: ConsumerGroup, member: ConsumerMember) -> Any:
    version = context.version
    fields: dict[str, int] = {"member_type": OF_CONSUMER_PROTOCOL} if version >= _TYPE_FROM else {}
    return _Member(
        version=version,
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.pattern or "",
        assignment=_assignment(context, member.assigned),
        target_assignment=_assignment(context, group.target.get(member.member_id, ())),
        **fields,
    )


def _assignment(context: RequestContext, partitions: Iterable[TopicIdPartition]) -> Any:
    version, topics = context.version, context.node.topics
    return _Member.Assignment(
        version=version,
        topic_partitions=[
            _Member.Assignment.TopicPartitions(
                version=version, topic_id=topic_id, topic_name=topic.name, partitions=indexes
            )
            for topic_id, indexes in by_topic(frozenset(partitions)).items()
            # The topic may have been deleted: members release its partitions only with their next heartbeats.
            if (topic := topics.by_id(topic_id)) is not None
        ],
    )
