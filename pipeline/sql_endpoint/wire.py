"""The bytes of a connection to the SQL endpoint: Thrift's SASL transport with the mechanism PLAIN (RFC 4616).

    login       status (1 byte), length (4 bytes, big-endian), body. The client sends START with the mechanism, then
                OK or COMPLETE with the credentials; the server responds with COMPLETE, or with BAD and a reason.
    afterwards  length (4 bytes, big-endian), one Thrift message. PLAIN has no security layer; TLS protects the bytes.

Sizes are checked before anything is read or allocated.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

MECHANISM: Final = b"PLAIN"
LOGIN_BYTES_MAX: Final = 4096  # body of a login message: user and password
REQUEST_BYTES_MAX: Final = 2 * 1024 * 1024  # a statement and the fields around it
RESPONSE_BYTES_MAX: Final = 2**31 - 1
LOGIN_MESSAGES: Final = 2  # START and the credentials
THRIFT_VERSION_BYTE: Final = 0x80  # first byte of a Thrift message without SASL
TLS_HANDSHAKE_BYTE: Final = 0x16
_HEADER = struct.Struct(">BI")
_LENGTH = struct.Struct(">I")

ReadExactly = Callable[[int], bytes]
"""Reads the given number of bytes from the client. Raises `EOFError` if the connection ends before."""


class SaslStatus(IntEnum):
    """The first byte of a login message."""

    START = 1
    OK = 2
    BAD = 3
    ERROR = 4
    COMPLETE = 5


class WireError(Exception):
    """The client's bytes are not the protocol. The message is for the client and the log; it has no credentials."""


class NoSaslError(WireError):
    """The client sends Thrift messages without a login. `start` are the bytes read so far."""

    def __init__(self, start: bytes) -> None:
        super().__init__("the client does not log in; set its authentication to LDAP, with user and password")
        self.start = start


@dataclass(frozen=True, slots=True)
class PlainCredentials:
    """The user and password that a client has sent."""

    user: str
    password: str = field(repr=False)


def read_credentials(read: ReadExactly) -> PlainCredentials:
    """Reads the client's part of the login.

    Raises:
        NoSaslError: the client sends Thrift messages at once.
        WireError: the bytes are not a login with PLAIN.
        EOFError: the connection ended.
    """
    status, mechanism = _read_login_message(read, is_first=True)
    if status != SaslStatus.START:
        raise WireError(f"the login begins with status {status}, expected {SaslStatus.START:d} (START)")
    if mechanism != MECHANISM:
        raise WireError("the SASL mechanism is not PLAIN; set the client's authentication to LDAP, user and password")
    status, body = _read_login_message(read)
    if status not in (SaslStatus.OK, SaslStatus.COMPLETE):
        raise WireError(f"the client ended the login with status {status}")
    return parse_plain(body)


def _read_login_message(read: ReadExactly, *, is_first: bool = False) -> tuple[int, bytes]:
    header = read(_HEADER.size)
    if is_first and header[0] == THRIFT_VERSION_BYTE:
        raise NoSaslError(header)
    if is_first and header[0] == TLS_HANDSHAKE_BYTE:
        raise WireError("the client uses TLS and the server does not; set sql.tls_certificate")
    status, length = _HEADER.unpack(header)
    if length > LOGIN_BYTES_MAX:
        raise WireError(f"a login message of {length} bytes, expected at most {LOGIN_BYTES_MAX}")
    return status, read(length)


def parse_plain(body: bytes) -> PlainCredentials:
    """Parses the credentials of the mechanism PLAIN: [authorization identity] NUL user NUL password.

    Raises:
        WireError: the body has another form, or another authorization identity than the user, which would act as
            another user.
    """
    parts = body.split(b"\0")
    if len(parts) != 3:
        raise WireError("the credentials do not have the form of the SASL mechanism PLAIN")
    try:
        authorization, user, password = (part.decode("utf-8") for part in parts)
    except UnicodeDecodeError:
        raise WireError("the credentials are not UTF-8") from None
    if authorization not in ("", user):
        raise WireError("the authorization identity is not the user; leave it empty")
    if not user:
        raise WireError("the user name is empty; set user and password in the client")
    return PlainCredentials(user, password)


def login_message(status: SaslStatus, reason: str = "") -> bytes:
    """Returns the server's login message: COMPLETE, or BAD with a reason."""
    body = reason.encode()
    return _HEADER.pack(status, len(body)) + body


def read_message(read: ReadExactly) -> bytes:
    """Reads one Thrift message.

    Raises:
        WireError: the message is empty or too long; the connection cannot be continued.
        EOFError: the connection ended.
    """
    (length,) = _LENGTH.unpack(read(_LENGTH.size))
    if not 0 < length <= REQUEST_BYTES_MAX:
        raise WireError(f"a message of {length} bytes, expected 1 to {REQUEST_BYTES_MAX}; send a shorter statement")
    return read(length)


def frame(message: bytes) -> bytes:
    """Returns the length of a message, to be sent before it."""
    return _LENGTH.pack(len(message))
