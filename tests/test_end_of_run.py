"""The summary of a test run lists the tests that `-m` left out, by marker, with the command that runs them."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from support.checkout import ROOT


@pytest.mark.parametrize("workers", [0, 2])
def test_summary_counts_left_out_tests_of_every_declared_marker(workers: int, tmp_path: Path) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    markers = [line.partition(":")[0] for line in settings["markers"]]
    marked = "".join(f"@pytest.mark.{name}\ndef test_{name}(): pass\n" for name in markers)
    both = "@pytest.mark.kafka\n@pytest.mark.fault\ndef test_both(): pass\n"
    text = f"import pytest\n{marked}{both}def test_unmarked(): pass\n"
    (tmp_path / "test_marked.py").write_text(text, encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), f"--rootdir={tmp_path}", "-p", "conftest",
         "-p", "no:cacheprovider", "-n", str(workers), "-m", f"not ({' or '.join(markers)})", "."],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    left_out = [line.partition("; ")[0] for line in ended.stdout.splitlines() if line.startswith("left out")]
    expected = [(2 if name in ("kafka", "fault") else 1, name) for name in sorted(markers)]
    assert left_out == [f"left out by -m: {count} tests marked {name}" for count, name in expected]
