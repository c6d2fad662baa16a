"""`make demo-cluster` succeeds and leaves no process running."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.checkout import ROOT
from support.processes import command_line, is_running

pytestmark = [pytest.mark.cluster, pytest.mark.spark, pytest.mark.timeout(1800)]


def test_demo_succeeds_on_a_cluster(tmp_path: Path) -> None:
    """Two clients query HiveServer2, and the results equal those of the data set. No server runs afterwards."""
    data = tmp_path / "cluster"
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "demo_cluster.py"), "--data-dir", str(data)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=1700,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-3000:]
    assert "all results are correct, and every event arrived exactly once" in done.stdout
    assert "Pig counts the same number of flights" in done.stdout
    assert {path.name for path in (data / "systemd").iterdir()} == {
        "headrace-load.service",
        "headrace-registry.service",
    }
    pids = [int(directory.name) for directory in Path("/proc").iterdir() if directory.name.isdecimal()]
    assert [command_line(pid) for pid in pids if is_running(pid) and str(data) in command_line(pid)] == []
