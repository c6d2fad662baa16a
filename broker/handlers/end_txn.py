"""EndTxn, versions 0 to 3: commits or aborts a transaction. The answer comes when readers see what it was.

2: a fenced producer is told PRODUCER_FENCED.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.producer import EndTxnResponse

from headrace.broker.access.rights import Right
from headrace.broker.coordinator.transaction import Identity
from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext, fenced_code
from headrace.broker.protocol.error_codes import ErrorCode

FENCED_FROM = 2


async def handle(context: RequestContext, request: Any) -> Any:
    code, transactional_id = ErrorCode.NONE, request.transactional_id or ""
    try:
        context.check_transaction(transactional_id, Right.WRITE)
        user = Identity(request.producer_id, request.producer_epoch)
        await context.node.transactions.end(transactional_id, user, is_commit=bool(request.committed))
    except RequestRefused as refused:
        code = fenced_code(refused.code, context.version >= FENCED_FROM)
    return EndTxnResponse(version=context.version, error_code=code)
