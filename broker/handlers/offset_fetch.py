"""OffsetFetch, versions 1 to 9: a group's committed offsets, -1 where none is committed.

From version 2 on, a request with null topics gets the offsets of all topics on which the client has a permission. From
version 7 on, a client that requires stable offsets gets UNSTABLE_OFFSET_COMMIT while a transaction has an uncommitted
offset for the partition. Version 8 adds several groups per request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kafka.protocol.consumer import OffsetFetchResponse

from headrace.broker.access.permissions import ResourceType
from headrace.broker.coordinator.offsets import TopicPartition
from headrace.broker.coordinator.records import CommittedOffset
from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext
from headrace.broker.protocol.error_codes import ErrorCode

_NONE = CommittedOffset(-1, -1, "", 0)
_STABLE_FROM, _GROUPS_FROM, _MEMBERS_FROM = 7, 8, 9


def handle(context: RequestContext, request: Any) -> Any:
    version = context.version
    needs_stable = version >= _STABLE_FROM and bool(request.require_stable)
    if version < _GROUPS_FROM:
        error = context.group_error(request.group_id or "")
        topics = _topics(
            context,
            request.group_id or "",
            request.topics,
            OffsetFetchResponse.OffsetFetchResponseTopic,
            "OffsetFetchResponsePartition",
            needs_stable,
            error,
        )
        return OffsetFetchResponse(version=version, topics=topics, error_code=error)
    group_class = OffsetFetchResponse.OffsetFetchResponseGroup
    groups = []
    for group in {group.group_id: group for group in request.groups or ()}.values():
        error = _group_error(context, group)
        topics = _topics(
            context,
            group.group_id or "",
            group.topics,
            group_class.OffsetFetchResponseTopics,
            "OffsetFetchResponsePartitions",
            needs_stable,
            error,
        )
        groups.append(group_class(version=version, group_id=group.group_id or "", topics=topics, error_code=error))
    return OffsetFetchResponse(version=version, groups=groups)


def _group_error(context: RequestContext, group: Any) -> ErrorCode:
    try:
        context.check_group(group.group_id or "")
        if context.version >= _MEMBERS_FROM:
            context.node.groups.check_fetch(group.group_id or "", group.member_id, group.member_epoch)
    except RequestRefused as refused:
        return refused.code
    return ErrorCode.NONE


def _topics(
    context: RequestContext,
    group_id: str,
    requested: Iterable[Any] | None,
    topic_class: Any,
    partition_name: str,
    needs_stable: bool,
    error: ErrorCode,
) -> list[Any]:
    permissions = context.permissions
    offsets = context.node.groups.offsets.of_group(group_id)
    partition_class = getattr(topic_class, partition_name)
    pending = context.node.groups.offsets.pending_partitions(group_id) if needs_stable else ()
    unstable = dict.fromkeys(pending, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    return [
        topic_class(
            version=context.version,
            name=name,
            partitions=[
                _partition(
                    partition_class,
                    context.version,
                    index,
                    offsets.get((name, index), _NONE),
                    error or context.topic_error(name) or unstable.get((name, index), ErrorCode.NONE),
                )
                for index in indexes
            ],
        )
        for name, indexes in _requested_partitions(requested, {} if error else offsets).items()
        if requested is not None or permissions.granted_on(ResourceType.TOPIC, name)
    ]


def _requested_partitions(
    requested: Iterable[Any] | None, offsets: Mapping[TopicPartition, CommittedOffset]
) -> Mapping[str, list[int]]:
    if requested is not None:
        # A partition that is named twice is listed once: a response may be a thousand times as long as the request.
        return {topic.name or "": list(dict.fromkeys(topic.partition_indexes or ())) for topic in requested}
    all_partitions: dict[str, list[int]] = {}
    for topic, index in offsets:
        all_partitions.setdefault(topic, []).append(index)
    return all_partitions


def _partition(partition_class: Any, version: int, index: int, committed: CommittedOffset, error: ErrorCode) -> Any:
    committed = _NONE if error else committed
    return partition_class(
        version=version,
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        error_code=error,
    )
