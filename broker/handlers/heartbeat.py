"""Heartbeat, versions 0 to 4: a member of a classic group reports that it is alive. Version 3 adds static members."""

from __future__ import annotations

from typing import Any

from kafka.protocol.consumer import HeartbeatResponse

from headrace.broker.access.permissions import BrokerPermission
from headrace.broker.handlers.context import RequestContext


def handle(context: RequestContext, request: Any) -> Any:
    code = context.group_error(request.group_id or "", BrokerPermission.READ) or context.node.groups.heartbeat(
        request.group_id or "",
        request.member_id or "",
        request.group_instance_id if context.version >= 3 else None,
        request.generation_id,
    )
    return HeartbeatResponse(version=context.version, error_code=code)
