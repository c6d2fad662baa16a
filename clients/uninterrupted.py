"""Calls that no signal handler cuts in two.

Python runs signal handlers in its main thread, between any two steps, and one that raises (Ctrl-C, `sys.exit` at
SIGTERM) leaves whatever it came upon: what a Kafka client had just given out is gone, of two counts one is made. So
the main thread has another one make such a call, and waits; a handler then ends the wait and not the call.
"""

from __future__ import annotations

import queue
import signal
import threading
import traceback
from collections.abc import Callable
from typing import Any, Final

_MAIN: Final = threading.main_thread()


def may_be_of_handler(error: BaseException) -> bool:
    """Whether a signal handler may have raised it, and not what the main thread was about when it came.

    Those that end a program count as such, since Ctrl-C has no function of Python; of others the functions tell.
    """
    if threading.get_ident() != _MAIN.ident:
        return False
    if not isinstance(error, Exception):
        return True
    handlers = [getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()]
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


class Uninterrupted:
    """May be used by several threads."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._has_ended = False

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """What the function returns, or raises."""
        if threading.get_ident() != _MAIN.ident or not self._begin():
            return function(*args)
        call = _Call(function, args)
        self._calls.put(call)
        while not call.is_made.acquire(timeout=1.0):
            if self._thread is None or not self._thread.is_alive():  # it ended before it came to this call
                return function(*args)
        if call.error is not None:
            raise call.error
        return call.result

    def end(self) -> None:
        """Further calls are made where they come from."""
        self._has_ended = True
        self._calls.put(None)

    def _begin(self) -> bool:
        if self._has_ended:
            return False
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="headrace-uninterrupted", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # Python is ending, and begins no threads any more
                return False
            self._thread = thread
        return True

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call.result = call.function(*call.args)
            except BaseException as error:  # is raised where it was called from
                call.error = error
            call.is_made.release()
            del call  # or what it refers to would live until the next one


class _Call:
    __slots__ = ("args", "error", "function", "is_made", "result")

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.function = function
        self.args = args
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_made = threading.Lock()
        self.is_made.acquire()
