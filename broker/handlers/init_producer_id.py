"""InitProducerId, versions 0 to 5: an id for an idempotent producer, or the next epoch of a transactional id.

3: a producer that lost its place asks with its id to have the epoch raised (KIP-360), which is done for a transactional
id; without one the answer is always a new id, since nothing tells whose the claimed one is. 4: a fenced producer is
told PRODUCER_FENCED.
"""

from __future__ import annotations

import logging
from typing import Any

from kafka.protocol.producer import InitProducerIdResponse

from headrace.broker.access.rights import Right
from headrace.broker.coordinator.transaction import Identity
from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext, fenced_code
from headrace.broker.protocol.error_codes import ErrorCode

logger = logging.getLogger(__name__)

FENCED_FROM = 4


def handle(context: RequestContext, request: Any) -> Any:
    version = context.version
    if request.transactional_id is not None:
        return _take(context, request)
    if not context.rights.may_write:
        return _response(version, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return _new(context)


async def _new(context: RequestContext) -> Any:
    try:
        return _response(context.version, ErrorCode.NONE, await context.node.producer_ids.take(), 0)
    except OSError as error:
        logger.error("no producer ids claimed error=%s", error)
        return _response(context.version, ErrorCode.STORAGE_ERROR)


async def _take(context: RequestContext, request: Any) -> Any:
    version = context.version
    claims = version >= 3 and request.producer_id >= 0
    claimed = Identity(request.producer_id, request.producer_epoch) if claims else None
    try:
        context.check_transaction(request.transactional_id, Right.WRITE)
        taken = await context.node.transactions.take(request.transactional_id, request.transaction_timeout_ms, claimed)
    except RequestRefused as refused:
        return _response(version, fenced_code(refused.code, version >= FENCED_FROM))
    return _response(version, ErrorCode.NONE, *taken)


def _response(version: int, code: ErrorCode, producer_id: int = -1, epoch: int = -1) -> Any:
    return InitProducerIdResponse(version=version, error_code=code, producer_id=producer_id, producer_epoch=epoch)
