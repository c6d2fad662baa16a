"""The prompt of `headrace sql` on a pseudo-terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

PROGRAM = """
from headrace.cli.sql_prompt import typed_statements
for text in typed_statements("headrace sql", lambda statement: ()):
    print("<" + text.replace(chr(10), "|") + ">", flush=True)
print("the end", flush=True)
"""


def typed(keys: bytes, state: Path) -> str:
    """Returns the output of the prompt for the given keys."""
    master, slave = pty.openpty()
    environment = {**os.environ, "XDG_STATE_HOME": str(state), "TERM": "dumb"}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment,
        start_new_session=True,
    )
    os.close(slave)
    shown = b""
    while b"> " not in shown:
        shown += os.read(master, 65536)
    os.write(master, keys)
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:  # Linux raises it after the other side is closed
            break
        if not chunk:
            break
        shown += chunk
    assert process.wait(60) == 0, shown
    return shown.decode()


def test_statement_ends_with_a_semicolon(tmp_path: Path) -> None:
    shown = typed(b"SELECT 1;\nSELECT\n2 ;\n\nquit\n", tmp_path)
    assert "<SELECT 1;>" in shown
    assert "<SELECT|2 ;>" in shown
    assert shown.rstrip().endswith("the end")


def test_ctrl_d_ends_the_prompt_and_the_history_is_private(tmp_path: Path) -> None:
    assert "the end" in typed(b"SELECT 'kept';\n\x04", tmp_path)
    history = tmp_path / "headrace" / "sql-history"
    assert "SELECT 'kept';" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0
