"""What the end of a test run says, beside pytest's own summary: tests left out, and servers started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import server_starts
from support.checkout import ROOT
from support.server_starts import kind_of, start_lines, timed_start

TESTS = """\
import pytest
from support.server_starts import note_starts

pytestmark = pytest.mark.xdist_group("WHERE")


def test_that_starts():
    note_starts({"mill": [FIRST_S, 2.0], "WHERE": [1.0]})


@pytest.mark.kafka
@pytest.mark.fault
def test_with_two_marks():
    pass


@pytest.mark.spark
def test_with_another_mark():
    pass
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_what_all_workers_left_out_and_started(workers: int, tmp_path: Path) -> None:
    for where, first_s in (("here", "1.0"), ("there", "9.04")):
        text = TESTS.replace("WHERE", where).replace("FIRST_S", first_s)
        (tmp_path / f"test_{where}.py").write_text(text, encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), f"--rootdir={tmp_path}", "-p", "conftest",
         "-p", "no:cacheprovider", "-n", str(workers), "--dist", "loadgroup", "-m", "not kafka and not spark", "."],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    told = [line for line in ended.stdout.splitlines() if line.startswith(("left out", "servers"))]
    assert told == [
        "left out by -m: 2 tests marked fault; run them with: make test-fault",
        "left out by -m: 2 tests marked kafka; run them with: make test-kafka",
        "left out in all: 4 tests",
        "servers started: here once, 1.0 s",
        "servers started: mill 4 times, 2.0 s in the middle, 9.0 s at most",
        "servers started: there once, 1.0 s",
    ]


def test_a_start_is_noted_and_one_that_failed_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: dict[str, list[float]] = {}
    monkeypatch.setattr(server_starts, "START_SECONDS", noted)
    for _ in range(2):
        with timed_start("mill"):
            pass
    with pytest.raises(RuntimeError), timed_start("wheel"):
        raise RuntimeError("did not get ready")
    assert {kind: len(seconds) for kind, seconds in noted.items()} == {"mill": 2}
    assert all(second >= 0 for second in noted["mill"])


def test_nothing_started_says_nothing() -> None:
    assert start_lines({}) == []


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("headrace registry serve --data-dir x --registry-listen 127.0.0.1:0", "headrace registry serve"),
        ("headrace up", "headrace up"),
        ("headrace.pipeline.metastore_server --data-dir x", "headrace.pipeline.metastore_server"),
    ],
)
def test_a_server_is_of_the_kind_of_its_command(command: str, kind: str) -> None:
    assert kind_of(command.split()) == kind
