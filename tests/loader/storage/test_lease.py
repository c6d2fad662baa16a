"""One process at a time holds the lease, and the end of the process releases it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from headrace.loader.storage.local.lease import Lease, LeaseHolder
from support.checkout import ROOT


def test_a_second_process_gets_the_holder_of_the_lease(tmp_path: Path) -> None:
    first, second = Lease(tmp_path / "lease.json"), Lease(tmp_path / "lease.json")
    assert first.acquire(1000) is None
    holder = second.acquire(2000)
    assert holder is not None
    assert (holder.pid, holder.since_ms) == (os.getpid(), 1000)
    first.release()
    assert second.acquire(3000) is None
    second.release()
    second.release()


def test_a_killed_holder_releases_the_lease(tmp_path: Path) -> None:
    code = (
        "import sys, signal; from pathlib import Path; from headrace.loader.storage.local.lease import Lease; "
        "lease = Lease(Path(sys.argv[1])); assert lease.acquire(5) is None; print('held', flush=True); signal.pause()"
    )
    path = tmp_path / "lease.json"
    child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, cwd=ROOT)
    assert child.stdout is not None
    assert child.stdout.readline() == b"held\n"
    holder = Lease(path).acquire(6)
    assert holder is not None
    assert holder.pid == child.pid
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    lease = Lease(path)
    assert lease.acquire(7) is None
    lease.release()


def test_a_lease_without_a_written_holder(tmp_path: Path) -> None:
    path = tmp_path / "lease.json"
    first = Lease(path)
    assert first.acquire(1000) is None
    path.write_text("")
    holder = Lease(path).acquire(1000)
    assert holder is not None
    assert holder.pid == 0
    first.release()


def test_a_lease_held_far_beyond_the_interval_is_reported() -> None:
    holder = LeaseHolder(7, "box", 0)
    short, long = (holder.describe(now_ms, 600_000) for now_ms in (1_200_000, 1_900_000))
    assert re.search(r"\b7\b.*\bbox\b.*\b1200 s\b", short)
    assert len(long) > len(short)
