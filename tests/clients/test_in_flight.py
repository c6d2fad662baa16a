"""Messages on their way: none is forgotten, whichever thread finds out first."""

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

from headrace.audit.producer_counter import ProducerCounter, Taking
from headrace.clients.delivery import Delivery
from headrace.clients.errors import FlushFailed
from headrace.clients.in_flight import UNACKNOWLEDGED_BYTES_MAX, InFlight


class Message:
    """What librdkafka says of one that was acknowledged."""

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return 7

    def timestamp(self) -> tuple[int, int]:
        return 1, 99


class Outbox:
    def __init__(self, in_flight: InFlight) -> None:
        self.decided = in_flight.decided.append

    def poll(self, timeout_s: float) -> None:
        pass

    def was_told(self, delivery: Delivery) -> None:
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
    ticket = counter.sent("t", 0, None, b"v")
    delivery = Delivery(Outbox(in_flight), "t", "t-value", 1, cost_bytes, ticket, on_delivery)
    in_flight.added.append(delivery)
    delivery.is_handed_over = True
    return delivery


def settle(in_flight: InFlight) -> None:
    in_flight.settle()
    in_flight.call_back()


def test_what_is_on_its_way_takes_room_until_it_is_decided(counter: ProducerCounter) -> None:
    in_flight = InFlight(counter)
    large = sent(in_flight, counter, UNACKNOWLEDGED_BYTES_MAX)
    small = sent(in_flight, counter, 1)
    assert set(in_flight.pending()) == {large, small}
    assert not in_flight.has_room(1)
    large.decide(None, Message())
    assert large.result(0) == ("t", 3, 7, 99)
    in_flight.settle()
    assert in_flight.pending() == [small]
    assert in_flight.has_room(1)
    in_flight.withdraw(small)
    assert in_flight.pending() == []
    (row,) = counter.take(0, Taking.EVERY)
    assert (row.sent, row.count) == (1, 1)


def test_what_is_being_sent_now_is_not_waited_for(counter: ProducerCounter) -> None:
    in_flight = InFlight(counter)
    delivery = sent(in_flight, counter)
    delivery.is_handed_over = False
    assert in_flight.pending() == []
    delivery.is_handed_over = True
    assert in_flight.pending() == [delivery]


def test_what_was_not_sent_after_all_is_not_waited_for(counter: ProducerCounter) -> None:
    in_flight = InFlight(counter)
    in_flight.withdraw(sent(in_flight, counter, UNACKNOWLEDGED_BYTES_MAX + 1))
    assert in_flight.pending() == []
    assert in_flight.has_room(1)


def test_one_that_is_decided_while_others_are_settled_is_settled_next(
    counter: ProducerCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_flight = InFlight(counter)
    take_added = in_flight._take_added

    def and_another() -> None:
        take_added()
        monkeypatch.setattr(in_flight, "_take_added", take_added)
        sent(in_flight, counter, UNACKNOWLEDGED_BYTES_MAX + 1).decide(None, Message())

    sent(in_flight, counter).decide(None, Message())
    monkeypatch.setattr(in_flight, "_take_added", and_another)
    in_flight.settle()
    assert len(in_flight.pending()) == 1
    assert not in_flight.has_room(1)
    in_flight.settle()
    assert in_flight.pending() == []
    assert in_flight.has_room(1)


def test_threads_that_send_and_settle_at_once_forget_none(counter: ProducerCounter) -> None:
    in_flight, count = InFlight(counter), 3000

    def send() -> None:
        for number in range(count):
            sent(in_flight, counter).decide(None, Message())
            if number % 7 == 0:
                in_flight.settle()

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    in_flight.settle()
    assert in_flight.pending() == []
    (row,) = counter.take(0, Taking.EVERY)
    assert (row.sent, row.count) == (4 * count, 4 * count)


def test_who_waits_hears_when_others_have_called_back(counter: ProducerCounter) -> None:
    in_flight = InFlight(counter)
    begun, release = threading.Event(), threading.Event()
    told: list[Delivery] = []

    def slow(delivery: Delivery) -> None:
        begun.set()
        release.wait(30)
        told.append(delivery)

    assert in_flight.wait_told(0)
    deliveries = [sent(in_flight, counter, on_delivery=slow) for _ in range(2)]
    for delivery in deliveries:
        delivery.decide(None, Message())
    other = threading.Thread(target=settle, args=(in_flight,))
    other.start()
    assert begun.wait(30)
    assert in_flight.pending() == []
    assert not in_flight.wait_told(0)
    threading.Timer(0.1, release.set).start()
    assert in_flight.wait_told(30)
    assert told == deliveries
    other.join()


def test_who_waits_does_not_wait_for_what_comes_later(counter: ProducerCounter) -> None:
    in_flight = InFlight(counter)
    release = [threading.Event(), threading.Event()]
    threads: list[threading.Thread] = []
    found: list[bool] = []

    def call_back(number: int) -> None:
        begun = threading.Event()

        def slow(delivery: Delivery) -> None:
            begun.set()
            release[number].wait(30)

        sent(in_flight, counter, on_delivery=slow).decide(None, Message())
        threads.append(threading.Thread(target=settle, args=(in_flight,)))
        threads[-1].start()
        assert begun.wait(30)

    call_back(0)
    waiting = threading.Thread(target=lambda: found.append(in_flight.wait_told(60)))
    waiting.start()
    while not in_flight._are_told._waiters:  # type: ignore[attr-defined]
        time.sleep(0.001)
    call_back(1)
    release[0].set()
    waiting.join(30)
    assert found == [True]
    assert not in_flight.wait_told(0)
    release[1].set()
    for thread in threads:
        thread.join()


def test_who_is_called_back_does_not_wait_for_itself(counter: ProducerCounter) -> None:
    in_flight = InFlight(counter)
    waited: list[str] = []

    def outer(delivery: Delivery) -> None:
        sent(in_flight, counter, on_delivery=inner).decide(None, Message())
        settle(in_flight)
        assert in_flight.wait_told(60)
        waited.append("outer")

    def inner(delivery: Delivery) -> None:
        assert in_flight.wait_told(60)
        waited.append("inner")

    for on_delivery in (outer, inner):
        sent(in_flight, counter, on_delivery=on_delivery).decide(None, Message())
    settle(in_flight)
    assert waited == ["outer", "inner", "inner"]
    assert in_flight.wait_told(0)
    assert not in_flight._here.is_called_back


def test_what_one_callback_raises_keeps_no_other_from_being_called(
    counter: ProducerCounter, caplog: pytest.LogCaptureFixture
) -> None:
    in_flight = InFlight(counter)

    def fails(delivery: Delivery) -> None:
        raise RuntimeError("of the application")

    def exits(delivery: Delivery) -> None:
        raise SystemExit(3)  # in a thread that others rely on; in the main one it may be of a signal handler

    for on_delivery in (fails, exits, fails):
        sent(in_flight, counter, on_delivery=on_delivery).decide(None, Message())
    with caplog.at_level(logging.ERROR):
        other = threading.Thread(target=settle, args=(in_flight,))
        other.start()
        other.join(30)
    assert caplog.text.count("topic=t") == 3
    assert in_flight.wait_told(0)
    assert not in_flight._here.is_called_back


@pytest.mark.parametrize("error", [TimeoutError, KeyboardInterrupt])
def test_a_signal_handler_that_raises_ends_one_call_and_others_follow(
    counter: ProducerCounter, error: type[BaseException]
) -> None:
    in_flight = InFlight(counter)
    told: list[Delivery] = []

    def handler(number: int, frame: object) -> None:
        raise error

    def interrupted(delivery: Delivery) -> None:
        told.append(delivery)
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        deliveries = [
            sent(in_flight, counter, on_delivery=each) for each in (told.append, interrupted, told.append, told.append)
        ]
        for delivery in deliveries:
            delivery.decide(None, Message())
        with pytest.raises(error):
            settle(in_flight)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert told == deliveries[:2] and not in_flight._here.is_called_back
    other = threading.Thread(target=in_flight.call_back)
    other.start()
    other.join(30)
    assert told == deliveries
    assert in_flight.wait_told(0)


@pytest.mark.parametrize("is_another_sent", [False, True])
def test_those_left_by_a_call_that_was_cut_short_even_in_its_end_follow(
    counter: ProducerCounter, monkeypatch: pytest.MonkeyPatch, is_another_sent: bool
) -> None:
    in_flight = InFlight(counter)
    told: list[Delivery] = []
    give_back = in_flight._give_back

    def cut_short(thread: int) -> None:
        monkeypatch.setattr(in_flight, "_give_back", give_back)
        raise KeyboardInterrupt

    def first(delivery: Delivery) -> None:
        told.append(delivery)
        monkeypatch.setattr(in_flight, "_give_back", cut_short)
        raise KeyboardInterrupt

    deliveries = [sent(in_flight, counter, on_delivery=each) for each in (first, told.append, told.append)]
    for delivery in deliveries:
        delivery.decide(None, Message())
    with pytest.raises(KeyboardInterrupt):
        settle(in_flight)
    assert told == deliveries[:1]
    if is_another_sent:
        deliveries.append(sent(in_flight, counter, on_delivery=told.append))
        deliveries[-1].decide(None, Message())
        settle(in_flight)
    else:
        assert in_flight.wait_told(5)
    assert sorted(told, key=deliveries.index) == deliveries


def test_wherever_a_signal_handler_raises_no_message_is_called_with_twice(counter: ProducerCounter) -> None:
    in_flight = InFlight(counter)
    told: list[Delivery] = []
    cut = 0

    class Stop(BaseException):
        pass

    def handler(number: int, frame: object) -> None:
        raise Stop

    def on_delivery(delivery: Delivery) -> None:
        told.append(delivery)

    before = signal.signal(signal.SIGALRM, handler)
    try:
        for _ in range(300):
            deliveries = [sent(in_flight, counter, on_delivery=on_delivery) for _ in range(300)]
            for delivery in deliveries:
                delivery.decide(None, Message())
            in_flight.settle()
            told.clear()
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00001, 0.0005))
                in_flight.call_back()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Stop:
                cut += 1
            in_flight.call_back()
            missing = set(deliveries) - set(told)
            assert told == [each for each in deliveries if each not in missing]
            assert len(missing) <= 1
            assert in_flight.wait_told(0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert cut


def test_calls_begin_until_there_is_no_time_left(counter: ProducerCounter) -> None:
    in_flight = InFlight(counter)
    told: list[Delivery] = []

    def slow(delivery: Delivery) -> None:
        time.sleep(0.02)
        told.append(delivery)

    for _ in range(20):
        sent(in_flight, counter, on_delivery=slow).decide(None, Message())
    in_flight.settle()
    assert not in_flight.wait_told(0.05)
    assert 1 <= len(told) < 20
    assert in_flight.wait_told(30)
    assert len(set(told)) == len(told) == 20


def test_each_thread_hears_of_the_failures_that_it_has_waited_for(counter: ProducerCounter) -> None:
    in_flight = InFlight(counter)
    failed, other = sent(in_flight, counter), sent(in_flight, counter)
    waited_for = in_flight.pending()
    failed.decide(KafkaError(KafkaError._TIMED_OUT), None)
    other.decide(None, Message())
    for _ in range(2):
        with pytest.raises(FlushFailed) as heard:
            in_flight.raise_failed(waited_for, Counter())
        assert heard.value.failed == {"t": 1}
    in_flight.raise_failed([other], Counter())


def test_a_handler_of_the_log_may_send_itself(counter: ProducerCounter) -> None:
    """It is called with the failure of a message, while nothing is locked."""
    in_flight = InFlight(counter)
    ended: list[bool] = []

    class Ships(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            sender = threading.Thread(target=in_flight.pending, daemon=True)
            sender.start()
            sender.join(5)
            ended.append(not sender.is_alive())

    handler = Ships()
    logging.getLogger("headrace.clients.in_flight").addHandler(handler)
    try:
        sent(in_flight, counter).decide(KafkaError(KafkaError._TIMED_OUT), None)
        in_flight.settle()
    finally:
        logging.getLogger("headrace.clients.in_flight").removeHandler(handler)
    assert ended == [True]
