"""Runs blocking calls of the Kafka client with a timeout.

Such a call returns when a broker responds, which takes minutes if the broker hangs. Neither a timeout nor Ctrl-C
interrupts it. It therefore runs in a thread, which is abandoned after the timeout.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from headrace.clients.kafka_client import error_text

logger = logging.getLogger(__name__)


class BlockingCalls:
    """Runs blocking calls of one Kafka client in threads, one at a time. Not thread-safe."""

    def __init__(self) -> None:
        self._call: _Call | None = None

    def call(self, function: Callable[[], Any], timeout_s: float) -> Any:
        """Runs `function` in a thread, and returns its result.

        Raises:
            TimeoutError: the function did not return within `timeout_s`. Or an earlier function, after a call that
                timed out or was interrupted, has still not returned within that time. Each of the two waits may take
                `timeout_s`.
            BaseException: the function raised it.
        """
        abandoned = self._call
        if abandoned is not None and not abandoned.returns_within(timeout_s):
            raise TimeoutError
        call = self._call = _Call(function)
        if not call.returns_within(timeout_s):
            raise TimeoutError
        self._call = None
        if call.error is not None:
            raise call.error
        return call.result

    @property
    def is_busy(self) -> bool:
        """Whether a function is still running after its call has timed out or was interrupted."""
        return self._call is not None and not self._call.returns_within(0)

    def call_last(self, function: Callable[[], object]) -> None:
        """Calls the function now. If an earlier call is still running, the function is called after that has returned,
        in its thread."""
        if self._call is None or not self._call.run_after(function):
            function()


class _Call:
    def __init__(self, function: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self._function = function
        self._lock = threading.Lock()
        self._has_returned = threading.Event()
        self._final_function: Callable[[], object] | None = None
        try:
            threading.Thread(target=self._run, name="headrace-call", daemon=True).start()
        except RuntimeError:  # the interpreter is shutting down and starts no threads
            self._run()

    def _run(self) -> None:
        try:
            self.result = self._function()
        except BaseException as error:  # raised in the calling thread
            self.error = error
        with self._lock:
            self._has_returned.set()
        if self._final_function is not None:
            try:
                self._final_function()
            except Exception as error:
                logger.warning("Kafka client not closed after a timed-out call error=%s", error_text(error))

    def returns_within(self, timeout_s: float) -> bool:
        return self._has_returned.wait(timeout_s)

    def run_after(self, function: Callable[[], object]) -> bool:
        """Makes the thread run `function` after the function that it runs now. Returns False, and does not run
        `function`, if that other function has already returned."""
        with self._lock:
            if self._has_returned.is_set():
                return False
            self._final_function = function
            return True
