"""InitProducerId, versions 0 to 5: an id for an idempotent producer.

3: a producer that lost its place asks with its id to have the epoch raised (KIP-360). Transactional ids are refused.
"""

from __future__ import annotations

import logging
from typing import Any

from kafka.protocol.producer import InitProducerIdResponse

from headrace.broker.handlers.context import RequestContext
from headrace.broker.protocol.error_codes import ErrorCode

logger = logging.getLogger(__name__)

EPOCH_MAX = 32766
"""A producer that reaches it is given a new id: the next epoch would be the last that fits 16 bits."""


def handle(context: RequestContext, request: Any) -> Any:
    version = context.version
    if request.transactional_id is not None:
        return _response(version, ErrorCode.INVALID_TXN_STATE)
    if version >= 3 and request.producer_id >= 0 and 0 <= request.producer_epoch < EPOCH_MAX:
        return _response(version, ErrorCode.NONE, request.producer_id, request.producer_epoch + 1)
    if not context.rights.may_write:
        return _response(version, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    try:
        return _response(version, ErrorCode.NONE, context.node.producer_ids.take(), 0)
    except OSError as error:
        logger.error("no producer ids claimed error=%s", error)
        return _response(version, ErrorCode.STORAGE_ERROR)


def _response(version: int, code: ErrorCode, producer_id: int = -1, epoch: int = -1) -> Any:
    return InitProducerIdResponse(version=version, error_code=code, producer_id=producer_id, producer_epoch=epoch)
