"""Go clients: compiles the programs of `tests/support/go`, once for each content of the directory, and runs them."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.checkout import ROOT

SOURCES = ROOT / "tests" / "support" / "go"
CACHE = ROOT / ".make" / "go"
DEFAULT_DIRECTORY = "/usr/local/go/bin"
BUILD_TIMEOUT_S = 600
WAIT_TIMEOUT_S = 60


def compile_clients() -> Path:
    """Returns the program compiled from `tests/support/go`. Skips the test if Go is missing or too old."""
    go = shutil.which("go") or shutil.which("go", path=DEFAULT_DIRECTORY)
    if go is None:
        pytest.skip("go is not on the PATH; it compiles the client")
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false"}
    (required_version,) = re.findall(r"^go (\d+)\.(\d+)", (SOURCES / "go.mod").read_text(encoding="utf-8"), re.M)
    version_text = subprocess.run(
        [go, "env", "GOVERSION"], capture_output=True, text=True, check=True, env=environment
    ).stdout
    version = re.match(r"go(\d+)\.(\d+)", version_text)
    if version is None or tuple(map(int, version.groups())) < tuple(map(int, required_version)):
        pytest.skip(f"{version_text.strip()} is older than {'.'.join(required_version)}, the minimum of the client")
    content = hashlib.sha256(version_text.encode())
    for path in sorted(SOURCES.iterdir()):
        content.update(path.read_bytes())
    program = CACHE / content.hexdigest()[:16] / "clients"
    if not program.exists():
        new = program.with_name("clients.new")
        done = subprocess.run(
            [go, "build", "-o", str(new), "."],
            cwd=SOURCES,
            env=environment,
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, f"go could not fetch or compile the client:\n{done.stderr[-2000:]}"
        new.replace(program)
    return program


class GoProgram:
    """A running Go program that prints a line per event until its standard input is closed. Used as a context manager,
    it is killed at the end of the context."""

    def __init__(self, *command: str) -> None:
        self.lines: list[list[str]] = []
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._errors = ""
        self._readers = [threading.Thread(target=read) for read in (self._read, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> GoProgram:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for reader in self._readers:
            reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.split())

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors = self._process.stderr.read()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_TIMEOUT_S
        while not condition():
            assert self._process.poll() is None, self._errors
            assert time.monotonic() < deadline, self.lines[-5:]
            time.sleep(0.01)

    def stop(self) -> None:
        """Closes the program's standard input, which requests its end. The program then finishes its pending work and
        exits."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(WAIT_TIMEOUT_S)
        for reader in self._readers:
            reader.join()
        assert self._process.returncode == 0, self._errors
