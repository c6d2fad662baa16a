"""Node clients: installs the packages of the lock file in `tests/support/node`, and runs scripts with Node's test
runner."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from support.checkout import ROOT

SOURCES = ROOT / "tests" / "support" / "node"
CACHE = ROOT / ".make" / "node"
NODE_VERSION_MIN = 20
INSTALL_TIMEOUT_S = 600
RUN_TIMEOUT_S = 120


def installed_clients() -> Path:
    """Returns the directory `node_modules`, installed once for each content of the lock file. Skips the test if Node is
    missing or too old."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node or npm is not on the PATH; they run the clients")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.removeprefix("v").partition(".")[0]) < NODE_VERSION_MIN:
        pytest.skip(f"node {version} is older than {NODE_VERSION_MIN}")
    lock = (SOURCES / "package-lock.json").read_bytes()
    directory = CACHE / hashlib.sha256(lock).hexdigest()[:16]
    if not (directory / "installed").is_file():
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(SOURCES / name, directory / name)
        command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"]
        done = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 0, f"npm could not fetch the clients:\n{done.stderr[-2000:]}"
        (directory / "installed").touch()
    return directory / "node_modules"


def run_script(script: str, node_modules: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        ["node", "--test", "--test-reporter=spec", str(SOURCES / f"{script}.cjs")],
        env={**os.environ, "NODE_PATH": str(node_modules), **environment},
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pass 0" not in done.stdout
