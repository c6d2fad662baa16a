"""Checks that `headrace status` alone names a fault, its cause and its repair in the first ten lines."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.cli import main

LINES_READ = 10
"""Lines of the text that an operator sees first."""


@dataclass(frozen=True)
class ExpectedFinding:
    """What a status must report. `cause` and `repair` are regular expressions; `exit_code` is that of the command."""

    kind: str
    subject: str
    cause: str
    repair: str
    exit_code: int = 2


def check_status(arguments: Sequence[str], expected: ExpectedFinding) -> str:
    """Runs `headrace status` in this process, as text and as JSON, and checks that it reports the finding. Returns the
    repair."""
    code, document = status_json(arguments)
    found = [one for one in document["findings"] if one["kind"] == expected.kind]
    assert [one["subject"] for one in found] == [expected.subject], document["findings"]
    (one,) = found
    assert re.search(expected.cause, one["problem"]), one
    assert re.search(expected.repair, one["repair"]), one
    assert one["show"]
    assert code == document["severity"] == expected.exit_code, document["findings"]
    code, text = _run([*arguments, "--format", "text"])
    first_lines = "\n".join(text.splitlines()[:LINES_READ])
    assert code == expected.exit_code
    assert expected.subject in first_lines
    assert re.search(expected.cause, first_lines), text
    assert re.search(expected.repair, first_lines), text
    return str(one["repair"])


def check_well(arguments: Sequence[str]) -> None:
    code, document = status_json(arguments)
    assert (code, document["findings"]) == (0, [])


def status_json(arguments: Sequence[str]) -> tuple[int, dict[str, Any]]:
    code, output = _run([*arguments, "--format", "json"])
    return code, json.loads(output)


def _run(arguments: Sequence[str]) -> tuple[int, str]:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = main(["status", *arguments])
    return code, output.getvalue()
