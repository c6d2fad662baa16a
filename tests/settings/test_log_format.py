"""Formats of the log, in a subprocess, because pytest installs log handlers in its own process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import logging
from headrace.settings.log_format import configure_logging
configure_logging()
logging.getLogger("headrace.loader.run").info("load_started topic=%s", "bücher")
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("headrace.x").exception("broke")
"""


def log_lines(**environment: str) -> list[str]:
    completed = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={"TZ": "UTC-2", "PYTHONUTF8": "1", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert completed.stdout == ""
    return completed.stderr.splitlines()


def test_text_line_has_a_utc_offset() -> None:
    when = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\+02:00"
    assert re.fullmatch(rf"{when} INFO headrace\.loader\.run: load_started topic=bücher", log_lines()[0])


def test_json_format_writes_one_object_per_line() -> None:
    first, second = (json.loads(line) for line in log_lines(HEADRACE_LOG_FORMAT="json"))
    when = first.pop("time")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+02:00", when)
    assert first == {"level": "INFO", "logger": "headrace.loader.run", "message": "load_started topic=bücher"}
    assert second["message"] == "broke"
    assert second["trace"].endswith("ZeroDivisionError: division by zero")


@pytest.mark.parametrize("variables", [{"HEADRACE_LOG_LEVEL": "ERROR"}, {"HEADRACE_LOG_LEVEL": "error"}])
def test_log_level_suppresses_lower_levels(variables: dict[str, str]) -> None:
    assert " ERROR headrace.x: broke" in log_lines(**variables)[0]


def test_invalid_log_variables_are_ignored() -> None:
    assert " INFO " in log_lines(HEADRACE_LOG_LEVEL="LOUD", HEADRACE_LOG_FORMAT="xml")[0]


def test_journal_gets_priorities_and_no_times(tmp_path: Path) -> None:
    with (tmp_path / "journal").open("w+") as journal:
        stream = os.fstat(journal.fileno())
        environment = {"PYTHONUTF8": "1", "JOURNAL_STREAM": f"{stream.st_dev}:{stream.st_ino}"}
        subprocess.run([sys.executable, "-c", PROGRAM], env=environment, stderr=journal, check=True)
        journal.seek(0)
        first, *trace = journal.read().splitlines()
    assert first == "<6>INFO headrace.loader.run: load_started topic=bücher"
    assert {line[:3] for line in trace} == {"<3>"}
    assert trace[-1] == "<3>ZeroDivisionError: division by zero"


def test_other_file_than_the_journal_gets_times() -> None:
    assert log_lines(JOURNAL_STREAM="8:1")[0].startswith("20")


def test_error_of_a_command_has_its_priority_in_the_journal(tmp_path: Path) -> None:
    with (tmp_path / "journal").open("w+") as journal:
        stream = os.fstat(journal.fileno())
        environment = {"PYTHONUTF8": "1", "JOURNAL_STREAM": f"{stream.st_dev}:{stream.st_ino}"}
        command = [sys.executable, "-m", "headrace", "config", "--config", str(tmp_path / "missing.toml")]
        assert subprocess.run(command, env=environment, stderr=journal, check=False).returncode == 2
        journal.seek(0)
        assert journal.read().startswith("<3>headrace: ")
