"""ListTransactions, versions 0 and 1: the transactional ids on which the client has a permission, optionally filtered
by state and producer id.

Version 1 adds a filter for transactions that began longer ago than a given time in ms. As in Kafka, this includes ended
transactions, and transactional ids that have not begun one.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import ListTransactionsResponse

from headrace.broker.access.permissions import ResourceType
from headrace.broker.coordinator.transaction import TransactionStatus
from headrace.broker.handlers.context import RequestContext
from headrace.broker.protocol.error_codes import ErrorCode

_DURATION_FROM = 1


def handle(context: RequestContext, request: Any) -> Any:
    states = {name or "" for name in request.state_filters or ()}
    producers = set(request.producer_id_filters or ())
    known = {status.value for status in TransactionStatus}
    longer_than_ms = request.duration_filter if context.version >= _DURATION_FROM else -1
    now_ms = context.node.now_ms()
    return ListTransactionsResponse(
        version=context.version,
        error_code=ErrorCode.NONE,
        unknown_state_filters=sorted(states - known),
        transaction_states=[
            ListTransactionsResponse.TransactionState(
                version=context.version,
                transactional_id=transactional_id,
                producer_id=each.producer_id,
                transaction_state=each.status.value,
            )
            for transactional_id, each in context.node.transactions.all.items()
            if context.permissions.granted_on(ResourceType.TRANSACTION, transactional_id)
            and (not states or each.status.value in states)
            and (not producers or each.producer_id in producers)
            and (longer_than_ms < 0 or now_ms - each.started_at_ms > longer_than_ms)
        ],
    )
