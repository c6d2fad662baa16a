"""JoinGroup, versions 0 to 9: a member joins a group of the classic protocol.

Version 1 adds the rebalance timeout, version 4 the member id before joining (KIP-394), version 5 static members,
version 7 the protocol type in the response, version 9 the leader's option to skip the assignment when it rejoins.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from kafka.protocol.consumer import JoinGroupResponse

from headrace.broker.access.permissions import BrokerPermission
from headrace.broker.coordinator.group import REBALANCE_TIMEOUT_MS_MIN
from headrace.broker.coordinator.members import MemberProtocol
from headrace.broker.coordinator.messages import JoinRequest, JoinResult
from headrace.broker.handlers.context import RequestContext


def handle(context: RequestContext, request: Any) -> Awaitable[Any]:
    version = context.version
    instance_id = request.group_instance_id if version >= 5 else None
    join = JoinRequest(
        request.member_id or "",
        instance_id,
        context.client_id,
        f"/{context.client_host}",
        request.session_timeout_ms,
        max(request.rebalance_timeout_ms if version >= 1 else request.session_timeout_ms, REBALANCE_TIMEOUT_MS_MIN),
        request.protocol_type or "",
        tuple(
            MemberProtocol(protocol.name or "", bytes(protocol.metadata or b"")) for protocol in request.protocols or ()
        ),
        requires_known_member_id=version >= 4,
    )
    return _join(context, request.group_id or "", join)


async def _join(context: RequestContext, group_id: str, join: JoinRequest) -> Any:
    error = context.group_error(group_id, BrokerPermission.READ)
    if error:
        return _response(JoinResult(error, join.member_id), context.version)
    return _response(await context.node.groups.join(group_id, join), context.version)


def _response(result: JoinResult, version: int) -> Any:
    return JoinGroupResponse(
        version=version,
        error_code=result.error,
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol if result.protocol is not None or version >= 7 else "",
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            JoinGroupResponse.JoinGroupResponseMember(
                version=version,
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata,
            )
            for member in result.members
        ],
    )
