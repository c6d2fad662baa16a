"""Errors of communication with brokers.

KafkaError
├── KafkaUnavailable        a broker cannot be reached, or does not respond as expected
│   ├── BrokerSuspended     the broker failed repeatedly and is not contacted during a cool-down
│   └── RetriableError      the broker is not the right one or not ready (defined in `requests`)
├── AuthenticationFailed    broker or client cannot be authenticated; a retry would not help
├── ErrorResponse           a broker responded with an error code, or does not support the request
├── OffsetOutOfRange        the log does not contain the offset
├── LogChanged              the topic was re-created, or its leader changed since the last request
├── CorruptBatch            bytes that are not a valid record batch
│   └── MisplacedBatch      a valid batch with impossible offsets
└── MalformedMessage        bytes that are not a valid request or response
"""

from __future__ import annotations


class KafkaError(Exception):
    """Root of the errors of communication with brokers. The message is one line."""


class KafkaUnavailable(KafkaError):
    pass


class BrokerSuspended(KafkaUnavailable):
    pass


class AuthenticationFailed(KafkaError):
    pass


class ErrorResponse(KafkaError):
    def __init__(self, broker: str, request: str, code: int, reason: str) -> None:
        super().__init__(f"broker {broker} rejected {request}: {reason} (error {code})")
        self.broker = broker
        self.code = code


class OffsetOutOfRange(KafkaError):
    pass


class LogChanged(KafkaError):
    pass


class CorruptBatch(KafkaError):
    """A batch is corrupt. `next_offset` is the offset after it, or None if unknown."""

    def __init__(self, message: str, next_offset: int | None = None) -> None:
        super().__init__(message)
        self.next_offset = next_offset


class MisplacedBatch(CorruptBatch):
    """The base offset of a batch is impossible, or contradicts the neighbouring batches. The checksum does not cover
    the base offset, so the right one is unknown."""


class MalformedMessage(KafkaError):
    """Bytes do not match the API key and version of their message."""
