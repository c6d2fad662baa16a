"""The scheduled loads of `headrace up`, run by a process that serves several loads, see `headrace.cli.load_server`."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path

from headrace.pipeline.up.part import READY_TIMEOUT_S, Part
from headrace.pipeline.up.plan import PartCommand, consecutive_deaths, next_aligned_ms, restart_delay_s
from headrace.pipeline.up.up_log import PART_DIED, PART_STARTED, UpLog
from headrace.settings import Duration

logger = logging.getLogger(__name__)

PROBLEM_PREFIX = "PROBLEM: "  # of the lines in a load's report that need action; the load limits their number
LOAD_REQUEST, COMPACT_REQUEST = "load", "compact"
END_PREFIX = "ended code="
TURN_MARGIN = 0.1  # part of the interval that must be left until the next load when a compaction turn starts
EXIT_RESTART = 75  # exit code of a process that requests a restart and a repetition of its request


class Schedule:
    """Requests a load from the load process at each multiple of the interval since 1970, such as every ten full
    minutes. At most one load runs at a time: a multiple at which a load still runs is skipped.

    The load process is restarted whenever it ends. If a load is due before the process is ready, it is requested when
    the process is ready. If the process ends while a load is due or runs, with the code `EXIT_RESTART` or by a signal,
    the load is requested from the next process. With any other code the load has failed, and the next one is requested
    at the next multiple.

    After each load that ran, the process gets a turn to merge small files. It ends the turn when the next load is
    requested, after a portion of some seconds. A turn that fails is not repeated before the next load.

    Args:
        command: the command of the load process.
        log_dir: directory of its log.
        environment: its environment variables.
        up_log: receives the starts and deaths of the process.
    """

    def __init__(
        self,
        command: PartCommand,
        interval: Duration,
        log_dir: Path,
        environment: Mapping[str, str],
        up_log: UpLog,
    ) -> None:
        self._interval_ms = max(1000, interval.ms)
        self._due_ms = next_aligned_ms(int(time.time() * 1000), self._interval_ms)
        self._command = command
        self._log_dir = log_dir
        self._environment = environment
        self._up_log = up_log
        self._part: Part | None = None
        self._start_ms = 0  # earliest start of the process, if none runs
        self._deaths = 0  # consecutive failures of the load process while no load was due
        self._is_due = False  # from the due time of a load to its end
        self._is_requested = False
        self._kills = 0  # consecutive loads that were killed
        self._turn_is_due = False  # from the end of a load to the end of the compaction turn after it
        self._turn_runs = False

    def tick(self, now_ms: int) -> None:
        if self._part is not None:
            self._check_process(self._part, now_ms)
        if self._part is None and now_ms >= self._start_ms:
            self._part = Part(self._command, self._log_dir, self._environment)
            self._up_log.write(PART_STARTED, part=self._command.name, pid=self._part.process.pid)
        if self._due_ms - now_ms > self._interval_ms:  # the clock was set back
            self._due_ms = next_aligned_ms(now_ms, self._interval_ms)
            self._start_ms = min(self._start_ms, self._due_ms)
        if now_ms >= self._due_ms:
            self._due_ms = next_aligned_ms(now_ms, self._interval_ms)
            if self._is_due:
                logger.warning("load_still_running reason=interval_too_short interval_ms=%d", self._interval_ms)
            else:
                logger.info("load_started reason=schedule")
                self._is_due = True
        if self._part is not None and self._part.ready(0) is not None:
            self._send_request(self._part, now_ms)

    def _send_request(self, part: Part, now_ms: int) -> None:
        if self._is_requested:
            return
        if self._is_due:
            part.send_line(LOAD_REQUEST)
            self._is_requested = True
        elif self._turn_is_due and not self._turn_runs and self._due_ms - now_ms >= TURN_MARGIN * self._interval_ms:
            part.send_line(COMPACT_REQUEST)
            self._turn_runs = True

    @property
    def pid(self) -> int | None:
        """The process id of the load process; None if it does not run at present."""
        return None if self._part is None else self._part.process.pid

    def rotate_log(self) -> None:
        if self._part is not None:
            self._part.log.rotate_if_due()

    def request_stop(self) -> None:
        if self._part is not None:
            self._part.request_stop()

    def stop(self, deadline: float) -> None:
        if self._part is not None:
            self._part.stop(deadline)

    def _check_process(self, part: Part, now_ms: int) -> None:
        read_line = part.read_line() if self._is_requested or self._turn_runs else ""
        if read_line.startswith(END_PREFIX):
            self._end_request(part, int(read_line.removeprefix(END_PREFIX)), now_ms)
        is_late = part.ready(0) is None and time.monotonic() - part.started_at > READY_TIMEOUT_S
        if part.process.poll() is None and not is_late:
            return
        part.stop(time.monotonic())
        self._part = None
        self._start_ms = now_ms
        code = part.process.returncode
        if code < 0 or (
            code not in (0, EXIT_RESTART) and not (self._is_due or self._turn_runs)
        ):  # else see the run log
            self._up_log.write(PART_DIED, part.end_reason(), part=self._command.name, pid=part.process.pid, code=code)
        if code == EXIT_RESTART:
            logger.debug("load_process_renewed")
        elif self._is_due or self._turn_runs:
            self._end_request(part, code, now_ms)
        elif code:
            self._deaths = consecutive_deaths(self._deaths, part.ready_for_s)
            delay_s = restart_delay_s(self._deaths)
            self._start_ms = now_ms + int(delay_s * 1000)
            logger.warning(
                "part_died part=%s restart_in_s=%g last_line=%s", self._command.name, delay_s, part.end_reason()
            )
        self._is_requested = self._turn_runs = False

    def _end_request(self, part: Part, code: int, now_ms: int) -> None:
        if not self._turn_runs:
            self._end_load(part, code, now_ms)
            return
        self._turn_runs = self._turn_is_due = False
        if code:
            logger.warning("compaction_ended code=%d log=%s last_line=%s", code, part.log.path, part.last_log_line())

    def _end_load(self, part: Part, code: int, now_ms: int) -> None:
        self._is_due = self._is_requested = False
        self._turn_is_due = code in (0, 1)  # the load ran
        self._report(part, code)
        # A killed load does not rule out another attempt, which continues from the last commit.
        self._kills = self._kills + 1 if code < 0 else 0
        if self._kills:
            self._due_ms = min(self._due_ms, now_ms + int(restart_delay_s(self._kills) * 1000))

    def _report(self, part: Part, code: int) -> None:
        if code == 0:
            logger.info("load_ended code=0 last_line=%s", part.last_log_line())
            return
        logger.warning("load_ended code=%d log=%s last_line=%s", code, part.log.path, part.last_log_line())
        for line in part.log.lines():
            if line.startswith(PROBLEM_PREFIX):
                logger.warning("load_problem %s", line.removeprefix(PROBLEM_PREFIX))
