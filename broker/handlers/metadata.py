"""Metadata, versions 0 to 12: brokers and topics. Creates missing topics that are requested by name, if the
configuration, the request and the client's permissions allow it.

Versions 8 to 10 may include the operations allowed on the cluster; from version 8 on also those on each topic. Version
10 adds topic ids to the response. From version 12 on topics may be requested by id; Kafka's Java client then sends an
empty name instead of null.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from headrace.broker.access.permissions import BrokerPermission, ResourceType
from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.protocol.metadata import (
    CLUSTER_OPERATIONS_IN,
    TOPIC_OPERATIONS_FROM,
    DescribedTopic,
    MetadataResult,
)
from headrace.broker.protocol.operations import cluster_operations, topic_operations
from headrace.broker.topics import NO_TOPIC_ID, Topic

BY_ID_FROM = 12

RequestedTopics = Mapping[tuple[str | None, uuid.UUID | None], None]
"""The topics that a request names, as an ordered set: the keys are (name, None) or (None, topic id), in the order of
the request, and the values are unused."""


def handle(context: RequestContext, request: Any) -> MetadataResult | Awaitable[MetadataResult]:
    # An empty list stands for all topics in version 0; in later versions null does.
    if request.topics is None or (context.version == 0 and not request.topics):
        permissions = context.permissions
        found = [
            _described_topic(context, request, topic)
            for topic in context.node.topics
            if permissions.granted_on(ResourceType.TOPIC, topic.name)
        ]
        return _metadata_result(context, request, found)
    # A topic that is named twice is listed once, so that a small request cannot cause a response of gigabytes.
    requested: RequestedTopics = dict.fromkeys(
        (
            None if context.version >= BY_ID_FROM and (topic.topic_id or NO_TOPIC_ID) != NO_TOPIC_ID else topic.name,
            topic.topic_id,
        )
        for topic in request.topics
    )
    missing = _topics_to_create(context, request, requested)
    if missing:
        return _create_then_respond(context, request, requested, missing)
    return _metadata_result(context, request, [_topic_result(context, request, *each, {}) for each in requested])


def _topics_to_create(context: RequestContext, request: Any, requested: RequestedTopics) -> list[str]:
    node, permissions = context.node, context.permissions
    if not node.config.auto_create_topics or not (context.version < 4 or request.allow_auto_topic_creation):
        return []
    names = (name for name, _ in requested if name is not None and node.topics.get(name) is None)
    return [name for name in names if BrokerPermission.WRITE in permissions.granted_on(ResourceType.TOPIC, name)]


async def _create_then_respond(
    context: RequestContext, request: Any, requested: RequestedTopics, missing: Sequence[str]
) -> MetadataResult:
    refusals = await context.node.changes.ensure_topics(missing)
    return _metadata_result(context, request, [_topic_result(context, request, *each, refusals) for each in requested])


def _metadata_result(context: RequestContext, request: Any, topics: Sequence[DescribedTopic]) -> MetadataResult:
    node, (host, port) = context.node, context.node.address
    is_requested = context.version in CLUSTER_OPERATIONS_IN and request.include_cluster_authorized_operations
    operations = cluster_operations(context.permissions) if is_requested else None
    return MetadataResult(
        node.config.node_id, host, port, node.topics.cluster_id, node.topics.leader_epoch, topics, operations
    )


def _topic_result(
    context: RequestContext,
    request: Any,
    name: str | None,
    topic_id: uuid.UUID | None,
    refusals: Mapping[str, RequestRefused],
) -> DescribedTopic:
    node = context.node
    if name is None:
        topic = node.topics.by_id(topic_id) if topic_id is not None else None
        if topic is None or not context.permissions.granted_on(ResourceType.TOPIC, topic.name):
            return DescribedTopic(ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id or NO_TOPIC_ID)
        return _described_topic(context, request, topic)
    try:
        context.check_topic(name)
        return _described_topic(context, request, node.topic(name))
    except RequestRefused as unknown:
        return DescribedTopic(refusals.get(name, unknown).code, name, NO_TOPIC_ID)


def _described_topic(context: RequestContext, request: Any, topic: Topic) -> DescribedTopic:
    is_requested = context.version >= TOPIC_OPERATIONS_FROM and request.include_topic_authorized_operations
    operations = topic_operations(context.permissions, topic.name) if is_requested else None
    return DescribedTopic(ErrorCode.NONE, topic.name, topic.topic_id, topic.is_internal, topic.partitions, operations)
