"""What can go wrong between us and brokers.

KafkaError
├── KafkaUnavailable        none of them answers
│   └── BrokerPutOff        one failed so often that it is not asked for a while
├── RequestRefused          a broker answered with an error code
├── OffsetOutOfRange        the log does not hold the offset
├── LogChanged              the topic was re-created, or its leader changed since it was last asked about
├── CorruptBatch            bytes that are not the record batch they claim to be
└── MalformedMessage        bytes that are not the request or answer they should be
"""

from __future__ import annotations


class KafkaError(Exception):
    """Root of the room's errors; the message is one line for people."""


class KafkaUnavailable(KafkaError):
    pass


class BrokerPutOff(KafkaUnavailable):
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
    pass


class MalformedMessage(KafkaError):
    """Bytes that do not match the API key and version they were sent under."""
