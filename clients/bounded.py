"""Calls of the Kafka client that return only when a broker has answered, made so that nobody waits longer than he will.

A broker that hangs keeps such a call for minutes, and nothing interrupts it, neither a time-out of ours nor Ctrl-C.
So it is made in a thread, which is left to itself when it takes too long.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from headrace.clients.kafka_client import error_text

logger = logging.getLogger(__name__)


class Bounded:
    """One call after the other, of one client; used by one thread."""

    def __init__(self) -> None:
        self._call: _Call | None = None

    def call(self, function: Callable[[], Any], timeout_s: float) -> Any:
        """What the function returns.

        Raises:
            TimeoutError: it has not returned, or the one before it has not, within `timeout_s`.
            BaseException: what it raised.
        """
        left_behind = self._call
        if left_behind is not None and not left_behind.returns_within(timeout_s):
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
        """Whether a call that took too long, or was interrupted, has not returned yet."""
        return self._call is not None and not self._call.returns_within(0)

    def finally_call(self, function: Callable[[], object]) -> None:
        """Calls it as the last: now, or after what has not returned yet, in the thread of that."""
        if self._call is None or not self._call.then(function):
            function()


class _Call:
    def __init__(self, function: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self._function = function
        self._lock = threading.Lock()
        self._has_returned = threading.Event()
        self._last: Callable[[], object] | None = None
        try:
            threading.Thread(target=self._run, name="headrace-call", daemon=True).start()
        except RuntimeError:  # Python is ending, and begins no threads any more
            self._run()

    def _run(self) -> None:
        try:
            self.result = self._function()
        except BaseException as error:  # is raised where it was called from
            self.error = error
        with self._lock:
            self._has_returned.set()
        if self._last is not None:
            try:
                self._last()
            except Exception as error:
                logger.warning("not ended as it should error=%s", error_text(error))

    def returns_within(self, timeout_s: float) -> bool:
        return self._has_returned.wait(timeout_s)

    def then(self, function: Callable[[], object]) -> bool:
        """Has it called afterwards; False when it is too late to ask that."""
        with self._lock:
            if self._has_returned.is_set():
                return False
            self._last = function
            return True
