"""Metadata, versions 0 to 12: brokers and topics; creates topics that are asked for by name.

8 to 10: what the client may do with the cluster, 8 on: with each topic; 10: topic ids in the answer; 12: topics may be
asked for by id, beside which Kafka's own client sends an empty name instead of none.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from headrace.broker.access.rights import Kind, Right
from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.protocol.metadata import (
    CLUSTER_OPERATIONS_IN,
    TOPIC_OPERATIONS_FROM,
    FoundTopic,
    MetadataAnswer,
)
from headrace.broker.protocol.operations import of_cluster, of_topic
from headrace.broker.topics import NO_TOPIC_ID, Topic

BY_ID_FROM = 12

Wanted = Mapping[tuple[str | None, uuid.UUID | None], None]
"""Topics by name, or without one by id."""


def handle(context: RequestContext, request: Any) -> MetadataAnswer | Awaitable[MetadataAnswer]:
    # In version 0 an empty list asks for all topics, later null does.
    if request.topics is None or (context.version == 0 and not request.topics):
        rights = context.rights
        found = [_found(context, request, topic) for topic in context.node.topics if rights.on(Kind.TOPIC, topic.name)]
        return _answer(context, request, found)
    # Each once, so that a request of some bytes cannot ask for an answer of gigabytes.
    wanted: Wanted = dict.fromkeys(
        (
            None if context.version >= BY_ID_FROM and (topic.topic_id or NO_TOPIC_ID) != NO_TOPIC_ID else topic.name,
            topic.topic_id,
        )
        for topic in request.topics
    )
    missing = _to_be_made(context, request, wanted)
    if missing:
        return _made_first(context, request, wanted, missing)
    return _answer(context, request, [_one(context, request, *each, {}) for each in wanted])


def _to_be_made(context: RequestContext, request: Any, wanted: Wanted) -> list[str]:
    node, rights = context.node, context.rights
    if not node.config.creates_topics or not (context.version < 4 or request.allow_auto_topic_creation):
        return []
    names = (name for name, _ in wanted if name is not None and node.topics.get(name) is None)
    return [name for name in names if Right.WRITE in rights.on(Kind.TOPIC, name)]


async def _made_first(context: RequestContext, request: Any, wanted: Wanted, missing: Sequence[str]) -> MetadataAnswer:
    refusals = await context.node.changes.ensure_topics(missing)
    return _answer(context, request, [_one(context, request, *each, refusals) for each in wanted])


def _answer(context: RequestContext, request: Any, topics: Sequence[FoundTopic]) -> MetadataAnswer:
    node, (host, port) = context.node, context.node.address
    is_asked = context.version in CLUSTER_OPERATIONS_IN and request.include_cluster_authorized_operations
    operations = of_cluster(context.rights) if is_asked else None
    return MetadataAnswer(
        node.config.node_id, host, port, node.topics.cluster_id, node.topics.leader_epoch, topics, operations
    )


def _one(
    context: RequestContext,
    request: Any,
    name: str | None,
    topic_id: uuid.UUID | None,
    refusals: Mapping[str, RequestRefused],
) -> FoundTopic:
    node = context.node
    if name is None:
        topic = node.topics.by_id(topic_id) if topic_id is not None else None
        if topic is None or not context.rights.on(Kind.TOPIC, topic.name):
            return FoundTopic(ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id or NO_TOPIC_ID)
        return _found(context, request, topic)
    try:
        context.check_topic(name)
        return _found(context, request, node.topic(name))
    except RequestRefused as unknown:
        return FoundTopic(refusals.get(name, unknown).code, name, NO_TOPIC_ID)


def _found(context: RequestContext, request: Any, topic: Topic) -> FoundTopic:
    is_asked = context.version >= TOPIC_OPERATIONS_FROM and request.include_topic_authorized_operations
    operations = of_topic(context.rights, topic.name) if is_asked else None
    return FoundTopic(ErrorCode.NONE, topic.name, topic.topic_id, topic.is_internal, topic.partitions, operations)
