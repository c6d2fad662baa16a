"""Errors of producers and consumers.

PipelineError
├── ProducerError              fields topic, subject and field; "" if not applicable
│   ├── ProducerClosed         used after close(), or in a forked process
│   ├── SchemaUnavailable      no schema is registered, or the registry is not reachable
│   ├── SchemaRefused          the given schema is invalid, or the registry rejects it
│   ├── ValueRefused           the value does not fit the schema
│   ├── KeyRefused             the key is neither text nor bytes, or a tombstone has no key
│   ├── BrokerUnavailable      no broker responds
│   ├── DeliveryFailed         one message was not acknowledged; it may still be in the log
│   └── FlushFailed            messages were not acknowledged, counted by topic
└── ConsumerError              fields topic, partition and offset
    ├── ConsumerClosed         used after close(), or in a forked process
    ├── SourceUnavailable      broker or registry are not reachable, or the topic does not exist
    └── UndecodableMessage     a message does not match its schema
"""

from __future__ import annotations

from collections.abc import Mapping


class PipelineError(Exception):
    """Root of the errors of producers and consumers."""


class ProducerError(PipelineError):
    """A message was not sent. `field` is the dotted path of the field in the value."""

    def __init__(self, message: str, *, topic: str = "", subject: str = "", field: str = "") -> None:
        super().__init__(message)
        self.topic = topic
        self.subject = subject
        self.field = field


class ProducerClosed(ProducerError):
    """The producer was used after `close`, or in a forked child process."""


class SchemaUnavailable(ProducerError):
    """No schema is available to encode the value."""


class SchemaRefused(ProducerError):
    """The schema is invalid, or cannot be registered under the topic's subject."""


class ValueRefused(ProducerError):
    """The value does not fit the schema."""


class KeyRefused(ProducerError):
    """The key is not text, bytes or None, or it is None for a tombstone."""


class BrokerUnavailable(ProducerError):
    """No broker responds at the addresses of the settings."""


class DeliveryFailed(ProducerError):
    """The brokers did not acknowledge a message. It may still be in the log if only the response was lost."""


class FlushFailed(ProducerError):
    """Messages were not acknowledged since the last flush. `failed` counts them by topic."""

    def __init__(self, failed: Mapping[str, int], reason: str) -> None:
        total = sum(failed.values())
        topics = ", ".join(f"{topic}: {count}" for topic, count in sorted(failed.items()))
        super().__init__(
            f"{total} message{'s were' if total > 1 else ' was'} not acknowledged ({topics}): {reason}",
            topic=next(iter(failed)) if len(failed) == 1 else "",
        )
        self.failed = dict(failed)


class ConsumerError(PipelineError):
    """A message could not be returned to the application. `partition` and `offset` are -1 if the error concerns no
    single message."""

    def __init__(self, message: str, *, topic: str = "", partition: int = -1, offset: int = -1) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset


class ConsumerClosed(ConsumerError):
    """The consumer was used after `close`, or in a forked child process."""


class SourceUnavailable(ConsumerError):
    """Messages cannot be read: the brokers or the registry are not reachable, or the topic does not exist."""


class UndecodableMessage(ConsumerError):
    """A message does not match its schema. `key` and `value` are its bytes. Iteration can continue after it."""

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
