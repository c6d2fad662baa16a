"""ConsumerGroupHeartbeat, versions 0 and 1 (KIP-848): join, heartbeat, partition release and leave in one request.

Version 1 adds subscriptions by pattern, and members generate their own ids; in version 0 the broker may generate them.
"""

from __future__ import annotations

import uuid
from typing import Any

from headrace.broker.access.permissions import BrokerPermission, ResourceType
from headrace.broker.coordinator.assignors import TopicIdPartition
from headrace.broker.coordinator.consumer_members import JOIN_EPOCH
from headrace.broker.coordinator.consumer_messages import HeartbeatRequest, HeartbeatResult
from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext
from headrace.broker.topics import NO_TOPIC_ID
from headrace.kafka_wire.messages import ConsumerGroupHeartbeatResponse

_OWN_IDS_FROM = 1
_NO_CHANGE = -1
_Assignment = ConsumerGroupHeartbeatResponse.Assignment


def handle(context: RequestContext, request: Any) -> Any:
    group_id = request.group_id or ""
    try:
        context.check_group(group_id, BrokerPermission.READ)
        for name in request.subscribed_topic_names or ():
            context.check_topic(name or "")
        result = context.node.groups.consumer_heartbeat(group_id, _heartbeat(context, request))
    except RequestRefused as refused:
        return ConsumerGroupHeartbeatResponse(
            version=context.version, error_code=refused.code, error_message=refused.message
        )
    return _response(context, result)


def _heartbeat(context: RequestContext, request: Any) -> HeartbeatRequest:
    names, owned = request.subscribed_topic_names, request.topic_partitions
    member_id = request.member_id or ""
    if context.version < _OWN_IDS_FROM and request.member_epoch == JOIN_EPOCH:
        member_id = member_id or str(uuid.uuid4())
    timeout_ms = request.rebalance_timeout_ms
    return HeartbeatRequest(
        member_id,
        request.member_epoch,
        context.client_id,
        f"/{context.client_host}",
        request.instance_id,
        request.rack_id,
        timeout_ms if timeout_ms != _NO_CHANGE else None,
        frozenset(name or "" for name in names) if names is not None else None,
        request.subscribed_topic_regex if context.version >= _OWN_IDS_FROM else None,
        request.server_assignor,
        frozenset(((topic.topic_id or NO_TOPIC_ID).bytes, index) for topic in owned for index in topic.partitions or ())
        if owned is not None
        else None,
        lambda name: bool(context.permissions.granted_on(ResourceType.TOPIC, name)),
    )


def _response(context: RequestContext, result: HeartbeatResult) -> Any:
    version = context.version
    return ConsumerGroupHeartbeatResponse(
        version=version,
        member_id=result.member_id,
        member_epoch=result.epoch,
        heartbeat_interval_ms=context.node.config.consumer_heartbeat_interval_ms if result.epoch >= JOIN_EPOCH else 0,
        assignment=_Assignment(
            version=version,
            topic_partitions=[
                _Assignment.TopicPartitions(version=version, topic_id=topic_id, partitions=indexes)
                for topic_id, indexes in by_topic(result.assigned).items()
            ],
        )
        if result.assigned is not None
        else None,
    )


def by_topic(partitions: frozenset[TopicIdPartition]) -> dict[uuid.UUID, list[int]]:
    found: dict[bytes, list[int]] = {}
    for topic_id, index in sorted(partitions):
        found.setdefault(topic_id, []).append(index)
    return {uuid.UUID(bytes=topic_id): indexes for topic_id, indexes in found.items()}
