"""Calls that nobody waits for longer than he will."""

from __future__ import annotations

import threading

import pytest

from headrace.clients.bounded import Bounded


def test_a_call_returns_what_its_function_does() -> None:
    bounded = Bounded()
    assert bounded.call(lambda: 7, 10) == 7
    assert not bounded.is_busy
    with pytest.raises(KeyError, match="none"):
        bounded.call(lambda: {}["none"], 10)
    assert bounded.call(lambda: 8, 10) == 8


def test_what_takes_too_long_is_left_and_the_next_waits_for_it() -> None:
    bounded = Bounded()
    go_on, ended = threading.Event(), threading.Event()
    order: list[str] = []

    def first() -> None:
        go_on.wait(60)
        order.append("first")

    with pytest.raises(TimeoutError):
        bounded.call(first, 0.01)
    assert bounded.is_busy
    with pytest.raises(TimeoutError):
        bounded.call(lambda: order.append("second"), 0.01)

    def last() -> None:
        order.append("last")
        ended.set()
        raise OSError("is logged")

    bounded.finally_call(last)
    assert not order
    go_on.set()
    assert ended.wait(60)
    assert order == ["first", "last"]


def test_the_last_call_is_made_at_once_where_nothing_is_waited_for() -> None:
    bounded = Bounded()
    ended: list[str] = []
    bounded.finally_call(lambda: ended.append("without a call"))
    go_on, has_run = threading.Event(), threading.Event()

    def late() -> None:
        go_on.wait(60)
        has_run.set()

    with pytest.raises(TimeoutError):
        bounded.call(late, 0.01)
    go_on.set()
    assert has_run.wait(60)
    assert bounded.call(lambda: 9, 60) == 9
    bounded.finally_call(lambda: ended.append("after all of them"))
    assert ended == ["without a call", "after all of them"]
