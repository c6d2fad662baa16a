"""DeleteGroups, versions 0 to 2: deletes groups without members, with their offsets."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from kafka.protocol.admin import DeleteGroupsResponse

from headrace.broker.access.permissions import BrokerPermission
from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext
from headrace.broker.protocol.error_codes import ErrorCode


def handle(context: RequestContext, request: Any) -> Awaitable[Any]:
    return _delete(context, request)


async def _delete(context: RequestContext, request: Any) -> Any:
    results = []
    for group_id in dict.fromkeys(request.groups_names or ()):
        code = ErrorCode.NONE
        try:
            context.check_group(group_id, BrokerPermission.ADMIN)
            await context.node.groups.delete_group(group_id)
        except RequestRefused as refused:
            code = refused.code
        results.append(
            DeleteGroupsResponse.DeletableGroupResult(version=context.version, group_id=group_id, error_code=code)
        )
    return DeleteGroupsResponse(version=context.version, results=results)
