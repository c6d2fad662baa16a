"""Metadata, versions 0 to 12: brokers and topics; creates topics that are asked for by name.

10: topic ids in the answer; 12: topics may be asked for by id alone. Authorized operations are not kept.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from kafka.protocol.metadata import MetadataResponse

from headrace.broker.config import NODE_ID
from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.topics import Topic

NIL = uuid.UUID(int=0)


def handle(context: RequestContext, request: Any) -> Any:
    version = context.version
    host, port = context.node.address
    broker = MetadataResponse.MetadataResponseBroker(version=version, node_id=NODE_ID, host=host, port=port)
    return MetadataResponse(
        version=version,
        brokers=[broker],
        cluster_id=context.node.topics.cluster_id,
        controller_id=NODE_ID,
        topics=_topics(context, request),
    )


def _topics(context: RequestContext, request: Any) -> list[Any]:
    node, version = context.node, context.version
    # In version 0 an empty list asks for all topics, later null does.
    if request.topics is None or (version == 0 and not request.topics):
        return [_found(context, topic) for topic in node.topics]
    # Each once, so that a request of some bytes cannot ask for an answer of gigabytes.
    wanted = dict.fromkeys((topic.name, topic.topic_id) for topic in request.topics)
    refusals: dict[str, RequestRefused] = {}
    if version < 4 or request.allow_auto_topic_creation:
        refusals = node.ensure_topics(name for name, _ in wanted if name is not None)
    return [_one(context, name, topic_id, refusals) for name, topic_id in wanted]


def _one(
    context: RequestContext, name: str | None, topic_id: uuid.UUID | None, refusals: Mapping[str, RequestRefused]
) -> Any:
    node, version = context.node, context.version
    if name is None:
        topic = node.topics.by_id(topic_id) if topic_id is not None else None
        return _found(context, topic) if topic else _missing(None, topic_id, ErrorCode.UNKNOWN_TOPIC_ID, version)
    try:
        return _found(context, node.topic(name))
    except RequestRefused as unknown:
        return _missing(name, None, refusals.get(name, unknown).code, version)


def _found(context: RequestContext, topic: Topic) -> Any:
    version, leader_epoch = context.version, context.node.topics.leader_epoch
    return MetadataResponse.MetadataResponseTopic(
        version=version,
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=[_partition(index, leader_epoch, version) for index in range(topic.partitions)],
    )


def _partition(index: int, leader_epoch: int, version: int) -> Any:
    return MetadataResponse.MetadataResponseTopic.MetadataResponsePartition(
        version=version,
        error_code=ErrorCode.NONE,
        partition_index=index,
        leader_id=NODE_ID,
        leader_epoch=leader_epoch,
        replica_nodes=[NODE_ID],
        isr_nodes=[NODE_ID],
        offline_replicas=[],
    )


def _missing(name: str | None, topic_id: uuid.UUID | None, code: ErrorCode, version: int) -> Any:
    return MetadataResponse.MetadataResponseTopic(
        version=version,
        error_code=code,
        name=name if name is not None or version >= 12 else "",
        topic_id=topic_id or NIL,
        partitions=[],
    )
