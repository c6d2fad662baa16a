"""Errors of producers and consumers.

PipelineError
├── ProducerError              topic, subject and field say what it is about, "" where that is nothing
│   ├── ProducerClosed         a message sent after close(), or by a process that was forked off
│   ├── SchemaUnavailable      no schema to encode with: none registered, or the registry cannot be reached
│   ├── SchemaRefused          the schema given is no schema, or the registry does not take it
│   ├── ValueRefused           the value does not fit the schema
│   ├── KeyRefused             the key is no text and no bytes, or a tombstone has none
│   ├── BrokerUnavailable      no broker answers
│   ├── DeliveryFailed         one message did not reach the log, or nobody knows whether it did
│   └── FlushFailed            so many messages of these topics did not
└── ConsumerError              topic, partition and offset say what it is about
    ├── ConsumerClosed         used after close(), or by a process that was forked off
    ├── SourceUnavailable      no broker answers, the registry cannot be reached, or the topic does not exist
    └── UndecodableMessage     a message that is not what its schema says
"""

from __future__ import annotations

from collections.abc import Mapping


class PipelineError(Exception):
    """Root of the package's errors."""


class ProducerError(PipelineError):
    """A message that was not sent; `field` is the path of the field in the value, with dots."""

    def __init__(self, message: str, *, topic: str = "", subject: str = "", field: str = "") -> None:
        super().__init__(message)
        self.topic = topic
        self.subject = subject
        self.field = field


class ProducerClosed(ProducerError):
    """The producer takes no more messages."""


class SchemaUnavailable(ProducerError):
    """There is nothing to encode the value with."""


class SchemaRefused(ProducerError):
    """The schema cannot be registered under the topic's subject."""


class ValueRefused(ProducerError):
    """The value does not fit the schema."""


class KeyRefused(ProducerError):
    """A key is text, bytes or None, and not None where the value is."""


class BrokerUnavailable(ProducerError):
    """No broker answers at the addresses in the settings."""


class DeliveryFailed(ProducerError):
    """The brokers did not acknowledge a message. It may still have arrived when the last answer was lost."""


class FlushFailed(ProducerError):
    """Messages that were not acknowledged since the last flush; `failed` counts them by topic."""

    def __init__(self, failed: Mapping[str, int], reason: str) -> None:
        total = sum(failed.values())
        topics = ", ".join(f"{topic}: {count}" for topic, count in sorted(failed.items()))
        super().__init__(
            f"{total} message{'s were' if total > 1 else ' was'} not acknowledged ({topics}): {reason}",
            topic=next(iter(failed)) if len(failed) == 1 else "",
        )
        self.failed = dict(failed)


class ConsumerError(PipelineError):
    """A message that could not be given out; `partition` and `offset` are -1 where it is not about one."""

    def __init__(self, message: str, *, topic: str = "", partition: int = -1, offset: int = -1) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset


class ConsumerClosed(ConsumerError):
    """The consumer reads no more."""


class SourceUnavailable(ConsumerError):
    """There is nothing to read from."""


class UndecodableMessage(ConsumerError):
    """Iteration can go on after it: the message is passed over. `key` and `value` are its bytes."""

    def __init__(
        self,
        message: str,
        *,
        topic: str = "",
        partition: int = -1,
        offset: int = -1,
        key: bytes | None = None,
        value: bytes | None = None,
    ) -> None:
        super().__init__(message, topic=topic, partition=partition, offset=offset)
        self.key = key
        self.value = value
