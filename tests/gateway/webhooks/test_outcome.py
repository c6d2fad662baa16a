"""Classification of responses to batches, and the pauses between attempts."""

from __future__ import annotations

import pytest

from headrace.gateway.webhooks.outcome import BACKOFF_S_MAX, Outcome, Verdict, pause_s


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (200, Verdict.DELIVERED),
        (204, Verdict.DELIVERED),
        (299, Verdict.DELIVERED),
        (0, Verdict.TRY_AGAIN),
        (199, Verdict.TRY_AGAIN),
        (301, Verdict.TRY_AGAIN),
        (400, Verdict.REFUSED),
        (401, Verdict.TRY_AGAIN),
        (404, Verdict.TRY_AGAIN),
        (408, Verdict.TRY_AGAIN),
        (413, Verdict.REFUSED),
        (422, Verdict.REFUSED),
        (429, Verdict.TRY_AGAIN),
        (500, Verdict.TRY_AGAIN),
        (503, Verdict.TRY_AGAIN),
    ],
)
def test_only_statuses_about_the_content_refuse_a_batch(status: int, verdict: Verdict) -> None:
    assert Outcome(status, "").verdict is verdict


def test_pauses_double_up_to_a_minute() -> None:
    assert [pause_s(attempt, 0, 0) for attempt in (1, 2, 3, 7, 8, 1_000_000)] == [0.5, 1, 2, 32, 60, 60]


def test_pauses_vary_by_half() -> None:
    assert pause_s(3, 0, 1) == 1


def test_receiver_may_ask_for_a_longer_pause_but_not_above_the_maximum() -> None:
    assert pause_s(1, 20, 0.5) == 20
    assert pause_s(8, 1, 0) == 60
    assert pause_s(1, 86_400, 0) == BACKOFF_S_MAX
