"""Clients of Go: the programs of a directory of `tests/support`, compiled once for each content of it, and run."""

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
USUAL_PLACE = "/usr/local/go/bin"
BUILD_TIMEOUT_S = 600
PATIENCE_S = 60


def compiled() -> Path:
    """The program of `tests/support/go`. Skips the test where there is no Go, or one that is too old for it."""
    go = shutil.which("go") or shutil.which("go", path=USUAL_PLACE)
    if go is None:
        pytest.skip("no go on the PATH to compile the client with")
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false"}
    (wanted,) = re.findall(r"^go (\d+)\.(\d+)", (SOURCES / "go.mod").read_text(encoding="utf-8"), re.M)
    told = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=True, env=environment).stdout
    version = re.match(r"go(\d+)\.(\d+)", told)
    if version is None or tuple(map(int, version.groups())) < tuple(map(int, wanted)):
        pytest.skip(f"{told.strip()} is older than {'.'.join(wanted)}, which the client asks for")
    content = hashlib.sha256(told.encode())
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


class Running:
    """A program that tells in lines what it does, until its standard input ends. Each `with` is one."""

    def __init__(self, *command: str) -> None:
        self.lines: list[list[str]] = []
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._errors = ""
        self._readers = [threading.Thread(target=read) for read in (self._read, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Running:
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

    def wait_until(self, is_enough: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_enough():
            assert self._process.poll() is None, self._errors
            assert time.monotonic() < deadline, self.lines[-5:]
            time.sleep(0.01)

    def end(self) -> None:
        """As its user would; it then finishes what it has begun."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join()
        assert self._process.returncode == 0, self._errors
