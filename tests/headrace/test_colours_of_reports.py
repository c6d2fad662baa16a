"""Reports are coloured on a terminal only, and the colours do not change their text."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli import main
from support.hive.fake_sql_server import fake_sql_server
from support.loader.loader_fakes import ORDER_V1, ORDER_V2
from support.loader.shelf import Shelf
from support.registry.served_registry import serve_registry
from support.terminals import Terminal

TIME_PARTITION = "dt=2026-01-01/hr=05"
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
NO_BROKER = "--bootstrap-servers 127.0.0.1:1"

REPORTS = (
    "",
    "--help",
    "help",
    "help load",
    "help quarantine show",
    "audit report --help",
    "config loader",
    f"load status {NO_BROKER}",
    f"offsets show {NO_BROKER}",
    f"offsets set orders 0 9 --reason why --dry-run {NO_BROKER}",
    "locate orders 0 1",
    "locate orders 0 2",
    "locate orders 0 77",
    "files orders --format text",
    "quarantine list",
    "quarantine show orders",
    "hive explain orders",
    "hive history orders",
    "schema validate a.avsc",
    "compat check b.avsc --against a.avsc",
    "compat diff b.avsc --against a.avsc",
    "compat explain",
    "compat explain TYPE_MISMATCH",
    "registry import export.jsonl --dry-run --registry-url EMPTY",
    "sql SHOW",
    f"doctor {NO_BROKER} --registry-url EMPTY",
)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with a load, schemas, an export of a registry, and an SQL server."""
    directory = tmp_path_factory.mktemp("colours")
    Shelf(directory / "data").load(
        {TIME_PARTITION: [(0, 0), (0, 1)]}, (0, None, 0, 3), quarantined={TIME_PARTITION: [(0, 2)]}
    )
    (directory / "a.avsc").write_text(ORDER_V1)
    (directory / "b.avsc").write_text(ORDER_V2.replace("long", "string", 1))
    with fake_sql_server(directory / "data"), serve_registry(f"sqlite:///{directory / 'full.db'}") as full:
        full.client.register("orders-value", ORDER_V1)
        assert main(["registry", "export", str(directory / "export.jsonl"), "--registry-url", full.url]) == 0
        with serve_registry(f"sqlite:///{directory / 'empty.db'}") as empty:
            (directory / "empty").write_text(empty.url)
            yield directory


@pytest.fixture(autouse=True)
def reconciled(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data_dir)
    monkeypatch.setenv("HEADRACE__DATA_DIR", str(data_dir / "data"))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("PAGER", "cat")
    monkeypatch.delenv("NO_COLOR", raising=False)


def terminal_output(line: str, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs a command and returns its output on a terminal, from standard output and standard error."""
    words = line.replace("EMPTY", (data_dir / "empty").read_text()).split()
    out, err = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    try:
        main(words)
    except SystemExit as ended:  # of --help
        assert ended.code == 0
    assert out.getvalue(), err.getvalue()
    return out.getvalue()


@pytest.mark.parametrize("line", REPORTS)
def test_terminal_shows_colours_unless_disabled(line: str, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    coloured = terminal_output(line, data_dir, monkeypatch)
    assert "\x1b[1" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    uncoloured = terminal_output(line, data_dir, monkeypatch)
    assert "\x1b" not in uncoloured
    assert ESCAPES.sub("", coloured) == uncoloured


def test_note_on_standard_error_is_coloured(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    err = Terminal()
    monkeypatch.setattr(sys, "stderr", err)
    assert main(["offsets", "show", *NO_BROKER.split()]) == 0
    assert "\x1b[1;33mnote\x1b[0m: " in err.getvalue()
