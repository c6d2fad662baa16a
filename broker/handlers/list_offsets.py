"""ListOffsets, versions 1 to 9: the ends of partitions, and the first record at or above a timestamp.

4: leader epochs; 7: timestamp -3 asks for the record with the largest timestamp; 8 and 9: -4 and -5 ask for the local
start and the tiered end; without tiered storage that is the start of the log, and none.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.consumer import ListOffsetsResponse

from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext
from headrace.broker.log.partition_log import FoundTimestamp, PartitionLog
from headrace.broker.protocol.error_codes import ErrorCode

LATEST, EARLIEST, LARGEST_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
NO_TIMESTAMP = -1

_TopicResponse = ListOffsetsResponse.ListOffsetsTopicResponse
_PartitionResponse = _TopicResponse.ListOffsetsPartitionResponse


def handle(context: RequestContext, request: Any) -> Any:
    return ListOffsetsResponse(
        version=context.version,
        topics=[
            _TopicResponse(
                version=context.version,
                name=topic.name or "",
                partitions=[_partition(context, topic.name or "", wanted) for wanted in topic.partitions or ()],
            )
            for topic in request.topics or ()
        ],
    )


def _partition(context: RequestContext, name: str, wanted: Any) -> Any:
    code, found, epoch = ErrorCode.NONE, None, -1
    try:
        context.check_topic(name)
        leader_epoch = wanted.current_leader_epoch if context.version >= 4 else -1
        log = context.node.log(name, wanted.partition_index, leader_epoch)
        found = _look_up(log, wanted.timestamp)
        if found is not None:
            epoch = log.leader_epoch if found.offset >= log.log_end_offset else log.epochs.at(found.offset)
    except RequestRefused as refused:
        code = refused.code
    return _PartitionResponse(
        version=context.version,
        partition_index=wanted.partition_index,
        error_code=code,
        timestamp=found.timestamp_ms if found else NO_TIMESTAMP,
        offset=found.offset if found else -1,
        leader_epoch=epoch,
    )


def _look_up(log: PartitionLog, timestamp_ms: int) -> FoundTimestamp | None:
    if timestamp_ms == LATEST:
        return FoundTimestamp(NO_TIMESTAMP, log.high_watermark)
    if timestamp_ms in (EARLIEST, EARLIEST_LOCAL):
        return FoundTimestamp(NO_TIMESTAMP, log.log_start_offset)
    if timestamp_ms == LARGEST_TIMESTAMP:
        return log.largest_timestamp()
    if timestamp_ms == LATEST_TIERED:
        return None
    if timestamp_ms < 0:
        raise RequestRefused(ErrorCode.INVALID_REQUEST, f"timestamp {timestamp_ms}")
    return log.find_timestamp(timestamp_ms)
