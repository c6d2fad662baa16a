"""LeaveGroup, versions 0 to 5. 3: several members in one request, static ones by their instance id."""

from __future__ import annotations

from typing import Any

from kafka.protocol.consumer import LeaveGroupResponse

from headrace.broker.handlers.context import RequestContext
from headrace.broker.protocol.error_codes import ErrorCode


def handle(context: RequestContext, request: Any) -> Any:
    version, groups = context.version, context.node.groups
    group_id = request.group_id or ""
    if version < 3:
        return LeaveGroupResponse(version=version, error_code=groups.leave(group_id, request.member_id or "", None))
    return LeaveGroupResponse(
        version=version,
        error_code=ErrorCode.NONE,
        members=[
            LeaveGroupResponse.MemberResponse(
                version=version,
                member_id=member.member_id or "",
                group_instance_id=member.group_instance_id,
                error_code=groups.leave(group_id, member.member_id or "", member.group_instance_id),
            )
            for member in request.members or ()
        ],
    )
