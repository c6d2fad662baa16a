"""DescribeLogDirs, versions 1 to 4: the size of each partition in the only log directory. Version 4 adds the disk's
size."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

from kafka.protocol.admin import DescribeLogDirsResponse

from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext
from headrace.broker.protocol.error_codes import ErrorCode

CODE_FROM, SPACE_FROM = 3, 4
_LogDir = DescribeLogDirsResponse.DescribeLogDirsResult
_Topic = _LogDir.DescribeLogDirsTopic


def handle(context: RequestContext, request: Any) -> Any:
    node, version = context.node, context.version
    try:
        context.permissions.check_admin()
    except RequestRefused as refused:
        code = {"error_code": refused.code} if version >= CODE_FROM else {}
        return DescribeLogDirsResponse(version=version, results=[], **code)
    requested: dict[str, set[int]] = {}
    for topic in request.topics or ():
        requested.setdefault(topic.topic or "", set()).update(topic.partitions or ())
    topics = [
        _topic(
            context, topic.name, range(topic.partitions) if request.topics is None else sorted(requested[topic.name])
        )
        for topic in node.topics
        if request.topics is None or topic.name in requested
    ]
    space = {}
    if version >= SPACE_FROM:
        disk = shutil.disk_usage(node.config.data_dir)
        space = {"total_bytes": disk.total, "usable_bytes": disk.free}
    log_dir = _LogDir(
        version=version, error_code=ErrorCode.NONE, log_dir=str(node.config.data_dir), topics=topics, **space
    )
    return DescribeLogDirsResponse(version=version, results=[log_dir])


def _topic(context: RequestContext, name: str, indexes: Sequence[int]) -> Any:
    logs = {index: context.node.logs.get((name, index)) for index in indexes}
    return _Topic(
        version=context.version,
        name=name,
        partitions=[
            _Topic.DescribeLogDirsPartition(
                version=context.version, partition_index=index, partition_size=log.size, offset_lag=0
            )
            for index, log in logs.items()
            if log is not None
        ],
    )
