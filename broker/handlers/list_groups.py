"""ListGroups, versions 0 to 5. 4: filtered by state; 5: filtered by type, "classic" or "consumer" (KIP-848)."""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import ListGroupsResponse

from headrace.broker.access.rights import Kind
from headrace.broker.coordinator.consumer_group import ConsumerGroup
from headrace.broker.handlers.context import RequestContext
from headrace.broker.protocol.error_codes import ErrorCode

CLASSIC, CONSUMER = "classic", "consumer"


def handle(context: RequestContext, request: Any) -> Any:
    version = context.version
    states = {(state or "").lower() for state in request.states_filter or ()} if version >= 4 else set()
    types = {(kind or "").lower() for kind in request.types_filter or ()} if version >= 5 else set()
    groups = []
    for group in context.node.groups.groups.values():
        kind = CONSUMER if isinstance(group, ConsumerGroup) else CLASSIC
        is_wanted = (not states or group.state.lower() in states) and (not types or kind in types)
        if is_wanted and context.rights.on(Kind.GROUP, group.group_id):
            groups.append(
                ListGroupsResponse.ListedGroup(
                    version=version,
                    group_id=group.group_id,
                    protocol_type=CONSUMER if isinstance(group, ConsumerGroup) else group.protocol_type or "",
                    group_state=str(group.state),
                    group_type=kind,
                )
            )
    return ListGroupsResponse(version=version, error_code=ErrorCode.NONE, groups=groups)
