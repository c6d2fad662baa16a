"""OffsetCommit, versions 2 to 9: stores a group's offsets.

An offset is refused if its partition is unknown, the client may not read the topic, or its metadata is too long. The
other offsets are stored all or none. Versions 2 to 4 have a retention time, which is ignored as in Kafka. Version 6
adds leader epochs, version 7 static members, version 9 member epochs (KIP-848) in place of the generation.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from kafka.protocol.consumer import OffsetCommitResponse

from headrace.broker.access.permissions import BrokerPermission
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
        context.check_group(group_id, BrokerPermission.READ)
        groups.commits.check(
            group_id,
            request.member_id or "",
            request.group_instance_id if version >= 7 else None,
            request.generation_id_or_member_epoch,
            topic_partitions(request),
            supports_member_epochs=version >= _MEMBER_EPOCHS_FROM,
        )
        for topic in request.topics or ():
            for requested in topic.partitions or ():
                key = (topic.name or "", requested.partition_index)
                try:
                    offsets[key] = check_offset(context, key, requested, has_epoch=context.version >= _EPOCHS_FROM)
                except RequestRefused as refused:
                    codes[key] = refused.code
        await groups.commits.store(group_id, offsets)
    except RequestRefused as refused:
        refusal = refused.code
    return _response(request, version, codes, refusal)


def topic_partitions(request: Any) -> list[TopicPartition]:
    """Returns the partitions that a request to commit offsets names, as (topic, partition)."""
    return [
        (topic.name or "", requested.partition_index)
        for topic in request.topics or ()
        for requested in topic.partitions or ()
    ]


def check_offset(context: RequestContext, key: TopicPartition, requested: Any, *, has_epoch: bool) -> CommittedOffset:
    """Validates an offset to commit, directly or in a transaction, and returns it.

    Args:
        key: topic and partition.
        requested: the partition's entry in the request.
        has_epoch: whether this version of the request contains a leader epoch.

    Raises:
        RequestRefused: the permission is missing, the partition does not exist, or the metadata is too long.
    """
    context.check_topic(key[0], BrokerPermission.READ)
    context.node.log(*key)
    return CommittedOffset(
        requested.committed_offset,
        requested.committed_leader_epoch if has_epoch else -1,
        check_metadata(requested.committed_metadata),
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
                        partition_index=requested.partition_index,
                        error_code=refusal or codes.get((topic.name or "", requested.partition_index), ErrorCode.NONE),
                    )
                    for requested in topic.partitions or ()
                ],
            )
            for topic in request.topics or ()
        ],
    )
