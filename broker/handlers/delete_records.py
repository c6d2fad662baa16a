"""DeleteRecords, versions 0 to 2: hides what lies below an offset; -1 is the end. Whole segments below it are removed
by the next look of retention; the new start is durable before the answer.

On a full disk they are removed at once, which needs no space and may make room for the new start: deleting records is
what is left to do there. Where it does not, what is hidden stays so until the next start, and the client is told to try
again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from kafka.protocol.admin import DeleteRecordsResponse

from headrace.broker.access.rights import Right
from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext
from headrace.broker.node import BrokerNode
from headrace.broker.protocol.error_codes import ErrorCode

logger = logging.getLogger(__name__)

TO_END = -1
_Topic = DeleteRecordsResponse.DeleteRecordsTopicResult
_Partition = _Topic.DeleteRecordsPartitionResult


async def handle(context: RequestContext, request: Any) -> Any:
    topics = [
        _Topic(
            version=context.version,
            name=topic.name or "",
            partitions=[_one(context, topic.name or "", wanted) for wanted in topic.partitions or ()],
        )
        for topic in request.topics or ()
    ]
    done = [(topic.name, one) for topic in topics for one in topic.partitions if one.error_code == ErrorCode.NONE]
    try:
        await _write(context.node, [(name, one.partition_index) for name, one in done])
    except OSError as error:
        logger.error("deletion of records not written error=%s", error)
        for _, one in done:
            one.error_code, one.low_watermark = ErrorCode.STORAGE_ERROR, -1
    return DeleteRecordsResponse(version=context.version, topics=topics)


async def _write(node: BrokerNode, keys: list[tuple[str, int]]) -> None:
    """
    Raises:
        OSError: there is no space, and deleting them makes none.
    """
    try:
        await asyncio.wrap_future(node.checkpoints.write_log_starts())
    except OSError:
        for key in keys:
            await node.upkeep.drop_hidden(key)
        await asyncio.wrap_future(node.checkpoints.write_log_starts())


def _one(context: RequestContext, name: str, wanted: Any) -> Any:
    code, low = ErrorCode.NONE, -1
    try:
        context.check_topic(name, Right.ADMIN)
        log = context.node.log(name, wanted.partition_index)
        if context.node.topic(name).is_internal:
            raise RequestRefused(ErrorCode.INVALID_TOPIC, f"{name} is the broker's own")
        offset = log.high_watermark if wanted.offset == TO_END else wanted.offset
        if not 0 <= offset <= log.high_watermark:
            raise RequestRefused(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is above {log.high_watermark}")
        log.advance_log_start(offset)
        low = log.log_start_offset
    except RequestRefused as refused:
        code = refused.code
    return _Partition(
        version=context.version, partition_index=wanted.partition_index, low_watermark=low, error_code=code
    )
