"""Returns the jars of the tests' poms from Maven's cache, and fetches missing ones."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from support.checkout import ROOT

POMS = Path(__file__).resolve().parent
CLASSPATHS = ROOT / ".make" / "classpaths"
FETCH_LOCK = Path(tempfile.gettempdir()) / "headrace-maven.lock"
FETCH_TIMEOUT_S = 900.0


def classpath_of(name: str) -> str:
    """Returns the classpath of `<name>.pom.xml`, cached because Maven needs half a minute to compute it.

    Fetches missing jars, one process at a time, because Maven does not lock its cache. Skips the test without Maven.
    """
    pom = POMS / f"{name}.pom.xml"
    cached = CLASSPATHS / f"{name}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:16]}"
    with FETCH_LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not cached.exists() or not all(Path(jar).exists() for jar in cached.read_text(encoding="utf-8").split(":")):
            _fetch(pom, cached)
    return cached.read_text(encoding="utf-8")


def _fetch(pom: Path, cached: Path) -> None:
    if shutil.which("mvn") is None:
        pytest.skip(f"no Maven on the PATH to fetch the jars of {pom.name}")
    cached.parent.mkdir(parents=True, exist_ok=True)
    output = cached.with_suffix(".new")
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:build-classpath", "-DincludeScope=runtime"]
    done = subprocess.run(
        [*command, f"-Dmdep.outputFile={output}"],
        capture_output=True,
        text=True,
        timeout=FETCH_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    output.write_text(output.read_text(encoding="utf-8").strip(), encoding="utf-8")
    output.replace(cached)
