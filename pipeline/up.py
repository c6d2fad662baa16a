"""`headrace up`: registry, broker, metastore and scheduled loads on one machine, supervised.

Each part is a child process that leads a group of its own: a Ctrl-C on the terminal reaches the supervisor alone, which
tells the parts once, and what a part started, such as a JVM, goes with it. On Linux the kernel ends the parts when the
supervisor is killed. A part that ends by itself ends the whole with a non-zero code, because a half-working pipeline
that looks alive is worse than one that is down.

Invariants: `up.json` holds addresses only while every part is ready, and its `flock` is held from start to end, so
at most one `up` runs on a data folder and a file left behind by a killed one is known to be stale.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import errno
import fcntl
import json
import logging
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from headrace.pipeline.children import python_command, python_environment
from headrace.settings import CONFIG_PATH_VARIABLE, ENVIRONMENT_PREFIX, Settings
from headrace.settings.addresses import UP_FILE_NAME, LiveAddresses, warehouse_dir

logger = logging.getLogger(__name__)

READY_TIMEOUT_S = 120.0  # a cold Spark with a new Derby takes some 15 s on two slow cores
STOP_TIMEOUT_S = 20.0  # a part that has not ended by then is killed; all parts survive that
UNREADY_STOP_TIMEOUT_S = 3.0  # of a part that still starts: nobody uses it yet, and a JVM hears nothing until it is up
POLL_S = 0.2
LOG_BYTES_MAX = 64 * 1024 * 1024  # a part's log beyond this is set aside when the part starts
DISK_BYTES_MIN = 16 * 1024 * 1024  # free; a metastore's new database alone takes some of it
PROBLEM_PREFIX = "PROBLEM: "  # of the lines of a load's report that a person must act on; it limits how many there are
PR_SET_PDEATHSIG = 1  # Linux, prctl(2)


class UpError(Exception):
    """The whole could not start, or a part of it died; the message is one line for the user."""


@dataclass(frozen=True, slots=True)
class PartCommand:
    """How one part is started: a module and its arguments; `name` also names its log file."""

    name: str
    arguments: tuple[str, ...]


class Part:
    """A running child process and its ready line, or its log alone."""

    def __init__(
        self, command: PartCommand, log_dir: Path, environment: Mapping[str, str], *, is_server: bool = True
    ) -> None:
        self.command = command
        self.log_path = log_dir / f"{command.name}.log"
        self._set_aside_large_log()
        self._log = self.log_path.open("ab")
        self._log_start = self._log.tell()
        self.process = subprocess.Popen(
            python_command(*command.arguments),
            stdin=subprocess.DEVNULL,
            # Nobody reads on after the ready line, so what has a report to print writes it to its log.
            stdout=subprocess.PIPE if is_server else self._log,
            stderr=self._log,
            env=python_environment(environment),
            process_group=0,
            preexec_fn=_end_with_parent(os.getpid()),
        )
        self._output = b""
        self._is_ready = not is_server
        self._asked_at: float | None = None

    def wait_until_ready(self, deadline: float, should_stop: Callable[[], bool]) -> Mapping[str, str]:
        """The addresses of the ready line.

        Raises:
            UpError: the part ended, or said nothing until the deadline.
        """
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        output = select.poll()  # select(2) has no descriptors above 1023
        output.register(descriptor, select.POLLIN)
        while not should_stop():
            if output.poll(POLL_S * 1000):
                chunk = os.read(descriptor, 65536)
                self._output += chunk
                for line in self._output.decode("utf-8", "replace").splitlines(keepends=True):
                    if line.startswith("ready ") and line.endswith("\n"):
                        self._is_ready = True
                        return dict(re.findall(r"(\w+)=(\S+)", line))
                if not chunk:
                    self.process.wait()
                    if should_stop():  # the signal went to all processes, as systemd sends it
                        break
                    raise UpError(f"the {self.command.name} did not start: {self.end()}")
            if time.monotonic() > deadline:
                raise UpError(
                    f"the {self.command.name} was not ready after {READY_TIMEOUT_S:.0f} s; see {self.log_path}"
                )
        raise KeyboardInterrupt

    def last_words(self) -> str:
        """The last line that the part wrote to its log, or how it ended."""
        lines = self.log_lines()
        said = [line for line in lines if line.startswith("headrace: ")]
        if said or lines:
            return (said or lines)[-1].removeprefix("headrace: ")
        return f"it ended with code {self.process.returncode} and said nothing"

    def end(self) -> str:
        """Why it ended, as far as can be told, and where more can be read."""
        code = self.process.returncode
        why = self.last_words() if code >= 0 else f"killed by {signal.Signals(-code).name}"
        if code == -signal.SIGKILL:
            why += ", by hand or by the kernel for want of memory"
        return f"{why} (log: {self.log_path}){_disk_left(self.log_path)}"

    def log_lines(self) -> Sequence[str]:
        """What the part wrote to its log since it was started."""
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return [line for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]

    def ask_to_stop(self) -> None:
        """Tells it to end, once and without waiting: some servers take a second signal for impatience."""
        if self._asked_at is None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self._asked_at = self._asked_at or time.monotonic()

    def stop(self, deadline: float) -> None:
        """Ends it with all that it started, by force after the deadline; one that still starts is given less time."""
        self.ask_to_stop()
        if not self._is_ready and self._asked_at is not None:
            deadline = min(deadline, self._asked_at + UNREADY_STOP_TIMEOUT_S)
        try:
            self.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            level = logging.WARNING if self._is_ready else logging.DEBUG
            logger.log(level, "part_killed part=%s reason=did_not_stop", self.command.name)
        # Also of a part that has ended: a JVM takes seconds to notice that nobody is left to serve.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._log.close()

    def _set_aside_large_log(self) -> None:
        if self.log_path.exists() and self.log_path.stat().st_size > LOG_BYTES_MAX:
            self.log_path.replace(self.log_path.with_suffix(".log.1"))


def run_up(settings: Settings, environment: Mapping[str, str], announce: Callable[[LiveAddresses], None]) -> None:
    """Starts everything, calls `announce` when all is ready, and returns after a clean stop by SIGINT or SIGTERM.

    Args:
        settings: the settings in force.
        environment: for the children; they read their settings from it as this process did.
        announce: is given the live addresses once.

    Raises:
        UpError: another `up` runs here, a part did not start, or one died.
    """
    stop = _StopFlag()
    data_dir = settings.data_dir.resolve()
    log_dir = data_dir / "logs"
    try:
        log_dir.mkdir(parents=True, exist_ok=True)
        warehouse_dir(settings).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UpError(f"cannot write to {error.filename}: {error.strerror}") from error
    with _UpFile(data_dir / UP_FILE_NAME) as up_file, stop:
        parts: list[Part] = []
        schedule: _Schedule | None = None
        try:
            for command in part_commands(settings):
                parts.append(Part(command, log_dir, environment))
            addresses = _wait_for_all(parts, settings, stop)
            up_file.publish(addresses)
            announce(addresses)
            schedule = _Schedule(settings, log_dir, environment)
            _supervise(parts, schedule, stop)
        except KeyboardInterrupt:
            logger.info("up_stopped reason=signal")
        finally:
            up_file.clear()
            deadline = time.monotonic() + STOP_TIMEOUT_S
            if schedule is not None:
                schedule.stop(deadline)
            # All are told first: none needs another to end, and each has the whole time for it.
            for part in parts:
                part.ask_to_stop()
            for part in parts:
                part.stop(deadline)


def _disk_left(path: Path) -> str:
    """That the disk is full, which a part often cannot even write to its log; else ""."""
    free = shutil.disk_usage(path.parent).free
    return "" if free >= DISK_BYTES_MIN else f"; its disk has {free // 1024} KiB left: make room, then start again"


def part_commands(settings: Settings) -> Sequence[PartCommand]:
    """What is started, in order; a running load is stopped before them."""
    data_dir = str(settings.data_dir.resolve())
    endpoint = ["--data-dir", data_dir, "--metastore-listen", str(settings.hive.listen)]
    endpoint += ["--warehouse", str(warehouse_dir(settings))]
    if settings.sql.listen is not None:
        endpoint += ["--sql-listen", str(settings.sql.listen)]
    return (
        PartCommand("registry", ("headrace", "registry", "serve", "--data-dir", data_dir)),
        PartCommand("broker", ("headrace", "broker", "serve", "--data-dir", data_dir)),
        PartCommand("metastore", ("headrace.pipeline.endpoint", *endpoint)),
    )


def child_environment(
    environment: Mapping[str, str], flags: Mapping[str, str], config: Path | None = None
) -> dict[str, str]:
    """The environment in which a child reads the same settings: flags travel as variables, which beat the file."""
    variables = {ENVIRONMENT_PREFIX + "__".join(key.upper().split(".", 1)): value for key, value in flags.items()}
    if config is not None:
        variables[CONFIG_PATH_VARIABLE] = str(config.resolve())
    return {**environment, **variables}


def next_aligned_ms(now_ms: int, interval_ms: int) -> int:
    """The next instant after `now_ms` that is a whole number of intervals since 1970, so that runs of different
    machines and restarts fall on the same minutes."""
    return (now_ms // interval_ms + 1) * interval_ms


def _wait_for_all(parts: Sequence[Part], settings: Settings, stop: _StopFlag) -> LiveAddresses:
    deadline = time.monotonic() + READY_TIMEOUT_S
    found: dict[str, str] = {}
    for part in parts:
        found.update(part.wait_until_ready(deadline, stop.is_set))
    return LiveAddresses(
        pid=os.getpid(),
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        registry=found["registry"],
        broker=found["broker"],
        metastore=found["metastore"],
        sql=found.get("sql", ""),
        warehouse=str(warehouse_dir(settings)),
    )


def _supervise(parts: Sequence[Part], schedule: _Schedule, stop: _StopFlag) -> None:
    while not stop.is_set():
        for part in parts:
            if part.process.poll() is not None and not stop.is_set():
                raise UpError(f"the {part.command.name} died: {part.end()}")
        schedule.tick(int(time.time() * 1000))
        stop.wait(POLL_S)


class _Schedule:
    """Starts a load at each aligned interval, never two at once."""

    def __init__(self, settings: Settings, log_dir: Path, environment: Mapping[str, str]) -> None:
        self._interval_ms = max(1000, settings.loader.interval.ms)
        self._due_ms = next_aligned_ms(int(time.time() * 1000), self._interval_ms)
        self._command = PartCommand("load", ("headrace", "load", "--data-dir", str(settings.data_dir.resolve())))
        self._log_dir = log_dir
        self._environment = environment
        self._running: Part | None = None

    def tick(self, now_ms: int) -> None:
        if self._running is not None and self._running.process.poll() is not None:
            self._report(self._running)
            self._running = None
        if self._due_ms - now_ms > self._interval_ms:  # the clock was set back
            self._due_ms = next_aligned_ms(now_ms, self._interval_ms)
        if now_ms >= self._due_ms:
            self._due_ms = next_aligned_ms(now_ms, self._interval_ms)
            if self._running is None:
                logger.info("load_started reason=schedule")
                self._running = Part(self._command, self._log_dir, self._environment, is_server=False)
            else:
                logger.warning("load_still_running reason=interval_too_short interval_ms=%d", self._interval_ms)

    def stop(self, deadline: float) -> None:
        if self._running is not None:
            self._running.stop(deadline)

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


class _StopFlag:
    """Set by SIGINT or SIGTERM while the context is open."""

    def __init__(self) -> None:
        self._stopped = False
        self._previous: dict[int, object] = {}

    def __enter__(self) -> _StopFlag:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal returned a moment ago

    def _handle(self, number: int, frame: object) -> None:
        self._stopped = True

    def is_set(self) -> bool:
        return self._stopped

    def wait(self, seconds: float) -> None:
        if not self._stopped:
            time.sleep(seconds)


class _UpFile:
    """`up.json`, locked from start to end and filled while everything is ready."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> _UpFile:
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = re.search(rb'"pid": (\d+)', os.read(self._descriptor, 65536))
            os.close(self._descriptor)
            who = f" (process {holder[1].decode()})" if holder else ""
            raise UpError(
                f"another `headrace up` runs on {self._path.parent}{who}; stop it or name another --data-dir"
            ) from error
        self.clear()
        return self

    def publish(self, addresses: LiveAddresses) -> None:
        content = json.dumps(dataclasses.asdict(addresses), indent=2).encode()
        try:
            if os.pwrite(self._descriptor, content, 0) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise UpError(f"cannot write {self._path}: {error.strerror}{_disk_left(self._path)}") from error

    def clear(self) -> None:
        os.ftruncate(self._descriptor, 0)

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _end_with_parent(parent: int) -> Callable[[], None]:
    """Runs in the child before exec: on Linux, asks the kernel for SIGTERM when the supervisor dies."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None

    def prepare() -> None:
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:
                os._exit(1)

    return prepare
