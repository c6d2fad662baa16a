"""FindCoordinator, versions 0 to 6: this node coordinates every group. 4: several keys in one request.

Transaction coordinators (key type 1) are not served and say so at once, instead of letting clients retry.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.metadata import FindCoordinatorResponse

from headrace.broker.config import NODE_ID
from headrace.broker.handlers.context import RequestContext
from headrace.broker.protocol.error_codes import ErrorCode

GROUP = 0


def handle(context: RequestContext, request: Any) -> Any:
    version = context.version
    key_type = request.key_type if version >= 1 else GROUP
    code = ErrorCode.NONE if key_type == GROUP else ErrorCode.INVALID_REQUEST
    message = None if code is ErrorCode.NONE else "this broker coordinates consumer groups only, no transactions"
    host, port = context.node.address
    fields = {"error_code": code, "error_message": message, "node_id": NODE_ID, "host": host, "port": port}
    if version < 4:
        return FindCoordinatorResponse(version=version, **fields)
    return FindCoordinatorResponse(
        version=version,
        coordinators=[
            FindCoordinatorResponse.Coordinator(version=version, key=key or "", **fields)
            for key in request.coordinator_keys or ()
        ],
    )
