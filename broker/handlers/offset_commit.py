"""OffsetCommit, versions 2 to 9: stores offsets for a group, all those of one request together.

2 to 4: a retention time, ignored as Kafka does; 6: leader epochs; 7: static members; 9: member epochs of KIP-848
in place of the generation. Partitions that do not exist and overlong metadata are refused one by one.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from kafka.protocol.consumer import OffsetCommitResponse

from headrace.broker.access.rights import Right
from headrace.broker.coordinator.commits import check_metadata
from headrace.broker.coordinator.offsets import TopicPartition
from headrace.broker.coordinator.records import CommittedOffset
from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext
from headrace.broker.protocol.error_codes import ErrorCode

_EPOCHS_FROM, _MEMBER_EPOCHS_FROM = 6, 9
_Topic = OffsetCommitResponse.OffsetCommitResponseTopic


def handle(context: RequestContext, request: Any) -> Awaitable[Any]:
    return _commit(context, request)


async def _commit(context: RequestContext, request: Any) -> Any:
    groups, version = context.node.groups, context.version
    group_id = request.group_id or ""
    codes: dict[TopicPartition, ErrorCode] = {}
    offsets: dict[TopicPartition, CommittedOffset] = {}
    refusal = ErrorCode.NONE
    try:
        context.check_group(group_id, Right.READ)
        groups.commits.check(
            group_id,
            request.member_id or "",
            request.group_instance_id if version >= 7 else None,
            request.generation_id_or_member_epoch,
            places(request),
            knows_member_epochs=version >= _MEMBER_EPOCHS_FROM,
        )
        for topic in request.topics or ():
            for wanted in topic.partitions or ():
                key = (topic.name or "", wanted.partition_index)
                try:
                    offsets[key] = checked_offset(context, key, wanted, has_epoch=context.version >= _EPOCHS_FROM)
                except RequestRefused as refused:
                    codes[key] = refused.code
        await groups.commits.store(group_id, offsets)
    except RequestRefused as refused:
        refusal = refused.code
    return _response(request, version, codes, refusal)


def places(request: Any) -> list[TopicPartition]:
    """The partitions that a request is about."""
    return [
        (topic.name or "", wanted.partition_index)
        for topic in request.topics or ()
        for wanted in topic.partitions or ()
    ]


def checked_offset(context: RequestContext, key: TopicPartition, wanted: Any, *, has_epoch: bool) -> CommittedOffset:
    """What a request wants to commit for a partition, also in a transaction.

    Raises:
        RequestRefused: it may not, or there is no such partition.
    """
    context.check_topic(key[0], Right.READ)
    context.node.log(*key)
    return CommittedOffset(
        wanted.committed_offset,
        wanted.committed_leader_epoch if has_epoch else -1,
        check_metadata(wanted.committed_metadata),
        context.node.now_ms(),
    )


def _response(request: Any, version: int, codes: dict[TopicPartition, ErrorCode], refusal: ErrorCode) -> Any:
    return OffsetCommitResponse(
        version=version,
        topics=[
            _Topic(
                version=version,
                name=topic.name or "",
                partitions=[
                    _Topic.OffsetCommitResponsePartition(
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
