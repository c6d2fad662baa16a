"""`headrace console serve` as a process."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import cli

pytestmark = pytest.mark.servers

SERVE = ("headrace", "console", "serve", "--console-listen", "127.0.0.1:0", "--data-dir")


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def worker_of(parent: int) -> int:
    """Returns the process that handles requests."""
    return int(Path(f"/proc/{parent}/task/{parent}/children").read_text().split()[0])


def test_console_without_any_other_server_states_what_is_missing(
    tmp_path: Path, start_service: Callable[..., Any]
) -> None:
    service = start_service(*SERVE, str(tmp_path / "new"))
    url = service.addresses["console"]
    status, text = get(f"{url}/")
    assert status == 200
    assert "not running" in text
    assert get(f"{url}/nothing-here")[0] == 404
    assert service.stop() == 0


def test_locked_session_store_delays_pages_and_fails_none(tmp_path: Path, start_service: Callable[..., Any]) -> None:
    service = start_service(*SERVE, str(tmp_path))
    with sqlite3.connect(tmp_path / "console.db", isolation_level=None) as database:
        database.execute("BEGIN EXCLUSIVE")
        assert get(f"{service.addresses['console']}/")[0] == 200
        database.execute("ROLLBACK")


def test_worker_ends_with_killed_parent_and_is_replaced_after_its_own_death(
    tmp_path: Path, start_service: Callable[..., Any]
) -> None:
    service = start_service(*SERVE, str(tmp_path))
    url, parent = service.addresses["console"], service.process.pid
    worker = worker_of(parent)
    os.kill(worker, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if get(f"{url}/healthz")[0] == 200 and worker_of(parent) != worker:
                break
        except (OSError, IndexError):
            time.sleep(0.1)
    second = worker_of(parent)
    assert second != worker
    service.kill()
    while time.monotonic() < deadline and Path(f"/proc/{second}").exists():
        time.sleep(0.05)
    assert not Path(f"/proc/{second}").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--console-listen", "0.0.0.0:0"], "registry.users"),
        (["--console-listen", "127.0.0.1:{used}"], "--console-listen"),
        (["--users", "{missing}"], "users file"),
    ],
)
def test_console_that_cannot_start_states_the_remedy_in_one_line(
    tmp_path: Path,
    start_service: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    used = ""
    if any("{used}" in one for one in arguments):
        used = start_service(*SERVE, str(tmp_path)).addresses["console"].rpartition(":")[2]
    given = [one.format(used=used, missing=tmp_path / "none") for one in arguments]
    assert cli.main(["console", "serve", "--data-dir", str(tmp_path), *given]) == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert words in errors
