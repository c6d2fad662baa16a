"""`headrace accept` on a commit log with quarantined messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import main
from support.loader.shelf import Shelf

FIVE = "dt=2026-01-01/hr=05"


@pytest.fixture
def data_dir(tmp_path: Path) -> str:
    Shelf(tmp_path).load({FIVE: [(0, 0)]}, (0, None, 0, 3), quarantined={FIVE: [(0, 1), (0, 2)]})
    return str(tmp_path)


def accept(capsys: pytest.CaptureFixture[str], data_dir: str, *words: str) -> tuple[int, Any]:
    code = main(["accept", *words, "--data-dir", data_dir, "--format", "json"])
    return code, json.loads(capsys.readouterr().out)


def test_dry_run_shows_the_alarms_and_accepts_none(data_dir: str, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        code, found = accept(capsys, data_dir, "orders", "--kind", "quarantined", "--dry-run")
        assert (code, [one["count"] for one in found["accepted"]]) == (0, [2])
    code, found = accept(capsys, data_dir, "orders", "--kind", "lost", "--dry-run")
    assert (code, found) == (0, {"accepted": []})
    assert main(["accept", "orders", "--dry-run", "--data-dir", data_dir]) == 0
    assert "1 alarm of 1 topic would be accepted" in capsys.readouterr().out
    assert main(["accept", "orders", "--dry-run", "--withdraw", "--data-dir", data_dir]) == 2


def test_acceptance_has_the_given_author(data_dir: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = accept(capsys, data_dir, "orders", "--reason", "tests", "--author", "lea (console)")
    assert (code, [one["count"] for one in found["accepted"]]) == (0, [2])
    assert accept(capsys, data_dir) == (0, {"open": []})
    stored = next(Path(data_dir).rglob("accepted.json")).read_text()
    assert '"lea (console)"' in stored
