"""How `headrace sql` asks the SQL of a running `headrace up`: a socket of the file system that only its owner may open,
one JSON document each way, and one query for each connection. Whoever hangs up takes the question back.
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
NOT_STARTED = b"{}"  # said by one that is about to end, and has not begun with the question
STARTED = b" "  # said before the answer, when the question's turn comes; JSON reads past it
START_TIMEOUT_S = 120.0  # of SQL that `headrace up` has just started, again as well
POLL_S = 0.2
PATH_BYTES_MAX = 100  # of a socket's name; the system has room for 107, macOS for 103


class SqlServerUnavailable(Exception):
    """No SQL listens on the socket."""


@dataclass(frozen=True, slots=True)
class SqlRequest:
    """One query, with the database that bare names of tables are of."""

    statement: str
    database: str
    with_values: bool


def ask(path: Path, question: SqlRequest, is_up: Callable[[], bool]) -> QueryResult:
    """The answer.

    Args:
        path: of the socket.
        is_up: whether the `headrace up` whose socket it is still runs; while it does, SQL that is being started is
            waited for.

    Raises:
        SqlServerUnavailable: SQL is not there and does not come.
        QueryFailed: the query cannot be answered.
    """
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            with _connected(path) as connection:
                return _ask(connection, question)
        except SqlServerUnavailable:
            if not is_up() or time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)


def _ask(connection: socket.socket, question: SqlRequest) -> QueryResult:
    answer = _answer(connection, json.dumps(dataclasses.asdict(question)).encode())
    if answer in (b"", NOT_STARTED):
        raise SqlServerUnavailable("the SQL of `headrace up` has just ended")
    try:
        document = json.loads(answer)
    except ValueError:  # the question's turn came, and no more than that and a part of the answer
        raise QueryFailed(
            "the SQL of `headrace up` ended during the query, and is started again; see logs/sql.log"
        ) from None
    if "error" in document:
        raise QueryFailed(document["error"])
    return QueryResult(
        columns=tuple(document["columns"]),
        types=tuple(document["types"]),
        rows=tuple(map(tuple, document["rows"])),
        values=tuple(map(tuple, document["values"])),
    )


def _answer(connection: socket.socket, question: bytes) -> bytes:
    """All that is said, as far as it is said."""
    answer = b""
    with contextlib.suppress(OSError):
        connection.sendall(question)
        connection.shutdown(socket.SHUT_WR)
        answer = connection.recv(len(STARTED))
        return answer + read_to_end(connection)
    return answer


def read_request(content: bytes) -> SqlRequest:
    """
    Raises:
        ValueError: it is none.
    """
    document: Any = json.loads(content)
    if not isinstance(document, Mapping) or {*document} != {field.name for field in dataclasses.fields(SqlRequest)}:
        raise ValueError("expected the statement, the database and whether values are wanted")
    return SqlRequest(str(document["statement"]), str(document["database"]), bool(document["with_values"]))


def response_bytes(result: QueryResult) -> bytes:
    return json.dumps(dataclasses.asdict(result)).encode()


def error_bytes(reason: str) -> bytes:
    return json.dumps({"error": reason}).encode()


def read_to_end(connection: socket.socket, bytes_max: int | None = None) -> bytes:
    """What the other side says before it has said all.

    Raises:
        ValueError: that is more than `bytes_max`.
    """
    chunks, size = [], 0
    while chunk := connection.recv(READ_BYTES):
        chunks.append(chunk)
        size += len(chunk)
        if bytes_max is not None and size > bytes_max:
            raise ValueError(f"expected at most {bytes_max} bytes")
    return b"".join(chunks)


@contextlib.contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """A listener that the user alone can reach. What another left at the path goes: `up.json` says that it is gone."""
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener, _short_name(path) as name:
        before = os.umask(0o177)
        try:
            listener.bind(name)
        finally:
            os.umask(before)
        listener.listen()
        yield listener
    path.unlink(missing_ok=True)


@contextlib.contextmanager
def _connected(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            with _short_name(path) as name:
                connection.connect(name)
        except OSError as error:
            raise SqlServerUnavailable(f"{path}: {error.strerror}") from error
        yield connection


@contextlib.contextmanager
def _short_name(path: Path) -> Iterator[str]:
    """The path, or where it is too long for a socket's name, one through an open descriptor of its directory."""
    if len(os.fsencode(path)) <= PATH_BYTES_MAX:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
