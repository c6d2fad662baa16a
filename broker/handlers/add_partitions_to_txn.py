"""AddPartitionsToTxn, versions 0 to 3: adds partitions to a producer's transaction, all or none.

A fenced producer gets PRODUCER_FENCED from version 2 on, before that INVALID_PRODUCER_EPOCH. Later versions are not
served: they are for requests between brokers and for transactions of version 2 (KIP-890).
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.producer import AddPartitionsToTxnResponse

from headrace.broker.access.permissions import BrokerPermission
from headrace.broker.coordinator.offsets import TopicPartition
from headrace.broker.coordinator.transaction import ProducerIdAndEpoch
from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext, fencing_error
from headrace.broker.protocol.error_codes import ErrorCode

FENCED_FROM = 2
_Topic = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult


async def handle(context: RequestContext, request: Any) -> Any:
    transactional_id = request.v3_and_below_transactional_id or ""
    requested = [
        (topic.name or "", index) for topic in request.v3_and_below_topics or () for index in topic.partitions or ()
    ]
    codes = _refusals(context, requested)
    refusal = ErrorCode.OPERATION_NOT_ATTEMPTED if codes else ErrorCode.NONE
    try:
        context.check_transaction(transactional_id, BrokerPermission.WRITE)
        if not codes:
            producer = ProducerIdAndEpoch(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
            await context.node.transactions.add_partitions(transactional_id, producer, requested)
    except RequestRefused as refused:
        codes, refusal = {}, fencing_error(refused.code, context.version >= FENCED_FROM)
    return AddPartitionsToTxnResponse(
        version=context.version,
        results_by_topic_v3_and_below=[
            _topic(
                context,
                topic,
                {index: codes.get((topic.name or "", index), refusal) for index in topic.partitions or ()},
            )
            for topic in request.v3_and_below_topics or ()
        ],
    )


def _refusals(context: RequestContext, requested: list[TopicPartition]) -> dict[TopicPartition, ErrorCode]:
    codes: dict[TopicPartition, ErrorCode] = {}
    for name, index in requested:
        try:
            context.check_topic(name, BrokerPermission.WRITE)
            context.node.log(name, index)
            if context.node.topic(name).is_internal:
                raise RequestRefused(
                    ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{name} is an internal topic; clients cannot write to it"
                )
        except RequestRefused as refused:
            codes[name, index] = refused.code
    return codes


def _topic(context: RequestContext, topic: Any, codes: dict[int, ErrorCode]) -> Any:
    return _Topic(
        version=context.version,
        name=topic.name or "",
        results_by_partition=[
            _Topic.AddPartitionsToTxnPartitionResult(
                version=context.version, partition_index=index, partition_error_code=code
            )
            for index, code in codes.items()
        ],
    )
