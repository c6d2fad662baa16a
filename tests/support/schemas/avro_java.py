"""Avro Java as the reference: many reader/writer pairs in one JVM, with the jar of pyspark."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headrace.pipeline.java import ensure_java

SOURCES = Path(__file__).resolve().parents[1] / "java"
JARS = (
    "avro-1*.jar",
    "jackson-*.jar",
    "slf4j-api*.jar",
    "commons-compress*.jar",
    "hadoop-client-*.jar",
    "commons-*.jar",
    "jcl-*.jar",
)
TIMEOUT_S = 600


def java_verdicts(pairs: Iterable[tuple[str, str]], work_dir: Path) -> list[dict[str, Any]]:
    """Returns for each (reader, writer) pair of schema texts whether Avro Java finds them compatible, in order.

    Raises:
        headrace.pipeline.java.JavaNotFoundError: Java is not installed.
    """
    return java_results("CompatOracle", ({"reader": reader, "writer": writer} for reader, writer in pairs), work_dir)


def java_results(program: str, inputs: Iterable[dict[str, Any]], work_dir: Path) -> list[dict[str, Any]]:
    """Runs a program of `tests/support/java` with a list of inputs and returns one result per input.

    Raises:
        headrace.pipeline.java.JavaNotFoundError: Java is not installed.
    """
    environment = dict(os.environ)
    java = ensure_java(work_dir, environment) / "bin" / "java"
    requests = work_dir / "questions.jsonl"
    with requests.open("w", encoding="utf-8") as stream:
        for question in inputs:
            stream.write(json.dumps(question) + "\n")
    with requests.open("rb") as stream:
        completed = subprocess.run(
            [str(java), "-XX:+UseSerialGC", "-cp", _classpath(), str(SOURCES / f"{program}.java")],
            stdin=stream,
            capture_output=True,
            env=environment,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert completed.returncode == 0, completed.stderr.decode()
    return [json.loads(line) for line in completed.stdout.splitlines()]  # bytes: a text may contain U+2028


def _classpath() -> str:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    jars = Path(spec.origin).parent / "jars"
    return os.pathsep.join(str(jar) for pattern in JARS for jar in sorted(jars.glob(pattern)))
