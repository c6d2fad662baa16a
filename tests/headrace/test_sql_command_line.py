"""`headrace sql` with all sources of a query, up to the request that reaches a running `headrace up`."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.loader.inspect.rolling_check import RollingCheck
from headrace.pipeline.sql_protocol import SqlRequest
from support.hive.fake_sql_server import fake_sql_server
from support.loader.shelf import Shelf

QUERY = "SELECT carrier, count(*)\nFROM flights GROUP BY 1"
CSV = "carrier,flights\nAA,32729\n,1\n"


class Piped(io.StringIO):
    """Standard input that is not a terminal."""

    def isatty(self) -> bool:
        return False


@pytest.fixture
def requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[SqlRequest]]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE__DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("HEADRACE__HIVE__DATABASE", "flying")
    with fake_sql_server(tmp_path / "data") as requests_so_far:
        yield requests_so_far


def test_query_argument(requests: list[SqlRequest], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", f"{QUERY};"]) == 0
    assert requests == [SqlRequest(QUERY, "flying", with_values=False)]
    out, err = capsys.readouterr()
    assert out.splitlines()[2:] == ["AA         32729", "NULL           1"]
    assert err.startswith("2 rows ")


def test_query_file(requests: list[SqlRequest], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "report.sql").write_text(f"-- each carrier's\n{QUERY};\n\n")
    assert main(["sql", "--file", "report.sql", "--format", "json"]) == 0
    assert requests == [SqlRequest(f"-- each carrier's\n{QUERY}", "flying", with_values=True)]
    assert json.loads(capsys.readouterr().out) == [
        {"carrier": "AA", "flights": 32729},
        {"carrier": None, "flights": 1},
    ]


@pytest.mark.parametrize("words", [["-"], []], ids=["dash", "nothing"])
def test_query_on_standard_input(
    requests: list[SqlRequest],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", Piped(f"{QUERY}\n"))
    assert main(["sql", *words, "--format", "csv"]) == 0
    assert [request.statement for request in requests] == [QUERY]
    assert capsys.readouterr().out == CSV


def test_piped_query_runs_without_arguments(requests: list[SqlRequest]) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "headrace", "sql", "--format", "csv"],
        input=f"{QUERY};\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, CSV), run.stderr
    assert [request.statement for request in requests] == [QUERY]


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
    requests: list[SqlRequest], capsys: pytest.CaptureFixture[str], words: list[str], named: str
) -> None:
    assert main(["sql", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("headrace: ")
    assert named in line
    assert requests == []


def test_terminal_without_a_query_gets_a_prompt(requests: list[SqlRequest], tmp_path: Path) -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace", "sql"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "TERM": "dumb"},
        start_new_session=True,
    )
    os.close(slave)
    shown = read_until(master, b"headrace sql> ")
    for typed in (
        b"DROP TABLE flights;\n",
        b"help\n",
        b"\\x\n",
        b"\\dt\n",
        b"\\d flights\n",
        b"SELECT carrier, count(*)\nFROM flights GROUP BY 1;\n",
    ):
        os.write(master, typed)
        shown += read_until(master, b"headrace sql> ")
    os.write(master, b"quit\n")
    assert process.wait(60) == 0, shown
    os.close(master)
    assert b"\nheadrace: " in shown
    assert b"AA         32729" in shown
    assert b"End each query with a semicolon" in shown and b"Tab completes SQL words" in shown
    assert b"is not a command" in shown
    statements = [request.statement for request in requests]
    assert statements == ["SHOW TABLES", "DESCRIBE flights", QUERY], "the prompt continues after an error"
    assert shown.count(b"2 rows in ") == 3


def read_until(terminal: int, end: bytes) -> bytes:
    """Reads up to a new prompt."""
    shown = b""
    while not shown.endswith(end):
        shown += os.read(terminal, 65536)
    return shown


HOUR = "dt=2026-01-01/hr=05"


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    monkeypatch.setenv("HEADRACE__DATA_DIR", str(tmp_path / "data"))
    shelf = Shelf(tmp_path / "data")
    for topic in ("orders", "orders_2", "users"):
        shelf.load({HOUR: [(0, n) for n in range(5)]}, (0, None, 0, 5), topic=topic)
    return shelf


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(bytes(path.stat().st_size)),
        lambda path: path.unlink(),
    ],
)
@pytest.mark.parametrize("query", ["SELECT * FROM headrace.orders", "select 1 from `Orders_latest`"])
def test_failed_query_names_the_damaged_file_and_its_repair(
    shelf: Shelf, damage: Callable[[Path], object], query: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = (shelf.warehouse / "orders" / HOUR).glob("*.avro")
    damage(path)
    with fake_sql_server(shelf.warehouse.parent, "Not an Avro data file."):
        assert main(["sql", query]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("headrace: Not an Avro data file.; topic orders: file ")
    assert str(path) in line
    assert f"headrace backfill orders --from {HOUR} --to {HOUR}" in line


def test_failed_query_names_a_foreign_file(shelf: Shelf, capsys: pytest.CaptureFixture[str]) -> None:
    foreign = shelf.warehouse / "orders" / HOUR / "notes.txt"
    foreign.write_text("no Avro")
    with fake_sql_server(shelf.warehouse.parent, "Not an Avro data file."):
        assert main(["sql", "SELECT * FROM orders"]) == 2
    line = capsys.readouterr().err
    assert str(foreign) in line
    assert "headrace hive repair orders" in line


@pytest.mark.parametrize(
    ("failure", "query"),
    [
        ("[TABLE_OR_VIEW_NOT_FOUND] The table is missing", "SELECT * FROM orders"),
        ("Not an Avro data file.", "SELECT * FROM orders_2"),
        ("Not an Avro data file.", "SELECT * FROM others"),
    ],
)
def test_other_failures_name_no_file(
    shelf: Shelf, failure: str, query: str, capsys: pytest.CaptureFixture[str]
) -> None:
    next((shelf.warehouse / "orders" / HOUR).glob("*.avro")).unlink()
    with fake_sql_server(shelf.warehouse.parent, failure):
        assert main(["sql", query]) == 2
    assert capsys.readouterr().err == f"headrace: {failure}\n"


def test_result_of_a_table_with_open_findings_has_a_note(shelf: Shelf, capsys: pytest.CaptureFixture[str]) -> None:
    next((shelf.warehouse / "orders" / HOUR).glob("*.avro")).unlink()
    RollingCheck(shelf.log, shelf.storage.files).check(1_000)
    with fake_sql_server(shelf.warehouse.parent):
        assert main(["sql", "SELECT * FROM orders JOIN users"]) == 0
        assert main(["sql", "SELECT * FROM users"]) == 0
    _, *notes = capsys.readouterr().err.splitlines()
    assert notes[:-1] == ["note: table orders: 1 file is missing, so the result may be wrong (headrace status)"]
