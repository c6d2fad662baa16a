"""DeleteRecords, versions 0 to 2: raises the log start offset of partitions; -1 stands for the high watermark.

The new log start offset is durable before the response. Segments below it are deleted by the next run of retention. On
a full disk they are deleted at once, since deletion needs no space and may free enough to write the new log start
offset. If it does not, the client gets a retriable error; the records stay hidden until the broker restarts, and for
good if the offset is written before.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from kafka.protocol.admin import DeleteRecordsResponse

from headrace.broker.access.permissions import BrokerPermission
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
            partitions=[_result(context, topic.name or "", requested) for requested in topic.partitions or ()],
        )
        for topic in request.topics or ()
    ]
    done = [
        (topic.name, partition)
        for topic in topics
        for partition in topic.partitions
        if partition.error_code == ErrorCode.NONE
    ]
    try:
        await _write(context.node, [(name, partition.partition_index) for name, partition in done])
    except OSError as error:
        logger.error(
            "log start offsets not written, clients may retry; check the disk of the data directory error=%s",
            error,
        )
        for _, partition in done:
            partition.error_code, partition.low_watermark = ErrorCode.STORAGE_ERROR, -1
    return DeleteRecordsResponse(version=context.version, topics=topics)


async def _write(node: BrokerNode, keys: list[tuple[str, int]]) -> None:
    """Writes the checkpoint of the log start offsets. If that fails, as on a full disk, deletes the segments of the
    partitions in `keys` that lie below their log start offsets, and then writes again.

    Raises:
        OSError: the disk is full even after that, or failed.
    """
    try:
        await asyncio.wrap_future(node.checkpoints.write_log_starts())
    except OSError:
        for key in keys:
            await node.maintenance.drop_below_log_start(key)
        await asyncio.wrap_future(node.checkpoints.write_log_starts())


def _result(context: RequestContext, name: str, requested: Any) -> Any:
    code, low = ErrorCode.NONE, -1
    try:
        context.check_topic(name, BrokerPermission.ADMIN)
        log = context.node.log(name, requested.partition_index)
        if context.node.topic(name).is_internal:
            raise RequestRefused(ErrorCode.INVALID_TOPIC, f"{name} is an internal topic; its records cannot be deleted")
        offset = log.high_watermark if requested.offset == TO_END else requested.offset
        if not 0 <= offset <= log.high_watermark:
            raise RequestRefused(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not between 0 and the end of the log, {log.high_watermark}",
            )
        log.advance_log_start(offset)
        low = log.log_start_offset
    except RequestRefused as refused:
        code = refused.code
    return _Partition(
        version=context.version, partition_index=requested.partition_index, low_watermark=low, error_code=code
    )
