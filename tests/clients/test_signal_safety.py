"""Calls that a signal handler cannot interrupt."""

from __future__ import annotations

import signal
import threading

import pytest

from headrace.clients.signal_safety import SignalSafeCalls


class Stop(BaseException):
    pass


def test_call_returns_the_result_or_raises_the_error() -> None:
    calls = SignalSafeCalls()
    assert calls.call(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        calls.call(divmod, 7, 0)
    calls.stop()
    assert calls.call(divmod, 9, 2) == (4, 1)
    SignalSafeCalls().stop()  # also without any call before


def test_signal_handler_interrupts_the_wait_and_not_the_call() -> None:
    calls = SignalSafeCalls()
    started, proceed, ended = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        started.set()
        proceed.wait(60)
        ended.set()

    def handler(number: int, frame: object) -> None:
        raise Stop

    def interrupt() -> None:
        started.wait(60)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        threading.Thread(target=interrupt).start()
        with pytest.raises(Stop):
            calls.call(call)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not ended.is_set()
    proceed.set()
    assert calls.call(ended.is_set)  # the calls run one at a time
    calls.stop()


def test_calls_of_other_threads_run_in_those_threads() -> None:
    calls = SignalSafeCalls()
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: seen.append(calls.call(threading.current_thread) is thread))
    thread.start()
    thread.join(60)
    assert seen == [True]
    assert calls.call(threading.current_thread) is not threading.main_thread()
    calls.stop()
