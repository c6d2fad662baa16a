"""The rate of bytes that a client may send."""

from __future__ import annotations

import pytest

from headrace.gateway.errors import GatewayError
from headrace.gateway.request_body import SWEEP_S, ByteRate


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_client_waits_until_its_bytes_are_made_up_for() -> None:
    clock = Clock()
    rate = ByteRate(100, clock)
    rate.count("a", 100)
    rate.check("a")
    rate.count("a", 300)
    with pytest.raises(GatewayError) as refused:
        rate.check("a")
    assert (refused.value.status, refused.value.retry_after_s) == (429, 3)
    rate.check("b")
    clock.now += 2.5
    assert rate.wait_s("a") == 0.5
    with pytest.raises(GatewayError) as refused:
        rate.check("a")
    assert refused.value.retry_after_s == 1
    clock.now += 0.5
    rate.check("a")
    clock.now += 10
    rate.count("a", 150)  # unused seconds do not add up
    assert rate.wait_s("a") == 0.5


def test_steady_client_below_the_rate_never_waits() -> None:
    clock = Clock()
    rate = ByteRate(100, clock)
    for _ in range(int(3 * SWEEP_S)):
        rate.check("a")
        rate.count("a", 100)
        clock.now += 1
    assert rate.wait_s("a") == 0


def test_sweep_keeps_clients_that_must_wait_and_forgets_others() -> None:
    clock = Clock()
    rate = ByteRate(1, clock)
    rate.count("heavy", 1000)
    rate.count("light", 1)
    clock.now += SWEEP_S + 1
    rate.count("other", 1)
    assert rate.wait_s("heavy") == 1000 - SWEEP_S - 2
    assert rate._paid_at.keys() == {"heavy", "other"}


def test_rate_of_zero_is_no_limit() -> None:
    rate = ByteRate(0)
    rate.count("a", 2**60)
    assert rate.wait_s("a") == 0
