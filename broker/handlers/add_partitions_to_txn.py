"""AddPartitionsToTxn, versions 0 to 3: partitions that a producer is about to write to in its transaction, all or none.

2: a fenced producer is told PRODUCER_FENCED. Later versions are for brokers among each other, and for transactions of
version 2 (KIP-890), which are not offered.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.producer import AddPartitionsToTxnResponse

from headrace.broker.access.rights import Right
from headrace.broker.coordinator.transaction import Identity, Partition
from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext, fenced_code
from headrace.broker.protocol.error_codes import ErrorCode

FENCED_FROM = 2
_Topic = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult


async def handle(context: RequestContext, request: Any) -> Any:
    transactional_id = request.v3_and_below_transactional_id or ""
    wanted = [
        (topic.name or "", index) for topic in request.v3_and_below_topics or () for index in topic.partitions or ()
    ]
    codes = _refusals(context, wanted)
    refusal = ErrorCode.OPERATION_NOT_ATTEMPTED if codes else ErrorCode.NONE
    try:
        context.check_transaction(transactional_id, Right.WRITE)
        if not codes:
            user = Identity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
            await context.node.transactions.add(transactional_id, user, wanted)
    except RequestRefused as refused:
        codes, refusal = {}, fenced_code(refused.code, context.version >= FENCED_FROM)
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


def _refusals(context: RequestContext, wanted: list[Partition]) -> dict[Partition, ErrorCode]:
    codes: dict[Partition, ErrorCode] = {}
    for name, index in wanted:
        try:
            context.check_topic(name, Right.WRITE)
            context.node.log(name, index)
            if context.node.topic(name).is_internal:
                raise RequestRefused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{name} is the broker's own")
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
