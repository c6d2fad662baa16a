"""`make demo-cluster` answers right, and leaves nothing running."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.checkout import ROOT
from support.processes import command_line, is_running

pytestmark = [pytest.mark.cluster, pytest.mark.spark, pytest.mark.timeout(1800)]


def test_the_flights_go_through_a_whole_cluster(tmp_path: Path) -> None:
    """Every answer is asked of HiveServer2 by two clients and compared with the data set; then all servers are gone."""
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
    assert "every answer is right and every event arrived exactly once" in done.stdout
    assert "Pig counts the same flights" in done.stdout
    assert {path.name for path in (data / "systemd").iterdir()} == {
        "headrace-load.service",
        "headrace-registry.service",
    }
    pids = [int(directory.name) for directory in Path("/proc").iterdir() if directory.name.isdecimal()]
    assert [command_line(pid) for pid in pids if is_running(pid) and str(data) in command_line(pid)] == []
