"""Child processes import nothing from the working directory."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from headrace.pipeline.up.part import python_command, python_environment


@pytest.mark.parametrize("python_path", ["", os.pathsep, f"{os.pathsep}/nowhere"])
def test_child_ignores_modules_in_the_working_directory(python_path: str, tmp_path: Path) -> None:
    (tmp_path / "headrace").mkdir()
    (tmp_path / "headrace" / "__init__.py").write_text("raise SystemExit('from the working directory')")
    (tmp_path / "json.py").write_text("raise SystemExit('from the working directory')")
    environment = python_environment({**os.environ, "PYTHONPATH": python_path})
    done = subprocess.run(
        python_command("headrace", "--version"),
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_python_environment_removes_only_empty_entries() -> None:
    given = {"PYTHONPATH": os.pathsep.join(("", "/a", "", "b", "")), "HOME": "/root"}
    assert python_environment(given) == {"PYTHONPATH": os.pathsep.join(("/a", "b")), "HOME": "/root"}
    assert python_environment({"PYTHONPATH": os.pathsep}) == {}
    assert python_environment({"HOME": "/root"}) == {"HOME": "/root"}
