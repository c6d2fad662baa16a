"""`headrace … | head` ends silently for every command."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.hive.fake_sql_server import fake_sql_server
from support.loader.shelf import Shelf

NO_BROKER = "127.0.0.1:1"
TIME_PARTITION = "dt=2026-01-01/hr=05"


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pipes")
    shelf = Shelf(directory)
    shelf.load({TIME_PARTITION: [(0, 0), (0, 1)]}, (0, None, 0, 3), quarantined={TIME_PARTITION: [(0, 2)]})
    (directory / "a.avsc").write_text('{"type": "record", "name": "A", "fields": []}')
    (directory / "a.sql").write_text("SHOW TABLES")
    return directory


@pytest.mark.parametrize(
    ("command", "buffering"),
    [
        ("--help", ""),
        ("help load", "1"),
        ("config", "1"),
        ("load status", "1"),
        ("quarantine list", "1"),
        ("quarantine show orders", ""),
        ("hive history orders", "1"),
        ("hive plan --hive-executor print", "1"),
        ("offsets show", "1"),
        ("offsets show", ""),
        ("audit report", ""),
        ("audit report", "1"),
        ("compat check a.avsc --against a.avsc", "1"),
        ("sql --file a.sql", ""),
        ("sql --file a.sql", "1"),
        ("sql --file a.sql --format json", ""),
        ("sql --file a.sql --format csv", "1"),
    ],
)
def test_closed_pipe_is_not_an_error(command: str, buffering: str, data_dir: Path) -> None:
    """Unbuffered, where each line is written to the closed pipe; and buffered, where only the end is."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    environment |= {"PYTHONUNBUFFERED": buffering} if buffering else {}
    environment |= {"HEADRACE__DATA_DIR": str(data_dir), "HEADRACE__KAFKA__BOOTSTRAP_SERVERS": NO_BROKER}
    reading, writing = os.pipe()
    os.close(reading)
    with contextlib.ExitStack() as served:
        if command.startswith("sql"):
            served.enter_context(fake_sql_server(data_dir))
        run = subprocess.run(
            [sys.executable, "-m", "headrace", *command.split()],
            stdout=writing,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            cwd=data_dir,
            env=environment,
            check=False,
        )
    os.close(writing)
    # Two commands report the unavailable brokers, and so does the audit. SQL prints the number of rows.
    expected = re.compile(rf"{re.escape(NO_BROKER)}|^\d+ rows? in ")
    assert [line for line in run.stderr.splitlines() if not expected.search(line)] == []
    assert run.returncode == (2 if command == "audit report" and not buffering else 0)
