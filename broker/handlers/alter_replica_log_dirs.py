"""AlterReplicaLogDirs, versions 1 and 2: "moves" partitions to the log directory that contains them, which changes
nothing. There is no other log directory."""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import AlterReplicaLogDirsResponse

from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext
from headrace.broker.protocol.error_codes import ErrorCode

_Topic = AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult


def handle(context: RequestContext, request: Any) -> Any:
    codes: dict[str, dict[int, ErrorCode]] = {}
    for directory in request.dirs or ():
        for topic in directory.topics or ():
            for index in topic.partitions or ():
                codes.setdefault(topic.name or "", {})[index] = _code(context, directory.path, topic.name, index)
    return AlterReplicaLogDirsResponse(
        version=context.version,
        results=[
            _Topic(
                version=context.version,
                topic_name=name,
                partitions=[
                    _Topic.AlterReplicaLogDirPartitionResult(
                        version=context.version, partition_index=index, error_code=code
                    )
                    for index, code in by_index.items()
                ],
            )
            for name, by_index in codes.items()
        ],
    )


def _code(context: RequestContext, path: str, topic: str, index: int) -> ErrorCode:
    try:
        context.permissions.check_admin()
    except RequestRefused as refused:
        return refused.code
    if path != str(context.node.config.data_dir):
        return ErrorCode.LOG_DIR_NOT_FOUND
    return ErrorCode.NONE if (topic, index) in context.node.logs else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
