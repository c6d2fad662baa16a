"""FindCoordinator, versions 0 to 6: this node coordinates every group. 4: several keys in one request.

Transaction coordinators (key type 1) are not served. They are refused as forbidden: at another error librdkafka asks
on until its time is up, and so would a client that waits for a coordinator to come.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.metadata import FindCoordinatorResponse

from headrace.broker.handlers.context import RequestContext
from headrace.broker.protocol.error_codes import ErrorCode

GROUP = 0


def handle(context: RequestContext, request: Any) -> Any:
    version = context.version
    key_type = request.key_type if version >= 1 else GROUP
    code = ErrorCode.NONE if key_type == GROUP else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    message = None if code is ErrorCode.NONE else "this broker coordinates consumer groups only, no transactions"
    node_id, (host, port) = context.node.config.node_id, context.node.address
    fields = {
        "error_code": code,
        "error_message": message,
        "node_id": node_id,
        "host": host,
        "port": port,
    }
    if version < 4:
        return FindCoordinatorResponse(version=version, **fields)
    return FindCoordinatorResponse(
        version=version,
        coordinators=[
            FindCoordinatorResponse.Coordinator(version=version, key=key or "", **fields)
            for key in request.coordinator_keys or ()
        ],
    )
