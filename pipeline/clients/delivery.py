"""Where a message landed: the futures that `Producer.send` returns."""

from __future__ import annotations

from typing import Any, NamedTuple

from kafka.errors import KafkaError, KafkaTimeoutError

from headrace.audit.producer_counter import Ticket
from headrace.pipeline.clients.errors import DeliveryFailed


class Landed(NamedTuple):
    """The place of an acknowledged message; `timestamp_ms` is the record's, as the broker keeps it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class Delivery:
    """A message on its way. `ticket` is for the audit, None for what is not counted."""

    __slots__ = ("_future", "size_bytes", "subject", "ticket", "topic")

    def __init__(self, future: Any, topic: str, subject: str, size_bytes: int, ticket: Ticket | None) -> None:
        self._future = future
        self.topic = topic
        self.subject = subject
        self.size_bytes = size_bytes
        self.ticket = ticket

    def done(self) -> bool:
        """Whether it is decided: acknowledged or failed."""
        return bool(self._future.is_done)

    def failure(self) -> BaseException | None:
        """Why it failed, when it has."""
        failure: BaseException | None = self._future.exception
        return failure

    def result(self, timeout_s: float | None = None) -> Landed:
        """Waits for the acknowledgement.

        Raises:
            DeliveryFailed: the brokers did not acknowledge it.
            TimeoutError: it is not decided within `timeout_s`; it may still arrive.
        """
        try:
            metadata = self._future.get(timeout_s)
        except KafkaTimeoutError as error:
            if not self._future.is_done:
                raise TimeoutError(
                    f"topic {self.topic}: no acknowledgement within {timeout_s} s; the message may still arrive"
                ) from error
            raise self._failed(error) from error
        except KafkaError as error:
            raise self._failed(error) from error
        return Landed(metadata.topic, metadata.partition, metadata.offset, metadata.timestamp)

    def wait(self, timeout_s: float) -> bool:
        """Waits until it is decided, and says whether it is."""
        try:
            self._future.get(timeout_s)
        except KafkaError:
            return bool(self._future.is_done)
        return True

    def _failed(self, error: BaseException) -> DeliveryFailed:
        return DeliveryFailed(
            f"topic {self.topic}: the message was not acknowledged: {error_text(error)}",
            topic=self.topic,
            subject=self.subject,
        )


def error_text(error: BaseException) -> str:
    """An error of the Kafka client in one line: many of its errors have no text but their name."""
    name, text = type(error).__name__, " ".join(str(error).split())
    return text if text.startswith(name) else f"{name}: {text}" if text else name
