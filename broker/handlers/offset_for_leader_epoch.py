"""OffsetForLeaderEpoch, versions 2 to 4: where a leader epoch ended, so that clients notice a log that was cut back.

Of an epoch without batches the one before it is told; of the leader's own, the end of the log.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.consumer import OffsetForLeaderEpochResponse

from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.turns import Turns

_TopicResult = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult


async def handle(context: RequestContext, request: Any) -> Any:
    turns, topics = Turns(), []
    for topic in request.topics or ():
        partitions = []
        for wanted in topic.partitions or ():
            await turns.give()
            partitions.append(_partition(context, topic.topic or "", wanted))
        topics.append(_TopicResult(version=context.version, topic=topic.topic or "", partitions=partitions))
    return OffsetForLeaderEpochResponse(version=context.version, topics=topics)


def _partition(context: RequestContext, name: str, wanted: Any) -> Any:
    code, epoch, end = ErrorCode.NONE, -1, -1
    try:
        context.check_topic(name)
        log = context.node.log(name, wanted.partition, wanted.current_leader_epoch)
        epoch, end = log.epoch_end(wanted.leader_epoch) or (-1, -1)
    except RequestRefused as refused:
        code = refused.code
    return _TopicResult.EpochEndOffset(
        version=context.version, error_code=code, partition=wanted.partition, leader_epoch=epoch, end_offset=end
    )
