"""ApiVersions, versions 0 to 4: lists the advertised API versions.

No finalized features are announced, so clients do not use protocols that depend on one, such as transactions of version
2.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.metadata import ApiVersionsResponse

from headrace.broker.handlers.context import RequestContext
from headrace.broker.protocol.api_versions import API_VERSIONS, BY_KEY, ROWS
from headrace.broker.protocol.error_codes import ErrorCode


def handle(context: RequestContext, request: Any) -> Any:
    return _response(context.version, ErrorCode.NONE)


def unsupported_version() -> Any:
    """Returns the response to an unsupported version of ApiVersions: encoded as version 0, which every client can read
    (KIP-511)."""
    return _response(0, ErrorCode.UNSUPPORTED_VERSION)


def _response(version: int, error: ErrorCode) -> Any:
    rows: tuple[Any, ...] = ROWS if error is ErrorCode.NONE else (BY_KEY[API_VERSIONS],)
    return ApiVersionsResponse(
        version=version,
        error_code=error,
        api_keys=[
            ApiVersionsResponse.ApiVersion(
                version=version, api_key=row.key, min_version=row.lowest, max_version=row.highest
            )
            for row in rows
        ],
    )
