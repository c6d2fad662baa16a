"""Exceptions of the broker.

BrokerError
├── StartError            the broker cannot start
│   ├── DataDirectoryInUse    another broker or `headrace broker verify` uses the data directory
│   ├── AddressUnusable       the broker cannot listen on an address, for example because the port is in use
│   ├── TlsUnusable           a certificate or key cannot be used
│   ├── UsersUnusable         the users file cannot be read or has a mistake
│   └── LogDamaged            fsynced data of a log is corrupt or missing
├── DiskFailed            an fsync or the replacement of log files failed: the broker stops
├── ProtocolError         unreadable bytes, or a request before the login: the connection is closed
│   └── FrameRefused          a frame length outside the limits, or too much memory for incomplete frames
├── RequestRefused        a well-formed request, or a change by the broker itself, that is refused with an error code
│   └── RecordsRefused        single records of a batch are invalid, so the whole batch is refused
├── RefusalWithoutResponse  a refused request that expects no response: its connection is closed
└── CorruptFile           a file in the data directory is missing or has unusable content

A frame whose bytes do not match its API key and version raises `kafka_wire.errors.MalformedMessage`, which also closes
the connection.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from headrace.broker.protocol.error_codes import ErrorCode

REFUSAL_CHARS_MAX = 1000


class BrokerError(Exception):
    """Root of the exceptions in this module."""


class StartError(BrokerError):
    """The broker cannot start. The message is one line with the reason, and usually the remedy."""


class DataDirectoryInUse(StartError):
    """Another broker, or a command that excludes brokers such as `headrace broker verify`, has locked the data
    directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__(
            f"the data directory {directory} is in use by another broker; stop it or choose another --data-dir"
        )
        self.directory = directory


class AddressUnusable(StartError):
    """The broker cannot listen on its address, or on that of its metrics page."""

    def __init__(self, address: str, reason: str, setting: str = "--broker-listen") -> None:
        super().__init__(f"cannot listen on {address}: {reason}; choose another {setting}")
        self.address = address


class TlsUnusable(StartError):
    """A TLS file cannot be used. The message names the file and never contains its content."""

    def __init__(self, setting: str, path: str, reason: str) -> None:
        super().__init__(f"broker.{setting} {path} cannot be used: {reason}")


class UsersUnusable(StartError):
    """The users file cannot be used. If one line is the cause, the message names it. It never contains the verifiers of
    a `user` line."""

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
            "of its directory, or start once with HEADRACE__BROKER__ON_CORRUPTION=rename, which renames the damaged "
            "file to .corrupt and continues with the intact batches"
        )
        self.path = path
        self.fsynced_to = fsynced_to


class DiskFailed(BrokerError):
    """An fsync failed, or compaction failed while it replaced files. A power failure may now lose data that was
    acknowledged, so the broker stops."""

    def __init__(self, error: OSError) -> None:
        super().__init__(
            f"the disk failed, and durability is no longer guaranteed: {error}; check the disk and restart the broker"
        )


class ProtocolError(BrokerError):
    """A client sent bytes that cannot be interpreted, or a request before its login. The broker closes the
    connection."""


class FrameRefused(ProtocolError):
    """A client sent a frame length outside the accepted range, or the incomplete frames of all clients take too much
    memory."""


class RequestRefused(BrokerError):
    """A request, one part of it, or a change by the broker itself is refused. `code` is the error code for a
    response."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        # A message may contain a long name from the client; a protocol string has a two-byte length.
        self.message = message[:REFUSAL_CHARS_MAX]
        super().__init__(self.message)
        self.code = code


class RecordError(NamedTuple):
    """The reason why a record of a batch is invalid. `batch_index` counts the batch's records from 0."""

    batch_index: int
    message: str


class RecordsRefused(RequestRefused):
    """A batch is refused because single records are invalid: those in `record_errors`. Producers report the other
    records of the batch as valid ones, which can be sent again without these. If `record_errors` is empty, all records
    count as invalid."""

    def __init__(self, code: ErrorCode, message: str, record_errors: tuple[RecordError, ...]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


class RefusalWithoutResponse(BrokerError):
    """A partition of a Produce request with acks 0, which expects no response, was refused. `response` is the response
    that the same request with other acks would get."""

    def __init__(self, reason: str, response: object) -> None:
        super().__init__(f"{reason}, and the request expects no response")
        self.response = response


class CorruptFile(BrokerError):
    """A file in the data directory is missing, or its content cannot be used. The message names the file and the
    remedy."""

    def __init__(
        self, path: Path, reason: str, remedy: str = "restore the file from a copy of the data directory"
    ) -> None:
        super().__init__(f"{path} is damaged: {reason}; {remedy}")
        self.path = path
