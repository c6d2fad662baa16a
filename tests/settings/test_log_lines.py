"""Lines of the log, of a process of its own, which has no handlers of a test's."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

SAID = """
import logging
from headrace.settings.log_lines import configure_logging
configure_logging()
logging.getLogger("headrace.loader.run").info("load_started topic=%s", "bücher")
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("headrace.x").exception("broke")
"""


def said(**environment: str) -> list[str]:
    ended = subprocess.run(
        [sys.executable, "-c", SAID],
        env={"TZ": "UTC-2", "PYTHONUTF8": "1", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout == ""
    return ended.stderr.splitlines()


def test_a_line_of_text_has_its_zone() -> None:
    when = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\+02:00"
    assert re.fullmatch(rf"{when} INFO headrace\.loader\.run: load_started topic=bücher", said()[0])


def test_each_line_is_an_object_where_that_is_asked_for() -> None:
    first, second = (json.loads(line) for line in said(HEADRACE_LOG_FORMAT="json"))
    when = first.pop("time")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+02:00", when)
    assert first == {"level": "INFO", "logger": "headrace.loader.run", "message": "load_started topic=bücher"}
    assert second["message"] == "broke"
    assert second["trace"].endswith("ZeroDivisionError: division by zero")


@pytest.mark.parametrize("variables", [{"HEADRACE_LOG_LEVEL": "ERROR"}, {"HEADRACE_LOG_LEVEL": "error"}])
def test_a_level_leaves_out_what_is_below(variables: dict[str, str]) -> None:
    assert " ERROR headrace.x: broke" in said(**variables)[0]


def test_what_makes_no_sense_is_as_if_nothing_was_said() -> None:
    assert " INFO " in said(HEADRACE_LOG_LEVEL="LOUD", HEADRACE_LOG_FORMAT="xml")[0]
