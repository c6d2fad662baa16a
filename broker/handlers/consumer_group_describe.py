"""ConsumerGroupDescribe, versions 0 and 1 (KIP-848): epochs, members, what they have and what they are to have.

1: of which protocol a member is. Groups of the classic protocol are not found here, but by DescribeGroups.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.broker.access.rights import Kind
from headrace.broker.coordinator.assignors import TopicIdPartition
from headrace.broker.coordinator.consumer_group import ConsumerGroup
from headrace.broker.coordinator.consumer_members import ConsumerMember
from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.consumer_group_heartbeat import by_topic
from headrace.broker.handlers.context import RequestContext
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.protocol.operations import of_group
from headrace.kafka_wire.messages import ConsumerGroupDescribeResponse

OF_CONSUMER_PROTOCOL = 1
_TYPE_FROM = 1
_Group = ConsumerGroupDescribeResponse.DescribedGroup
_Member = _Group.Member


def handle(context: RequestContext, request: Any) -> Any:
    # Each once: an answer holds what all members told.
    wanted = dict.fromkeys(group_id or "" for group_id in request.group_ids or ())
    return ConsumerGroupDescribeResponse(
        version=context.version, groups=[_described(context, group_id, request) for group_id in wanted]
    )


def _described(context: RequestContext, group_id: str, request: Any) -> Any:
    version = context.version
    operations = of_group(context.rights, group_id) if request.include_authorized_operations else None
    try:
        group = _found(context, group_id)
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


def _found(context: RequestContext, group_id: str) -> ConsumerGroup:
    """Raises:
    RequestRefused: there is no such group, or the client may not know it or a topic that it reads.
    """
    context.check_group(group_id)
    group = context.node.groups.groups.get(group_id)
    if not isinstance(group, ConsumerGroup):
        raise RequestRefused(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no consumer group {group_id!r}")
    if not all(context.rights.on(Kind.TOPIC, name) for name in group.subscribed):
        raise RequestRefused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "the group reads a topic that may not be seen")
    return group


def _member(context: RequestContext, group: ConsumerGroup, member: ConsumerMember) -> Any:
    version = context.version
    told: dict[str, int] = {"member_type": OF_CONSUMER_PROTOCOL} if version >= _TYPE_FROM else {}
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
        **told,
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
            # Members give up what was deleted with their next heartbeats.
            if (topic := topics.by_id(topic_id)) is not None
        ],
    )
