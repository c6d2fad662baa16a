"""OffsetForLeaderEpoch, versions 2 to 4: the end offset of a leader epoch. With it, clients detect a truncated log.

For an epoch without batches, the response contains the latest earlier epoch that has batches and its end; without one,
the epoch itself and the start of the first later one. For the current epoch it contains the high watermark, and for a
newer one -1.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.consumer import OffsetForLeaderEpochResponse

from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext
from headrace.broker.loop_yielder import LoopYielder
from headrace.broker.protocol.error_codes import ErrorCode

_TopicResult = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult


async def handle(context: RequestContext, request: Any) -> Any:
    yielder, topics = LoopYielder(), []
    for topic in request.topics or ():
        partitions = []
        for requested in topic.partitions or ():
            await yielder.yield_if_due()
            partitions.append(_partition(context, topic.topic or "", requested))
        topics.append(_TopicResult(version=context.version, topic=topic.topic or "", partitions=partitions))
    return OffsetForLeaderEpochResponse(version=context.version, topics=topics)


def _partition(context: RequestContext, name: str, requested: Any) -> Any:
    code, epoch, end = ErrorCode.NONE, -1, -1
    try:
        context.check_topic(name)
        log = context.node.log(name, requested.partition, requested.current_leader_epoch)
        epoch, end = log.epoch_end(requested.leader_epoch) or (-1, -1)
    except RequestRefused as refused:
        code = refused.code
    return _TopicResult.EpochEndOffset(
        version=context.version, error_code=code, partition=requested.partition, leader_epoch=epoch, end_offset=end
    )
