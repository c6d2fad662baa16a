"""The messages of a producer that are on their way, and those that failed of which somebody must hear."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable
from operator import attrgetter
from typing import Final

from headrace.audit.producer_counter import ProducerCounter, Ticket
from headrace.clients.delivery import Delivery
from headrace.clients.errors import DeliveryFailed, FlushFailed
from headrace.clients.kafka_client import error_text
from headrace.clients.uninterrupted import may_be_of_handler

logger = logging.getLogger(__name__)

LOOK_EVERY: Final = 512
"""Messages between two looks at which of them were acknowledged."""
LARGE_BYTES: Final = 32 * 1024
"""A message that takes this much memory has somebody look at once."""

UNACKNOWLEDGED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Memory of the messages on their way at once, which `send` looks at now and then and waits beyond: it may be exceeded
by `LOOK_EVERY` messages below `LARGE_BYTES`, and by a large one a thread."""

LOG_FAILURES_EVERY_S: Final = 5.0
_COST_BYTES: Final = attrgetter("cost_bytes")
LATE: Final = "no acknowledgement in time; they may still arrive"


class _Here(threading.local):
    """Of each thread: whether it is in an `on_delivery`."""

    is_called_back = False


class InFlight:
    """May be used by several threads. Who sends puts a message into `added` before handing it to the Kafka client, and
    the client's threads put what is decided into `decided`; whoever settles takes both from there."""

    def __init__(self, counter: ProducerCounter) -> None:
        self._counter = counter
        self._pending: set[Delivery] = set()
        self._bytes = 0
        self.added: deque[Delivery] = deque()
        self.decided: deque[Delivery] = deque()
        self._failed: Counter[str] = Counter()
        """Messages that failed since the last flush, by topic."""
        self._flush_number = 0
        self._failure = ""
        self.untold: Counter[str] = Counter()
        """Messages that failed and that nobody has been told of, by topic."""
        self._unlogged: Counter[str] = Counter()
        self._logged_at = float("-inf")
        self._settling = threading.Lock()
        self._to_tell: deque[Delivery] = deque()
        """Those that `on_delivery` is to be called with."""
        self._calling: dict[int, deque[Delivery]] = {}
        """Those that it is called with now, or as soon as it returns from others, by thread."""
        self._are_told = threading.Condition(self._settling)
        self._here = _Here()

    def withdraw(self, delivery: Delivery) -> None:
        """It was not sent after all."""
        with self._settling:
            self._take_added()
            self._pending.discard(delivery)
            self._bytes -= delivery.cost_bytes
        if delivery.ticket is not None:
            self._counter.withdraw(delivery.ticket)

    def has_room(self, own_bytes: int) -> bool:
        """For a message of so many bytes among them, which alone may have more than the bound."""
        return self._bytes <= max(UNACKNOWLEDGED_BYTES_MAX, own_bytes)

    def pending(self) -> list[Delivery]:
        """Those that the Kafka client has and has not decided; not those that are being sent now."""
        with self._settling:
            self._take_added()
            return [delivery for delivery in self._pending if delivery.is_handed_over]

    def settle(self) -> None:
        """Counts the messages that were decided; `call_back` is to follow."""
        acknowledged: list[Ticket] = []
        with self._settling:
            # First, since those that are decided by now are among those that were added by now.
            decided = len(self.decided)
            self._take_added()
            for _ in range(decided):
                delivery = self.decided.popleft()
                self._bytes -= delivery.cost_bytes
                self._pending.discard(delivery)
                if delivery.on_delivery is not None:
                    self._to_tell.append(delivery)
                if delivery.error is not None:
                    self._note_failure(delivery)
                elif delivery.ticket is not None:
                    acknowledged.append(delivery.ticket)
            if acknowledged:
                self._counter.acknowledge(acknowledged)
        self.log_failures(only_when_due=True)

    def call_back(self, until: float = math.inf) -> None:
        """Calls `on_delivery` with those that wait for it, one after the other, and begins no call later than `until`.

        In the thread of whoever asks, and not within an `on_delivery`, which others of its thread follow anyway. Where
        a signal handler raises, at most the call that it came upon is cut short; those left wait for who asks next.
        """
        thread = threading.get_ident()
        while self._to_tell and not self._here.is_called_back and time.monotonic() < until:
            none: deque[Delivery] = deque()
            try:
                with self._settling:
                    self._give_back(thread)  # of a time that was cut short even in its end
                    # A handler may raise behind each call, and there is none between these two.
                    calling = self._calling[thread] = self._to_tell
                    self._to_tell = none
                while calling and time.monotonic() < until:
                    self._call(calling[0])
                    calling.popleft()
            finally:
                self._here.is_called_back = False
                with self._settling:
                    self._give_back(thread)

    def _call(self, delivery: Delivery) -> None:
        assert delivery.on_delivery is not None
        self._here.is_called_back = delivery.is_called = True
        try:
            delivery.on_delivery(delivery)
        except BaseException as error:
            if may_be_of_handler(error):
                raise
            logger.exception("on_delivery failed topic=%s", delivery.topic)
        finally:
            self._here.is_called_back = False

    def _give_back(self, thread: int) -> None:
        """While the lock is held: those that this thread has not called with are the next again."""
        calling = self._calling.get(thread)
        if calling is None:
            return
        left = deque(each for each in calling if not each.is_called)
        left.extend(self._to_tell)
        self._are_told.notify_all()
        self._to_tell = left
        del self._calling[thread]

    def wait_told(self, timeout_s: float) -> bool:
        """Waits until `on_delivery` has returned from all that wait for it now or that it is being called with, and
        says whether it has.

        Whoever is in an `on_delivery` does not wait: what it waited for might be itself, or wait for it.
        """
        if self._here.is_called_back:
            return True
        until = time.monotonic() + timeout_s
        with self._settling:
            self._give_back(threading.get_ident())
            telling = set(self._to_tell).union(*self._calling.values())
        self.call_back(until)
        with self._settling:
            return self._are_told.wait_for(
                lambda: all(map(telling.isdisjoint, (self._to_tell, *self._calling.values()))),
                max(0.0, until - time.monotonic()),
            )

    def _take_added(self) -> None:
        added = [self.added.popleft() for _ in range(len(self.added))]
        self._pending.update(added)
        self._bytes += sum(map(_COST_BYTES, added))

    def was_told(self, delivery: Delivery) -> None:
        """The application has seen that this one failed."""
        with self._settling:
            if not delivery.is_told:
                delivery.is_told = True
                self.untold -= Counter({delivery.topic: 1})

    def tell(self, topic: str) -> None:
        """Who wants to send another one hears of what failed and nobody was told of.

        Raises:
            DeliveryFailed: there is such.
        """
        with self._settling:
            untold, self.untold = +self.untold, Counter()
        if untold:
            raise DeliveryFailed(f"not sent, since of those before {FlushFailed(untold, self._failure)}", topic=topic)

    def raise_failed(self, waited_for: Iterable[Delivery], undecided: Counter[str]) -> None:
        """Whoever has waited for all hears of what failed since the last time, of what is not decided, and of those
        waited for that failed, although another thread that waits for them as well may have heard first.

        Raises:
            FlushFailed: there is such.
        """
        self.settle()
        with self._settling:
            failed, self._failed = self._failed, Counter()
            failed.update(delivery.topic for delivery in waited_for if delivery.failed_in < self._flush_number)
            self._flush_number += 1
            self.untold.clear()
        self.log_failures(only_when_due=False)
        if failed or undecided:
            raise FlushFailed(failed + undecided, self._failure if failed else LATE)

    def log_failures(self, *, only_when_due: bool) -> None:
        """Writes what failed and was not logged; now and then when a thread looks, at once at the end.

        Not while the lock is held: a handler of the log may send with the same producer.
        """
        if not self._unlogged or (only_when_due and not self._is_log_due()):
            return
        with self._settling:
            self._logged_at = time.monotonic()
            unlogged, self._unlogged = self._unlogged, Counter()
            failure = self._failure
        for topic, count in unlogged.items():
            logger.error("messages not acknowledged topic=%s messages=%d error=%s", topic, count, failure)

    def _note_failure(self, delivery: Delivery) -> None:
        self._failed[delivery.topic] += 1
        delivery.failed_in = self._flush_number
        self._failure = error_text(delivery.error)
        self._unlogged[delivery.topic] += 1
        if delivery.on_delivery is None:
            self.untold[delivery.topic] += 1
        else:
            delivery.is_told = True

    def _is_log_due(self) -> bool:
        return time.monotonic() - self._logged_at >= LOG_FAILURES_EVERY_S
