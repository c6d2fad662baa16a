"""Latencies of counted messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.audit.latency import NO_LATENCY, SLICE_MS, SLICES, LatencyHistogram, WindowTimes, late_count
from headrace.audit.window import OUT_OF_RANGE_MS, WINDOW_MS


def exact_percentile(latencies: list[int], percent: int) -> int:
    return sorted(latencies)[-(-len(latencies) * percent // 100) - 1]


@given(st.lists(st.integers(0, 2**50), min_size=1, max_size=300))
def test_percentiles_are_at_most_an_eighth_too_large(latencies: list[int]) -> None:
    histogram = LatencyHistogram()
    for latency_ms in latencies:
        histogram.add(latency_ms)
    found = histogram.latency()
    assert (found.mean_ms, found.max_ms) == (round(sum(latencies) / len(latencies)), max(latencies))
    for percent, value in ((95, found.p95_ms), (99, found.p99_ms)):
        exact = exact_percentile(latencies, percent)
        assert exact <= value <= exact * 1.125


def test_message_of_the_future_has_no_latency() -> None:
    histogram = LatencyHistogram()
    assert histogram.latency() == NO_LATENCY
    histogram.add(-5)
    assert (histogram.count, histogram.latency()) == (1, NO_LATENCY)


@given(st.lists(st.integers(0, WINDOW_MS - 1), min_size=1, max_size=300), st.integers(0, 10**9))
def test_message_times_give_the_latency_at_any_counting_time(times_ms: list[int], waited_ms: int) -> None:
    slices = [0] * SLICES
    for time_ms in times_ms:
        slices[time_ms // SLICE_MS] += 1
    found = WindowTimes.of(2, sum(times_ms), min(times_ms), slices)
    start_ms, counted_at_ms = 7 * WINDOW_MS, 8 * WINDOW_MS + waited_ms
    latencies = [counted_at_ms - start_ms - time_ms for time_ms in times_ms]
    latency = found.latency(start_ms, counted_at_ms)
    assert found.no_time == 2
    assert abs(latency.mean_ms - sum(latencies) / len(latencies)) < 1
    assert latency.max_ms == max(latencies)
    for percent, value in ((95, latency.p95_ms), (99, latency.p99_ms)):
        # The percentile of the latency is that of the times counted from the other end.
        exact = max(latencies) if percent == 99 and len(latencies) < 100 else exact_percentile(latencies, percent)
        assert value <= max(latencies)
        assert value >= exact - SLICE_MS
    assert found.latency(OUT_OF_RANGE_MS, counted_at_ms) == NO_LATENCY


@pytest.mark.parametrize(("counted_at_ms", "late"), [(WINDOW_MS + 1000, 0), (WINDOW_MS + 1001, 5)])
def test_messages_are_late_after_the_grace_period(counted_at_ms: int, late: int) -> None:
    assert late_count(0, counted_at_ms, 1000, 5) == late
    assert late_count(OUT_OF_RANGE_MS, counted_at_ms, 1000, 5) == 0
