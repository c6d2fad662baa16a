"""The loads of `headrace up`, by a process that stays from one to the next, see `headrace.cli.load_server`."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path

from headrace.pipeline.up.part import READY_TIMEOUT_S, Part
from headrace.pipeline.up.plan import PartCommand, consecutive_deaths, next_aligned_ms, restart_delay_s
from headrace.settings import Duration

logger = logging.getLogger(__name__)

PROBLEM_PREFIX = "PROBLEM: "  # of the lines of a load's report that a person must act on; it limits how many there are
LOAD_REQUEST = "load"
END_PREFIX = "ended code="
EXIT_RESTART = 75  # of a process that ends for another one to be started, and asked what it had been asked


class Schedule:
    """Asks for a load at each aligned interval, never for two at once.

    The process that does them is started again when it ends, whatever of. A load that was due before it was ready, or
    that it has left to another one, is asked for when there is one that is ready.
    """

    def __init__(self, command: PartCommand, interval: Duration, log_dir: Path, environment: Mapping[str, str]) -> None:
        self._interval_ms = max(1000, interval.ms)
        self._due_ms = next_aligned_ms(int(time.time() * 1000), self._interval_ms)
        self._command = command
        self._log_dir = log_dir
        self._environment = environment
        self._part: Part | None = None
        self._start_ms = 0  # of the process, where there is none
        self._deaths = 0  # in a row, without having been asked
        self._is_wanted = False  # a load, from when it is due to its end
        self._is_asked = False
        self._kills = 0  # of loads, in a row

    def tick(self, now_ms: int) -> None:
        if self._part is not None:
            self._look_at(self._part, now_ms)
        if self._part is None and now_ms >= self._start_ms:
            self._part = Part(self._command, self._log_dir, self._environment)
        if self._due_ms - now_ms > self._interval_ms:  # the clock was set back
            self._due_ms = next_aligned_ms(now_ms, self._interval_ms)
            self._start_ms = min(self._start_ms, self._due_ms)
        if now_ms >= self._due_ms:
            self._due_ms = next_aligned_ms(now_ms, self._interval_ms)
            if self._is_wanted:
                logger.warning("load_still_running reason=interval_too_short interval_ms=%d", self._interval_ms)
            else:
                logger.info("load_started reason=schedule")
                self._is_wanted = True
        if self._is_wanted and not self._is_asked and self._part is not None and self._part.ready(0) is not None:
            self._part.ask(LOAD_REQUEST)
            self._is_asked = True

    def rotate_log(self) -> None:
        if self._part is not None:
            self._part.log.limit()

    def request_stop(self) -> None:
        if self._part is not None:
            self._part.request_stop()

    def stop(self, deadline: float) -> None:
        if self._part is not None:
            self._part.stop(deadline)

    def _look_at(self, part: Part, now_ms: int) -> None:
        answer = part.answer() if self._is_asked else ""
        if answer.startswith(END_PREFIX):
            self._end_load(part, int(answer.removeprefix(END_PREFIX)), now_ms)
        is_late = part.ready(0) is None and time.monotonic() - part.started_at > READY_TIMEOUT_S
        if part.process.poll() is None and not is_late:
            return
        part.stop(time.monotonic())
        self._part = None
        self._start_ms = now_ms
        code = part.process.returncode
        if code == EXIT_RESTART:
            logger.debug("load_process_renewed")
        elif self._is_wanted:
            self._end_load(part, code, now_ms)
        elif code:
            self._deaths = consecutive_deaths(self._deaths, part.ready_for_s)
            delay_s = restart_delay_s(self._deaths)
            self._start_ms = now_ms + int(delay_s * 1000)
            logger.warning("part_died part=%s again_in_s=%g said=%s", self._command.name, delay_s, part.end())
        self._is_asked = False

    def _end_load(self, part: Part, code: int, now_ms: int) -> None:
        self._is_wanted = self._is_asked = False
        self._report(part, code)
        # A load that was killed has said nothing against another one, which goes on where it was.
        self._kills = self._kills + 1 if code < 0 else 0
        if self._kills:
            self._due_ms = min(self._due_ms, now_ms + int(restart_delay_s(self._kills) * 1000))

    def _report(self, part: Part, code: int) -> None:
        if code == 0:
            logger.info("load_ended code=0 said=%s", part.last_log_line())
            return
        logger.warning("load_ended code=%d log=%s said=%s", code, part.log.path, part.last_log_line())
        for line in part.log.lines():
            if line.startswith(PROBLEM_PREFIX):
                logger.warning("load_problem %s", line.removeprefix(PROBLEM_PREFIX))
