"""Rules for the requests of one connection: which are permitted, and which handles they may use. No I/O.

Sessions and operations belong to the connection that opened them. A handle of another connection is unknown here, also
if the client has guessed or read it, so no user can fetch the results of another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.pipeline.sql_endpoint.messages import METHODS, SQLSTATE_DENIED, Request

SESSIONS_MAX: Final = 8  # open sessions of one connection
OPERATIONS_MAX: Final = 256  # open operations of one session
FETCH_ROWS_MAX: Final = 10_000  # rows of one response, which is in memory as a whole
STATEMENT_CHARS_MAX: Final = 256 * 1024
DATABASE_KEY: Final = "use:database"
PROXY_USER_KEYS: Final = ("hive.server2.proxy.user", "set:hiveconf:hive.server2.proxy.user")

SESSION_ENDED: Final = "the session is closed or belongs to another connection; connect again"
_DATABASE: Final = re.compile(r"\w{1,128}", re.ASCII)
_OPENS_OPERATION: Final = frozenset(name for name in METHODS if name.startswith("Get")) - {
    "GetInfo",
    "GetOperationStatus",
    "GetResultSetMetadata",
    "GetDelegationToken",
} | {"ExecuteStatement"}


HandleKey = tuple[bytes, bytes]


class RequestDenied(Exception):
    """The reason why a request is not forwarded, for the client."""

    def __init__(self, reason: str, sqlstate: str = SQLSTATE_DENIED) -> None:
        super().__init__(reason)
        self.sqlstate = sqlstate


@dataclass(slots=True)
class ConnectionHandles:
    """The open sessions of a connection, each with its open operations. Keys are guid and secret of a handle."""

    operations: dict[HandleKey, set[HandleKey]] = field(default_factory=dict)
    session_handles: dict[HandleKey, Any] = field(default_factory=dict)

    def has_operation(self, key: HandleKey) -> bool:
        return any(key in found for found in self.operations.values())


def prepare(request: Request, handles: ConnectionHandles, user: str) -> None:
    """Checks a request and removes everything from it that the endpoint does not permit, such as settings.

    Args:
        user: the authenticated user; "" for an anonymous client.

    Raises:
        RequestDenied: the request is not permitted.
    """
    body = request.body
    if not METHODS[request.method]:
        raise RequestDenied(f"{request.method} is not permitted: the endpoint has no tokens; log in with a password")
    if request.method == "OpenSession":
        _prepare_session(body, handles, user)
        return
    if hasattr(body, "sessionHandle"):
        _check_session(body.sessionHandle, handles)
        if request.method in _OPENS_OPERATION:
            _check_operations_max(handles.operations[handle_key(body.sessionHandle)])
    elif not handles.has_operation(handle_key(body.operationHandle)):
        raise RequestDenied("the operation is closed or belongs to another connection; run the statement again")
    if request.method == "ExecuteStatement":
        body.confOverlay = None
        body.statement = _checked_text(body.statement)
    if request.method == "FetchResults":
        body.maxRows = max(1, min(body.maxRows or FETCH_ROWS_MAX, FETCH_ROWS_MAX))


def _prepare_session(body: Any, handles: ConnectionHandles, user: str) -> None:
    if len(handles.operations) >= SESSIONS_MAX:
        raise RequestDenied(f"the connection has {SESSIONS_MAX} open sessions; close one of them", "53300")
    configuration: Mapping[str, str] = body.configuration or {}
    if any(key in configuration for key in PROXY_USER_KEYS):
        raise RequestDenied("acting for another user is not permitted; remove hive.server2.proxy.user")
    database = configuration.get(DATABASE_KEY, "default")
    if not _DATABASE.fullmatch(database):
        raise RequestDenied("the name of the database may have letters, digits and `_` only", "3F000")
    # Spark would run each `set:` entry as a setting of the session.
    body.configuration = {DATABASE_KEY: database}
    body.username, body.password = user or "anonymous", None


def _check_session(handle: Any, handles: ConnectionHandles) -> None:
    if handle_key(handle) not in handles.operations:
        raise RequestDenied(SESSION_ENDED, "08003")


def _check_operations_max(operations: set[HandleKey]) -> None:
    if len(operations) >= OPERATIONS_MAX:
        raise RequestDenied(f"the session has {OPERATIONS_MAX} open results; close some of them", "53300")


def _checked_text(statement: str | None) -> str:
    text = (statement or "").strip()
    while text.endswith(";"):
        text = text[:-1].rstrip()
    if not text:
        raise RequestDenied("the statement is empty", "42000")
    if len(text) > STATEMENT_CHARS_MAX:
        raise RequestDenied(
            f"the statement has {len(text)} characters, expected at most {STATEMENT_CHARS_MAX}", "54000"
        )
    return text


def cancelled_operations(request: Request, handles: ConnectionHandles) -> frozenset[HandleKey]:
    """Returns the operations that a request cancels or closes, before it is recorded."""
    if request.method in ("CancelOperation", "CloseOperation"):
        return frozenset({handle_key(request.body.operationHandle)})
    if request.method == "CloseSession":
        return frozenset(handles.operations.get(handle_key(request.body.sessionHandle), ()))
    return frozenset()


def record(request: Request, response: Any, handles: ConnectionHandles) -> None:
    """Records the handles that a request has opened or closed.

    Args:
        response: the decoded response if `opens_handle`; otherwise not used.
    """
    if request.method == "OpenSession" and response is not None and response.sessionHandle is not None:
        key = handle_key(response.sessionHandle)
        handles.operations[key] = set()
        handles.session_handles[key] = response.sessionHandle
    elif request.method == "CloseSession":
        key = handle_key(request.body.sessionHandle)
        handles.operations.pop(key, None)
        handles.session_handles.pop(key, None)
    elif request.method == "CloseOperation":
        for operations in handles.operations.values():
            operations.discard(handle_key(request.body.operationHandle))
    elif request.method in _OPENS_OPERATION and response is not None and response.operationHandle is not None:
        handles.operations[handle_key(request.body.sessionHandle)].add(handle_key(response.operationHandle))


def opens_handle(method: str) -> bool:
    """Returns whether a response of the method has a handle, so that it must be decoded."""
    return method == "OpenSession" or method in _OPENS_OPERATION


def handle_key(handle: Any) -> HandleKey:
    """Returns the guid and secret of a session or operation handle; empty ones, which match none, if incomplete."""
    identifier = getattr(handle, "sessionId", None) or getattr(handle, "operationId", None)
    if identifier is None or not identifier.guid or not identifier.secret:
        return b"", b""
    return bytes(identifier.guid), bytes(identifier.secret)
