"""The exceptions of the broker.

BrokerError
├── StartError            the broker cannot start
│   ├── DataDirectoryInUse    another broker uses the data directory
│   ├── AddressUnusable       the port is in use or the host is not local
│   ├── TlsUnusable           a certificate or key cannot be used
│   ├── UsersUnusable         the users file cannot be read or has a mistake
│   └── LogDamaged            fsynced data of a log is corrupt or missing
├── DiskFailed            an fsync failed: the broker stops, since durability is no longer guaranteed
├── ProtocolError         unreadable bytes from a client: its connection is closed
│   └── FrameRefused          a frame length that is negative, too short or above the limit
├── RequestRefused        a well-formed request that gets an error code
├── RefusalWithoutResponse  a refused request that expects no response: its connection is closed
└── CorruptFile           a file in the data directory cannot be parsed

A frame whose bytes do not match its API key and version raises `kafka_wire.errors.MalformedMessage`, which also closes
the connection.
"""

from __future__ import annotations

from pathlib import Path

from headrace.broker.protocol.error_codes import ErrorCode

REFUSAL_CHARS_MAX = 1000


class BrokerError(Exception):
    """Root of the exceptions that the broker raises on purpose."""


class StartError(BrokerError):
    """The broker cannot start. The message is one line with the reason and the remedy."""


class DataDirectoryInUse(StartError):
    """Another broker holds the data directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__(
            f"the data directory {directory} is in use by another broker; stop it or choose another --data-dir"
        )
        self.directory = directory


class AddressUnusable(StartError):
    """The broker cannot listen on its address."""

    def __init__(self, address: str, reason: str, setting: str = "--broker-listen") -> None:
        super().__init__(f"cannot listen on {address}: {reason}; choose another {setting}")
        self.address = address


class TlsUnusable(StartError):
    """A TLS file cannot be used. The message names the file and never contains its content."""

    def __init__(self, setting: str, path: str, reason: str) -> None:
        super().__init__(f"broker.{setting} {path} cannot be used: {reason}")


class UsersUnusable(StartError):
    """The users file cannot be used. The message names the line and never contains a hash."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"broker.users {path} cannot be used: {reason}")
        self.path = path
        self.reason = reason


class LogDamaged(StartError):
    """Data of a log below the offset `fsynced_to`, up to which the log was fsynced, is corrupt or missing. The operator
    restores a copy or allows a repair."""

    def __init__(self, path: Path, reason: str, fsynced_to: int) -> None:
        super().__init__(
            f"{path} is damaged: {reason}, below offset {fsynced_to}, up to which the log was fsynced; restore a copy "
            'of its directory, or start once with broker.on_corruption = "rename", which renames the damaged file to '
            ".corrupt and continues with the intact batches"
        )
        self.path = path
        self.fsynced_to = fsynced_to


class DiskFailed(BrokerError):
    """An fsync failed. A power failure may now lose data that was acknowledged, so the broker stops."""

    def __init__(self, error: OSError) -> None:
        super().__init__(
            f"the disk failed, and durability is no longer guaranteed: {error}; check the disk and restart the broker"
        )


class ProtocolError(BrokerError):
    """Bytes that a client sent cannot be interpreted; the broker closes the connection."""


class FrameRefused(ProtocolError):
    """A client sent a frame length outside the accepted range."""


class RequestRefused(BrokerError):
    """A request, or one part of it, is refused. The response contains the error code `code`."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        # A message may contain a long name from the client; a protocol string has a two-byte length.
        self.message = message[:REFUSAL_CHARS_MAX]
        super().__init__(self.message)
        self.code = code


class RefusalWithoutResponse(BrokerError):
    """A request with acks 0, which expects no response, was refused. `response` is the response that the same request
    with other acks would get."""

    def __init__(self, reason: str, response: object) -> None:
        super().__init__(f"{reason}, and the request expects no response")
        self.response = response


class CorruptFile(BrokerError):
    """A file in the data directory cannot be parsed. The message names the file and the remedy."""

    def __init__(
        self, path: Path, reason: str, remedy: str = "restore the file from a copy of the data directory"
    ) -> None:
        super().__init__(f"{path} is damaged: {reason}; {remedy}")
        self.path = path
