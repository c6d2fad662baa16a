"""A part of `headrace up`: a child process, its ready line and its log.

Each part leads a process group: Ctrl-C on the terminal reaches only the supervisor, which sends each part one signal,
and processes of the part, such as a JVM, end with it. On Linux the kernel ends the parts when the supervisor is killed.
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

READY_TIMEOUT_S = 120.0  # a cold Spark with a new Derby takes about 15 s on two slow cores
# Time to stop for a part that is still starting: it has no clients yet, and a starting JVM ignores signals.
UNREADY_STOP_TIMEOUT_S = 3.0
POLL_S = 0.2
DISK_BYTES_MIN = 16 * 1024 * 1024  # minimum free space; a new metastore database alone takes some of it
PR_SET_PDEATHSIG = 1  # Linux, prctl(2)


def python_command(module: str, *arguments: str) -> list[str]:
    """Returns the command that runs a module of Headrace with this Python.

    The option `-P` ensures that the installed package is run. Otherwise `-m` would search the working directory first,
    which may contain a directory `headrace`, such as a checkout.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def python_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables without empty entries in PYTHONPATH, as in `:/opt/lib`. Python would interpret
    an empty entry as the working directory."""
    entries = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    other_variables = {name: value for name, value in environment.items() if name != "PYTHONPATH"}
    return {**other_variables, "PYTHONPATH": os.pathsep.join(entries)} if entries else other_variables


class UpError(Exception):
    """`headrace up` cannot start or continue, usually because a part did not start or died. The message is one line for
    the user."""


class Part:
    """A running part: a child process, its ready line and its log. Creating the object starts the process.

    Args:
        command: the command of the part.
        log_dir: directory of the log file.
        environment: environment variables of the process.
    """

    def __init__(self, command: PartCommand, log_dir: Path, environment: Mapping[str, str]) -> None:
        self.command = command
        self.log = PartLog(log_dir / f"{command.name}.log")
        self.process = subprocess.Popen(
            python_command(*command.arguments),
            stdin=subprocess.PIPE if command.reads_requests else subprocess.DEVNULL,
            # After the ready line only responses are read, so a process with a longer report writes it to its log.
            stdout=subprocess.PIPE if command.is_server else self.log.stream,
            stderr=self.log.stream,
            env=python_environment(environment),
            process_group=0,
            preexec_fn=_before_exec(os.getpid(), command.niceness),
        )
        self.started_at = time.monotonic()
        self._partial_line = b""
        self._responses: deque[str] = deque()
        self._addresses: Mapping[str, str] | None = None if command.is_server else {}
        self._ready_at: float | None = None
        self._stop_requested_at: float | None = None

    def wait_until_ready(self, deadline: float, should_stop: Callable[[], bool]) -> Mapping[str, str]:
        """Waits for the ready line and returns its addresses.

        Args:
            deadline: time limit on the monotonic clock.
            should_stop: returns whether the user has requested a stop of `headrace up`.

        Raises:
            UpError: the part ended, or printed no ready line before the deadline.
            KeyboardInterrupt: a stop was requested.
        """
        while not should_stop():
            addresses = self.ready(POLL_S)
            if addresses is not None:
                return addresses
            if self.process.poll() is not None:
                if should_stop():  # the signal reached all processes, as sent by systemd
                    break
                raise UpError(f"the {self.command.name} did not start: {self.end_reason()}")
            if time.monotonic() > deadline:
                waited_s = time.monotonic() - self.started_at
                raise UpError(f"the {self.command.name} was not ready after {waited_s:.0f} s; see {self.log.path}")
        raise KeyboardInterrupt

    def ready(self, wait_s: float) -> Mapping[str, str] | None:
        """Waits up to `wait_s` seconds for the ready line. Returns its addresses, or None if the part has not printed
        it yet. A part that prints no ready line is ready at once, without addresses."""
        if self._addresses is None:
            self._read_output(wait_s)
        return self._addresses

    def send_line(self, line: str) -> None:
        """Sends a line to the part's standard input. `last_log_line` then considers only log lines written from now
        on."""
        assert self.process.stdin is not None
        self.log.begin()
        with contextlib.suppress(BrokenPipeError):  # it has just ended; the next check finds that
            os.write(self.process.stdin.fileno(), f"{line}\n".encode())

    def read_line(self) -> str:
        """Returns the next line that the part has printed after the ready line; "" if there is none yet."""
        if not self._responses:
            self._read_output(0)
        return self._responses.popleft() if self._responses else ""

    def _read_output(self, wait_s: float) -> None:
        if self.process.stdout is None or self.process.stdout.closed:
            return
        output = select.poll()  # select(2) has no descriptors above 1023
        output.register(self.process.stdout.fileno(), select.POLLIN)
        if not output.poll(wait_s * 1000):
            return
        chunk = os.read(self.process.stdout.fileno(), 65536)
        *lines, self._partial_line = (self._partial_line + chunk).split(b"\n")
        for line in lines:
            self._handle_line(line.decode("utf-8", "replace"))
        if not chunk:
            self.process.wait()
            self.process.stdout.close()

    def _handle_line(self, line: str) -> None:
        if self._addresses is not None:
            self._responses.append(line)
        elif line.startswith("ready "):
            self._addresses = dict(re.findall(r"(\w+)=(\S+)", line))
            self._ready_at = time.monotonic()

    def last_log_line(self) -> str:
        """Returns the last line that the part wrote to its log since its start or the last `send_line`, preferably an
        error of Headrace (`headrace: …`), without this prefix. If it wrote none, returns a text with its exit code."""
        lines = self.log.lines()
        own_lines = [line for line in lines if line.startswith("headrace: ")]
        if own_lines or lines:
            return (own_lines or lines)[-1].removeprefix("headrace: ")
        return f"exit code {self.process.returncode}, without log output"

    def end_reason(self) -> str:
        """Returns the reason why the part ended, as far as it is known, and the path of its log."""
        code = self.process.returncode
        reason = self.last_log_line() if code >= 0 else f"killed by {signal.Signals(-code).name}"
        if code == -signal.SIGKILL:
            reason += ", manually or by the kernel's OOM killer"
        return f"{reason} (log: {self.log.path}){disk_full_note(self.log.path)}"

    @property
    def is_ready(self) -> bool:
        return self._addresses is not None

    @property
    def ready_for_s(self) -> float:
        """The seconds since the part printed its ready line."""
        return 0.0 if self._ready_at is None else time.monotonic() - self._ready_at

    def request_stop(self) -> None:
        """Sends SIGTERM to the part, without waiting for its end. Does nothing in a second call, because some servers
        stop without cleanup at a second signal."""
        if self._stop_requested_at is None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self._stop_requested_at = self._stop_requested_at or time.monotonic()

    def stop(self, deadline: float) -> None:
        """Sends SIGTERM to the part, waits until `deadline` on the monotonic clock, and kills the processes that remain
        in the part's process group. A part that is still starting gets less time."""
        self.request_stop()
        if not self.is_ready and self._stop_requested_at is not None:
            deadline = min(deadline, self._stop_requested_at + UNREADY_STOP_TIMEOUT_S)
        try:
            self.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            level = logging.WARNING if self.is_ready else logging.DEBUG
            logger.log(level, "part_killed part=%s reason=did_not_stop", self.command.name)
        # Also after the part has ended: its JVM would take seconds to notice that.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for closing in (self.process.stdin, self.log):
            if closing is not None:
                closing.close()


def disk_full_note(path: Path) -> str:
    """Returns the end of an error message if the disk of the file at `path` is full, otherwise "". A part often cannot
    write this reason to its log, which is on the full disk."""
    free = shutil.disk_usage(path.parent).free
    return "" if free >= DISK_BYTES_MIN else f"; its disk has {free // 1024} KiB left: free disk space, then restart"


def _before_exec(parent: int, niceness: int) -> Callable[[], None]:
    """Returns a function that prepares the child process between fork and exec: it sets the niceness and, on Linux,
    asks the kernel to send SIGTERM to the child when the supervisor dies.

    Args:
        parent: process id of the supervisor. On Linux, the child exits if this is no longer its parent at that moment.
        niceness: as of nice(1).
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None

    def prepare() -> None:
        os.nice(niceness)
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:
                os._exit(1)

    return prepare
