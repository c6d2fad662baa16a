from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.registry.api.request_rates import BURST_S, CLIENTS_MAX, RequestRates


def test_a_client_is_told_how_long_to_wait() -> None:
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
def test_no_client_gets_more_than_its_rate_and_a_burst(per_second: float, pauses: list[float]) -> None:
    now = 0.0
    rates = RequestRates(per_second, clock=lambda: now)
    let_through = 0
    for pause in pauses:
        now += pause
        let_through += rates.wait_s("a") == 0
    assert let_through <= max(1, (now + BURST_S) * per_second) + 1
    # Who comes no faster than the rate is never refused.
    slow = RequestRates(per_second, clock=lambda: now)
    for _ in range(50):
        now += 1.001 / per_second + 1e-9
        assert slow.wait_s("b") == 0


def test_clients_are_forgotten() -> None:
    rates = RequestRates(1e6, clock=lambda: 0.0)
    for number in range(CLIENTS_MAX + 5):
        rates.wait_s(number)
        rates.wait_s("always here")
    assert len(rates._paid_at) == CLIENTS_MAX
    # Whoever has not been here for longest.
    assert {0, 1, 5} - rates._paid_at.keys() == {0, 1, 5}
    assert "always here" in rates._paid_at
