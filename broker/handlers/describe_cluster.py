"""DescribeCluster, versions 0 to 2: describes this node as the only broker and the controller. Version 1 adds the
endpoint type."""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import DescribeClusterResponse

from headrace.broker.handlers.context import RequestContext
from headrace.broker.protocol.error_codes import ErrorCode
from headrace.broker.protocol.operations import cluster_operations

BROKERS = 1


def handle(context: RequestContext, request: Any) -> Any:
    version = context.version
    node_id = context.node.config.node_id
    cluster_id = context.node.topics.cluster_id
    if version >= 1 and request.endpoint_type != BROKERS:
        return DescribeClusterResponse(
            version=version,
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="only broker endpoints are listed",
            cluster_id=cluster_id,
            brokers=[],
        )
    host, port = context.node.address
    broker = DescribeClusterResponse.DescribeClusterBroker(version=version, broker_id=node_id, host=host, port=port)
    return DescribeClusterResponse(
        version=version,
        error_code=ErrorCode.NONE,
        cluster_id=cluster_id,
        controller_id=node_id,
        brokers=[broker],
        authorized_operations=cluster_operations(context.permissions)
        if request.include_cluster_authorized_operations
        else None,
    )
