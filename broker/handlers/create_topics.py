"""CreateTopics, versions 2 to 7. 4: -1 partitions or replicas ask for the defaults; 5: the configuration in the
answer; 7: the topic id. Replicas other than one, on this node, are refused.
"""

from __future__ import annotations

import uuid
from collections import Counter
from types import MappingProxyType
from typing import Any

from kafka.protocol.admin import CreateTopicsResponse

from headrace.broker.access.rights import Right
from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.topic_config import ROWS, ConfigSource, check_config
from headrace.broker.topics import NO_TOPIC_ID, Topic
from headrace.broker.turns import Turns

_Result = CreateTopicsResponse.CreatableTopicResult
DEFAULT = -1


async def handle(context: RequestContext, request: Any) -> Any:
    wanted = list(request.topics or ())
    names = Counter(topic.name for topic in wanted)
    turns, decided = Turns(), []
    for each in wanted:
        decided.append(_decide(context, each, names[each.name] > 1))
        await turns.give()
    topics = [each for each in decided if isinstance(each, Topic)]
    refusals = await context.node.changes.create_topics(topics) if topics and not request.validate_only else {}
    answers = []
    for asked, each in zip(wanted, decided, strict=True):
        reason = refusals.get(each.name) if isinstance(each, Topic) else each
        if reason is not None:
            answers.append(_refused(context, asked, reason))
        elif isinstance(each, Topic):
            answers.append(_created(context, each, NO_TOPIC_ID if request.validate_only else each.topic_id))
        await turns.give()
    return CreateTopicsResponse(version=context.version, topics=answers)


def _decide(context: RequestContext, wanted: Any, is_repeated: bool) -> Topic | RequestRefused:
    """The topic as it would be created, or why it cannot be."""
    name = wanted.name or ""
    try:
        if is_repeated:
            raise RequestRefused(ErrorCode.INVALID_REQUEST, f"topic {name!r} is in the request twice")
        context.check_topic(name, Right.ADMIN)
        partitions = _partitions(context, wanted)
        configs = {config.name or "": check_config(config.name or "", config.value) for config in wanted.configs or ()}
        context.node.changes.check_new_topic(name, partitions)
        topic = Topic(name, uuid.uuid4(), partitions, MappingProxyType(configs))
        if topic.is_internal:
            raise RequestRefused(
                ErrorCode.INVALID_TOPIC, f"{name} is the broker's own, which makes it when it needs it"
            )
        return topic
    except RequestRefused as refused:
        return refused


def _refused(context: RequestContext, wanted: Any, reason: RequestRefused) -> Any:
    return _Result(
        version=context.version, name=wanted.name or "", error_code=reason.code, error_message=reason.message
    )


def _partitions(context: RequestContext, wanted: Any) -> int:
    """How many partitions are asked for: by number, or by assigning each to this node."""
    if wanted.assignments:
        if wanted.num_partitions != DEFAULT or wanted.replication_factor != DEFAULT:
            raise RequestRefused(ErrorCode.INVALID_REQUEST, "counts must be -1 beside an assignment")
        node_id = context.node.config.node_id
        indexes = sorted(each.partition_index for each in wanted.assignments)
        if indexes != list(range(len(indexes))) or any(
            list(each.broker_ids or ()) != [node_id] for each in wanted.assignments
        ):
            raise RequestRefused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"expected partitions from 0 on, each on node {node_id}",
            )
        return len(indexes)
    if wanted.replication_factor not in (DEFAULT, 1):
        raise RequestRefused(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {wanted.replication_factor}; this is a single node",
        )
    return context.node.config.partitions if wanted.num_partitions == DEFAULT else int(wanted.num_partitions)


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
