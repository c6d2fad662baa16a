"""A part of `headrace up`: a child process, its ready line and its log.

Each leads a group of its own: a Ctrl-C on the terminal reaches the supervisor alone, which tells the parts once, and
what a part started, such as a JVM, goes with it. On Linux the kernel ends the parts when the supervisor is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from headrace.pipeline.up.part_log import PartLog
from headrace.pipeline.up.plan import PartCommand

logger = logging.getLogger(__name__)

READY_TIMEOUT_S = 120.0  # a cold Spark with a new Derby takes some 15 s on two slow cores
UNREADY_STOP_TIMEOUT_S = 3.0  # of a part that still starts: nobody uses it yet, and a JVM hears nothing until it is up
POLL_S = 0.2
DISK_BYTES_MIN = 16 * 1024 * 1024  # free; a metastore's new database alone takes some of it
PR_SET_PDEATHSIG = 1  # Linux, prctl(2)


def python_command(module: str, *arguments: str) -> list[str]:
    """Runs a module of ours by the Python that runs this process."""
    return [sys.executable, "-P", "-m", module, *arguments]


def python_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without empty entries of PYTHONPATH, for such a child."""
    entries = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    kept = {name: value for name, value in environment.items() if name != "PYTHONPATH"}
    return {**kept, "PYTHONPATH": os.pathsep.join(entries)} if entries else kept


class UpError(Exception):
    """The whole could not start, or a part of it died; the message is one line for the user."""


class Part:
    """A running child process and its ready line, or its log alone."""

    def __init__(self, command: PartCommand, log_dir: Path, environment: Mapping[str, str]) -> None:
        self.command = command
        self.log = PartLog(log_dir / f"{command.name}.log")
        self.process = subprocess.Popen(
            python_command(*command.arguments),
            stdin=subprocess.PIPE if command.reads_requests else subprocess.DEVNULL,
            # Nobody reads on after the ready line but for answers, so what has a report to print writes it to its log.
            stdout=subprocess.PIPE if command.is_server else self.log.stream,
            stderr=self.log.stream,
            env=python_environment(environment),
            process_group=0,
            preexec_fn=_before_exec(os.getpid(), command.niceness),
        )
        self.started_at = time.monotonic()
        self._line_begun = b""
        self._answers: deque[str] = deque()
        self._addresses: Mapping[str, str] | None = None if command.is_server else {}
        self._ready_at: float | None = None
        self._asked_at: float | None = None

    def wait_until_ready(self, deadline: float, should_stop: Callable[[], bool]) -> Mapping[str, str]:
        """The addresses of the ready line.

        Raises:
            UpError: the part ended, or said nothing until the deadline.
            KeyboardInterrupt: it is to stop.
        """
        while not should_stop():
            addresses = self.ready(POLL_S)
            if addresses is not None:
                return addresses
            if self.process.poll() is not None:
                if should_stop():  # the signal went to all processes, as systemd sends it
                    break
                raise UpError(f"the {self.command.name} did not start: {self.end()}")
            if time.monotonic() > deadline:
                raise UpError(
                    f"the {self.command.name} was not ready after {READY_TIMEOUT_S:.0f} s; see {self.log.path}"
                )
        raise KeyboardInterrupt

    def ready(self, wait_s: float) -> Mapping[str, str] | None:
        """The addresses of the ready line once it was printed, None until then."""
        if self._addresses is None:
            self._read_output(wait_s)
        return self._addresses

    def ask(self, word: str) -> None:
        """Says a word to it, in a line; what it writes to its log from now on is of that."""
        assert self.process.stdin is not None
        self.log.begin()
        with contextlib.suppress(BrokenPipeError):  # it has just ended, which is seen when it is looked at
            os.write(self.process.stdin.fileno(), f"{word}\n".encode())

    def answer(self) -> str:
        """The next line that it has printed after its ready line, "" where there is none yet."""
        if not self._answers:
            self._read_output(0)
        return self._answers.popleft() if self._answers else ""

    def _read_output(self, wait_s: float) -> None:
        if self.process.stdout is None or self.process.stdout.closed:
            return
        output = select.poll()  # select(2) has no descriptors above 1023
        output.register(self.process.stdout.fileno(), select.POLLIN)
        if not output.poll(wait_s * 1000):
            return
        chunk = os.read(self.process.stdout.fileno(), 65536)
        *lines, self._line_begun = (self._line_begun + chunk).split(b"\n")
        for line in lines:
            self._hear(line.decode("utf-8", "replace"))
        if not chunk:
            self.process.wait()
            self.process.stdout.close()

    def _hear(self, line: str) -> None:
        if self._addresses is not None:
            self._answers.append(line)
        elif line.startswith("ready "):
            self._addresses = dict(re.findall(r"(\w+)=(\S+)", line))
            self._ready_at = time.monotonic()

    def last_log_line(self) -> str:
        """The last line that the part wrote to its log, or how it ended."""
        lines = self.log.lines()
        said = [line for line in lines if line.startswith("headrace: ")]
        if said or lines:
            return (said or lines)[-1].removeprefix("headrace: ")
        return f"it ended with code {self.process.returncode} and said nothing"

    def end(self) -> str:
        """Why it ended, as far as can be told, and where more can be read."""
        code = self.process.returncode
        why = self.last_log_line() if code >= 0 else f"killed by {signal.Signals(-code).name}"
        if code == -signal.SIGKILL:
            why += ", by hand or by the kernel for want of memory"
        return f"{why} (log: {self.log.path}){disk_full_note(self.log.path)}"

    @property
    def is_ready(self) -> bool:
        return self._addresses is not None

    @property
    def ready_for_s(self) -> float:
        """For how long it has been ready."""
        return 0.0 if self._ready_at is None else time.monotonic() - self._ready_at

    def request_stop(self) -> None:
        """Tells it to end, once and without waiting: some servers take a second signal for impatience."""
        if self._asked_at is None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self._asked_at = self._asked_at or time.monotonic()

    def stop(self, deadline: float) -> None:
        """Ends it with all that it started, by force after the deadline; one that still starts is given less time."""
        self.request_stop()
        if not self.is_ready and self._asked_at is not None:
            deadline = min(deadline, self._asked_at + UNREADY_STOP_TIMEOUT_S)
        try:
            self.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            level = logging.WARNING if self.is_ready else logging.DEBUG
            logger.log(level, "part_killed part=%s reason=did_not_stop", self.command.name)
        # Also of a part that has ended: a JVM takes seconds to notice that nobody is left to serve.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for closing in (self.process.stdin, self.log):
            if closing is not None:
                closing.close()


def disk_full_note(path: Path) -> str:
    """That the disk is full, which a part often cannot even write to its log; else ""."""
    free = shutil.disk_usage(path.parent).free
    return "" if free >= DISK_BYTES_MIN else f"; its disk has {free // 1024} KiB left: make room, then start again"


def _before_exec(parent: int, niceness: int) -> Callable[[], None]:
    """Runs in the child before exec: on Linux, asks the kernel for SIGTERM when the supervisor dies."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None

    def prepare() -> None:
        os.nice(niceness)
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:
                os._exit(1)

    return prepare
