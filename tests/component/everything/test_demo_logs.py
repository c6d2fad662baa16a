"""`headrace demo logs`: every line of a rotated log is in the table once, though push client and gateway are killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("up")]


def test_demo_of_logs_ends_with_every_line_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headrace", "demo", "logs", "--data-dir", str(tmp_path / "demo")]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=dict(os.environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for text in ("push client killed", "gateway killed", "1 topic: 1 complete", "in the table exactly once"):
        assert text in done.stdout
    assert done.stdout.count("rotated; ") == 3
