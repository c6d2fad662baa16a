"""Reading table names from a metastore without a JVM, against a server with prepared responses. The real metastore is
queried in `tests/component/hive/test_hive_command.py`."""

from __future__ import annotations

import socket
import struct
import threading

import pytest

from headrace.hive_ddl.metastore_names import METHOD, table_names
from support.free_ports import free_port

REPLY = struct.pack(">Ii", 0x80010002, len(METHOD)) + METHOD + struct.pack(">i", 1)


def names_field(*names: bytes) -> bytes:
    items = b"".join(struct.pack(">i", len(name)) + name for name in names)
    return struct.pack(">bhbi", 15, 0, 11, len(names)) + items + b"\0"


def served(response: bytes) -> tuple[frozenset[str] | None, bytes]:
    """Returns the result of the call if the server sends this response, and the request that it got."""
    requests: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                requests.append(connection.recv(10_000))
                connection.sendall(response)

        thread = threading.Thread(target=serve)
        thread.start()
        found = table_names(f"thrift://127.0.0.1:{server.getsockname()[1]}", "shop")
        thread.join()
    return found, requests[0]


def test_names_of_a_database_are_read() -> None:
    found, request = served(REPLY + names_field(b"orders", "größe".encode()))
    assert found == {"orders", "größe"}
    assert request.endswith(struct.pack(">bhi", 11, 1, 4) + b"shop\0")


def test_missing_database_has_no_tables() -> None:
    exception = struct.pack(">bh", 12, 1) + b"\0\0"
    assert served(REPLY + exception)[0] == frozenset()
    assert served(REPLY + names_field())[0] == frozenset()


@pytest.mark.parametrize(
    "response",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        REPLY,
        REPLY + b"\0",
        REPLY + names_field(b"orders")[:-3],
        REPLY + names_field(b"\xff"),
        REPLY + struct.pack(">bhbi", 15, 0, 11, 2**31 - 1),
        REPLY + struct.pack(">bhbii", 15, 0, 11, 1, -1),
        REPLY + struct.pack(">bhbi", 15, 0, 8, 1),
        struct.pack(">Ii", 0x80010003, len(METHOD)) + METHOD,
    ],
)
def test_any_other_response_is_unknown(response: bytes) -> None:
    assert served(response)[0] is None


def test_unreachable_or_malformed_metastore_is_unknown() -> None:
    port = free_port()
    assert table_names(f"thrift://127.0.0.1:{port},thrift://nowhere:x", "shop") is None
