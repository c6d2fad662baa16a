"""Commands of `headrace` that run sequentially in one child process, so that only the first one starts Spark."""

from __future__ import annotations

import json
import selectors
import subprocess
import sys
from collections.abc import Mapping
from os import environ
from pathlib import Path
from types import MappingProxyType

from support.checkout import ROOT

CHILD = Path(__file__).resolve().parent / "warm_commands_child.py"
END_TIMEOUT_S = 30.0


class WarmCommands:
    """Runs commands in a child process, which the first command starts.

    Args:
        environment: variables of the child in addition to those of this process.
    """

    def __init__(self, environment: Mapping[str, str] = MappingProxyType({})) -> None:
        self._environment = {**environ, **environment}
        self._process: subprocess.Popen[str] | None = None

    def run(self, *words: str, timeout_s: float, now_ms: int | None = None) -> subprocess.CompletedProcess[str]:
        """Runs `headrace` with these arguments. The result has the exit code and output, as of a command in a process
        of its own.

        Args:
            now_ms: the time at which loads and rewrites run, by default the system's.

        Raises:
            TimeoutError: the command did not end in time; its process has been killed.
        """
        if self._process is None:
            self._process = self._start()
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps({"words": words, "now_ms": now_ms}) + "\n")
        process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                self._kill()
                raise TimeoutError(f"headrace {' '.join(words)} did not end within {timeout_s} s")
        line = process.stdout.readline()
        if not line:
            self._kill()
            raise RuntimeError(f"the process of headrace {' '.join(words)} ended with code {process.returncode}")
        result = json.loads(line)
        return subprocess.CompletedProcess(
            ["headrace", *words], result["code"], stdout=result["stdout"], stderr=result["stderr"]
        )

    def close(self) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._kill()
        self._process = None

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-P", str(CHILD)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self._environment,
        )

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
