"""Reads of other parts with time limits. A source that fails or takes too long gives a reading without a value and with
the reason, which the page shows in its place.

Reads run in threads, because a read that waits for a broken server cannot be interrupted. Equal reads share one thread.
A page never waits longer than its limit, and at most `RUNNING_MAX` reads run at once: further ones give a reading
without a value.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

LIMIT_S: Final = 2.0
RUNNING_MAX: Final = 16
CACHED_MAX: Final = 256
STALE_FACTOR: Final = 4
"""A reading is shown, with its age, while it is read again, up to this multiple of its usual age."""
REASON_CHARS_MAX: Final = 300


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """The result of a read: a value, or the reason why it is not known. `read_at_ms` is the end of the read, in
    milliseconds since 1970. `is_running` means that the read has not ended: a later request may get its value."""

    value: T | None
    reason: str
    read_at_ms: int
    is_running: bool = False

    @property
    def is_known(self) -> bool:
        return not self.reason

    @property
    def known(self) -> T:
        """The value of a reading that `is_known`."""
        assert self.value is not None, self.reason
        return self.value


class _Run:
    """One read in a thread."""

    def __init__(self, read: Callable[[], Any], now_ms: Callable[[], int], on_end: Callable[[_Run], None]) -> None:
        self._read = read
        self._now_ms = now_ms
        self._on_end = on_end
        self.ended = threading.Event()
        self.reading: Reading[Any] = Reading(None, "not read yet", 0)

    def run(self) -> None:
        try:
            value = self._read()
            self.reading = Reading(value, "", self._now_ms())
        except Exception as error:  # shown in the page; other sources must still be shown
            logger.debug("source_failed", exc_info=True)
            self.reading = Reading(None, reason_of(error), self._now_ms())
        finally:
            self._on_end(self)
            self.ended.set()


class SourceReader:
    """Runs reads. Thread-safe.

    Args:
        now_ms: the clock, in milliseconds since 1970.
    """

    def __init__(self, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._runs: dict[str, _Run] = {}
        self._running = 0
        self._changes = 0
        self._cached: OrderedDict[str, Reading[Any]] = OrderedDict()

    def read(self, name: str, read: Callable[[], T], *, max_age_s: float = 0.0, limit_s: float = LIMIT_S) -> Reading[T]:
        """Returns the value of `read`, or the reason why it is not known.

        Args:
            name: identifies the read and its arguments: equal names share one read and its cached result.
            read: called in another thread. It must have time limits of its own, and must not return None.
            max_age_s: a result of this age is returned without another read. Up to `STALE_FACTOR` times this age it is
                returned at once while it is read again for later requests. 0 reads each time.
            limit_s: the longest wait for the read.
        """
        with self._lock:
            cached = self._cached.get(name) if max_age_s else None
            age_s = (self._now_ms() - cached.read_at_ms) / 1000 if cached is not None else float("inf")
            if cached is not None and 0 <= age_s <= max_age_s:
                return cached
            run = self._runs.get(name) or self._start(name, read, is_cached=bool(max_age_s))
        if run is None:
            return Reading(None, f"{RUNNING_MAX} earlier reads of other sources have not ended", self._now_ms())
        if cached is not None and 0 <= age_s <= max_age_s * STALE_FACTOR:
            return cached
        if not run.ended.wait(limit_s):
            return Reading(None, f"no response within {limit_s:g} s", self._now_ms(), is_running=True)
        return run.reading

    def forget(self) -> None:
        """Drops all cached results, and those of running reads, after a change. Later requests read again."""
        with self._lock:
            self._changes += 1
            self._cached.clear()
            self._runs.clear()

    def _start(self, name: str, read: Callable[[], Any], *, is_cached: bool) -> _Run | None:
        if self._running >= RUNNING_MAX:
            return None

        changes = self._changes

        def end(run: _Run) -> None:
            with self._lock:
                self._running -= 1
                if self._runs.get(name) is run:
                    del self._runs[name]
                if is_cached and changes == self._changes:
                    self._cached[name] = run.reading
                    self._cached.move_to_end(name)
                    while len(self._cached) > CACHED_MAX:
                        self._cached.popitem(last=False)

        run = self._runs[name] = _Run(read, self._now_ms, end)
        self._running += 1
        threading.Thread(target=run.run, name=f"source {name}", daemon=True).start()
        return run


def reason_of(error: Exception) -> str:
    """Returns one line for an error: the problem and, of an operating system's error, the file."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    line = " ".join(text.split()) or type(error).__name__
    return line if len(line) <= REASON_CHARS_MAX else f"{line[:REASON_CHARS_MAX]}…"
