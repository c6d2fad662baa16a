"""`headrace sql` from the command line to what a running `headrace up` is asked, in every way of giving it a query."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.pipeline.sql_protocol import SqlRequest
from support.hive.sql_of_up import sql_of_up

QUERY = "SELECT carrier, count(*)\nFROM flights GROUP BY 1"
CSV = "carrier,flights\nAA,32729\n,1\n"


class Piped(io.StringIO):
    """Standard input that is no terminal."""

    def isatty(self) -> bool:
        return False


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[SqlRequest]]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE__DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("HEADRACE__HIVE__DATABASE", "flying")
    with sql_of_up(tmp_path / "data") as questions:
        yield questions


def test_a_query_of_the_command_line(asked: list[SqlRequest], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", f"{QUERY};"]) == 0
    assert asked == [SqlRequest(QUERY, "flying", with_values=False)]
    out, err = capsys.readouterr()
    assert out.splitlines()[2:] == ["AA         32729", "NULL           1"]
    assert err.startswith("2 rows ")


def test_a_query_of_a_file(asked: list[SqlRequest], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "report.sql").write_text(f"-- each carrier's\n{QUERY};\n\n")
    assert main(["sql", "--file", "report.sql", "--format", "json"]) == 0
    assert asked == [SqlRequest(f"-- each carrier's\n{QUERY}", "flying", with_values=True)]
    assert json.loads(capsys.readouterr().out) == [
        {"carrier": "AA", "flights": 32729},
        {"carrier": None, "flights": 1},
    ]


@pytest.mark.parametrize("words", [["-"], []], ids=["dash", "nothing"])
def test_a_query_of_standard_input(
    asked: list[SqlRequest],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", Piped(f"{QUERY}\n"))
    assert main(["sql", *words, "--format", "csv"]) == 0
    assert [question.statement for question in asked] == [QUERY]
    assert capsys.readouterr().out == CSV


def test_what_is_piped_reaches_the_tables(asked: list[SqlRequest]) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "headrace", "sql", "--format", "csv"],
        input=f"{QUERY};\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, CSV), run.stderr
    assert [question.statement for question in asked] == [QUERY]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["SELECT 1", "--file", "report.sql"], "--file"),
        (["-", "--file", "report.sql"], "--file"),
        (["--file", "report.sql"], "report.sql: No such file or directory"),
        ([""], "headrace sql 'SHOW TABLES'"),
    ],
)
def test_error_of_a_query_is_one_line(
    asked: list[SqlRequest], capsys: pytest.CaptureFixture[str], words: list[str], named: str
) -> None:
    assert main(["sql", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("headrace: ")
    assert named in line
    assert asked == []


def test_a_terminal_without_a_query_is_prompted(asked: list[SqlRequest], tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace", "sql"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "TERM": "dumb"},
        start_new_session=True,
    )
    os.close(theirs)
    shown = read_until(ours, b"headrace sql> ")
    for typed in (b"DROP TABLE flights;\n", b"SELECT carrier, count(*)\nFROM flights GROUP BY 1;\n"):
        os.write(ours, typed)
        shown += read_until(ours, b"headrace sql> ")
    os.write(ours, b"quit\n")
    assert process.wait(60) == 0, shown
    os.close(ours)
    assert b"\nheadrace: " in shown
    assert b"AA         32729" in shown
    assert [question.statement for question in asked] == [QUERY], "the prompt goes on after a mistake"


def read_until(terminal: int, end: bytes) -> bytes:
    """Up to a prompt after which nothing has been typed yet."""
    shown = b""
    while not shown.endswith(end):
        shown += os.read(terminal, 65536)
    return shown
