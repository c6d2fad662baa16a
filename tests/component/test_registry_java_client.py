"""Confluent's own Java client, version 7.5, against the registry: `tests/java/RegistryRound.java`."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.java_oracle import JAVA_SOURCES, confluent_classpath

pytestmark = pytest.mark.java

RUN_TIMEOUT_S = 120
ROUNDS = [
    "register, evolve, find",
    "references",
    "metadata",
    "compatibility and configuration",
    "modes",
    "deletes",
    "contexts",
    "tags and rules",
    "server",
]


@pytest.fixture(scope="module")
def classpath(tmp_path_factory: pytest.TempPathFactory) -> str:
    return confluent_classpath(tmp_path_factory.mktemp("java"))


@pytest.mark.parametrize(("profile", "incompatible"), [("8", "40901"), ("7", "409")])
def test_full_round(classpath: str, start_service: Any, tmp_path: Path, profile: str, incompatible: str) -> None:
    """Under the bodies and codes of today, and those of the client's own time."""
    serve = ["registry", "serve", "--data-dir", str(tmp_path), "--registry-listen", "127.0.0.1:0"]
    service = start_service("headrace", *serve, environment={"HEADRACE__REGISTRY__API_PROFILE": profile})
    java = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", classpath, str(JAVA_SOURCES / "RegistryRound.java")]
    done = subprocess.run(
        [*java, service.addresses["registry"], incompatible],
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [f"done: {name}" for name in ROUNDS]
