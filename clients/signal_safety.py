"""Runs calls that a signal handler must not interrupt.

Python runs signal handlers in the main thread, between any two steps. A handler that raises (Ctrl-C, `sys.exit` at
SIGTERM) interrupts the current call: messages that the Kafka client had just returned would be lost, or one of two
counters would be updated. The main thread therefore runs such calls in another thread and waits; a handler then
interrupts only the wait.
"""

from __future__ import annotations

import queue
import signal
import threading
import traceback
from collections.abc import Callable
from typing import Any, Final

_MAIN: Final = threading.main_thread()


def is_from_signal_handler(error: BaseException) -> bool:
    """Returns whether an exception may have been raised by a signal handler, and not by the code that it interrupted.

    In the main thread, every exception that is no `Exception`, such as KeyboardInterrupt, counts: Ctrl-C has no handler
    function in Python that could be found in the traceback. For an `Exception`, the traceback is searched for functions
    of signal handlers.
    """
    if threading.get_ident() != _MAIN.ident:
        return False
    if not isinstance(error, Exception):
        return True
    handlers = [getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()]
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


class SignalSafeCalls:
    """Runs calls of the main thread in another thread, which signal handlers do not interrupt. Thread-safe."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_stopped = False

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls the function and returns its result or raises its error. If the current thread is the main thread, the
        function runs in another thread, and this waits for it."""
        if threading.get_ident() != _MAIN.ident or not self._start():
            return function(*args)
        call = _Call(function, args)
        self._calls.put(call)
        while not call.is_finished.acquire(timeout=1.0):
            if self._thread is None or not self._thread.is_alive():  # the thread ended before this call
                return function(*args)
        if call.error is not None:
            raise call.error
        return call.result

    def stop(self) -> None:
        """Ends the thread that runs the calls. Later calls run in the calling thread."""
        self._is_stopped = True
        self._calls.put(None)

    def _start(self) -> bool:
        if self._is_stopped:
            return False
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="headrace-signal-safe", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter is shutting down and starts no threads
                return False
            self._thread = thread
        return True

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call.result = call.function(*call.args)
            except BaseException as error:  # raised in the calling thread
                call.error = error
            call.is_finished.release()
            del call  # otherwise its references would live until the next call


class _Call:
    __slots__ = ("args", "error", "function", "is_finished", "result")

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.function = function
        self.args = args
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_finished = threading.Lock()
        self.is_finished.acquire()
