"""The loads of `headrace up`."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path

from headrace.pipeline.up.part import Part
from headrace.pipeline.up.plan import PartCommand, next_aligned_ms, restart_delay_s
from headrace.settings import Duration

logger = logging.getLogger(__name__)

PROBLEM_PREFIX = "PROBLEM: "  # of the lines of a load's report that a person must act on; it limits how many there are


class Schedule:
    """Starts a load at each aligned interval, never two at once."""

    def __init__(self, command: PartCommand, interval: Duration, log_dir: Path, environment: Mapping[str, str]) -> None:
        self._interval_ms = max(1000, interval.ms)
        self._due_ms = next_aligned_ms(int(time.time() * 1000), self._interval_ms)
        self._command = command
        self._log_dir = log_dir
        self._environment = environment
        self._running: Part | None = None
        self._kills = 0  # in a row

    def tick(self, now_ms: int) -> None:
        if self._running is not None and self._running.process.poll() is not None:
            self._report(self._running)
            self._take_up(self._running.process.returncode, now_ms)
            self._running = None
        if self._due_ms - now_ms > self._interval_ms:  # the clock was set back
            self._due_ms = next_aligned_ms(now_ms, self._interval_ms)
        if now_ms >= self._due_ms:
            self._due_ms = next_aligned_ms(now_ms, self._interval_ms)
            if self._running is None:
                logger.info("load_started reason=schedule")
                self._running = Part(self._command, self._log_dir, self._environment)
            else:
                logger.warning("load_still_running reason=interval_too_short interval_ms=%d", self._interval_ms)

    def stop(self, deadline: float) -> None:
        if self._running is not None:
            self._running.stop(deadline)

    def _take_up(self, code: int, now_ms: int) -> None:
        """A load that was killed has said nothing against another one, which goes on where it was."""
        self._kills = self._kills + 1 if code < 0 else 0
        if self._kills:
            self._due_ms = min(self._due_ms, now_ms + int(restart_delay_s(self._kills) * 1000))

    def _report(self, load: Part) -> None:
        code = load.process.returncode
        if code == 0:
            logger.info("load_ended code=0 said=%s", load.last_words())
        else:
            logger.warning("load_ended code=%d log=%s said=%s", code, load.log_path, load.last_words())
            for line in load.log_lines():
                if line.startswith(PROBLEM_PREFIX):
                    logger.warning("load_problem %s", line.removeprefix(PROBLEM_PREFIX))
        load.stop(time.monotonic())
