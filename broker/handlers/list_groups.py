"""ListGroups, versions 0 to 5: the groups on which the client has a permission. Version 4 adds a filter by state,
version 5 by group type (classic or consumer)."""

from __future__ import annotations

from typing import Any

from headrace.broker.access.permissions import ResourceType
from headrace.broker.coordinator.consumer_group import ConsumerGroup
from headrace.broker.handlers.context import RequestContext
from headrace.broker.loop_yielder import LoopYielder
from headrace.broker.protocol.list_groups import STATES_FROM, TYPES_FROM, ListedGroup, ListGroupsResult

CLASSIC, CONSUMER = "classic", "consumer"


async def handle(context: RequestContext, request: Any) -> ListGroupsResult:
    version, groups = context.version, context.node.groups.groups
    states = {(state or "").lower() for state in request.states_filter or ()} if version >= STATES_FROM else set()
    types = (
        {(group_type or "").lower() for group_type in request.types_filter or ()} if version >= TYPES_FROM else set()
    )
    listed: list[ListedGroup] = []
    yielder = LoopYielder()
    for group_id in tuple(groups):
        await yielder.yield_if_due()
        group = groups.get(group_id)
        if group is None:
            continue
        group_type = CONSUMER if isinstance(group, ConsumerGroup) else CLASSIC
        state = str(group.state)
        is_match = (not states or state.lower() in states) and (not types or group_type in types)
        if is_match and context.permissions.granted_on(ResourceType.GROUP, group_id):
            protocol_type = CONSUMER if isinstance(group, ConsumerGroup) else group.protocol_type or ""
            listed.append(ListedGroup(group_id, protocol_type, state, group_type))
    return ListGroupsResult(listed)
