"""The SQL server of `headrace up`: one Spark session for `headrace sql`, and optionally for BI tools.

It is a separate process with its own memory: a query that exhausts the memory ends only this process, and `headrace up`
restarts it. It connects to the metastore over Thrift, as all clients do, and tolerates its temporary absence.

Run as `python -m headrace.pipeline.sql_server --data-dir D --metastore thrift://… --socket PATH`, with `--listen
127.0.0.1:10000` for the SQL endpoint (`pipeline.sql_endpoint`).
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import logging
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.pipeline.jvm_server import (
    JvmServerError,
    jvm_end_reason,
    jvm_properties,
    run_server,
    wait_for_end,
)
from headrace.pipeline.server_metrics import QueryCounts, metrics_path, publish_metrics
from headrace.pipeline.sql import QueryFailed, check_statement, run_query
from headrace.pipeline.sql_protocol import (
    NOT_STARTED,
    QUERY_BYTES_MAX,
    STARTED,
    SqlRequest,
    error_bytes,
    listening,
    read_request,
    read_to_end,
    response_bytes,
)
from headrace.settings import Address, Settings

if TYPE_CHECKING:
    from headrace.pipeline.sql_endpoint.access import EndpointAccess
    from headrace.pipeline.sql_endpoint.server import SqlEndpoint

logger = logging.getLogger(__name__)

QUERIES_MAX = 4  # concurrent queries; further ones wait
CONNECTIONS_MAX = 64  # concurrent connections; further ones are rejected
REQUEST_TIMEOUT_S = 10.0  # for a complete request
POLL_S = 0.2
RESPONSE_GRACE_S = 0.5  # clients that waited for the socket send their requests within this time
JVM_END_S = 5.0  # between a call that failed because the JVM ended and the end of its process
JVM_END_MARKERS = ("Py4J", "py4j", "Connection", "Answer from Java", "OutOfMemory", "cancelled", "JVM has ended")
ENDPOINT_PROPERTIES = {
    # Queries run as the operating system's user of `headrace up`, not as one with the name of the SQL client.
    "hadoop.hive.server2.enable.doAs": "false",
    "sql.runSQLonFile": "false",
}
"""Spark properties, without the prefix `spark.`, with the SQL endpoint."""
METASTORE_ATTEMPTS_MAX = 30  # one per second; meanwhile a metastore that died is restarted
RESPONSES_END_S = 6.0  # to send errors to clients of the SQL endpoint after the end of the JVM


@dataclass(frozen=True, slots=True)
class SqlOptions:
    """Options of the SQL server.

    `metastore` is a thrift:// URI. `warehouse` is the directory of the tables, `memory` the heap size of the JVM
    (`-Xmx`), `conf` Spark properties. `listen` is the address for BI tools, or None; `settings` has their users.
    """

    data_dir: Path
    metastore: str
    socket: Path
    listen: Address | None
    warehouse: Path
    master: str
    memory: str
    conf: Mapping[str, str]
    settings: Settings


@dataclass(frozen=True, slots=True)
class _EndpointPort:
    """The users and the bound socket of the SQL endpoint, which are checked before the JVM starts."""

    access: EndpointAccess
    listener: socket.socket


def main(argv: Sequence[str] | None = None) -> int:
    return run_server(lambda settings: _parse(argv, settings), lambda options: options.data_dir, serve)


def serve(options: SqlOptions, stop: threading.Event) -> None:
    """Opens a Spark session and runs the queries of clients until the event `stop` is set.

    Raises:
        JvmServerError: the server cannot listen on an address, or the JVM ended.
        HiveDdlError: the metastore is not available, or Spark did not start.
    """
    from headrace.hive_ddl.executors.session import close_session, open_session
    from headrace.hive_ddl.table import local_location

    ready_fields = [f"sql_socket={options.socket}"]
    conf = {**options.conf, "hadoop.hive.metastore.connect.retries": str(METASTORE_ATTEMPTS_MAX)}
    with contextlib.ExitStack() as resources:
        endpoint = None
        if options.listen is not None:
            endpoint = _EndpointPort(_access(options), resources.enter_context(_bind(options.listen)))
            ready_fields.append(f"sql={Address(options.listen.host, endpoint.listener.getsockname()[1])}")
            conf |= ENDPOINT_PROPERTIES
        session = open_session(
            app_name="headrace sql",
            master=options.master,
            metastore_uri=options.metastore,
            data_dir=options.data_dir,
            warehouse_uri=local_location(options.warehouse),
            extra=conf,
        )
        try:
            if not stop.is_set():
                _serve_session(session, options, stop, endpoint, ready_fields)
        finally:
            logger.info("sql_stopping")
            close_session(session)


def _serve_session(
    session: Any, options: SqlOptions, stop: threading.Event, port: _EndpointPort | None, ready_fields: Sequence[str]
) -> None:
    with listening(options.socket) as listener:
        server = _QueryServer(session, options.memory)
        endpoint = None if port is None else _start_endpoint(session, server, port, options)
        threading.Thread(target=server.accept_queries, args=(listener,), name="sql", daemon=True).start()
        path = metrics_path(options.data_dir / "logs", "sql")
        publish_metrics(path, session.sparkContext._jvm, stop, server.counts)
        print("ready", *ready_fields, flush=True)
        threading.Thread(target=server.warm_up, name="warm-up", daemon=True).start()
        try:
            wait_for_end(session.sparkContext._gateway, stop, "sql.memory", options.memory)
        finally:
            server.finish_responses()
            if endpoint is not None:
                endpoint.finish_responses(0.0 if stop.is_set() else RESPONSES_END_S)


class _QueryServer:
    """Accepts the requests of `headrace sql` on a Unix socket. Each request has its own thread and Spark session.
    `counts` counts its queries and the statements of the SQL endpoint."""

    def __init__(self, session: Any, memory: str) -> None:
        self.counts = QueryCounts()
        self._session = session
        self._jvm: subprocess.Popen[bytes] | None = getattr(session.sparkContext._gateway, "proc", None)
        self._memory = memory
        self._query_numbers = itertools.count(1)
        self._threads: set[threading.Thread] = set()
        self._slots = threading.Semaphore(QUERIES_MAX)

    def warm_up(self) -> None:
        """Runs a small query, so that the first query of a user does not wait some seconds for the loading of classes.
        Waits first for the queries of clients that waited for the server's start, so that it does not take CPU time
        from them."""
        time.sleep(RESPONSE_GRACE_S)
        for thread in list(self._threads):
            thread.join()
        with contextlib.suppress(QueryFailed):
            self._run_query(SqlRequest("SELECT 1 AS one", "default", with_values=True), "headrace-sql-warm-up")

    def accept_queries(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # closed: the server ends
                return
            self._threads = {thread for thread in self._threads if thread.is_alive()}
            if len(self._threads) >= CONNECTIONS_MAX:
                _send(connection, error_bytes(f"{CONNECTIONS_MAX} queries are running already; try again later"))
                connection.close()
                continue
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            thread.start()
            self._threads.add(thread)  # for finish_responses, which joins all of them

    def finish_responses(self) -> None:
        """Waits a moment for the threads of running queries before the process ends, so that their clients still
        receive a response with the error."""
        for thread in list(self._threads):
            thread.join(POLL_S)

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                connection.settimeout(REQUEST_TIMEOUT_S)
                request = read_request(read_to_end(connection, QUERY_BYTES_MAX))
            except (OSError, ValueError) as error:
                _send(connection, error_bytes(f"invalid request: {error}"))
                return
            connection.settimeout(None)
            with self._slots:
                if self._jvm is not None and self._jvm.poll() is not None:
                    _send(connection, NOT_STARTED)
                    return
                # From here on clients do not repeat the request: the query may be the cause of the JVM's end.
                _send(connection, STARTED)
                response = self._run_until_hangup(connection, request)
            _send(connection, response)

    def _run_until_hangup(self, connection: socket.socket, request: SqlRequest) -> bytes:
        """Runs the query of a request and returns the bytes of the response. Cancels the query in Spark when the client
        closes the connection."""
        group = f"headrace-sql-{next(self._query_numbers)}"
        responses: list[bytes] = []

        def run() -> None:
            try:
                with self.counts.counting():
                    responses.append(self._run_query(request, group))
            except QueryFailed as error:
                responses.append(error_bytes(str(error)))

        # Spark's job groups belong to a thread, in Python and in the JVM.
        worker = threading.Thread(target=run, daemon=True)
        worker.start()
        hangup = select.poll()
        hangup.register(connection.fileno(), select.POLLHUP | select.POLLERR)
        while worker.is_alive():
            worker.join(POLL_S)
            if worker.is_alive() and hangup.poll(0):
                # Repeated: a call cancels the current jobs only, and a query runs several one after another.
                self._session.sparkContext.cancelJobGroup(group)
        return responses[0] if responses else b""

    def _run_query(self, request: SqlRequest, group: str) -> bytes:
        """Returns the response with the result of a query.

        Raises:
            QueryFailed: the query failed; the message is the reason for the client.
        """
        context = self._session.sparkContext
        try:
            context.setJobGroup(group, request.statement[:100], interruptOnCancel=True)
            statement = check_statement(request.statement)
            session = self._session.newSession()
            return response_bytes(run_query(session, statement, request.database, with_values=request.with_values))
        except QueryFailed as error:
            raise QueryFailed(self.failure_reason(str(error))) from error
        except Exception as error:  # py4j raises various errors when its JVM has ended, and the client needs a response
            logger.warning("query_failed reason=%s", error)
            raise QueryFailed(self.failure_reason(f"{type(error).__name__}: {error}")) from error

    def failure_reason(self, message: str) -> str:
        """Returns the reason why a query failed: the end of the JVM if that is the cause, otherwise `message`, the
        message of the error."""
        if self._jvm is None or not any(marker in message for marker in JVM_END_MARKERS):
            return message
        try:
            code = self._jvm.wait(JVM_END_S)
        except subprocess.TimeoutExpired:  # the JVM still runs, so the failure has another cause
            return message
        end = jvm_end_reason(code, "sql.memory", self._memory)
        return f"the SQL server ended during the query and restarts: {end}"


def _send(connection: socket.socket, response: bytes) -> None:
    try:
        connection.sendall(response)
    except OSError as error:
        logger.info("query_response_not_sent reason=%s", error)


def _access(options: SqlOptions) -> EndpointAccess:
    from headrace.pipeline.sql_endpoint.access import AccessUnusable, open_access

    try:
        return open_access(replace(options.settings, sql=replace(options.settings.sql, listen=options.listen)))
    except AccessUnusable as error:
        raise JvmServerError(str(error)) from error


def _bind(listen: Address) -> socket.socket:
    """Returns a socket with the configured address that does not listen yet. It fails before the JVM is started, which
    takes seconds."""
    listener = socket.socket(socket.AF_INET6 if ":" in listen.host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((listen.host, listen.port))
    except OSError as error:
        listener.close()
        raise JvmServerError(
            f"the SQL server cannot listen on {listen}: {error.strerror}; choose another address with sql.listen"
        ) from error
    return listener


def _start_endpoint(session: Any, server: _QueryServer, port: _EndpointPort, options: SqlOptions) -> SqlEndpoint:
    from py4j.protocol import Py4JError

    from headrace.hive_ddl.executors.jvm_errors import root_cause
    from headrace.loader.apply.catalog import DATABASE_SUFFIX
    from headrace.loader.apply.layout import QUARANTINE_DATABASE_SUFFIX
    from headrace.pipeline.sql_endpoint.server import EndpointOptions, SqlEndpoint
    from headrace.pipeline.sql_endpoint.spark_service import SparkService

    database = options.settings.hive.database.lower()
    endpoint_options = EndpointOptions(
        access=port.access,
        loader_databases=frozenset(database + suffix for suffix in ("", QUARANTINE_DATABASE_SUFFIX, DATABASE_SUFFIX)),
        log_dir=options.data_dir / "logs",
        audit_statements=options.settings.sql.audit_statements,
        failure_reason=server.failure_reason,
        counts=server.counts,
    )
    try:
        endpoint = SqlEndpoint(SparkService(session), endpoint_options)
    except Py4JError as error:
        raise JvmServerError(
            f"Spark's Thrift service cannot be used: {root_cause(error)}; install PySpark 4.3, or unset sql.listen"
        ) from error
    endpoint.start(port.listener)
    return endpoint


def _parse(argv: Sequence[str] | None, settings: Settings) -> SqlOptions:
    parser = argparse.ArgumentParser(prog="headrace.pipeline.sql_server", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True, help="directory of the logs and of Spark's scratch")
    parser.add_argument("--metastore", required=True, metavar="URI", help="thrift://host:port")
    parser.add_argument("--socket", type=Path, required=True, metavar="PATH", help="socket for `headrace sql`")
    parser.add_argument(
        "--listen",
        type=Address.parse,
        metavar="HOST:PORT",
        help="address for PyHive, beeline and BI tools, with the users of registry.users",
    )
    parser.add_argument("--warehouse", type=Path, help="directory of the tables (default: DATA_DIR/warehouse)")
    args = parser.parse_args(argv)
    return SqlOptions(
        data_dir=args.data_dir.resolve(),
        metastore=args.metastore,
        socket=args.socket.resolve(),
        listen=args.listen,
        warehouse=(args.warehouse or args.data_dir / "warehouse").resolve(),
        master=settings.spark.get("master", "local[*]"),
        memory=settings.sql.memory,
        conf=jvm_properties(settings, settings.sql.memory),
        settings=settings,
    )


if __name__ == "__main__":
    sys.exit(main())
