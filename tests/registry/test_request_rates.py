from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.registry.api.request_rates import BURST_S, CLIENTS_MAX, RequestRates


def test_wait_s_is_zero_within_the_burst_and_then_the_time_to_wait() -> None:
    now = 100.0
    rates = RequestRates(2, clock=lambda: now)
    assert [rates.wait_s("a") for _ in range(20)] == [0] * 20
    assert rates.wait_s("a") == 0.5
    assert rates.wait_s("a") == 0.5
    assert rates.wait_s("b") == 0
    now += 0.5
    assert rates.wait_s("a") == 0
    assert rates.wait_s("a") == 0.5


@given(st.floats(0.01, 100), st.lists(st.floats(0, 5), max_size=200))
def test_client_never_exceeds_rate_and_burst(per_second: float, pauses: list[float]) -> None:
    now = 0.0
    rates = RequestRates(per_second, clock=lambda: now)
    allowed = 0
    for pause in pauses:
        now += pause
        allowed += rates.wait_s("a") == 0
    assert allowed <= max(1, (now + BURST_S) * per_second) + 1
    # A client within the rate never has to wait.
    slow = RequestRates(per_second, clock=lambda: now)
    for _ in range(50):
        now += 1.001 / per_second + 1e-9
        assert slow.wait_s("b") == 0


def test_least_recently_seen_clients_are_evicted() -> None:
    rates = RequestRates(1e6, clock=lambda: 0.0)
    for number in range(CLIENTS_MAX + 5):
        rates.wait_s(number)
        rates.wait_s("active client")
    assert len(rates._paid_at) == CLIENTS_MAX
    assert {0, 1, 5} - rates._paid_at.keys() == {0, 1, 5}
    assert "active client" in rates._paid_at
