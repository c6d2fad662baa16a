"""Errors of producers and consumers.

PipelineError
├── ProducerError              fields topic, subject and field; "" if not applicable
│   ├── ProducerClosed         used after close(), or in a forked process
│   ├── SchemaUnavailable      no schema is registered, or the registry gives no usable response
│   ├── SchemaRefused          the given schema is invalid, or the registry rejects it
│   ├── TopicRefused           the brokers reject the topic, or it is missing and they do not create it
│   ├── ValueRefused           the value does not fit the schema
│   ├── KeyRefused             the key cannot be converted to bytes, or a tombstone has no key
│   ├── BrokerUnavailable      no broker responds, or the brokers reject the client
│   ├── DeliveryFailed         one message was not acknowledged (it may still be in the log) or not sent
│   └── FlushFailed            messages were not acknowledged, counted by topic
└── ConsumerError              fields topic, partition and offset
    ├── ConsumerClosed         used after close(), or in a forked process
    ├── SourceUnavailable      broker or registry do not respond or reject a request, or the topic does not exist
    ├── DamagedBatch           a record batch of the log is corrupt; field next_offset
    └── UndecodableMessage     a message does not match its schema or the reader schema, or its schema is not known

Invalid arguments of producers and consumers are a ValueError.
"""

from __future__ import annotations

from collections.abc import Mapping


class PipelineError(Exception):
    """Root of the errors of producers and consumers."""


class ProducerError(PipelineError):
    """A message was not sent or not acknowledged, or the producer cannot be used. `field` is the dotted path of the
    field in the value."""

    def __init__(self, message: str, *, topic: str = "", subject: str = "", field: str = "") -> None:
        super().__init__(message)
        self.topic = topic
        self.subject = subject
        self.field = field


class ProducerClosed(ProducerError):
    """The producer was used after `close`, or in a forked child process."""


class SchemaUnavailable(ProducerError):
    """No schema is available to encode the value: none is registered, or the registry gives no usable response."""


class SchemaRefused(ProducerError):
    """The schema is invalid, or cannot be registered under the topic's subject."""


class TopicRefused(ProducerError):
    """Messages cannot be sent to the topic: its name is invalid, the client has no permission, or it does not exist and
    the brokers do not create it. No schema was registered."""


class ValueRefused(ProducerError):
    """The value does not fit the schema."""


class KeyRefused(ProducerError):
    """The key is not text, bytes or None, it is text without a UTF-8 form, or it is None for a tombstone."""


class BrokerUnavailable(ProducerError):
    """No broker responds at the addresses of the settings, or the brokers reject the client."""


class DeliveryFailed(ProducerError):
    """The brokers did not acknowledge a message. It may still be in the log if only the response was lost.
    `Producer.send` also raises this for a message that it does not send, because the Kafka client rejects it or earlier
    messages failed."""


class FlushFailed(ProducerError):
    """Messages failed since the last flush, or are not acknowledged yet. `failed` counts them by topic."""

    def __init__(self, failed: Mapping[str, int], reason: str) -> None:
        total = sum(failed.values())
        topics = ", ".join(f"{topic}: {count}" for topic, count in sorted(failed.items()))
        super().__init__(
            f"{total} message{'s were' if total > 1 else ' was'} not acknowledged ({topics}): {reason}",
            topic=next(iter(failed)) if len(failed) == 1 else "",
        )
        self.failed = dict(failed)


class ConsumerError(PipelineError):
    """A message could not be returned to the application, or an offset not committed. `topic` is "", and `partition`
    and `offset` are -1, where the error does not name them."""

    def __init__(self, message: str, *, topic: str = "", partition: int = -1, offset: int = -1) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset


class ConsumerClosed(ConsumerError):
    """The consumer was used after `close`, or in a forked child process. A request for a message after `close` raises
    no error: iteration has ended."""


class SourceUnavailable(ConsumerError):
    """Messages cannot be read, or offsets not committed: the brokers or the registry do not respond or reject the
    request, the Kafka client failed, or a topic or partition does not exist or is not read by the consumer."""


class DamagedBatch(ConsumerError):
    """The record batch at `offset` is corrupt, or cannot be decompressed, so none of its messages was returned. Each
    request for a message raises this error again until the application skips the batch with
    `consumer.seek(error.topic, error.partition, error.next_offset)`, or pauses the partition.

    `next_offset` is the offset after the batch, -1 if the bytes of the log do not show it. The application then chooses
    a later offset.
    """

    def __init__(self, reason: str, *, topic: str, partition: int, offset: int, next_offset: int = -1) -> None:
        remedy = (
            f"to continue after it, call seek({topic!r}, {partition}, {next_offset})"
            if next_offset >= 0
            else f"its end is unknown; to continue, call seek({topic!r}, {partition}, …) with a later offset"
        )
        super().__init__(
            f"topic {topic} partition {partition}: the batch at offset {offset} is damaged, its messages cannot be "
            f"read: {reason}; {remedy}",
            topic=topic,
            partition=partition,
            offset=offset,
        )
        self.next_offset = next_offset


class UndecodableMessage(ConsumerError):
    """A message does not match its schema, has a value that the reader schema cannot represent, has no valid schema id,
    or its schema is not registered or cannot be used. `key` and `value` are its bytes. Iteration can continue after
    it."""

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


def error_line(error: object) -> str:
    """Returns the type and the message of an error in one line."""
    name, text = type(error).__name__, " ".join(str(error).split())
    return text if text.startswith(name) else f"{name}: {text}" if text else name
