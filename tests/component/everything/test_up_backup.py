"""A machine that loses its disk: backed up under load, killed, restored, and started again."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.clients.producer import Producer
from headrace.settings import load_settings
from support.running_service import Service, StartService

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("up_backup")]

FREE_PORTS = [
    word
    for part in ("registry", "broker", "hive", "console", "gateway")
    for word in (f"--{part}-listen", "127.0.0.1:0")
]
SCHEMA = json.dumps({"type": "record", "name": "Sale", "fields": [{"name": "id", "type": "long"}]})
BATCH = 100


def run(data_dir: Path, *arguments: str) -> str:
    command = [sys.executable, "-P", "-m", "headrace", *arguments, "--data-dir", str(data_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout


@contextlib.contextmanager
def producing(data_dir: Path) -> Iterator[list[int]]:
    """Produces numbers from 0 on while the context is open. Yields a list, to which the end of each acknowledged batch
    is added."""
    settings = load_settings(flags={"data_dir": str(data_dir)})
    acknowledged: list[int] = []
    stop = threading.Event()

    def produce() -> None:
        with Producer(settings, app="shop") as producer:
            while not stop.is_set():
                start = acknowledged[-1] if acknowledged else 0
                sent = [producer.send("sales", {"id": start + n}, schema=SCHEMA) for n in range(BATCH)]
                for future in sent:
                    future.result(timeout_s=60)
                acknowledged.append(start + BATCH)
                time.sleep(0.05)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        while len(acknowledged) < 2 and thread.is_alive():
            time.sleep(0.05)
        yield acknowledged
    finally:
        stop.set()
        thread.join()


def kill(up: Service, data_dir: Path) -> None:
    """Kills `headrace up` and the process groups of its parts."""
    pids = json.loads((data_dir / "up.json").read_text())["pids"].values()
    up.kill()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        time.sleep(0.05)


def test_machine_is_restored_under_load(memory_path: Path, start_service: StartService) -> None:
    data_dir, backup = memory_path / "data", memory_path / "backup"

    def start(interval: str) -> Service:
        return start_service("headrace", "up", "--data-dir", str(data_dir), *FREE_PORTS, "--interval", interval)

    up = start("5s")
    with producing(data_dir) as acknowledged:
        run(data_dir, "load", "--no-lease")
        before = acknowledged[-1]
        while acknowledged[-1] < before + 3 * BATCH:
            time.sleep(0.05)
        before = acknowledged[-1]
        facts = json.loads(run(data_dir, "backup-state", str(backup), "--format", "json"))
        after = acknowledged[-1]
    assert facts["stores"].keys() == {"metastore", "audit", "commit-log", "tables", "broker", "registry"}
    assert facts["commit_number"] >= 1
    kill(up, data_dir)
    shutil.rmtree(data_dir)

    run(data_dir, "restore-state", str(backup))
    start("7d")
    report = json.loads(run(data_dir, "load", "--format", "json"))
    assert report["problems"] == {}
    (row,) = json.loads(
        run(
            data_dir,
            "sql",
            "--format",
            "json",
            "SELECT count(*) AS n, count(DISTINCT id) AS d, max(id) AS m FROM sales",
        )
    )
    assert row["n"] == row["d"] == row["m"] + 1
    assert before <= row["n"] <= after + BATCH
    run(data_dir, "verify", "--checksums")
    assert run(data_dir, "registry", "versions", "sales-value", "--format", "json")
    with producing(data_dir) as acknowledged:
        pass
    run(data_dir, "load")
    (after_row,) = json.loads(run(data_dir, "sql", "--format", "json", "SELECT count(*) AS n FROM sales"))
    assert after_row["n"] == row["n"] + acknowledged[-1]
    run(data_dir, "audit", "report")
