"""DescribeAcls, CreateAcls and DeleteAcls, versions 1 to 3: refused with SECURITY_DISABLED, the error of an Apache
Kafka broker without an authorizer.

Tools that copy ACLs between clusters, such as MirrorMaker 2, skip ACLs after this error.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import CreateAclsResponse, DeleteAclsResponse, DescribeAclsResponse

from headrace.broker.handlers.context import RequestContext
from headrace.broker.protocol.error_codes import ErrorCode

REFUSAL = {
    "error_code": ErrorCode.SECURITY_DISABLED,
    "error_message": "this broker has no access control lists; grant permissions in its users file",
}


def describe(context: RequestContext, request: Any) -> Any:
    return DescribeAclsResponse(version=context.version, resources=[], **REFUSAL)


def create(context: RequestContext, request: Any) -> Any:
    row = CreateAclsResponse.AclCreationResult
    results = [row(version=context.version, **REFUSAL) for _ in request.creations or ()]
    return CreateAclsResponse(version=context.version, results=results)


def delete(context: RequestContext, request: Any) -> Any:
    row = DeleteAclsResponse.DeleteAclsFilterResult
    results = [row(version=context.version, matching_acls=[], **REFUSAL) for _ in request.filters or ()]
    return DeleteAclsResponse(version=context.version, filter_results=results)
