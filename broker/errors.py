"""What can go wrong in the broker.

BrokerError
├── StartError            the broker cannot start: one line for the person who started it
│   ├── DataDirectoryInUse       another broker holds the directory
│   ├── AddressUnusable       the port is taken or the host is not ours
│   ├── TlsUnusable           a certificate or key cannot be used
│   ├── UsersUnusable         the users file cannot be read, or has a mistake
│   └── LogDamaged            a log does not hold what was forced to disk
├── DiskFailed            data could not be forced to disk: the broker ends, since it can promise nothing more
├── ProtocolError         a client sent what cannot be read: its connection is closed, nobody else's
│   └── FrameRefused          a length that is negative, too short or above the limit
├── RequestRefused        a well-formed request that must be answered with an error code
├── UnansweredRefusal     one that wants no answer: its connection is closed, which is all its client can be told
└── CorruptFile           a file of ours that does not hold what it must

A frame whose bytes do not match its API key and version is `kafka_wire.errors.MalformedMessage`, and closes its
connection too.
"""

from __future__ import annotations

from pathlib import Path

from headrace.broker.protocol.error_codes import ErrorCode

REFUSAL_CHARS_MAX = 1000


class BrokerError(Exception):
    """Root of everything the broker raises on purpose."""


class StartError(BrokerError):
    """The broker cannot start; the message is one line that says why and what to do."""


class DataDirectoryInUse(StartError):
    """Another broker holds the data directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__(
            f"the data directory {directory} is in use by another broker; stop it or choose another --data-dir"
        )
        self.directory = directory


class AddressUnusable(StartError):
    """The broker cannot listen on the address it was given."""

    def __init__(self, address: str, reason: str, setting: str = "--broker-listen") -> None:
        super().__init__(f"cannot listen on {address}: {reason}; choose another {setting}")
        self.address = address


class TlsUnusable(StartError):
    """A file for TLS cannot be used; the message names it and never what is in it."""

    def __init__(self, setting: str, path: str, reason: str) -> None:
        super().__init__(f"broker.{setting} {path} cannot be used: {reason}")


class UsersUnusable(StartError):
    """The users file cannot be used; the message says which line, and repeats no hash."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"broker.users {path} cannot be used: {reason}")
        self.path = path
        self.reason = reason


class LogDamaged(StartError):
    """A log lacks what it held when it was forced to disk: whoever started the broker decides what becomes of it."""

    def __init__(self, path: Path, reason: str, forced_to: int) -> None:
        super().__init__(
            f"{path} is damaged: {reason}, below offset {forced_to}, up to which it had been forced to disk; put back "
            'a copy of its directory, or start once with broker.on_corruption = "rename", which keeps the damaged '
            "file as "
            ".corrupt beside the log and goes on with what is intact"
        )
        self.path = path
        self.forced_to = forced_to


class DiskFailed(BrokerError):
    """Data could not be forced to disk. What was acknowledged before may still be lost with the power."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"the disk failed, and the broker can promise nothing more: {error}")


class ProtocolError(BrokerError):
    """The bytes of a connection make no sense; it is closed."""


class FrameRefused(ProtocolError):
    """A frame length outside what this broker accepts."""


class RequestRefused(BrokerError):
    """A request, or one part of it, that is answered with `code`."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        # Names of clients stand in it, and an error message must fit the two-byte length of a string.
        self.message = message[:REFUSAL_CHARS_MAX]
        super().__init__(self.message)
        self.code = code


class UnansweredRefusal(BrokerError):
    """Something was refused of a request that wants no answer; `answer` is what would have been said."""

    def __init__(self, reason: str, answer: object) -> None:
        super().__init__(f"{reason}, and no answer is wanted")
        self.answer = answer


class CorruptFile(BrokerError):
    """A file in the data directory does not hold what it must; the message names it."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} is damaged: {reason}")
        self.path = path
