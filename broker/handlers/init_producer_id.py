"""InitProducerId, versions 0 to 5: returns a new id for an idempotent producer, or the id and the next epoch of a
transactional id.

From version 3 on, a producer that has lost its sequence state may send its id to get the next epoch (KIP-360). The
broker does that for transactional ids. A producer without a transactional id always gets a new id, because the broker
cannot verify that the id in the request is its own. A fenced producer gets PRODUCER_FENCED from version 4 on, before
that INVALID_PRODUCER_EPOCH.
"""

from __future__ import annotations

import logging
from typing import Any

from kafka.protocol.producer import InitProducerIdResponse

from headrace.broker.access.permissions import BrokerPermission
from headrace.broker.coordinator.transaction import ProducerIdAndEpoch
from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext, fencing_error
from headrace.broker.protocol.error_codes import ErrorCode

logger = logging.getLogger(__name__)

FENCED_FROM = 4


def handle(context: RequestContext, request: Any) -> Any:
    version = context.version
    if request.transactional_id is not None:
        return _init_transactional(context, request)
    if not context.permissions.can_write_any_topic:
        return _response(version, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return _init_idempotent(context)


async def _init_idempotent(context: RequestContext) -> Any:
    try:
        return _response(context.version, ErrorCode.NONE, await context.node.producer_ids.allocate(), 0)
    except OSError as error:
        logger.error("no producer id could be allocated; check the disk of the data directory error=%s", error)
        return _response(context.version, ErrorCode.STORAGE_ERROR)


async def _init_transactional(context: RequestContext, request: Any) -> Any:
    version = context.version
    claims = version >= 3 and request.producer_id >= 0
    claimed = ProducerIdAndEpoch(request.producer_id, request.producer_epoch) if claims else None
    try:
        context.check_transaction(request.transactional_id, BrokerPermission.WRITE)
        producer = await context.node.transactions.init_producer(
            request.transactional_id, request.transaction_timeout_ms, claimed
        )
    except RequestRefused as refused:
        return _response(version, fencing_error(refused.code, version >= FENCED_FROM))
    return _response(version, ErrorCode.NONE, *producer)


def _response(version: int, code: ErrorCode, producer_id: int = -1, epoch: int = -1) -> Any:
    return InitProducerIdResponse(version=version, error_code=code, producer_id=producer_id, producer_epoch=epoch)
