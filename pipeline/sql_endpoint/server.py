"""Accepts connections of BI tools: TLS, login, then requests one after another.

Each connection has a thread. A second thread watches all connections: it ends a login that takes too long,
and closes the sessions of clients that have closed their connection during a query, which cancels the query. Accepted
connections, logins and connections of one user have a maximum.
"""

from __future__ import annotations

import contextlib
import json
import logging
import select
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from TCLIService import ttypes

from headrace.pipeline.server_metrics import QueryCounts
from headrace.pipeline.sql_endpoint import messages, wire
from headrace.pipeline.sql_endpoint.access import EndpointAccess, LoginDenied
from headrace.pipeline.sql_endpoint.messages import SQLSTATE_DENIED, SQLSTATE_INTERNAL, Request
from headrace.pipeline.sql_endpoint.sessions import (
    ConnectionHandles,
    HandleKey,
    RequestDenied,
    cancelled_operations,
    handle_key,
    opens_handle,
    prepare,
    record,
)
from headrace.pipeline.sql_endpoint.spark_service import JvmCallFailed, JvmChannel, SparkService, StatementInvalid
from headrace.pipeline.sql_endpoint.statements import StatementDenied, check_plan, statement_kind
from headrace.registry.access.permissions import SqlPermission
from headrace.settings.line_file import LineFile

logger = logging.getLogger(__name__)

LOGINS_MAX: Final = 64  # connections without a login yet
CONNECTIONS_MAX: Final = 128  # connections with a login
CONNECTIONS_PER_USER_MAX: Final = 32
LOGIN_TIMEOUT_S: Final = 10.0  # for TLS and the login together; includes the check of the password
IDLE_TIMEOUT_S: Final = 3600.0  # between two requests of a client
SEND_TIMEOUT_S: Final = 60.0
WATCH_S: Final = 0.5
PLANNING_MAX_S: Final = 60.0  # a cancelled statement is still planned for this time at most
CANCELLED_MAX: Final = 1000  # statements for which the cancellation of jobs is repeated
CLOSING: Final = frozenset({"CloseSession", "CloseOperation", "CancelOperation"})
"""Requests that a user may still send after losing the permission."""
RUNNING: Final = (
    ttypes.TOperationState.INITIALIZED_STATE,
    ttypes.TOperationState.PENDING_STATE,
    ttypes.TOperationState.RUNNING_STATE,
)
AUDIT_LOG: Final = "sql-audit.jsonl"
AUDIT_BYTES_MAX: Final = 16 * 1024 * 1024
AUDIT_ROTATED_MAX: Final = 9
AUDIT_MODE: Final = 0o640


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    """How the endpoint treats its clients.

    `loader_databases` are the databases that only the loader writes. `failure_reason` maps the message of a failed call
    to the reason for the client, such as the end of the JVM. `counts` counts the statements.
    """

    access: EndpointAccess
    loader_databases: frozenset[str]
    log_dir: Path
    audit_statements: bool
    failure_reason: Callable[[str], str]
    counts: QueryCounts = field(default_factory=QueryCounts)


@dataclass(slots=True, eq=False)
class _Connection:
    """The state of one connection. `user` is None before the login, "" for an anonymous client. `running` are the
    statements that have not ended, as far as Spark has reported."""

    socket: socket.socket | ssl.SSLSocket
    address: str
    login_deadline: float
    user: str | None = None
    handles: ConnectionHandles = field(default_factory=ConnectionHandles)
    running: set[HandleKey] = field(default_factory=set)
    is_running: bool = False
    is_closing: bool = False

    def read(self, count: int) -> bytes:
        chunks, size = [], 0
        while size < count:
            chunk = self.socket.recv(count - size)
            if not chunk:
                raise EOFError
            chunks.append(chunk)
            size += len(chunk)
        return b"".join(chunks)


class _Execution(NamedTuple):
    """The response to `ExecuteStatement`. `is_running` if the statement still runs because its client does not wait."""

    response: bytes
    is_running: bool = False
    is_failed: bool = False


class SqlEndpoint:
    """Serves the clients of a listening socket."""

    def __init__(self, service: SparkService, options: EndpointOptions) -> None:
        self._service = service
        self._options = options
        self._audit = LineFile(options.log_dir / AUDIT_LOG, AUDIT_BYTES_MAX, AUDIT_ROTATED_MAX, AUDIT_MODE)
        self._audit.check()
        self._lock = threading.Lock()
        self._connections: set[_Connection] = set()
        self._cancelled: dict[HandleKey, float] = {}  # with the time until which their jobs are cancelled again

    def start(self, listener: socket.socket) -> None:
        """Accepts connections in threads of their own until the process ends."""
        listener.listen()
        for name, target in (("sql-accept", lambda: self._accept(listener)), ("sql-watch", self._watch)):
            threading.Thread(target=target, name=name, daemon=True).start()

    def finish_responses(self, timeout_s: float) -> None:
        """Waits until running requests have their response, at most for the time given."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and any(each.is_running for each in self._snapshot()):
            time.sleep(0.05)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                accepted, address = listener.accept()
            except OSError as error:
                if listener.fileno() < 0:  # closed: the server ends
                    return
                logger.warning("sql_connection_not_accepted cause=%s", error)
                time.sleep(WATCH_S)  # such as too many open files
                continue
            connection = _Connection(accepted, str(address[0]), time.monotonic() + LOGIN_TIMEOUT_S)
            with self._lock:
                has_place = sum(each.user is None for each in self._connections) < LOGINS_MAX
                if has_place:
                    self._connections.add(connection)
            if not has_place:
                accepted.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), name="sql-client", daemon=True).start()

    def _serve(self, connection: _Connection) -> None:
        try:
            if self._log_in(connection):
                with self._service.channel() as channel:
                    while self._serve_request(connection, channel):
                        pass
        except (wire.WireError, JvmCallFailed) as error:
            logger.info("sql_connection_closed client=%s cause=%s", connection.address, error)
        except (OSError, EOFError):
            pass  # the client has closed the connection, or it was idle too long
        except Exception:
            logger.exception("sql_connection_failed client=%s", connection.address)
        finally:
            with self._lock:
                self._connections.discard(connection)
            with contextlib.suppress(OSError):
                connection.socket.close()
            self._close_sessions(connection)
            self._count_closed(connection)

    def _log_in(self, connection: _Connection) -> bool:
        connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.socket.settimeout(LOGIN_TIMEOUT_S)
        if self._options.access.tls is not None:
            # The handshake is a separate step, so that `_watch` can end it.
            connection.socket = self._options.access.tls.wrap_socket(
                connection.socket, server_side=True, do_handshake_on_connect=False
            )
            connection.socket.do_handshake()
        try:
            credentials = wire.read_credentials(connection.read)
            user = self._options.access.log_in(credentials, connection.address)
            self._admit(connection, user)
        except wire.NoSaslError as error:
            method, sequence_id = messages.no_sasl_header(error.start, connection.read)
            connection.socket.sendall(messages.exception_response(method, sequence_id, str(error)))
            return False
        except (wire.WireError, LoginDenied) as error:
            logger.info("sql_login_denied client=%s cause=%s", connection.address, error)
            connection.socket.sendall(wire.login_message(wire.SaslStatus.BAD, str(error)))
            return False
        connection.socket.sendall(wire.login_message(wire.SaslStatus.COMPLETE))
        logger.info("sql_login user=%s client=%s", user, connection.address)
        return True

    def _admit(self, connection: _Connection, user: str) -> None:
        with self._lock:
            users = Counter(each.user for each in self._connections if each.user is not None)
            if users.total() >= CONNECTIONS_MAX:
                raise LoginDenied(f"the SQL endpoint has {CONNECTIONS_MAX} connections; try again later")
            if users[user] >= CONNECTIONS_PER_USER_MAX:
                raise LoginDenied(f"the user has {CONNECTIONS_PER_USER_MAX} connections; close some of them")
            connection.user = user

    def _serve_request(self, connection: _Connection, channel: JvmChannel) -> bool:
        connection.socket.settimeout(IDLE_TIMEOUT_S)
        message = wire.read_message(connection.read)
        connection.is_running = True
        try:
            response = self._respond(connection, channel, message)
            connection.socket.settimeout(SEND_TIMEOUT_S)
            connection.socket.sendall(wire.frame(response))
            connection.socket.sendall(response)
        finally:
            connection.is_running = False
        return not connection.is_closing

    def _respond(self, connection: _Connection, channel: JvmChannel, message: bytes) -> bytes:
        """Returns the response to a request.

        Raises:
            WireError: the bytes are not a request, so the connection cannot be continued.
        """
        try:
            request = messages.decode_request(message)
        except messages.UnknownMethodError as error:
            return messages.exception_response(error.method, error.sequence_id, str(error))
        try:
            return self._run(connection, channel, request)
        except RequestDenied as error:
            reason, sqlstate = str(error), error.sqlstate
        except StatementInvalid as error:
            reason, sqlstate = str(error), "42000"
        except JvmCallFailed as error:
            reason, sqlstate = self._options.failure_reason(str(error)), SQLSTATE_INTERNAL
            connection.is_closing = True
        return messages.error_response(request.method, request.sequence_id, reason, sqlstate)

    def _run(self, connection: _Connection, channel: JvmChannel, request: Request) -> bytes:
        user = connection.user or ""
        permission = self._options.access.permission_of(user)
        if permission is None and request.method not in CLOSING:
            grant = self._options.access.grant_line(user, SqlPermission.READ)
            raise RequestDenied(f"user {user} has no permission to read tables; {grant}")
        prepare(request, connection.handles, user)
        if request.method == "ExecuteStatement":
            self._options.counts.begin()
            try:
                self._check_statement(connection, request.body.statement, permission)
                execution = self._execute(connection, channel, request)
            except BaseException:
                self._options.counts.end(is_failed=True)
                raise
            if not execution.is_running:
                self._options.counts.end(is_failed=execution.is_failed)
            return execution.response
        response = self._process(connection, channel, request)[0]
        if connection.running:
            self._count_ended(connection, request, response)
        return response

    def _count_ended(self, connection: _Connection, request: Request, response: bytes) -> None:
        """Counts a running statement that has ended by the response, or that the client has closed."""
        if request.method == "CloseSession":
            self._count_closed(connection)
            return
        key = handle_key(request.body.operationHandle) if hasattr(request.body, "operationHandle") else None
        if key not in connection.running:
            return
        is_failed = True
        if request.method == "GetOperationStatus":
            status = messages.decode_response(request.method, response)
            if status is None or status.operationState in RUNNING:
                return
            is_failed = status.operationState != ttypes.TOperationState.FINISHED_STATE
        elif request.method not in CLOSING:
            return
        connection.running.discard(key)
        self._options.counts.end(is_failed=is_failed)

    def _count_closed(self, connection: _Connection) -> None:
        """Counts the statements that were still running as failed."""
        while connection.running:
            connection.running.pop()
            self._options.counts.end(is_failed=True)

    def _process(self, connection: _Connection, channel: JvmChannel, request: Request) -> tuple[bytes, Any]:
        """Returns the response to a request, and the decoded response if it opens a handle."""
        response = channel.process(messages.encode_request(request))
        decoded = messages.decode_response(request.method, response) if opens_handle(request.method) else None
        self._cancel_jobs(connection.running.intersection(cancelled_operations(request, connection.handles)))
        record(request, decoded, connection.handles)
        return response, decoded

    def _execute(self, connection: _Connection, channel: JvmChannel, request: Request) -> _Execution:
        """Runs a statement. Spark runs it in the background and the endpoint waits if the client does: Spark cannot
        cancel a statement that runs in the foreground."""
        is_background, request.body.runAsync = bool(request.body.runAsync), True
        response, decoded = self._process(connection, channel, request)
        if decoded is None or decoded.operationHandle is None:
            return _Execution(response, is_failed=True)
        handle = decoded.operationHandle
        connection.running.add(handle_key(handle))
        if is_background and not connection.is_closing:
            return _Execution(response, is_running=True)
        try:
            status = self._wait_for_end(connection, channel, handle)
            if status is not None and status.operationState == ttypes.TOperationState.FINISHED_STATE:
                return _Execution(response)
            close = Request("CloseOperation", 0, ttypes.TCloseOperationReq(operationHandle=handle))
            self._process(connection, channel, close)
        finally:
            connection.running.discard(handle_key(handle))
        reason = getattr(status, "errorMessage", None) or "the statement was cancelled"
        raise RequestDenied(reason, getattr(status, "sqlState", None) or SQLSTATE_INTERNAL)

    def _wait_for_end(self, connection: _Connection, channel: JvmChannel, operation: Any) -> Any:
        """Waits for the end of a statement. Returns its last status; None if the connection is being closed, because
        Spark may have closed the session before the statement belonged to it."""
        poll = Request("GetOperationStatus", 0, ttypes.TGetOperationStatusReq(operationHandle=operation))
        while not connection.is_closing:  # Spark responds after five seconds, or when the statement has ended
            status = messages.decode_response(poll.method, channel.process(messages.encode_request(poll)))
            if status is None or status.operationState not in RUNNING:
                return status
        return None

    def _check_statement(self, connection: _Connection, statement: str, permission: SqlPermission | None) -> None:
        plan = self._service.parse(statement)
        user, kind = connection.user or "", statement_kind(plan)
        try:
            check_plan(plan, permission, self._options.loader_databases)
        except StatementDenied as error:
            self._write_audit(connection, "statement_denied", kind, statement, str(error))
            remedy = "" if error.needs is None else "; " + self._options.access.grant_line(user, error.needs)
            raise RequestDenied(f"{error}{remedy}", SQLSTATE_DENIED) from error
        self._write_audit(connection, "statement", kind, statement)

    def _write_audit(
        self, connection: _Connection, action: str, kind: str, statement: str, reason: str | None = None
    ) -> None:
        entry: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "user": connection.user,
            "client": connection.address,
            "action": action,
            "kind": kind,
        }
        if reason is not None:
            entry["reason"] = reason
        if self._options.audit_statements:
            entry["statement"] = statement
        line = json.dumps(entry, separators=(",", ":"))
        try:
            self._audit.append(line.encode() + b"\n")
        except OSError as error:
            # A full disk must not stop queries.
            logger.error("audit_log_not_written cause=%s remedy=append the line to the audit log line=%s", error, line)

    def _watch(self) -> None:
        while True:
            time.sleep(WATCH_S)
            self._cancel_again()
            for connection in self._snapshot():
                if connection.user is None and time.monotonic() > connection.login_deadline:
                    _shut_down(connection)
                elif connection.is_running and not connection.is_closing and _is_hung_up(connection):
                    connection.is_closing = True
                    threading.Thread(target=self._close_sessions, args=(connection,), daemon=True).start()

    def _snapshot(self) -> list[_Connection]:
        with self._lock:
            return list(self._connections)

    def _close_sessions(self, connection: _Connection) -> None:
        """Closes the sessions of a connection in Spark and cancels their statements."""
        handles = connection.handles.session_handles
        while handles:
            try:
                _, handle = handles.popitem()
            except KeyError:  # `_watch` and the connection's own thread may both be here
                break
            body = ttypes.TCloseSessionReq(sessionHandle=handle)
            # Without the JVM the sessions have ended too.
            with contextlib.suppress(JvmCallFailed), self._service.channel() as channel:
                channel.process(messages.encode_request(Request("CloseSession", 0, body)))
        with contextlib.suppress(JvmCallFailed):
            self._cancel_jobs(set(connection.running))

    def _cancel_jobs(self, statements: Collection[HandleKey]) -> None:
        """Cancels the jobs of statements that Spark has cancelled or closed. `_watch` repeats it, because Spark cancels
        only the jobs that run at that moment: a statement that is still being planned would start its job afterwards,
        and the job would run to its end."""
        deadline = time.monotonic() + PLANNING_MAX_S
        with self._lock:
            self._cancelled.update(dict.fromkeys(statements, deadline))
            while len(self._cancelled) > CANCELLED_MAX:
                self._cancelled.pop(next(iter(self._cancelled)))
        self._service.cancel_jobs(statements)

    def _cancel_again(self) -> None:
        now = time.monotonic()
        with self._lock:
            self._cancelled = {key: deadline for key, deadline in self._cancelled.items() if deadline > now}
            statements = tuple(self._cancelled)
        with contextlib.suppress(JvmCallFailed):
            self._service.cancel_jobs(statements)


def _is_hung_up(connection: _Connection) -> bool:
    poll = select.poll()
    try:
        poll.register(connection.socket.fileno(), getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR)
    except (OSError, ValueError):  # closed
        return False
    return bool(poll.poll(0))


def _shut_down(connection: _Connection) -> None:
    """Ends a connection, so that its thread stops to wait for bytes."""
    with contextlib.suppress(OSError):
        connection.socket.shutdown(socket.SHUT_RDWR)
