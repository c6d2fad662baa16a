"""Confluent's Java client 7.5 against the registry: `tests/support/java/RegistryRound.java`."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support.certificates import Authority
from support.java_oracle import JAVA_SOURCES, compile_program, confluent_classpath, install_older_java
from support.registry.secured_registry import PASSWORD, secured_registry

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
def classpath() -> str:
    return confluent_classpath()


@pytest.mark.parametrize(("profile", "incompatible"), [("8", "40901"), ("7", "409")])
def test_java_client_uses_every_route(
    classpath: str, start_service: Any, tmp_path: Path, profile: str, incompatible: str
) -> None:
    """With the response bodies and error codes of the current release, and of the client's release."""
    serve = ["registry", "serve", "--data-dir", str(tmp_path), "--registry-listen", "127.0.0.1:0"]
    service = start_service("headrace", *serve, environment={"HEADRACE__REGISTRY__API_PROFILE": profile})
    lines = run_java(classpath, "RegistryRound", service.addresses["registry"], incompatible)
    assert lines == [f"done: {name}" for name in ROUNDS]


def test_java_client_on_an_older_java(classpath: str, start_service: Any, tmp_path: Path) -> None:
    """The client uses the default `Accept` of Java's HTTP client, which up to 17.0.3 has unusual ranges."""
    serve = ["registry", "serve", "--data-dir", str(tmp_path / "data"), "--registry-listen", "127.0.0.1:0"]
    service = start_service("headrace", *serve)
    classes = compile_program("RegistryRound", classpath, tmp_path / "classes")
    java = str(install_older_java(tmp_path / "older"))
    version_output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=RUN_TIMEOUT_S)
    assert 'version "17.0.2"' in version_output.stderr
    arguments = ["RegistryRound", service.addresses["registry"], "40901"]
    lines = printed([java, "-Xmx256m", "-cp", f"{classes}:{classpath}", *arguments])
    assert lines == [f"done: {name}" for name in ROUNDS]


def test_java_client_with_credentials_and_tls(classpath: str, start_service: Any, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    store = tmp_path / "trust.p12"
    keytool = ["keytool", "-importcert", "-noprompt", "-alias", "ca", "-storetype", "PKCS12", "-storepass", "changeit"]
    subprocess.run([*keytool, "-file", authority.ca_file, "-keystore", store], check=True, capture_output=True)
    url = secured_registry(start_service, tmp_path, authority)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        dead_url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        trust = [f"-Djavax.net.ssl.trustStore={store}", "-Djavax.net.ssl.trustStorePassword=changeit"]
        lines = run_java(classpath, "SecuredRound", url, dead_url, PASSWORD, options=trust)
    assert lines == ["403 40301", "401 40101"]


def run_java(classpath: str, program: str, *arguments: str, options: Sequence[str] = ()) -> list[str]:
    """The lines that a program prints."""
    java = [
        "java",
        "-Xmx256m",
        "-XX:TieredStopAtLevel=1",
        *options,
        "-cp",
        classpath,
        str(JAVA_SOURCES / f"{program}.java"),
    ]
    return printed([*java, *arguments])


def printed(command: Sequence[str]) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()
