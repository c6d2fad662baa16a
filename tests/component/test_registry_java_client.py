"""Confluent's own Java client, version 7.5, against the registry: `tests/java/RegistryRound.java`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.java

JAVA = Path(__file__).resolve().parents[1] / "java"
FETCH_TIMEOUT_S = 600
RUN_TIMEOUT_S = 120
ROUNDS = [
    "register, evolve, find",
    "references",
    "metadata",
    "compatibility and configuration",
    "modes",
    "deletes",
    "contexts",
]


@pytest.fixture(scope="module")
def classpath(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The client's jars in Maven's own cache, fetched where they are missing."""
    for program in ("mvn", "javac"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program} on the PATH to fetch and compile with")
    output = tmp_path_factory.mktemp("java") / "classpath"
    command = ["mvn", "-q", "-B", "-f", str(JAVA / "pom.xml"), "dependency:build-classpath"]
    done = subprocess.run(
        [*command, f"-Dmdep.outputFile={output}"],
        capture_output=True,
        text=True,
        timeout=FETCH_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"Maven could not fetch the client:\n{done.stdout[-2000:]}"
    return output.read_text(encoding="utf-8").strip()


@pytest.mark.parametrize(("profile", "incompatible"), [("8", "40901"), ("7", "409")])
def test_full_round(classpath: str, start_service: Any, tmp_path: Path, profile: str, incompatible: str) -> None:
    """Under the bodies and codes of today, and those of the client's own time."""
    serve = ["registry", "serve", "--data-dir", str(tmp_path), "--registry-listen", "127.0.0.1:0"]
    service = start_service("headrace", *serve, environment={"HEADRACE__REGISTRY__API_PROFILE": profile})
    java = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", classpath, str(JAVA / "RegistryRound.java")]
    done = subprocess.run(
        [*java, service.addresses["registry"], incompatible],
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [f"done: {name}" for name in ROUNDS]
