"""An installed wheel brings its migrations and runs them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(300)
def test_a_wheel_migrates(tmp_path: Path) -> None:
    # Built from a copy, because building leaves folders beside the sources.
    ignored = shutil.ignore_patterns(".*", "build", "*.egg-info", "headrace-data", "__pycache__", "tests", "docs")
    source = shutil.copytree(ROOT, tmp_path / "source", ignore=ignored)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(source)]
    subprocess.run(build, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(installed)
    assert "registry/storage/migrations/env.py" in names
    assert not [name for name in names if name.startswith("alembic/")]  # it would end up inside the library

    def run(code: list[str]) -> str:
        environment = {**os.environ, "PYTHONPATH": str(installed)}
        command = [sys.executable, *code]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout

    found = run(["-c", "from registry.storage import database; print(database._migrations().dir)"]).strip()
    assert Path(found) == installed / "registry" / "storage" / "migrations"
    assert "is up to date" in run(["-m", "headrace", "registry", "db", "upgrade", "--data-dir", "data"])
    assert (tmp_path / "data" / "registry.db").exists()
