"""Where a message landed: what `Producer.send` returns."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from headrace.audit.producer_counter import Ticket
from headrace.clients.errors import DeliveryFailed
from headrace.clients.kafka_client import error_text

POLL_S: Final = 0.05
"""How long one look for acknowledgements waits; another thread may have taken the one that was waited for."""


class Landed(NamedTuple):
    """The place of an acknowledged message; `timestamp_ms` is the record's, as the broker keeps it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class Outbox(Protocol):
    """The producer that a message is on its way from."""

    decided: Callable[[Delivery], None]
    """Is told of each message that was acknowledged or failed."""

    def poll(self, timeout_s: float) -> None:
        """Takes what the brokers have answered."""

    def was_told(self, delivery: Delivery) -> None:
        """The application has seen that this one failed."""


class Delivery:
    """A message on its way. `ticket` is for the audit, None for what is not counted."""

    __slots__ = (
        "_outbox",
        "cost_bytes",
        "error",
        "failed_in",
        "is_called",
        "is_decided",
        "is_handed_over",
        "is_told",
        "landed",
        "on_delivery",
        "size_bytes",
        "subject",
        "ticket",
        "topic",
    )

    def __init__(
        self,
        outbox: Outbox,
        topic: str,
        subject: str,
        size_bytes: int,
        cost_bytes: int,
        ticket: Ticket | None,
        on_delivery: Callable[[Delivery], None] | None,
    ) -> None:
        self._outbox = outbox
        self.topic = topic
        self.subject = subject
        self.size_bytes = size_bytes
        self.cost_bytes = cost_bytes
        self.ticket = ticket
        self.on_delivery = on_delivery
        self.landed: tuple[int, int, int] | None = None
        self.error: Any = None
        self.failed_in: float = math.inf
        """The number of the flush that hears of its failure first; later than all where it has not failed."""
        self.is_handed_over = self.is_decided = self.is_told = False
        self.is_called = False
        """Whether its `on_delivery` has begun."""

    def decide(self, error: Any, message: Any) -> None:
        """The callback of the Kafka client."""
        if error is None:
            self.landed = (message.partition(), message.offset(), message.timestamp()[1])
        else:
            self.error = error
        self._outbox.decided(self)
        self.is_decided = True  # last: whoever sees it finds this message among those that `decided` was told

    def done(self) -> bool:
        """Whether it is decided: acknowledged or failed."""
        return self.is_decided

    def failure(self) -> DeliveryFailed | None:
        """Why it failed, when it has."""
        if self.error is None:
            return None
        self._outbox.was_told(self)
        return DeliveryFailed(
            f"topic {self.topic}: the message was not acknowledged: {error_text(self.error)}",
            topic=self.topic,
            subject=self.subject,
        )

    def result(self, timeout_s: float | None = None) -> Landed:
        """Waits for the acknowledgement.

        Raises:
            DeliveryFailed: the brokers did not acknowledge it.
            TimeoutError: it is not decided within `timeout_s`; it may still arrive.
        """
        if not self.wait(timeout_s):
            raise TimeoutError(
                f"topic {self.topic}: no acknowledgement within {timeout_s} s; the message may still arrive"
            )
        failure = self.failure()
        if failure is not None:
            raise failure
        assert self.landed is not None
        return Landed(self.topic, *self.landed)

    def wait(self, timeout_s: float | None) -> bool:
        """Waits until it is decided, and says whether it is."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self.done():
            left_s = POLL_S if deadline is None else deadline - time.monotonic()
            if left_s < 0:
                return False
            self._outbox.poll(min(left_s, POLL_S))
        return True
