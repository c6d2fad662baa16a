"""CreateTopics, versions 2 to 7: creates topics, each partition with one replica, on this node.

-1 partitions or replicas stand for the defaults; in Kafka only from version 4 on. Version 5 adds the configuration to
the response, version 7 the topic id.
"""

from __future__ import annotations

import uuid
from collections import Counter
from types import MappingProxyType
from typing import Any

from kafka.protocol.admin import CreateTopicsResponse

from headrace.broker.access.permissions import BrokerPermission
from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext
from headrace.broker.loop_yielder import LoopYielder
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.topic_config import ROWS, ConfigSource, check_config
from headrace.broker.topics import NO_TOPIC_ID, Topic

_Result = CreateTopicsResponse.CreatableTopicResult
DEFAULT = -1


async def handle(context: RequestContext, request: Any) -> Any:
    requested = list(request.topics or ())
    names = Counter(topic.name for topic in requested)
    yielder, planned = LoopYielder(), []
    for each in requested:
        planned.append(_plan_topic(context, each, names[each.name] > 1))
        await yielder.yield_if_due()
    topics = [each for each in planned if isinstance(each, Topic)]
    refusals = await context.node.changes.create_topics(topics) if topics and not request.validate_only else {}
    results = []
    for topic_request, each in zip(requested, planned, strict=True):
        reason = refusals.get(each.name) if isinstance(each, Topic) else each
        if reason is not None:
            results.append(_refused(context, topic_request, reason))
        elif isinstance(each, Topic):
            results.append(_created(context, each, NO_TOPIC_ID if request.validate_only else each.topic_id))
        await yielder.yield_if_due()
    return CreateTopicsResponse(version=context.version, topics=results)


def _plan_topic(context: RequestContext, requested: Any, is_repeated: bool) -> Topic | RequestRefused:
    """Returns the topic to create, or the refusal with the reason why it cannot be created. `requested` is its entry in
    the request; `is_repeated` means that the request has several entries of this name."""
    name = requested.name or ""
    try:
        if is_repeated:
            raise RequestRefused(ErrorCode.INVALID_REQUEST, f"topic {name!r} is in the request twice; name it once")
        context.check_topic(name, BrokerPermission.ADMIN)
        partitions = _partitions(context, requested)
        configs = {
            config.name or "": check_config(config.name or "", config.value) for config in requested.configs or ()
        }
        context.node.changes.check_new_topic(name, partitions)
        topic = Topic(name, uuid.uuid4(), partitions, MappingProxyType(configs))
        if topic.is_internal:
            raise RequestRefused(ErrorCode.INVALID_TOPIC, f"{name} is an internal topic; the broker creates it itself")
        return topic
    except RequestRefused as refused:
        return refused


def _refused(context: RequestContext, requested: Any, reason: RequestRefused) -> Any:
    return _Result(
        version=context.version, name=requested.name or "", error_code=reason.code, error_message=reason.message
    )


def _partitions(context: RequestContext, requested: Any) -> int:
    """Returns the number of partitions of a new topic: the number in the request, the broker's default if that is -1,
    or the number of replica assignments, which must all name this node."""
    if requested.assignments:
        if requested.num_partitions != DEFAULT or requested.replication_factor != DEFAULT:
            raise RequestRefused(
                ErrorCode.INVALID_REQUEST,
                "with replica assignments, the number of partitions and the replication factor must be -1",
            )
        node_id = context.node.config.node_id
        indexes = sorted(each.partition_index for each in requested.assignments)
        if indexes != list(range(len(indexes))) or any(
            list(each.broker_ids or ()) != [node_id] for each in requested.assignments
        ):
            raise RequestRefused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"expected one replica assignment, to node {node_id}, for each of the partitions 0, 1, …",
            )
        return len(indexes)
    if requested.replication_factor not in (DEFAULT, 1):
        raise RequestRefused(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {requested.replication_factor} is not supported; this broker is a single node, use 1",
        )
    return context.node.config.partitions if requested.num_partitions == DEFAULT else int(requested.num_partitions)


def _created(context: RequestContext, topic: Topic, topic_id: uuid.UUID) -> Any:
    rows = ROWS if context.version >= 5 else ()
    return _Result(
        version=context.version,
        name=topic.name,
        topic_id=topic_id,
        error_code=ErrorCode.NONE,
        error_message=None,
        num_partitions=topic.partitions,
        replication_factor=1,
        configs=[
            _Result.CreatableTopicConfigs(
                version=context.version,
                name=row.name,
                value=topic.configs.get(row.name) or row.default(context.node.config),
                read_only=False,
                config_source=ConfigSource.TOPIC if row.name in topic.configs else ConfigSource.DEFAULT,
                is_sensitive=False,
            )
            for row in rows
        ],
    )
