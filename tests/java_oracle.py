"""Avro Java as a child process: a single-file program of `tests/java/` that answers one line per line."""

from __future__ import annotations

import base64
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from headrace.java import ensure_java

JAVA_SOURCES = Path(__file__).parent / "java"


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


@contextmanager
def java_oracle(program: str, cache_dir: Path) -> Iterator[JavaOracle]:
    """Runs `tests/java/<program>.java` with the jars of the pyspark wheel, Avro's among them."""
    java = ensure_java(cache_dir, dict(os.environ)) / "bin" / "java"
    command = [str(java), "-Xmx256m", "-cp", pyspark_jars(), str(JAVA_SOURCES / f"{program}.java")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")
    try:
        yield JavaOracle(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(timeout=30)
