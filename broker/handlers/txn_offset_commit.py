"""TxnOffsetCommit, versions 0 to 3: offsets of a group that count as soon as a transaction is committed.

2: leader epochs; 3: the member of the group that they were read by, whose generation or epoch must be the present one.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.producer import TxnOffsetCommitResponse

from headrace.broker.access.rights import Right
from headrace.broker.coordinator.offsets import TopicPartition
from headrace.broker.coordinator.records import CommittedOffset
from headrace.broker.coordinator.transaction import Identity
from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext
from headrace.broker.handlers.offset_commit import checked_offset, places
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
        context.check_transaction(request.transactional_id or "", Right.WRITE)
        context.check_group(group_id, Right.READ)
        user = Identity(request.producer_id, request.producer_epoch)
        node.transactions.check_part(request.transactional_id, user, OFFSETS_PARTITION)
        if context.version >= _MEMBERS_FROM:
            node.groups.commits.check_transaction(
                group_id, request.member_id or "", request.group_instance_id, request.generation_id, places(request)
            )
        for topic in request.topics or ():
            for wanted in topic.partitions or ():
                key = (topic.name or "", wanted.partition_index)
                try:
                    offsets[key] = checked_offset(context, key, wanted, has_epoch=context.version >= _EPOCHS_FROM)
                except RequestRefused as refused:
                    codes[key] = refused.code
        await node.groups.commits.store_later(group_id, offsets, user.producer_id, user.epoch)
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
                        partition_index=wanted.partition_index,
                        error_code=refusal or codes.get((topic.name or "", wanted.partition_index), ErrorCode.NONE),
                    )
                    for wanted in topic.partitions or ()
                ],
            )
            for topic in request.topics or ()
        ],
    )
