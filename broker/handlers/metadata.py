"""Metadata, versions 0 to 12: brokers and topics; creates topics that are asked for by name.

8 to 10: what the client may do with the cluster, 8 on: with each topic; 10: topic ids in the answer; 12: topics may be
asked for by id, beside which Kafka's own client sends an empty name instead of none.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Mapping, Sequence, Set
from typing import Any

from kafka.protocol.metadata import MetadataResponse

from headrace.broker.access.rights import Kind, Right
from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.protocol.operations import of_cluster, of_topic
from headrace.broker.topics import NO_TOPIC_ID, Topic

TOPIC_OPERATIONS_FROM = 8
BY_ID_FROM = 12
CLUSTER_OPERATIONS_IN = range(8, 11)

Wanted = Mapping[tuple[str | None, uuid.UUID | None], None]
"""Topics by name, or without one by id."""


def handle(context: RequestContext, request: Any) -> Any | Awaitable[Any]:
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


async def _made_first(context: RequestContext, request: Any, wanted: Wanted, missing: Sequence[str]) -> Any:
    refusals = await context.node.changes.ensure_topics(missing)
    return _answer(context, request, [_one(context, request, *each, refusals) for each in wanted])


def _answer(context: RequestContext, request: Any, topics: Sequence[Any]) -> Any:
    version, node_id = context.version, context.node.config.node_id
    host, port = context.node.address
    broker = MetadataResponse.MetadataResponseBroker(version=version, node_id=node_id, host=host, port=port)
    return MetadataResponse(
        version=version,
        brokers=[broker],
        cluster_id=context.node.topics.cluster_id,
        controller_id=node_id,
        topics=topics,
        **_operations(request, "cluster", of_cluster(context.rights), version in CLUSTER_OPERATIONS_IN),
    )


def _one(
    context: RequestContext,
    request: Any,
    name: str | None,
    topic_id: uuid.UUID | None,
    refusals: Mapping[str, RequestRefused],
) -> Any:
    node, version = context.node, context.version
    if name is None:
        topic = node.topics.by_id(topic_id) if topic_id is not None else None
        if topic is None or not context.rights.on(Kind.TOPIC, topic.name):
            return _missing(None, topic_id, ErrorCode.UNKNOWN_TOPIC_ID, version)
        return _found(context, request, topic)
    try:
        context.check_topic(name)
        return _found(context, request, node.topic(name))
    except RequestRefused as unknown:
        return _missing(name, None, refusals.get(name, unknown).code, version)


def _found(context: RequestContext, request: Any, topic: Topic) -> Any:
    version = context.version
    return MetadataResponse.MetadataResponseTopic(
        version=version,
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=[_partition(context, index) for index in range(topic.partitions)],
        **_operations(request, "topic", of_topic(context.rights, topic.name), version >= TOPIC_OPERATIONS_FROM),
    )


def _operations(request: Any, kind: str, operations: Set[int], is_in_version: bool) -> dict[str, Any]:
    if not is_in_version:
        return {}
    is_asked = getattr(request, f"include_{kind}_authorized_operations")
    return {"authorized_operations": operations if is_asked else None}


def _partition(context: RequestContext, index: int) -> Any:
    version, node_id = context.version, context.node.config.node_id
    return MetadataResponse.MetadataResponseTopic.MetadataResponsePartition(
        version=version,
        error_code=ErrorCode.NONE,
        partition_index=index,
        leader_id=node_id,
        leader_epoch=context.node.topics.leader_epoch,
        replica_nodes=[node_id],
        isr_nodes=[node_id],
        offline_replicas=[],
    )


def _missing(name: str | None, topic_id: uuid.UUID | None, code: ErrorCode, version: int) -> Any:
    return MetadataResponse.MetadataResponseTopic(
        version=version,
        error_code=code,
        name=name if name is not None or version >= 12 else "",
        topic_id=topic_id or NO_TOPIC_ID,
        partitions=[],
    )
