"""DescribeGroups, versions 0 to 5: state, protocol and members of classic groups.

As in Kafka, an unknown group is in state "Dead". So is a group of the consumer protocol (KIP-848), which
ConsumerGroupDescribe describes.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import DescribeGroupsResponse

from headrace.broker.coordinator.consumer_group import ConsumerGroup
from headrace.broker.coordinator.group import Group, GroupState
from headrace.broker.handlers.context import RequestContext
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.protocol.operations import group_operations

OPERATIONS_FROM = 3
_Group = DescribeGroupsResponse.DescribedGroup


def handle(context: RequestContext, request: Any) -> Any:
    groups = context.node.groups.groups
    requested = dict.fromkeys(request.groups or ())
    return DescribeGroupsResponse(
        version=context.version,
        # A group that is named twice is described once, because its description lists all members and may be large.
        groups=[_described(context, group_id or "", groups.get(group_id), request) for group_id in requested],
    )


def _described(context: RequestContext, group_id: str, group: Group | ConsumerGroup | None, request: Any) -> Any:
    version, code = context.version, context.group_error(group_id)
    fields: dict[str, Any] = {}
    if version >= OPERATIONS_FROM:
        operations = group_operations(context.permissions, group_id)
        fields["authorized_operations"] = operations if request.include_authorized_operations else None
    if not isinstance(group, Group) or code:
        return _Group(
            version=version,
            error_code=code,
            group_id=group_id,
            group_state=str(GroupState.DEAD),
            protocol_type="",
            protocol_data="",
            members=[],
            **fields,
        )
    is_stable = group.state is GroupState.STABLE
    return _Group(
        version=version,
        error_code=ErrorCode.NONE,
        group_id=group_id,
        group_state=str(group.state),
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol or "") if is_stable else "",
        members=[
            _Group.DescribedGroupMember(
                version=version,
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(group.protocol) if is_stable else b"",
                member_assignment=member.assignment if is_stable else b"",
            )
            for member in group.members.values()
        ],
        **fields,
    )
