"""Loads forked from one process with a running Spark, so that many can be killed without a start of Spark each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, Queue

from support.checkout import ROOT
from support.loader.load_world import LOAD_TIMEOUT_S, LoadWorld, StoppingLoad
from support.processes import command_line, descendants

SERVER = Path(__file__).resolve().parent / "fault" / "load_forks.py"


class ForkedProcess:
    """A forked driver. It has the methods of `subprocess.Popen` that `StoppingLoad` uses."""

    def __init__(self, pid: int, lines: Queue[str]) -> None:
        self.pid = pid
        self._lines = lines
        self._code: int | None = None

    def poll(self) -> int | None:
        """Returns the exit code, negative for a signal; None while the process runs or is stopped."""
        if self._code is None:
            try:
                self._code = _number_after("ended", self._lines.get_nowait())
            except Empty:
                return None
        return self._code

    def wait(self, timeout_s: float) -> int:
        if self._code is None:
            self._code = _number_after("ended", self._lines.get(timeout=timeout_s))
        return self._code


class ForkedLoad(StoppingLoad):
    """A load in a forked process.

    Args:
        point: the stop point at which it stops itself; "" for none.
        nth: at which passage of the point it stops.
    """

    def __init__(self, forks: LoadForks, arguments: Sequence[str], log: Path, point: str, nth: int) -> None:
        self.announce = log.with_suffix(".announce")
        self.announce.touch()
        self.log = log
        self._forks = forks
        self._output = log.open("w")
        order = {
            "arguments": [*arguments],
            "log": str(log),
            "point": point,
            "nth": nth,
            "announce": str(self.announce),
        }
        self.process = forks.fork(order)  # type: ignore[assignment]

    def workers(self) -> list[int]:
        return self._forks.workers()


class LoadForks:
    """A process with a running Spark that forks the drivers of loads, one at a time.

    The drivers share its JVM, which survives when a driver is killed. In contrast, each load of `LoadWorld.start_load`
    has its own JVM.
    """

    def __init__(self, world: LoadWorld, directory: Path) -> None:
        self._world = world
        self._lines: Queue[str] = Queue()
        self._errors = (directory / "load_forks.log").open("w+")
        self._last: ForkedProcess | None = None
        self._process = subprocess.Popen(
            [sys.executable, str(SERVER), "load", *world.load_flags()],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "HEADRACE_TEST_CONTROL": str(directory / "stop.json")},
        )
        threading.Thread(target=self._read, daemon=True).start()
        try:
            _expect("ready", self._next_line())
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise

    def start_load(self, log: Path, *more: str, point: str = "", nth: int = 1) -> ForkedLoad:
        return self.start(["load", *self._world.load_flags(*more)], log, point=point, nth=nth)

    def start(self, arguments: Sequence[str], log: Path, *, point: str = "", nth: int = 1) -> ForkedLoad:
        """Starts any command, such as a rewrite."""
        return ForkedLoad(self, arguments, log, point, nth)

    def fork(self, order: dict[str, object]) -> ForkedProcess:
        assert self._process.stdin is not None
        assert self._last is None or self._last.poll() is not None, "another driver runs"
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        self._last = ForkedProcess(_number_after("forked", self._next_line()), self._lines)
        return self._last

    def workers(self) -> list[int]:
        """Returns the process ids of the Python workers of the shared JVM."""
        return [pid for pid in descendants(self._process.pid)[1:] if "worker_daemon" in command_line(pid)]

    def close(self) -> None:
        if self._last is not None and self._last.poll() is None:
            os.kill(self._last.pid, 9)
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(LOAD_TIMEOUT_S)
        finally:
            self._process.kill()
            self._process.wait()
            self._errors.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.strip())
        self._lines.put("")

    def _next_line(self) -> str:
        line = self._lines.get(timeout=LOAD_TIMEOUT_S)
        if not line:
            self._errors.seek(0)
            raise AssertionError(f"the process that forks loads has ended:\n{self._errors.read()}")
        return line


def _expect(word: str, line: str) -> None:
    assert line.split()[:1] == [word], line


def _number_after(word: str, line: str) -> int:
    _expect(word, line)
    return int(line.split()[1])
