"""Blocking calls with a timeout."""

from __future__ import annotations

import threading

import pytest

from headrace.clients.blocking_calls import BlockingCalls


def test_call_returns_the_result_or_raises_the_error() -> None:
    calls = BlockingCalls()
    assert calls.call(lambda: 7, 10) == 7
    assert not calls.is_busy
    with pytest.raises(KeyError, match="none"):
        calls.call(lambda: {}["none"], 10)
    assert calls.call(lambda: 8, 10) == 8


def test_call_waits_for_an_abandoned_call_before_it() -> None:
    calls = BlockingCalls()
    proceed, ended = threading.Event(), threading.Event()
    order: list[str] = []

    def first() -> None:
        proceed.wait(60)
        order.append("first")

    with pytest.raises(TimeoutError):
        calls.call(first, 0.01)
    assert calls.is_busy
    with pytest.raises(TimeoutError):
        calls.call(lambda: order.append("second"), 0.01)

    def last() -> None:
        order.append("last")
        ended.set()
        raise OSError("is logged")

    calls.call_last(last)
    assert not order
    proceed.set()
    assert ended.wait(60)
    assert order == ["first", "last"]


def test_call_last_runs_at_once_without_a_running_call() -> None:
    calls = BlockingCalls()
    ended: list[str] = []
    calls.call_last(lambda: ended.append("without a call"))
    proceed, has_run = threading.Event(), threading.Event()

    def late() -> None:
        proceed.wait(60)
        has_run.set()

    with pytest.raises(TimeoutError):
        calls.call(late, 0.01)
    proceed.set()
    assert has_run.wait(60)
    assert calls.call(lambda: 9, 60) == 9
    calls.call_last(lambda: ended.append("after all of them"))
    assert ended == ["without a call", "after all of them"]
