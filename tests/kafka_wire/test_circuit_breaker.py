"""The circuit breaker of a broker: suspension, trials and reset."""

from __future__ import annotations

import pytest

from headrace.kafka_wire.circuit_breaker import COOL_DOWN_S, COOL_DOWN_S_MAX, FAILURES_MAX, CircuitBreaker
from headrace.kafka_wire.cluster import ATTEMPTS
from headrace.kafka_wire.errors import BrokerSuspended


def failed_breaker(times: int, now: float = 0.0) -> CircuitBreaker:
    breaker = CircuitBreaker()
    for _ in range(times):
        breaker.check(now)
        breaker.record_failure("no route to b:1", now)
    return breaker


def allows_requests(breaker: CircuitBreaker, now: float) -> bool:
    try:
        breaker.check(now)
    except BrokerSuspended:
        return False
    return True


def test_breaker_allows_all_attempts_of_one_request() -> None:
    assert FAILURES_MAX == ATTEMPTS
    assert allows_requests(failed_breaker(FAILURES_MAX - 1), 0.0)
    with pytest.raises(BrokerSuspended, match=r"^no route to b:1$"):
        failed_breaker(FAILURES_MAX).check(0.0)


def test_failed_trials_double_the_cool_down_up_to_a_maximum() -> None:
    breaker, now, waits = failed_breaker(FAILURES_MAX), 0.0, []
    for _ in range(6):
        start = now
        while not allows_requests(breaker, now):
            now += COOL_DOWN_S / 2
        waits.append(now - start)
        breaker.record_failure("still none", now)
    assert waits == [COOL_DOWN_S * factor for factor in (1, 2, 4, 8)] + [COOL_DOWN_S_MAX] * 2


def test_success_resets_the_breaker() -> None:
    breaker = failed_breaker(FAILURES_MAX)
    breaker.record_failure("and again", COOL_DOWN_S)
    breaker.record_success()
    for _ in range(FAILURES_MAX):
        assert allows_requests(breaker, 100.0)
        breaker.record_failure("no route", 100.0)
    assert not allows_requests(breaker, 100.0 + COOL_DOWN_S - 1)
    assert allows_requests(breaker, 100.0 + COOL_DOWN_S)
