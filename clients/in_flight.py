"""Tracks the messages in flight of a producer, their callbacks, and failures that must be reported."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable
from operator import attrgetter
from typing import Final

from headrace.audit.producer_counter import ProducerCounter
from headrace.clients.delivery import Delivery
from headrace.clients.errors import DeliveryFailed, FlushFailed
from headrace.clients.kafka_client import error_text
from headrace.clients.signal_safety import is_from_signal_handler

logger = logging.getLogger(__name__)

CHECK_EVERY_MESSAGES: Final = 512
"""Number of messages between two polls for acknowledgements in `send`."""
LARGE_BYTES: Final = 32 * 1024
"""A message with at least this `cost_bytes` triggers a poll at once."""

UNACKNOWLEDGED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Memory limit for messages in flight, above which `send` blocks. `send` checks it periodically, so it may be exceeded
by `CHECK_EVERY_MESSAGES` messages below `LARGE_BYTES` and by one large message per thread."""

LOG_FAILURES_EVERY_S: Final = 5.0
_COST_BYTES: Final = attrgetter("cost_bytes")
NOT_ACKNOWLEDGED: Final = "not acknowledged in time; they may still arrive"


class _ThreadState(threading.local):
    """A value per thread: whether the thread is running an `on_delivery` callback."""

    is_in_callback = False


class InFlight:
    """The messages in flight of one producer. Thread-safe.

    A sending thread appends a message to `added` before it passes the message to the Kafka client. While the Kafka
    client is polled, it appends acknowledged and failed messages to `completed`. `process_completed` consumes both
    queues.

    Args:
        counter: the producer's audit counts. Acknowledged messages are recorded in it, and messages that the Kafka
            client did not accept are removed.
    """

    def __init__(self, counter: ProducerCounter) -> None:
        self._counter = counter
        self._pending: set[Delivery] = set()
        self._bytes = 0
        self.added: deque[Delivery] = deque()
        self.completed: deque[Delivery] = deque()
        self._failed: Counter[str] = Counter()
        """Messages that failed since the last flush, by topic."""
        self._flush_number = 0
        self._failure = ""
        self.unreported: Counter[str] = Counter()
        """Failed messages that were not reported to the application, by topic."""
        self._unlogged: Counter[str] = Counter()
        self._logged_at = float("-inf")
        self._lock = threading.Lock()
        self._callback_queue: deque[Delivery] = deque()
        """Messages that wait for a call of `on_delivery`."""
        self._running_callbacks: dict[int, deque[Delivery]] = {}
        """By thread id, the messages that the thread passes to `on_delivery`, in order. The first call is running."""
        self._callbacks_done = threading.Condition(self._lock)
        self._thread_state = _ThreadState()

    def withdraw(self, delivery: Delivery) -> None:
        """Removes the message `delivery` from the messages in flight, because the Kafka client did not accept it."""
        with self._lock:
            self._move_added()
            self._pending.discard(delivery)
            self._bytes -= delivery.cost_bytes
        if delivery.row is not None:
            self._counter.withdraw_from(delivery.row)

    def has_capacity(self, message_bytes: int) -> bool:
        """Returns whether the messages in flight fit into the memory limit. They include the message that is about to
        be sent, which has `message_bytes` and may exceed the limit on its own."""
        return self._bytes <= max(UNACKNOWLEDGED_BYTES_MAX, message_bytes)

    def pending(self) -> list[Delivery]:
        """Returns the messages that were passed to the Kafka client, and for which no acknowledgement or failure was
        processed yet."""
        with self._lock:
            self._move_added()
            return [delivery for delivery in self._pending if delivery.is_handed_over]

    def process_completed(self) -> None:
        """Processes acknowledged and failed messages; the caller must call `run_callbacks` afterwards."""
        now_ms = time.time() * 1000
        with self._lock:
            # Before `_move_added`: messages that are completed at this moment were added before it.
            completed = len(self.completed)
            self._move_added()
            for _ in range(completed):
                delivery = self.completed.popleft()
                self._bytes -= delivery.cost_bytes
                self._pending.discard(delivery)
                if delivery.on_delivery is not None:
                    self._callback_queue.append(delivery)
                row = delivery.row
                if delivery.error is not None:
                    self._record_failure(delivery)
                    if row is not None:
                        self._counter.count_failed_in(row)
                elif row is not None:
                    acknowledge = row.acknowledge  # CPython 3.11 looks up a slot in a method call for 30 ns
                    if not acknowledge(delivery.digest, delivery.latency_s, now_ms):
                        self._counter.acknowledge_in(row, delivery.digest, delivery.latency_s, now_ms)
        self.log_failures(only_when_due=True)

    def run_callbacks(self, deadline: float = math.inf) -> None:
        """Calls `on_delivery` in the current thread for each acknowledged or failed message for which it was not called
        yet. Begins no call after the time `deadline` on the monotonic clock.

        Does nothing inside an `on_delivery`, because the outer call continues with the next message. If a signal
        handler raises, it interrupts at most the running call; the other messages wait for the next call of this
        method.
        """
        thread = threading.get_ident()
        while self._callback_queue and not self._thread_state.is_in_callback and time.monotonic() < deadline:
            empty: deque[Delivery] = deque()
            try:
                with self._lock:
                    self._requeue_callbacks(thread)  # left by an interrupted call
                    # A signal handler may raise after each function call; there is none between these two lines.
                    running = self._running_callbacks[thread] = self._callback_queue
                    self._callback_queue = empty
                while running and time.monotonic() < deadline:
                    self._call(running[0])
                    running.popleft()
            finally:
                self._thread_state.is_in_callback = False
                with self._lock:
                    self._requeue_callbacks(thread)

    def _call(self, delivery: Delivery) -> None:
        assert delivery.on_delivery is not None
        self._thread_state.is_in_callback = delivery.is_callback_started = True
        try:
            delivery.on_delivery(delivery)
        except BaseException as error:
            if is_from_signal_handler(error):
                raise
            logger.exception("on_delivery failed topic=%s", delivery.topic)
        finally:
            self._thread_state.is_in_callback = False

    def _requeue_callbacks(self, thread: int) -> None:
        """Returns the messages that `thread` has taken, but not passed to `on_delivery`, to the front of the queue. The
        caller must hold the lock."""
        running = self._running_callbacks.get(thread)
        if running is None:
            return
        left = deque(each for each in running if not each.is_callback_started)
        left.extend(self._callback_queue)
        self._callbacks_done.notify_all()
        self._callback_queue = left
        del self._running_callbacks[thread]

    def wait_for_callbacks(self, timeout_s: float) -> bool:
        """Waits until `on_delivery` has returned for all messages that are queued or running now. Returns False if it
        has not within `timeout_s`.

        Does not wait inside an `on_delivery`, which could otherwise wait for itself.
        """
        if self._thread_state.is_in_callback:
            return True
        deadline = time.monotonic() + timeout_s
        with self._lock:
            self._requeue_callbacks(threading.get_ident())
            awaited = set(self._callback_queue).union(*self._running_callbacks.values())
        self.run_callbacks(deadline)
        with self._lock:
            return self._callbacks_done.wait_for(
                lambda: all(map(awaited.isdisjoint, (self._callback_queue, *self._running_callbacks.values()))),
                max(0.0, deadline - time.monotonic()),
            )

    def _move_added(self) -> None:
        added = [self.added.popleft() for _ in range(len(self.added))]
        self._pending.update(added)
        self._bytes += sum(map(_COST_BYTES, added))

    def mark_reported(self, delivery: Delivery) -> None:
        """Records that the application has received the error of the failed message `delivery`, so that the error is
        not reported again."""
        with self._lock:
            if not delivery.is_reported:
                delivery.is_reported = True
                self.unreported -= Counter({delivery.topic: 1})

    def raise_unreported(self, topic: str) -> None:
        """Raises DeliveryFailed if earlier messages failed and no call has reported this to the application. Called at
        the start of a `send`.

        Args:
            topic: the topic of the message to be sent, for the error.
        """
        with self._lock:
            unreported, self.unreported = +self.unreported, Counter()
        if unreported:
            raise DeliveryFailed(
                f"the message was not sent, because earlier messages failed: {FlushFailed(unreported, self._failure)}",
                topic=topic,
            )

    def raise_failed(self, awaited: Iterable[Delivery], incomplete: Counter[str]) -> None:
        """Ends a flush: raises FlushFailed if messages failed since the last flush or are not acknowledged.

        Args:
            awaited: messages that this flush waited for. A failed one is reported even if a flush in another thread
                already reported it.
            incomplete: number of messages by topic that are still not acknowledged.
        """
        self.process_completed()
        with self._lock:
            failed, self._failed = self._failed, Counter()
            failed.update(delivery.topic for delivery in awaited if delivery.failed_in_flush < self._flush_number)
            self._flush_number += 1
            self.unreported.clear()
        self.log_failures(only_when_due=False)
        if failed or incomplete:
            raise FlushFailed(failed + incomplete, self._failure if failed else NOT_ACKNOWLEDGED)

    def log_failures(self, *, only_when_due: bool) -> None:
        """Logs the number of failed messages of each topic that were not logged yet. With `only_when_due`, does so at
        most every `LOG_FAILURES_EVERY_S`.

        The caller must not hold the lock, because a log handler may send with the same producer.
        """
        if not self._unlogged or (only_when_due and not self._is_log_due()):
            return
        with self._lock:
            self._logged_at = time.monotonic()
            unlogged, self._unlogged = self._unlogged, Counter()
            failure = self._failure
        for topic, count in unlogged.items():
            logger.error("messages not acknowledged topic=%s messages=%d error=%s", topic, count, failure)

    def _record_failure(self, delivery: Delivery) -> None:
        self._failed[delivery.topic] += 1
        delivery.failed_in_flush = self._flush_number
        self._failure = error_text(delivery.error)
        self._unlogged[delivery.topic] += 1
        if delivery.on_delivery is None:
            self.unreported[delivery.topic] += 1
        else:
            delivery.is_reported = True

    def _is_log_due(self) -> bool:
        return time.monotonic() - self._logged_at >= LOG_FAILURES_EVERY_S
