"""ListGroups, versions 0 to 5. 4: filtered by state; 5: filtered by type, "classic" or "consumer" (KIP-848)."""

from __future__ import annotations

from typing import Any

from headrace.broker.access.rights import Kind
from headrace.broker.coordinator.consumer_group import ConsumerGroup
from headrace.broker.handlers.context import RequestContext
from headrace.broker.protocol.list_groups import STATES_FROM, TYPES_FROM, ListedGroup, ListGroupsAnswer
from headrace.broker.turns import Turns

CLASSIC, CONSUMER = "classic", "consumer"


async def handle(context: RequestContext, request: Any) -> ListGroupsAnswer:
    version, groups = context.version, context.node.groups.groups
    states = {(state or "").lower() for state in request.states_filter or ()} if version >= STATES_FROM else set()
    types = {(kind or "").lower() for kind in request.types_filter or ()} if version >= TYPES_FROM else set()
    listed: list[ListedGroup] = []
    turns = Turns()
    for group_id in tuple(groups):
        await turns.give()
        group = groups.get(group_id)
        if group is None:
            continue
        kind = CONSUMER if isinstance(group, ConsumerGroup) else CLASSIC
        state = str(group.state)
        is_wanted = (not states or state.lower() in states) and (not types or kind in types)
        if is_wanted and context.rights.on(Kind.GROUP, group_id):
            protocol_type = CONSUMER if isinstance(group, ConsumerGroup) else group.protocol_type or ""
            listed.append(ListedGroup(group_id, protocol_type, state, kind))
    return ListGroupsAnswer(listed)
