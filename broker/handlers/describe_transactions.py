"""DescribeTransactions, version 0: the state of transactional ids.

The partitions of an open transaction are listed if the client has a permission on their topic; others are omitted.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import DescribeTransactionsResponse

from headrace.broker.coordinator.transaction_records import by_topic
from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext
from headrace.broker.protocol.error_codes import ErrorCode

_State = DescribeTransactionsResponse.TransactionState


def handle(context: RequestContext, request: Any) -> Any:
    return DescribeTransactionsResponse(
        version=context.version,
        transaction_states=[
            _result(context, requested or "") for requested in dict.fromkeys(request.transactional_ids or ())
        ],
    )


def _result(context: RequestContext, transactional_id: str) -> Any:
    try:
        context.check_transaction(transactional_id)
    except RequestRefused as refused:
        return _State(version=context.version, error_code=refused.code, transactional_id=transactional_id)
    found = context.node.transactions.all.get(transactional_id)
    if found is None:
        code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        return _State(version=context.version, error_code=code, transactional_id=transactional_id)
    return _State(
        version=context.version,
        error_code=ErrorCode.NONE,
        transactional_id=transactional_id,
        transaction_state=found.status.value,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.started_at_ms,
        producer_id=found.producer_id,
        producer_epoch=found.epoch,
        topics=[
            _State.TopicData(version=context.version, topic=topic, partitions=partitions)
            for topic, partitions in by_topic(found.partitions).items()
            if not context.topic_error(topic)
        ],
    )
