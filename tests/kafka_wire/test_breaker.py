"""When a broker that fails is left alone, and when it is tried again."""

from __future__ import annotations

import pytest

from headrace.kafka_wire.breaker import COOL_DOWN_S, COOL_DOWN_S_MAX, FAILURES_MAX, Breaker
from headrace.kafka_wire.cluster import ATTEMPTS
from headrace.kafka_wire.errors import BrokerPutOff


def failed(times: int, now: float = 0.0) -> Breaker:
    breaker = Breaker()
    for _ in range(times):
        breaker.check(now)
        breaker.failed("no route to b:1", now)
    return breaker


def is_asked(breaker: Breaker, now: float) -> bool:
    try:
        breaker.check(now)
    except BrokerPutOff:
        return False
    return True


def test_one_request_has_all_its_attempts() -> None:
    assert FAILURES_MAX == ATTEMPTS
    assert is_asked(failed(FAILURES_MAX - 1), 0.0)
    with pytest.raises(BrokerPutOff, match=r"^no route to b:1$"):
        failed(FAILURES_MAX).check(0.0)


def test_each_trial_that_fails_doubles_the_wait_up_to_a_maximum() -> None:
    breaker, now, waits = failed(FAILURES_MAX), 0.0, []
    for _ in range(6):
        began = now
        while not is_asked(breaker, now):
            now += COOL_DOWN_S / 2
        waits.append(now - began)
        breaker.failed("still none", now)
    assert waits == [COOL_DOWN_S * factor for factor in (1, 2, 4, 8)] + [COOL_DOWN_S_MAX] * 2


def test_an_answer_makes_up_for_all_failures() -> None:
    breaker = failed(FAILURES_MAX)
    breaker.failed("and again", COOL_DOWN_S)
    breaker.answered()
    for _ in range(FAILURES_MAX):
        assert is_asked(breaker, 100.0)
        breaker.failed("no route", 100.0)
    assert not is_asked(breaker, 100.0 + COOL_DOWN_S - 1)
    assert is_asked(breaker, 100.0 + COOL_DOWN_S)
