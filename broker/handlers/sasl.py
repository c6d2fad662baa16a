"""SaslHandshake, version 1, and SaslAuthenticate, versions 0 to 2: login of a connection.

Version 0 of the handshake, used by clients of 2017 and earlier, continues outside of Kafka's frames and is not served.
A login does not expire: there is no re-authentication.
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
    if not context.login.can_log_in:
        code = ErrorCode.ILLEGAL_SASL_STATE
    elif not context.login.choose_mechanism(request.mechanism or ""):
        code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
    return SaslHandshakeResponse(version=context.version, error_code=code, mechanisms=list(MECHANISMS))


def authenticate(context: RequestContext, request: Any) -> Awaitable[Any]:
    return _authenticate(context, bytes(request.auth_bytes or b""))


async def _authenticate(context: RequestContext, message: bytes) -> Any:
    login = context.login
    fields: dict[str, Any] = {"session_lifetime_ms": 0} if context.version >= SESSION_FROM else {}
    try:
        server_message = await login.authenticate(message)
        fields |= {"error_code": ErrorCode.NONE, "error_message": None, "auth_bytes": server_message}
    except LoginRefused as refused:
        # The log omits the user name: a user may have typed the password there.
        logger.warning(
            "login refused peer=%s mechanism=%s reason=%s", context.client_host, login.mechanism or "none", refused
        )
        fields |= {
            "error_code": ErrorCode.SASL_AUTHENTICATION_FAILED,
            "error_message": str(refused),
            "auth_bytes": b"",
        }
    return SaslAuthenticateResponse(version=context.version, **fields)
