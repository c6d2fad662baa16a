"""FindCoordinator, versions 0 to 6: this node coordinates all groups and transactions. From version 4 on, a request may
contain several keys.

Other coordinator types (key type 2, share groups) are refused with an authorization error: after other errors clients
retry until their timeout.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.metadata import FindCoordinatorResponse

from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext
from headrace.broker.protocol.error_codes import ErrorCode

GROUP, TRANSACTION = 0, 1


def handle(context: RequestContext, request: Any) -> Any:
    version = context.version
    key_type = request.key_type if version >= 1 else GROUP
    if version < 4:
        return FindCoordinatorResponse(version=version, **_coordinator(context, key_type, request.key or ""))
    return FindCoordinatorResponse(
        version=version,
        coordinators=[
            FindCoordinatorResponse.Coordinator(
                version=version, key=key or "", **_coordinator(context, key_type, key or "")
            )
            for key in request.coordinator_keys or ()
        ],
    )


def _coordinator(context: RequestContext, key_type: int, key: str) -> dict[str, Any]:
    code, message = ErrorCode.NONE, None
    try:
        if key_type == TRANSACTION:
            context.check_transaction(key)
        elif key_type == GROUP:
            context.check_group(key)
        else:
            raise RequestRefused(
                ErrorCode.GROUP_AUTHORIZATION_FAILED, "this broker coordinates consumer groups and transactions only"
            )
    except RequestRefused as refused:
        code, message = refused.code, refused.message
    host, port = context.node.address
    return {
        "error_code": code,
        "error_message": message,
        "node_id": context.node.config.node_id,
        "host": host,
        "port": port,
    }
