"""The state of a sent message, which `Producer.send` returns."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from headrace.audit.open_row import OpenRow
from headrace.clients.errors import DeliveryFailed
from headrace.clients.kafka_client import as_seconds, error_text

POLL_S: Final = 0.05
"""Timeout of one poll while waiting for an acknowledgement. It is short, because another thread may process the
acknowledgement meanwhile."""


class RecordMetadata(NamedTuple):
    """The position of an acknowledged message. `timestamp_ms` is the record timestamp that the broker stored."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class MessageSender(Protocol):
    """The attributes and methods of a producer that a `Delivery` uses."""

    completed: Callable[[Delivery], None]
    """Called with each message that was acknowledged or failed."""

    def poll(self, timeout_s: float) -> None:
        """Processes responses of the brokers; waits up to `timeout_s` for the first one."""

    def mark_reported(self, delivery: Delivery) -> None:
        """Records that the application has received the error of the failed message `delivery`, so that the error is
        not reported again."""


class Delivery:
    """A sent message, and its result as soon as that is known.

    Args:
        sender: the producer that has sent the message.
        size_bytes: bytes of key and value.
        cost_bytes: bytes that count for the producer's memory limit: also headers, and a constant for each message.
        row: the running count of the audit that contains the message; None if the audit does not count it.
        digest: hash and size of the message for the audit; b"" if the audit does not count it.
        on_delivery: called when the message was acknowledged or failed; None calls nothing.
    """

    __slots__ = (
        "_sender",
        "cost_bytes",
        "digest",
        "error",
        "failed_in_flush",
        "is_callback_started",
        "is_complete",
        "is_handed_over",
        "is_reported",
        "latency_s",
        "metadata",
        "on_delivery",
        "row",
        "size_bytes",
        "subject",
        "topic",
    )

    def __init__(
        self,
        sender: MessageSender,
        topic: str,
        subject: str,
        size_bytes: int,
        cost_bytes: int,
        row: OpenRow | None,
        digest: bytes,
        on_delivery: Callable[[Delivery], None] | None,
    ) -> None:
        self._sender = sender
        self.topic = topic
        self.subject = subject
        self.size_bytes = size_bytes
        self.cost_bytes = cost_bytes
        self.row = row
        self.digest = digest
        self.on_delivery = on_delivery
        self.metadata: tuple[int, int, int] | None = None
        self.latency_s: float | None = None
        """Seconds from handing the message to the Kafka client to its acknowledgement."""
        self.error: Any = None
        self.failed_in_flush: float = math.inf
        """Number of the flush that reports the failure of this message; infinite if the message has not failed."""
        self.is_handed_over = self.is_complete = self.is_reported = False
        self.is_callback_started = False
        """Whether the call of `on_delivery` has begun."""

    def complete(self, error: Any, message: Any) -> None:
        """Stores the result of the message. The Kafka client calls this when the message was acknowledged or failed.

        Args:
            error: the client's error; None for an acknowledged message.
            message: the client's message, which contains its partition, offset and timestamp.
        """
        if error is None:
            self.metadata = (message.partition(), message.offset(), message.timestamp()[1])
            self.latency_s = message.latency()
        else:
            self.error = error
        self._sender.completed(self)
        self.is_complete = True  # last, so that a thread that reads it finds this message in `completed`

    def done(self) -> bool:
        """Returns whether the message was acknowledged or failed."""
        return self.is_complete

    def failure(self) -> DeliveryFailed | None:
        """Returns the error of a failed message, else None. The failure then counts as reported: `send` does not report
        it again."""
        if self.error is None:
            return None
        self._sender.mark_reported(self)
        return DeliveryFailed(
            f"topic {self.topic}: the message was not acknowledged: {error_text(self.error)}",
            topic=self.topic,
            subject=self.subject,
        )

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Waits for the acknowledgement.

        Raises:
            DeliveryFailed: the brokers did not acknowledge the message.
            TimeoutError: it is still in flight after `timeout_s`; it may still arrive.
        """
        if not self.wait(timeout_s):
            raise TimeoutError(
                f"topic {self.topic}: no acknowledgement within {timeout_s} s; the message may still arrive"
            )
        failure = self.failure()
        if failure is not None:
            raise failure
        assert self.metadata is not None
        return RecordMetadata(self.topic, *self.metadata)

    def wait(self, timeout_s: float | None) -> bool:
        """Waits until the message was acknowledged or failed. Returns False if neither happened within `timeout_s`."""
        deadline = None if timeout_s is None else time.monotonic() + as_seconds("timeout_s", timeout_s)
        while not self.done():
            left_s = POLL_S if deadline is None else deadline - time.monotonic()
            if left_s < 0:
                return False
            self._sender.poll(min(left_s, POLL_S))
        return True
