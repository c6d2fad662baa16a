"""What can go wrong between us and brokers.

KafkaError
├── KafkaUnavailable        none of them answers
│   └── BrokerPutOff        one failed so often that it is not asked for a while
├── AuthenticationRefused   one side does not take the other for who it should be; trying again would change nothing
├── RequestRefused          a broker answered with an error code
├── OffsetOutOfRange        the log does not hold the offset
├── LogChanged              the topic was re-created, or its leader changed since it was last asked about
├── CorruptBatch            bytes that are not the record batch they claim to be
│   └── MisplacedBatch      it is whole, and claims offsets that it cannot have
└── MalformedMessage        bytes that are not the request or answer they should be
"""

from __future__ import annotations


class KafkaError(Exception):
    """Root of the package's errors; the message is one line for people."""


class KafkaUnavailable(KafkaError):
    pass


class BrokerPutOff(KafkaUnavailable):
    pass


class AuthenticationRefused(KafkaError):
    pass


class RequestRefused(KafkaError):
    def __init__(self, broker: str, request: str, code: int, reason: str) -> None:
        super().__init__(f"broker {broker} refused {request}: {reason} (error {code})")
        self.broker = broker
        self.code = code


class OffsetOutOfRange(KafkaError):
    pass


class LogChanged(KafkaError):
    pass


class CorruptBatch(KafkaError):
    """`next_offset` is the offset after the batch where that is known all the same, else None."""

    def __init__(self, message: str, next_offset: int | None = None) -> None:
        super().__init__(message)
        self.next_offset = next_offset


class MisplacedBatch(CorruptBatch):
    """The checksum does not cover the base offset: the neighbours tell that it is wrong, and nobody what is right."""


class MalformedMessage(KafkaError):
    """Bytes that do not match the API key and version they were sent under."""
