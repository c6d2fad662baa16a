"""Responses in JSON, and the responses to errors."""

from __future__ import annotations

import json
import logging
import re
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from headrace.gateway.errors import GatewayError, Kind

logger = logging.getLogger(__name__)

JSON: Final = "application/json"
V2_JSON: Final = "application/vnd.kafka.v2+json"
_V2_PATH: Final = re.compile(r"/|/(brokers|topics|consumers)(/.*)?", re.DOTALL)
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
CHALLENGE: Final = 'Basic realm="Headrace gateway"'


def json_response(content: Any, status: int = 200, media_type: str = JSON, **headers: str) -> Response:
    """Returns a response with compact JSON."""
    return Response(json_bytes(content), status, headers, media_type)


def media_type_of(path: str) -> str:
    """Returns the media type for a path. Version 2 of the REST Proxy's interface has its own, for errors too."""
    return V2_JSON if _V2_PATH.fullmatch(path) else JSON


def json_bytes(content: Any) -> bytes:
    """Returns compact JSON in UTF-8."""
    try:
        return _ENCODER.encode(content).encode()
    except UnicodeEncodeError:  # half of a surrogate pair, quoted from the request
        return json.dumps(content, separators=(",", ":")).encode()


def error_response(error: GatewayError, path: str) -> Response:
    """Returns the response to a request for a path that was refused or failed."""
    headers = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
    if error.status == 401:
        headers["WWW-Authenticate"] = CHALLENGE
    return json_response(error.body, error.status, media_type_of(path), **headers)


async def on_gateway_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, GatewayError)
    return error_response(error, request.url.path)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Responds to requests without a route (404) or with another method than its routes (405)."""
    assert isinstance(error, HTTPException)
    body = {"error_code": error.status_code, "message": f"HTTP {error.status_code} {error.detail}"}
    return json_response(body, error.status_code, media_type_of(request.url.path), **(error.headers or {}))


async def on_disconnect(request: Request, error: Exception) -> Response:
    """Ends a request whose client has disconnected. The status is that of nginx; it is only logged."""
    return Response(status_code=499)


async def on_defect(request: Request, error: Exception) -> Response:
    logger.exception("request_failed method=%s path=%s", request.method, request.url.path)
    return error_response(defect(), request.url.path)


def defect() -> GatewayError:
    """Returns the error for clients after an error that the gateway does not expect, and has logged."""
    return GatewayError(Kind.DEFECT, "the gateway has a defect; its log has the details")
