"""AddOffsetsToTxn, versions 0 to 3: adds the offsets of a group to a producer's transaction.

A fenced producer gets PRODUCER_FENCED from version 2 on, before that INVALID_PRODUCER_EPOCH.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.producer import AddOffsetsToTxnResponse

from headrace.broker.access.permissions import BrokerPermission
from headrace.broker.coordinator.transaction import ProducerIdAndEpoch
from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext, fencing_error
from headrace.broker.node import OFFSETS_PARTITION
from headrace.broker.protocol.error_codes import ErrorCode

FENCED_FROM = 2


async def handle(context: RequestContext, request: Any) -> Any:
    code, transactional_id = ErrorCode.NONE, request.transactional_id or ""
    try:
        context.check_transaction(transactional_id, BrokerPermission.WRITE)
        context.check_group(request.group_id or "", BrokerPermission.READ)
        producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        await context.node.transactions.add_partitions(transactional_id, producer, [OFFSETS_PARTITION])
    except RequestRefused as refused:
        code = fencing_error(refused.code, context.version >= FENCED_FROM)
    return AddOffsetsToTxnResponse(version=context.version, error_code=code)
