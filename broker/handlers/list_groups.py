"""ListGroups, versions 0 to 5. 4: filtered by state; 5: filtered by type, of which there is one, "classic"."""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import ListGroupsResponse

from headrace.broker.access.rights import Kind
from headrace.broker.handlers.context import RequestContext
from headrace.broker.protocol.error_codes import ErrorCode

GROUP_TYPE = "classic"


def handle(context: RequestContext, request: Any) -> Any:
    version = context.version
    states = {(state or "").lower() for state in request.states_filter or ()} if version >= 4 else set()
    types = {(kind or "").lower() for kind in request.types_filter or ()} if version >= 5 else set()
    groups = [
        ListGroupsResponse.ListedGroup(
            version=version,
            group_id=group.group_id,
            protocol_type=group.protocol_type or "",
            group_state=str(group.state),
            group_type=GROUP_TYPE,
        )
        for group in context.node.groups.groups.values()
        if context.rights.on(Kind.GROUP, group.group_id)
        and (not states or group.state.lower() in states)
        and (not types or GROUP_TYPE in types)
    ]
    return ListGroupsResponse(version=version, error_code=ErrorCode.NONE, groups=groups)
