"""CreateTopics, versions 2 to 7. 4: -1 partitions or replicas ask for the defaults; 5: the configuration in the
answer; 7: the topic id. Replicas other than one, on this node, are refused.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from kafka.protocol.admin import CreateTopicsResponse

from broker.config import NODE_ID
from broker.errors import RequestRefused
from broker.handlers.context import RequestContext
from broker.protocol.error_codes import ErrorCode
from broker.topic_config import ROWS, ConfigSource, check_config
from broker.topics import Topic

_Result = CreateTopicsResponse.CreatableTopicResult
DEFAULT = -1


def handle(context: RequestContext, request: Any) -> Any:
    names = Counter(topic.name for topic in request.topics or ())
    return CreateTopicsResponse(
        version=context.version,
        topics=[
            _one(context, wanted, bool(request.validate_only), names[wanted.name] > 1)
            for wanted in request.topics or ()
        ],
    )


def _one(context: RequestContext, wanted: Any, validate_only: bool, is_repeated: bool) -> Any:
    name = wanted.name or ""
    try:
        if is_repeated:
            raise RequestRefused(ErrorCode.INVALID_REQUEST, f"topic {name!r} is in the request twice")
        partitions = _partitions(context, wanted)
        configs = {config.name or "": check_config(config.name or "", config.value) for config in wanted.configs or ()}
        context.node.check_new_topic(name, partitions)
        if validate_only:
            return _created(context, name, None, partitions, configs)
        topic = context.node.create_topic(name, partitions, configs)
        return _created(context, name, topic, partitions, configs)
    except RequestRefused as refused:
        return _Result(version=context.version, name=name, error_code=refused.code, error_message=refused.message)


def _partitions(context: RequestContext, wanted: Any) -> int:
    """How many partitions are asked for: by number, or by assigning each to this node."""
    if wanted.assignments:
        if wanted.num_partitions != DEFAULT or wanted.replication_factor != DEFAULT:
            raise RequestRefused(ErrorCode.INVALID_REQUEST, "counts must be -1 beside an assignment")
        indexes = sorted(each.partition_index for each in wanted.assignments)
        if indexes != list(range(len(indexes))) or any(
            list(each.broker_ids or ()) != [NODE_ID] for each in wanted.assignments
        ):
            raise RequestRefused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"expected partitions from 0 on, each on node {NODE_ID}"
            )
        return len(indexes)
    if wanted.replication_factor not in (DEFAULT, 1):
        raise RequestRefused(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {wanted.replication_factor}; this is a single node",
        )
    return context.node.config.partitions if wanted.num_partitions == DEFAULT else int(wanted.num_partitions)


def _created(context: RequestContext, name: str, topic: Topic | None, partitions: int, configs: dict[str, str]) -> Any:
    return _Result(
        version=context.version,
        name=name,
        topic_id=topic.topic_id if topic else None,
        error_code=ErrorCode.NONE,
        num_partitions=partitions,
        replication_factor=1,
        configs=[
            _Result.CreatableTopicConfigs(
                version=context.version,
                name=row.name,
                value=configs.get(row.name) or row.default(context.node.config),
                read_only=False,
                config_source=ConfigSource.TOPIC if row.name in configs else ConfigSource.DEFAULT,
                is_sensitive=False,
            )
            for row in (ROWS if context.version >= 5 else ())
        ],
    )
