"""`pip install headrace` alone brings the compatibility command and no server, no Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(300)
def test_a_bare_install_checks_schemas(tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    python = environment / "bin" / "python"
    subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(ROOT)], check=True
    )

    installed = subprocess.run(
        [str(python), "-m", "pip", "list", "--format", "freeze"], capture_output=True, text=True, check=True
    ).stdout.lower()
    names = {line.partition("==")[0] for line in installed.split()}
    assert names <= {"headrace", "pip", "setuptools", "wheel"}

    schemas = ROOT / "pipeline" / "demo" / "schemas"
    command = [str(environment / "bin" / "headrace"), "compat", "check"]
    refused = subprocess.run(
        [*command, str(schemas / "flights-v3.avsc"), "--against", str(schemas / "flights-v2.avsc")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert refused.returncode == 1, refused.stderr
    for words in ("flights-v3.avsc", "dep_delay", "gate", "default"):
        assert words in refused.stdout
    lines = (schemas / "flights-v3.avsc").read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if '"gate"' in text)
    assert f"flights-v3.avsc:{line}:" in refused.stdout
    accepted = subprocess.run(
        [*command, str(schemas / "flights-v2.avsc"), "--against", str(schemas / "flights-v1.avsc")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert accepted.returncode == 0, accepted.stdout + accepted.stderr

    server = subprocess.run(
        [str(environment / "bin" / "headrace"), "registry", "serve"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert server.returncode == 2
    assert "pip install 'headrace[registry]'" in server.stderr
    assert len(server.stderr.strip().splitlines()) == 1
