"""SaslHandshake, version 1, and SaslAuthenticate, versions 0 to 2: who a connection is.

Version 0 of the handshake, which clients of 2017 and before used, sends what follows outside of Kafka's frames and is
not served. A connection that is logged in stays so: there is no time after which it must log in again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Any

from kafka.protocol.sasl import SaslAuthenticateResponse, SaslHandshakeResponse

from headrace.broker.access.login import MECHANISMS
from headrace.broker.access.scram import LoginRefused
from headrace.broker.handlers.context import RequestContext
from headrace.broker.protocol.error_codes import ErrorCode

logger = logging.getLogger(__name__)

SESSION_FROM = 1


def handshake(context: RequestContext, request: Any) -> Any:
    code = ErrorCode.NONE
    if not context.login.may_begin:
        code = ErrorCode.ILLEGAL_SASL_STATE
    elif not context.login.begin(request.mechanism or ""):
        code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
    return SaslHandshakeResponse(version=context.version, error_code=code, mechanisms=list(MECHANISMS))


def authenticate(context: RequestContext, request: Any) -> Awaitable[Any]:
    return _authenticate(context, bytes(request.auth_bytes or b""))


async def _authenticate(context: RequestContext, message: bytes) -> Any:
    login = context.login
    told: dict[str, Any] = {"session_lifetime_ms": 0} if context.version >= SESSION_FROM else {}
    try:
        answer = await login.go_on(message)
        told |= {"error_code": ErrorCode.NONE, "error_message": None, "auth_bytes": answer}
    except LoginRefused as refused:
        # Whoever is unknown may have written a password where the name belongs.
        logger.warning(
            "login refused peer=%s mechanism=%s reason=%s", context.client_host, login.mechanism or "none", refused
        )
        told |= {
            "error_code": ErrorCode.SASL_AUTHENTICATION_FAILED,
            "error_message": str(refused),
            "auth_bytes": b"",
        }
    return SaslAuthenticateResponse(version=context.version, **told)
