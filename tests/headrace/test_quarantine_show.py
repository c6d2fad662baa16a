"""Quarantined messages on a terminal, without control characters."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.cli.quarantine import REASONS, REPLAYED, _format_bytes
from headrace.loader.project.quarantine import QuarantineCode
from headrace.loader.rewrite.replay import REPLAYABLE
from headrace.loader.work_unit import FileKind
from support.golden import golden
from support.loader.shelf import Shelf

TIME_PARTITION = "dt=2026-01-01/hr=05"


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    shelf = Shelf(tmp_path)
    shelf.load({}, (0, None, 0, 3), quarantined={TIME_PARTITION: [(0, n) for n in range(3)]})
    return shelf


def show(directory: Path, *arguments: str, code: int = 0) -> int:
    return main(["quarantine", "show", "orders", *arguments, "--data-dir", str(directory)])


def test_show_prints_messages_with_their_bytes(
    shelf: Shelf, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show(tmp_path) == 0
    printed = capsys.readouterr().out
    assert printed == golden("headrace/quarantine.txt", printed)
    assert show(tmp_path, "--limit", "1") == 0
    assert re.match(r"1 .*\b3 ", capsys.readouterr().out.splitlines()[-1])
    assert show(tmp_path, "--reason", "framing", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out) == {"topic": "orders", "messages": []}
    assert show(tmp_path, "--reason", "schema_not_found", "--format", "json") == 0
    first = json.loads(capsys.readouterr().out)["messages"][0]
    assert (first["offset"], first["code"], base64.b64decode(first["value"])) == (0, "schema_not_found", b"v")
    assert (first["key"], first["headers"]) == (base64.b64encode(b"k").decode(), [])


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (None, "none"),
        (b"", ""),
        ("grün".encode(), "grün"),
        (b"\x1b[2Jgone\r\n", "\\x1b[2Jgone\\r\\n"),
        ("a\u202eb\x9bc".encode(), "a\\u202eb\\x9bc"),
        (b"\x00\x00\x00\x00\x07abc", "0x0000000007616263"),
        (b"\xff\xfe", "0xfffe"),
        (b"x" * 20, "xxxxxxxx … (20 bytes)"),
        (b"\x00" * 20, "0x" + "00" * 8 + " … (20 bytes)"),
    ],
)
def test_bytes_are_printed_without_control_characters(data: bytes | None, shown: str) -> None:
    assert _format_bytes(data, 8 if data and len(data) == 20 else 256) == shown


def test_text_cut_within_a_character_is_text() -> None:
    assert _format_bytes("grün".encode(), 3) == "gr … (5 bytes)"


def test_replaced_message_is_printed_once(shelf: Shelf, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shelf.rewrite(TIME_PARTITION, [(0, 1)], FileKind.QUARANTINE)
    for verb in ("show", "list"):
        assert main(["quarantine", verb, "orders", "--format", "json", "--data-dir", str(tmp_path)]) == 0
        assert [one["offset"] for one in json.loads(capsys.readouterr().out)["messages"]] == [1]


def test_error_is_one_line_that_names_the_flag_or_topic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, named in (
        (("--reason", "bad"), "--reason: .*framing, schema_not_found"),
        (("--limit", "-1"), "--limit: "),
        ((), r".*\borders\b"),
    ):
        assert show(tmp_path, *arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert re.match(f"headrace: {named}", line)


def test_error_names_a_truncated_quarantine_file(
    shelf: Shelf, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = (shelf.warehouse / "_quarantine" / "orders" / TIME_PARTITION).iterdir()
    path.write_bytes(path.read_bytes()[:-20])
    for verb in ("show", "list"):
        assert main(["quarantine", verb, "orders", "--data-dir", str(tmp_path)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert path.name in line


def test_reasons_contain_every_quarantine_code() -> None:
    assert tuple(code.value for code in QuarantineCode) == REASONS
    assert tuple(code.value for code in QuarantineCode if code in REPLAYABLE) == REPLAYED
