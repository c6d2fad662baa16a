"""The jars of a pom of the tests, in Maven's own cache, fetched where they are missing."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from support.checkout import ROOT

POMS = Path(__file__).resolve().parent
KEPT = ROOT / ".make" / "classpaths"
FETCH_TIMEOUT_S = 900.0


def classpath_of(name: str) -> str:
    """The classpath of `servers/<name>.pom.xml`. It is kept, since Maven takes half a minute to say it again."""
    pom = POMS / f"{name}.pom.xml"
    kept = KEPT / f"{name}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:16]}"
    if kept.exists():
        classpath = kept.read_text(encoding="utf-8")
        if all(Path(jar).exists() for jar in classpath.split(":")):
            return classpath
    if shutil.which("mvn") is None:
        pytest.skip(f"no Maven on the PATH to fetch the jars of {name} with")
    KEPT.mkdir(parents=True, exist_ok=True)
    output = kept.with_suffix(".new")
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:build-classpath", "-DincludeScope=runtime"]
    done = subprocess.run(
        [*command, f"-Dmdep.outputFile={output}"],
        capture_output=True,
        text=True,
        timeout=FETCH_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    output.write_text(output.read_text(encoding="utf-8").strip(), encoding="utf-8")
    output.replace(kept)
    return kept.read_text(encoding="utf-8")
