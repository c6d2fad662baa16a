"""A stand-in for the SQL server of `headrace up`, without Spark. It records requests and returns the same result for
all of them."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

from headrace.pipeline.sql import QueryResult
from headrace.pipeline.sql_protocol import (
    STARTED,
    SqlRequest,
    error_bytes,
    listening,
    read_request,
    read_to_end,
    response_bytes,
)
from headrace.pipeline.up.up_file import UpFile
from headrace.settings.addresses import UP_FILE_NAME, LiveAddresses

RESULT = QueryResult(
    columns=("carrier", "flights"),
    types=("string", "int"),
    rows=(("AA", "32729"), (None, "1")),
    values=(("AA", 32729), (None, 1)),
)


@contextlib.contextmanager
def fake_sql_server(data_dir: Path, result: QueryResult | str = RESULT) -> Iterator[list[SqlRequest]]:
    """Runs the server for a data directory while the context is open. Yields the list of requests, which grows.

    Args:
        result: the result of every query, or the error with which every query fails.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    path = data_dir / "sql.sock"
    requests: list[SqlRequest] = []
    response = error_bytes(result) if isinstance(result, str) else response_bytes(result)

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # shut down
                return
            with connection:
                try:
                    requests.append(read_request(read_to_end(connection)))
                except ValueError as error:  # the empty request of a status
                    connection.sendall(error_bytes(str(error)))
                    continue
                connection.sendall(STARTED + response)

    with UpFile(data_dir / UP_FILE_NAME) as up_file, listening(path) as listener:
        up_file.publish(
            LiveAddresses(
                pid=os.getpid(),
                started_at="2026-01-31T07:20:04+00:00",
                registry="",
                broker="",
                metastore="thrift://127.0.0.1:1",
                sql="",
                sql_socket=str(path),
                warehouse=str(data_dir / "warehouse"),
            )
        )
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            yield requests
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
