"""FindCoordinator, versions 0 to 6: this node coordinates every group. 4: several keys in one request.

Transaction coordinators (key type 1) are not served. They are refused as forbidden: at another error librdkafka asks
on until its time is up, and so would a client that waits for a coordinator to come.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.metadata import FindCoordinatorResponse

from headrace.broker.errors import RequestRefused
from headrace.broker.handlers.context import RequestContext
from headrace.broker.protocol.error_codes import ErrorCode

GROUP = 0


def handle(context: RequestContext, request: Any) -> Any:
    version = context.version
    key_type = request.key_type if version >= 1 else GROUP
    if version < 4:
        return FindCoordinatorResponse(version=version, **_found(context, key_type, request.key or ""))
    return FindCoordinatorResponse(
        version=version,
        coordinators=[
            FindCoordinatorResponse.Coordinator(version=version, key=key or "", **_found(context, key_type, key or ""))
            for key in request.coordinator_keys or ()
        ],
    )


def _found(context: RequestContext, key_type: int, key: str) -> dict[str, Any]:
    code, message = ErrorCode.NONE, None
    try:
        if key_type != GROUP:
            raise RequestRefused(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                "this broker coordinates consumer groups only, no transactions",
            )
        context.check_group(key)
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
