"""CreatePartitions, versions 0 to 3: increases the number of partitions of topics."""

from __future__ import annotations

from collections import Counter
from typing import Any

from kafka.protocol.admin import CreatePartitionsResponse

from headrace.broker.access.permissions import BrokerPermission
from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.topics import check_partition_count


async def handle(context: RequestContext, request: Any) -> Any:
    topics = {requested.name: requested for requested in request.topics or ()}
    times = Counter(requested.name for requested in request.topics or ())
    results = [await _result(context, topics[name], times[name], bool(request.validate_only)) for name in topics]
    return CreatePartitionsResponse(version=context.version, results=results)


async def _result(context: RequestContext, requested: Any, times: int, validate_only: bool) -> Any:
    code, message = ErrorCode.NONE, None
    try:
        if times > 1:
            raise RequestRefused(
                ErrorCode.INVALID_REQUEST, f"topic {requested.name!r} is in the request {times} times; name it once"
            )
        context.check_topic(requested.name or "", BrokerPermission.ADMIN)
        topic = context.node.topic(requested.name or "")
        if topic.is_internal:
            raise RequestRefused(
                ErrorCode.INVALID_REQUEST, f"{topic.name} is an internal topic; its number of partitions is fixed"
            )
        check_partition_count(requested.count)
        if requested.count <= topic.partitions:
            raise RequestRefused(
                ErrorCode.INVALID_PARTITIONS,
                f"topic {topic.name!r} has {topic.partitions} partitions; the new number of partitions must be larger, "
                f"not {requested.count}",
            )
        added = requested.count - topic.partitions
        assignments, node_id = requested.assignments, context.node.config.node_id
        if assignments is not None and (
            len(assignments) != added or any(list(each.broker_ids or ()) != [node_id] for each in assignments)
        ):
            raise RequestRefused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"expected one replica assignment, to node {node_id}, for each of the {added} new partitions",
            )
        if not validate_only:
            await context.node.changes.add_partitions(topic.name, requested.count)
    except RequestRefused as refused:
        code, message = refused.code, refused.message
    return CreatePartitionsResponse.CreatePartitionsTopicResult(
        version=context.version, name=requested.name or "", error_code=code, error_message=message
    )
