"""Names of the tables in a metastore, through one Thrift call without Spark's JVM.

A load without new messages uses it to find dropped tables. It knows only a metastore without TLS and Kerberos; for any
other it returns None, and the caller opens Spark when it compares tables.

The call is `get_all_tables` in Thrift's binary protocol (thrift.apache.org, "Thrift Binary protocol encoding"), the
same in all versions of the metastore.
"""

from __future__ import annotations

import logging
import socket
import struct
from typing import Final
from urllib.parse import urlsplit

logger = logging.getLogger(__name__)

TIMEOUT_S: Final = 5.0
RESPONSE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Limit of the whole response; 100,000 names have some 5 MB."""

METHOD: Final = b"get_all_tables"
VERSION_1: Final = 0x80010000
CALL, REPLY = 1, 2  # types of messages
STOP, STRING, LIST = 0, 11, 15  # types of fields


class _NoReply(Exception):
    """The response is not that of a metastore, or is an error."""


def table_names(uris: str, database: str) -> frozenset[str] | None:
    """Returns the names of the tables and views of a database, none if it does not exist. Returns None if no metastore
    answers the call.

    Args:
        uris: `thrift://host:port`, several joined by commas.
    """
    for uri in uris.split(","):
        try:
            parts = urlsplit(uri.strip())
            with socket.create_connection((parts.hostname or "", parts.port or 0), TIMEOUT_S) as connection:
                connection.sendall(_request(database))
                return _read_reply(_Response(connection))
        except (OSError, ValueError, _NoReply) as error:  # ValueError: the host, the port or a text is malformed
            logger.debug("table_names_not_read metastore=%s reason=%s", uri, error)
    return None


def _request(database: str) -> bytes:
    name = database.encode()
    return (
        struct.pack(">Ii", VERSION_1 | CALL, len(METHOD))
        + METHOD
        + struct.pack(">ibhi", 1, STRING, 1, len(name))
        + name
        + struct.pack(">b", STOP)
    )


class _Response:
    """Reads a response, at most `RESPONSE_BYTES_MAX` of it."""

    def __init__(self, connection: socket.socket) -> None:
        self._file = connection.makefile("rb")
        self._left = RESPONSE_BYTES_MAX

    def read(self, size: int) -> bytes:
        self._left -= size
        if size < 0 or self._left < 0:
            raise _NoReply("the response is too long")
        content = self._file.read(size)
        if len(content) != size:
            raise _NoReply("the response is cut off")
        return content

    def number(self, form: str) -> int:
        (found,) = struct.unpack(form, self.read(struct.calcsize(form)))
        return int(found)

    def text(self) -> str:
        return self.read(self.number(">i")).decode()


def _read_reply(response: _Response) -> frozenset[str]:
    header = response.number(">I")
    if header != VERSION_1 | REPLY or response.text() != METHOD.decode():
        raise _NoReply("it is no reply to the call")
    response.number(">i")  # sequence number
    kind = response.number(">b")
    if kind == STOP:
        raise _NoReply("the reply is empty")
    field = response.number(">h")
    if (kind, field) != (LIST, 0):
        return frozenset()  # an exception: the database does not exist
    if response.number(">b") != STRING:
        raise _NoReply("the reply has no names")
    return frozenset(response.text() for _ in range(response.number(">i")))
