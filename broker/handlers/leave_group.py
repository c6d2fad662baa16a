"""LeaveGroup, versions 0 to 5: removes members from a classic group. From version 3 on, a request may name several
members, and static members by instance id."""

from __future__ import annotations

from typing import Any

from kafka.protocol.consumer import LeaveGroupResponse

from headrace.broker.access.permissions import BrokerPermission
from headrace.broker.handlers.context import RequestContext


def handle(context: RequestContext, request: Any) -> Any:
    version, groups = context.version, context.node.groups
    group_id = request.group_id or ""
    error = context.group_error(group_id, BrokerPermission.READ)
    if version < 3:
        error = error or groups.leave(group_id, request.member_id or "", None)
        return LeaveGroupResponse(version=version, error_code=error)
    return LeaveGroupResponse(
        version=version,
        error_code=error,
        members=[
            LeaveGroupResponse.MemberResponse(
                version=version,
                member_id=member.member_id or "",
                group_instance_id=member.group_instance_id,
                error_code=groups.leave(group_id, member.member_id or "", member.group_instance_id),
            )
            for member in (request.members or () if not error else ())
        ],
    )
