"""ElectLeaders, versions 0 to 2: returns ELECTION_NOT_NEEDED for each existing partition, because a single node leads
all of them."""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import ElectLeadersResponse

from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext
from headrace.broker.protocol.error_codes import ErrorCode

CODE_FROM = 1

_Result = ElectLeadersResponse.ReplicaElectionResult


def handle(context: RequestContext, request: Any) -> Any:
    version, code = context.version, ErrorCode.NONE
    results: list[Any] = []
    try:
        context.permissions.check_admin()
        # If a request names no partitions, Kafka omits those that already have their preferred leader: here all of
        # them.
        for topic, indexes in _requested(request).items():
            results.append(
                _Result(
                    version=version,
                    topic=topic,
                    partition_result=[_result(context, topic, index) for index in sorted(indexes)],
                )
            )
    except RequestRefused as refused:
        code = refused.code
    top = {"error_code": code} if version >= CODE_FROM else {}
    return ElectLeadersResponse(version=version, replica_election_results=results, **top)


def _requested(request: Any) -> dict[str, set[int]]:
    requested: dict[str, set[int]] = {}
    for topic in request.topic_partitions or ():
        requested.setdefault(topic.topic or "", set()).update(topic.partitions or ())
    return requested


def _result(context: RequestContext, topic: str, index: int) -> Any:
    code = ErrorCode.ELECTION_NOT_NEEDED
    message = f"partition {topic}-{index} already has its preferred leader"
    try:
        context.check_topic(topic)
        context.node.log(topic, index)
    except RequestRefused as refused:
        code, message = refused.code, refused.message
    return _Result.PartitionResult(version=context.version, partition_id=index, error_code=code, error_message=message)
