"""DeleteRecords, versions 0 to 2: hides what lies below an offset; -1 is the end. Whole segments below it are removed
by the next look of retention; the new start is durable before the answer.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kafka.protocol.admin import DeleteRecordsResponse

from headrace.broker.access.rights import Right
from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext
from headrace.broker.protocol.error_codes import ErrorCode

TO_END = -1
_Topic = DeleteRecordsResponse.DeleteRecordsTopicResult


async def handle(context: RequestContext, request: Any) -> Any:
    topics = [
        _Topic(
            version=context.version,
            name=topic.name or "",
            partitions=[_one(context, topic.name or "", wanted) for wanted in topic.partitions or ()],
        )
        for topic in request.topics or ()
    ]
    await asyncio.wrap_future(context.node.checkpoints.write_log_starts())
    return DeleteRecordsResponse(version=context.version, topics=topics)


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
    return _Topic.DeleteRecordsPartitionResult(
        version=context.version, partition_index=wanted.partition_index, low_watermark=low, error_code=code
    )
