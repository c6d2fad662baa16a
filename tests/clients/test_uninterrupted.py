"""Calls that a signal handler cannot cut in two."""

from __future__ import annotations

import signal
import threading

import pytest

from headrace.clients.uninterrupted import Uninterrupted


class Stop(BaseException):
    pass


def test_what_a_function_returns_or_raises_is_handed_on() -> None:
    whole = Uninterrupted()
    assert whole.call(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        whole.call(divmod, 7, 0)
    whole.end()
    assert whole.call(divmod, 9, 2) == (4, 1)
    Uninterrupted().end()  # also where it was never called


def test_a_handler_that_raises_ends_the_wait_and_not_the_call() -> None:
    whole = Uninterrupted()
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        begun.set()
        go_on.wait(60)
        ended.set()

    def handler(number: int, frame: object) -> None:
        raise Stop

    def interrupt() -> None:
        begun.wait(60)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        threading.Thread(target=interrupt).start()
        with pytest.raises(Stop):
            whole.call(call)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not ended.is_set()
    go_on.set()
    assert whole.call(ended.is_set)  # one after the other
    whole.end()


def test_other_threads_make_their_calls_themselves() -> None:
    whole = Uninterrupted()
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: seen.append(whole.call(threading.current_thread) is thread))
    thread.start()
    thread.join(60)
    assert seen == [True]
    assert whole.call(threading.current_thread) is not threading.main_thread()
    whole.end()
