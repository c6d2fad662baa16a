"""The protocol between `headrace sql` and the SQL server of `headrace up`.

The server listens on a Unix socket that only its owner can open. Each connection carries one query: a JSON document as
request and one as response. Closing the connection cancels the query.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.pipeline.sql import QueryFailed, QueryResult

QUERY_BYTES_MAX = 1024 * 1024
READ_BYTES = 1024 * 1024
NOT_STARTED = b"{}"  # response of a server that is about to end and has not started the query
STARTED = b" "  # sent when the query starts, before the response; JSON allows leading blanks
START_TIMEOUT_S = 120.0  # for the start or restart of the SQL server by `headrace up`
POLL_S = 0.2
PATH_BYTES_MAX = 100  # length of a socket's path; Linux allows 107, macOS 103


class SqlServerUnavailable(Exception):
    """No SQL server listens on the socket, or it ended before it started the query."""


@dataclass(frozen=True, slots=True)
class SqlRequest:
    """A query sent to the SQL server.

    Attributes:
        statement: the text of the query.
        database: the database of table names without one.
        with_values: whether the response also has the rows as JSON values, besides the rows as text.
    """

    statement: str
    database: str
    with_values: bool


def send_query(path: Path, request: SqlRequest, is_up: Callable[[], bool]) -> QueryResult:
    """Sends a query to the SQL server of `headrace up` and returns the result.

    Args:
        path: path of the socket.
        is_up: returns whether this `headrace up` still runs; while it does, the call waits up to `START_TIMEOUT_S` for
            its SQL server to start.

    Raises:
        SqlServerUnavailable: the SQL server does not run and does not start in time.
        QueryFailed: the query failed.
    """
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            with _connect(path) as connection:
                return _send_request(connection, request)
        except SqlServerUnavailable:
            if not is_up() or time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)


def ping(path: Path, timeout_s: float) -> None:
    """Requires a response of the SQL server to an empty request, which runs no query.

    Raises:
        SqlServerUnavailable: no SQL server listens on the socket.
        TimeoutError: it accepts the connection and does not respond within `timeout_s` seconds.
        OSError: the connection failed.
    """
    with _connect(path, timeout_s) as connection:
        connection.sendall(b"{}")
        connection.shutdown(socket.SHUT_WR)
        if not read_to_end(connection):
            raise ConnectionResetError("the SQL server closed the connection without a response")


def _send_request(connection: socket.socket, request: SqlRequest) -> QueryResult:
    response = _exchange(connection, json.dumps(dataclasses.asdict(request)).encode())
    if response in (b"", NOT_STARTED):
        raise SqlServerUnavailable("the SQL server of `headrace up` has just ended; run the query again")
    try:
        document = json.loads(response)
    except ValueError:  # the query had started; the response is incomplete
        raise QueryFailed(
            "the SQL server of `headrace up` ended during the query and restarts; see logs/sql.log"
        ) from None
    if "error" in document:
        raise QueryFailed(document["error"])
    return QueryResult(
        columns=tuple(document["columns"]),
        types=tuple(document["types"]),
        rows=tuple(map(tuple, document["rows"])),
        values=tuple(map(tuple, document["values"])),
    )


def _exchange(connection: socket.socket, request: bytes) -> bytes:
    """Sends a request on a connection to the SQL server and returns the response, both as bytes. If the server ends
    before the response is complete, returns its first part."""
    response = b""
    with contextlib.suppress(OSError):
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        response = connection.recv(len(STARTED))
        return response + read_to_end(connection)
    return response


def read_request(content: bytes) -> SqlRequest:
    """Parses the request that `headrace sql` has sent to the SQL server.

    Raises:
        ValueError: the content is not a request.
    """
    document: Any = json.loads(content)
    if not isinstance(document, Mapping) or {*document} != {field.name for field in dataclasses.fields(SqlRequest)}:
        raise ValueError("expected a JSON object with statement, database and with_values")
    return SqlRequest(str(document["statement"]), str(document["database"]), bool(document["with_values"]))


def response_bytes(result: QueryResult) -> bytes:
    return json.dumps(dataclasses.asdict(result)).encode()


def error_bytes(reason: str) -> bytes:
    return json.dumps({"error": reason}).encode()


def read_to_end(connection: socket.socket, bytes_max: int | None = None) -> bytes:
    """Reads until the peer closes its side of the connection.

    Raises:
        ValueError: there are more than `bytes_max` bytes.
    """
    chunks, size = [], 0
    while chunk := connection.recv(READ_BYTES):
        chunks.append(chunk)
        size += len(chunk)
        if bytes_max is not None and size > bytes_max:
            raise ValueError(f"expected at most {bytes_max} bytes in a request")
    return b"".join(chunks)


@contextlib.contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """Yields a Unix socket that listens at a path and that only its owner can open.

    First deletes a socket that an ended process left at the path. No running server can own it: the lock of `up.json`
    permits one `headrace up` per data directory.
    """
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener, short_name(path) as name:
        previous_umask = os.umask(0o177)
        try:
            listener.bind(name)
        finally:
            os.umask(previous_umask)
        listener.listen()
        yield listener
    path.unlink(missing_ok=True)


@contextlib.contextmanager
def _connect(path: Path, timeout_s: float | None = None) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout_s)
        try:
            with short_name(path) as name:
                connection.connect(name)
        except OSError as error:
            raise SqlServerUnavailable(f"cannot connect to the SQL server at {path}: {error.strerror}") from error
        yield connection


@contextlib.contextmanager
def short_name(path: Path) -> Iterator[str]:
    """Yields a name for the path of a socket that is short enough for the operating system. A path that is too long is
    replaced by /proc/self/fd/<open descriptor of its directory>/<name>, which only Linux has."""
    if len(os.fsencode(path)) <= PATH_BYTES_MAX:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
