"""SyncGroup, versions 0 to 5: a member of a classic group gets its assignment; the leader sends the assignments of all.
Version 3 adds static members. Version 5 adds protocol type and name, which must match the group's."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from kafka.protocol.consumer import SyncGroupResponse

from headrace.broker.access.permissions import BrokerPermission
from headrace.broker.coordinator.messages import SyncRequest, SyncResult
from headrace.broker.handlers.context import RequestContext


def handle(context: RequestContext, request: Any) -> Awaitable[Any]:
    return _sync(context, request)


async def _sync(context: RequestContext, request: Any) -> Any:
    version = context.version
    sync = SyncRequest(
        request.member_id or "",
        request.group_instance_id if version >= 3 else None,
        request.generation_id,
        request.protocol_type if version >= 5 else None,
        request.protocol_name if version >= 5 else None,
        {each.member_id or "": bytes(each.assignment or b"") for each in request.assignments or ()},
    )
    group_id = request.group_id or ""
    error = context.group_error(group_id, BrokerPermission.READ)
    result = SyncResult(error) if error else await context.node.groups.sync(group_id, sync)
    return SyncGroupResponse(
        version=version,
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol,
        assignment=result.assignment,
    )
