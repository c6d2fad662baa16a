"""DescribeProducers, version 0: the idempotent producers of partitions, and their open transactions."""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import DescribeProducersResponse

from headrace.broker.access.permissions import BrokerPermission
from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext
from headrace.broker.log.producer_state import ProducerStates
from headrace.broker.protocol.error_codes import ErrorCode

_Topic = DescribeProducersResponse.TopicResponse
_Partition = _Topic.PartitionResponse


def handle(context: RequestContext, request: Any) -> Any:
    # A partition that is named twice is described once: a response is about a hundred times as long as the request.
    requested: dict[str, dict[int, None]] = {}
    for topic in request.topics or ():
        requested.setdefault(topic.name or "", {}).update(dict.fromkeys(topic.partition_indexes or ()))
    return DescribeProducersResponse(
        version=context.version,
        topics=[
            _Topic(version=context.version, name=name, partitions=[_result(context, name, index) for index in indexes])
            for name, indexes in requested.items()
        ],
    )


def _result(context: RequestContext, name: str, index: int) -> Any:
    code, message, producers = ErrorCode.NONE, None, []
    try:
        context.check_topic(name, BrokerPermission.READ)
        producers = _described(context.version, context.node.log(name, index).producers)
    except RequestRefused as refused:
        code, message = refused.code, refused.message
    return _Partition(
        version=context.version,
        partition_index=index,
        error_code=code,
        error_message=message,
        active_producers=producers,
    )


def _described(version: int, states: ProducerStates) -> list[Any]:
    return [
        _Partition.ProducerState(
            version=version,
            producer_id=producer_id,
            producer_epoch=producer.epoch,
            last_sequence=producer.batches[-1].last_sequence if producer.batches else -1,
            last_timestamp=producer.seen_at_ms,
            coordinator_epoch=0,
            current_txn_start_offset=states.open[producer_id].first_offset if producer_id in states.open else -1,
        )
        for producer_id, producer in states
    ]
