"""Messages in flight: each is tracked until it is acknowledged or failed, with any number of threads."""

from __future__ import annotations

import logging
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import KafkaError

from headrace.audit.count import message_hash
from headrace.audit.producer_counter import ProducerCounter, RowSelection
from headrace.clients.delivery import Delivery
from headrace.clients.errors import FlushFailed
from headrace.clients.in_flight import UNACKNOWLEDGED_BYTES_MAX, InFlight

HASH = message_hash(None, b"v")


class Message:
    """An acknowledged message of librdkafka."""

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return 7

    def timestamp(self) -> tuple[int, int]:
        return 1, 99

    def latency(self) -> float:
        return 0.25


class StubSender:
    def __init__(self, in_flight: InFlight) -> None:
        self.completed = in_flight.completed.append

    def poll(self, timeout_s: float) -> None:
        pass

    def mark_reported(self, delivery: Delivery) -> None:
        pass


@pytest.fixture
def counter() -> Iterator[ProducerCounter]:
    counter = ProducerCounter("shop", spool_dir=None)
    yield counter
    counter.close()


def sent(
    in_flight: InFlight,
    counter: ProducerCounter,
    cost_bytes: int = 1000,
    on_delivery: Callable[[Delivery], None] | None = None,
) -> Delivery:
    row, digest = counter.count("t", 0, None, b"v", has_time=True)
    delivery = Delivery(StubSender(in_flight), "t", "t-value", 1, cost_bytes, row, digest, on_delivery)
    in_flight.added.append(delivery)
    delivery.is_handed_over = True
    return delivery


def process_completed(in_flight: InFlight) -> None:
    in_flight.process_completed()
    in_flight.run_callbacks()


def test_message_in_flight_takes_capacity_until_it_is_completed(counter: ProducerCounter) -> None:
    in_flight = InFlight(counter)
    large = sent(in_flight, counter, UNACKNOWLEDGED_BYTES_MAX)
    small = sent(in_flight, counter, 1)
    assert set(in_flight.pending()) == {large, small}
    assert not in_flight.has_capacity(1)
    large.complete(None, Message())
    assert large.result(0) == ("t", 3, 7, 99)
    in_flight.process_completed()
    assert in_flight.pending() == [small]
    assert in_flight.has_capacity(1)
    in_flight.withdraw(small)
    assert in_flight.pending() == []
    (row,) = counter.take_rows(0, RowSelection.ALL)
    assert (row.sent, row.count) == (1, 1)


def test_pending_excludes_messages_not_yet_handed_over(counter: ProducerCounter) -> None:
    in_flight = InFlight(counter)
    delivery = sent(in_flight, counter)
    delivery.is_handed_over = False
    assert in_flight.pending() == []
    delivery.is_handed_over = True
    assert in_flight.pending() == [delivery]


def test_withdrawn_message_is_not_pending(counter: ProducerCounter) -> None:
    in_flight = InFlight(counter)
    in_flight.withdraw(sent(in_flight, counter, UNACKNOWLEDGED_BYTES_MAX + 1))
    assert in_flight.pending() == []
    assert in_flight.has_capacity(1)


def test_message_completed_during_processing_is_processed_next_time(
    counter: ProducerCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_flight = InFlight(counter)
    move_added = in_flight._move_added

    def complete_another_first() -> None:
        move_added()
        monkeypatch.setattr(in_flight, "_move_added", move_added)
        sent(in_flight, counter, UNACKNOWLEDGED_BYTES_MAX + 1).complete(None, Message())

    sent(in_flight, counter).complete(None, Message())
    monkeypatch.setattr(in_flight, "_move_added", complete_another_first)
    in_flight.process_completed()
    assert len(in_flight.pending()) == 1
    assert not in_flight.has_capacity(1)
    in_flight.process_completed()
    assert in_flight.pending() == []
    assert in_flight.has_capacity(1)


def test_concurrent_threads_lose_no_message(counter: ProducerCounter) -> None:
    in_flight, count = InFlight(counter), 3000

    def send() -> None:
        for number in range(count):
            sent(in_flight, counter).complete(None, Message())
            if number % 7 == 0:
                in_flight.process_completed()

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    in_flight.process_completed()
    assert in_flight.pending() == []
    (row,) = counter.take_rows(0, RowSelection.ALL)
    assert (row.sent, row.count) == (4 * count, 4 * count)


def test_wait_for_callbacks_waits_for_calls_in_other_threads(counter: ProducerCounter) -> None:
    in_flight = InFlight(counter)
    started, release = threading.Event(), threading.Event()
    called: list[Delivery] = []

    def slow(delivery: Delivery) -> None:
        started.set()
        release.wait(30)
        called.append(delivery)

    assert in_flight.wait_for_callbacks(0)
    deliveries = [sent(in_flight, counter, on_delivery=slow) for _ in range(2)]
    for delivery in deliveries:
        delivery.complete(None, Message())
    other = threading.Thread(target=process_completed, args=(in_flight,))
    other.start()
    assert started.wait(30)
    assert in_flight.pending() == []
    assert not in_flight.wait_for_callbacks(0)
    threading.Timer(0.1, release.set).start()
    assert in_flight.wait_for_callbacks(30)
    assert called == deliveries
    other.join()


def test_wait_for_callbacks_ignores_later_messages(counter: ProducerCounter) -> None:
    in_flight = InFlight(counter)
    release = [threading.Event(), threading.Event()]
    threads: list[threading.Thread] = []
    found: list[bool] = []

    def run_callbacks(number: int) -> None:
        started = threading.Event()

        def slow(delivery: Delivery) -> None:
            started.set()
            release[number].wait(30)

        sent(in_flight, counter, on_delivery=slow).complete(None, Message())
        threads.append(threading.Thread(target=process_completed, args=(in_flight,)))
        threads[-1].start()
        assert started.wait(30)

    run_callbacks(0)
    waiting = threading.Thread(target=lambda: found.append(in_flight.wait_for_callbacks(60)))
    waiting.start()
    while not in_flight._callbacks_done._waiters:  # type: ignore[attr-defined]
        time.sleep(0.001)
    run_callbacks(1)
    release[0].set()
    waiting.join(30)
    assert found == [True]
    assert not in_flight.wait_for_callbacks(0)
    release[1].set()
    for thread in threads:
        thread.join()


def test_wait_inside_a_callback_returns_at_once(counter: ProducerCounter) -> None:
    in_flight = InFlight(counter)
    waited: list[str] = []

    def outer(delivery: Delivery) -> None:
        sent(in_flight, counter, on_delivery=inner).complete(None, Message())
        process_completed(in_flight)
        assert in_flight.wait_for_callbacks(60)
        waited.append("outer")

    def inner(delivery: Delivery) -> None:
        assert in_flight.wait_for_callbacks(60)
        waited.append("inner")

    for on_delivery in (outer, inner):
        sent(in_flight, counter, on_delivery=on_delivery).complete(None, Message())
    process_completed(in_flight)
    assert waited == ["outer", "inner", "inner"]
    assert in_flight.wait_for_callbacks(0)
    assert not in_flight._thread_state.is_in_callback


def test_exception_of_a_callback_does_not_prevent_others(
    counter: ProducerCounter, caplog: pytest.LogCaptureFixture
) -> None:
    in_flight = InFlight(counter)

    def fails(delivery: Delivery) -> None:
        raise RuntimeError("of the application")

    def exits(delivery: Delivery) -> None:
        raise SystemExit(3)  # in another thread; in the main thread a signal handler may have raised it

    for on_delivery in (fails, exits, fails):
        sent(in_flight, counter, on_delivery=on_delivery).complete(None, Message())
    with caplog.at_level(logging.ERROR):
        other = threading.Thread(target=process_completed, args=(in_flight,))
        other.start()
        other.join(30)
    assert caplog.text.count("topic=t") == 3
    assert in_flight.wait_for_callbacks(0)
    assert not in_flight._thread_state.is_in_callback


@pytest.mark.parametrize("error", [TimeoutError, KeyboardInterrupt])
def test_signal_handler_that_raises_interrupts_one_callback_only(
    counter: ProducerCounter, error: type[BaseException]
) -> None:
    in_flight = InFlight(counter)
    called: list[Delivery] = []

    def handler(number: int, frame: object) -> None:
        raise error

    def raise_signal(delivery: Delivery) -> None:
        called.append(delivery)
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        deliveries = [
            sent(in_flight, counter, on_delivery=each)
            for each in (called.append, raise_signal, called.append, called.append)
        ]
        for delivery in deliveries:
            delivery.complete(None, Message())
        with pytest.raises(error):
            process_completed(in_flight)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert called == deliveries[:2] and not in_flight._thread_state.is_in_callback
    other = threading.Thread(target=in_flight.run_callbacks)
    other.start()
    other.join(30)
    assert called == deliveries
    assert in_flight.wait_for_callbacks(0)


@pytest.mark.parametrize("is_another_sent", [False, True])
def test_callbacks_continue_after_an_interrupted_requeue(
    counter: ProducerCounter, monkeypatch: pytest.MonkeyPatch, is_another_sent: bool
) -> None:
    in_flight = InFlight(counter)
    called: list[Delivery] = []
    requeue_callbacks = in_flight._requeue_callbacks

    def interrupt(thread: int) -> None:
        monkeypatch.setattr(in_flight, "_requeue_callbacks", requeue_callbacks)
        raise KeyboardInterrupt

    def first(delivery: Delivery) -> None:
        called.append(delivery)
        monkeypatch.setattr(in_flight, "_requeue_callbacks", interrupt)
        raise KeyboardInterrupt

    deliveries = [sent(in_flight, counter, on_delivery=each) for each in (first, called.append, called.append)]
    for delivery in deliveries:
        delivery.complete(None, Message())
    with pytest.raises(KeyboardInterrupt):
        process_completed(in_flight)
    assert called == deliveries[:1]
    if is_another_sent:
        deliveries.append(sent(in_flight, counter, on_delivery=called.append))
        deliveries[-1].complete(None, Message())
        process_completed(in_flight)
    else:
        assert in_flight.wait_for_callbacks(5)
    assert sorted(called, key=deliveries.index) == deliveries


def test_signal_at_any_time_causes_no_duplicate_callback(counter: ProducerCounter) -> None:
    in_flight = InFlight(counter)
    called: list[Delivery] = []
    cut = 0

    class Stop(BaseException):
        pass

    def handler(number: int, frame: object) -> None:
        raise Stop

    def on_delivery(delivery: Delivery) -> None:
        called.append(delivery)

    before = signal.signal(signal.SIGALRM, handler)
    try:
        for _ in range(300):
            deliveries = [sent(in_flight, counter, on_delivery=on_delivery) for _ in range(300)]
            for delivery in deliveries:
                delivery.complete(None, Message())
            in_flight.process_completed()
            called.clear()
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00001, 0.0005))
                in_flight.run_callbacks()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Stop:
                cut += 1
            in_flight.run_callbacks()
            missing = set(deliveries) - set(called)
            assert called == [each for each in deliveries if each not in missing]
            assert len(missing) <= 1
            assert in_flight.wait_for_callbacks(0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert cut


def test_no_callback_begins_after_the_timeout(counter: ProducerCounter) -> None:
    in_flight = InFlight(counter)
    called: list[Delivery] = []

    def slow(delivery: Delivery) -> None:
        time.sleep(0.02)
        called.append(delivery)

    for _ in range(20):
        sent(in_flight, counter, on_delivery=slow).complete(None, Message())
    in_flight.process_completed()
    assert not in_flight.wait_for_callbacks(0.05)
    assert 1 <= len(called) < 20
    assert in_flight.wait_for_callbacks(30)
    assert len(set(called)) == len(called) == 20


def test_each_flush_reports_the_failures_it_waited_for(counter: ProducerCounter) -> None:
    in_flight = InFlight(counter)
    failed, other = sent(in_flight, counter), sent(in_flight, counter)
    awaited = in_flight.pending()
    failed.complete(KafkaError(KafkaError._TIMED_OUT), None)
    other.complete(None, Message())
    for _ in range(2):
        with pytest.raises(FlushFailed) as caught:
            in_flight.raise_failed(awaited, Counter())
        assert caught.value.failed == {"t": 1}
    in_flight.raise_failed([other], Counter())


def test_messages_are_counted_as_sent_acknowledged_or_failed(counter: ProducerCounter) -> None:
    in_flight = InFlight(counter)
    acknowledged, failed, withdrawn = (sent(in_flight, counter) for _ in range(3))
    uncounted = [Delivery(StubSender(in_flight), "t", "", 1, 1, None, b"", None) for _ in range(2)]
    in_flight.added.extend(uncounted)
    in_flight.withdraw(withdrawn)
    for delivery, error in ((acknowledged, None), (failed, 1), (uncounted[0], None), (uncounted[1], 1)):
        delivery.complete(None if error is None else KafkaError(KafkaError._TIMED_OUT), Message())
    in_flight.process_completed()
    (row,) = counter.take_rows(0, RowSelection.ALL)
    assert (row.sent, row.count, row.bytes, row.fingerprint, row.errors) == (2, 1, 1, HASH, 1)


def test_acknowledgement_after_the_row_was_taken_is_counted_in_a_new_row(counter: ProducerCounter) -> None:
    in_flight = InFlight(counter)
    delivery = sent(in_flight, counter)
    assert [(row.sent, row.count) for row in counter.take_rows(0, RowSelection.ALL)] == [(1, 0)]
    delivery.complete(None, Message())
    in_flight.process_completed()
    (row,) = counter.take_rows(0, RowSelection.ALL)
    assert (row.sent, row.count, row.bytes, row.fingerprint, row.latency_max_ms) == (0, 1, 1, HASH, 250)


def test_log_handler_may_use_the_producer(counter: ProducerCounter) -> None:
    """The handler receives the failure of a message while no lock is held."""
    in_flight = InFlight(counter)
    ended: list[bool] = []

    class SendingHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            sender = threading.Thread(target=in_flight.pending, daemon=True)
            sender.start()
            sender.join(5)
            ended.append(not sender.is_alive())

    handler = SendingHandler()
    logging.getLogger("headrace.clients.in_flight").addHandler(handler)
    try:
        sent(in_flight, counter).complete(KafkaError(KafkaError._TIMED_OUT), None)
        in_flight.process_completed()
    finally:
        logging.getLogger("headrace.clients.in_flight").removeHandler(handler)
    assert ended == [True]
