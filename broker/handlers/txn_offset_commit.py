"""TxnOffsetCommit, versions 0 to 3: stores a group's offsets that take effect when the transaction commits.

Version 2 adds leader epochs. Version 3 adds the group member; if a request names it, its generation or member epoch
must be the current one.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.producer import TxnOffsetCommitResponse

from headrace.broker.access.permissions import BrokerPermission
from headrace.broker.coordinator.offsets import TopicPartition
from headrace.broker.coordinator.records import CommittedOffset
from headrace.broker.coordinator.transaction import ProducerIdAndEpoch
from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext
from headrace.broker.handlers.offset_commit import check_offset, topic_partitions
from headrace.broker.node import OFFSETS_PARTITION
from headrace.broker.protocol.error_codes import ErrorCode

_EPOCHS_FROM, _MEMBERS_FROM = 2, 3
_Topic = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic


async def handle(context: RequestContext, request: Any) -> Any:
    node, group_id = context.node, request.group_id or ""
    codes: dict[TopicPartition, ErrorCode] = {}
    offsets: dict[TopicPartition, CommittedOffset] = {}
    refusal = ErrorCode.NONE
    try:
        context.check_transaction(request.transactional_id or "", BrokerPermission.WRITE)
        context.check_group(group_id, BrokerPermission.READ)
        producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        node.transactions.check_transactional_write(request.transactional_id, producer, OFFSETS_PARTITION)
        if context.version >= _MEMBERS_FROM:
            node.groups.commits.check_transaction(
                group_id,
                request.member_id or "",
                request.group_instance_id,
                request.generation_id,
                topic_partitions(request),
            )
        for topic in request.topics or ():
            for requested in topic.partitions or ():
                key = (topic.name or "", requested.partition_index)
                try:
                    offsets[key] = check_offset(context, key, requested, has_epoch=context.version >= _EPOCHS_FROM)
                except RequestRefused as refused:
                    codes[key] = refused.code
        await node.groups.commits.store_pending(group_id, offsets, producer.producer_id, producer.epoch)
    except RequestRefused as refused:
        refusal = refused.code
    return _response(context.version, request, codes, refusal)


def _response(version: int, request: Any, codes: dict[TopicPartition, ErrorCode], refusal: ErrorCode) -> Any:
    return TxnOffsetCommitResponse(
        version=version,
        topics=[
            _Topic(
                version=version,
                name=topic.name or "",
                partitions=[
                    _Topic.TxnOffsetCommitResponsePartition(
                        version=version,
                        partition_index=requested.partition_index,
                        error_code=refusal or codes.get((topic.name or "", requested.partition_index), ErrorCode.NONE),
                    )
                    for requested in topic.partitions or ()
                ],
            )
            for topic in request.topics or ()
        ],
    )
