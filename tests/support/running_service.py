"""Starts a real server as a child process. This is no conftest, because several conftest modules import it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import Empty, Queue

from support.checkout import ROOT

READY_TIMEOUT_S = 120
DRAIN_TIMEOUT_S = 10


class Service:
    """A running `headrace …` server. `addresses` maps the names of its ready line to values.

    Args:
        arguments: a module and its arguments, or the whole command if `program` is empty.
        environment: variables that are added to `inherited`.
    """

    def __init__(
        self,
        arguments: list[str],
        environment: Mapping[str, str] | None = None,
        directory: Path = ROOT,
        *,
        program: Sequence[str] = (sys.executable, "-P", "-m"),
        inherited: Mapping[str, str] = os.environ,
    ) -> None:
        self.arguments = arguments
        self.lines: Queue[str] = Queue()
        self.errors: list[str] = []
        self.process = subprocess.Popen(
            [*program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=directory,
            env={**inherited, **(environment or {})},
        )
        self._drains = [
            threading.Thread(target=drain, daemon=True) for drain in (self._drain_stdout, self._drain_stderr)
        ]
        for drain in self._drains:
            drain.start()
        try:
            self.addresses = self._wait_until_ready()
        except BaseException:  # including Ctrl-C, because no caller has the process yet
            self.kill()
            raise

    def _drain_stdout(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")

    def _drain_stderr(self) -> None:
        assert self.process.stderr is not None
        self.errors.extend(self.process.stderr)

    def _wait_until_ready(self) -> dict[str, str]:
        while True:
            try:
                line = self.lines.get(timeout=READY_TIMEOUT_S)
            except Empty:
                line = ""
            if line.startswith("ready "):
                return dict(re.findall(r"(\w+)=(\S+)", line))
            if not line:
                raise RuntimeError(f"{' '.join(self.arguments)} did not get ready:\n{''.join(self.errors)}")

    def stop(self, timeout_s: float = 60) -> int:
        """Terminates the server with SIGTERM and returns its exit code. All of its output has been read afterwards."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()
        for drain in self._drains:
            drain.join(DRAIN_TIMEOUT_S)
        return self.process.wait()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


StartService = Callable[..., Service]
