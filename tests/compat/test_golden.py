"""Each rule on files: `tests/golden/compat/<rule>/<case>/` holds a reader, a writer and what is told of them.

A case is called `trips…` when the reader cannot read the writer's data for that rule's reason, and `passes…` when it
just can. `HEADRACE_REWRITE_GOLDEN=1` writes the expected reports anew; read the difference like code.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from headrace.avro_schema import Schema, parse_schema
from headrace.compat import RULES, CompatibilityLevel, Report, VersionedSchema, check_level, json_report, text_report
from headrace.compat.confluent import confluent_messages
from support.checkout import GOLDEN

GOLDEN = GOLDEN / "compat"
CASES = sorted(path.parent for path in GOLDEN.glob("*/*/reader.avsc"))
REWRITE = os.environ.get("HEADRACE_REWRITE_GOLDEN") == "1"


def schema(path: Path) -> Schema:
    return parse_schema(path.read_text(encoding="utf-8"), source=path.name)


def reports(case: Path) -> dict[str, Report]:
    """The reader as the new schema, and the writer as the new schema."""
    reader, writer = schema(case / "reader.avsc"), schema(case / "writer.avsc")
    return {
        "backward": check_level(reader, [VersionedSchema(1, writer, "writer.avsc")], CompatibilityLevel.BACKWARD),
        "forward": check_level(writer, [VersionedSchema(1, reader, "reader.avsc")], CompatibilityLevel.FORWARD),
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.parent.name}-{case.name}")
def test_case(case: Path) -> None:
    found = reports(case)
    rules = {finding.rule.value for finding in found["backward"].findings}
    assert rules == ({case.parent.name} if case.name.startswith("trips") else set())

    text = "".join(f"{direction}:\n{text_report(report)}\n\n" for direction, report in found.items())
    check(case / "report.txt", text.rstrip("\n") + "\n")
    value: dict[str, Any] = {
        direction: {"report": json_report(report), "confluent": confluent_messages(report)}
        for direction, report in found.items()
    }
    check(case / "report.json", json.dumps(value, indent=2) + "\n")


def check(path: Path, actual: str) -> None:
    if REWRITE:
        path.write_text(actual, encoding="utf-8")
    assert actual == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.value)
def test_every_rule_has_a_case_that_trips_it_and_one_that_just_does_not(rule: str) -> None:
    names = {case.name.partition("_")[0] for case in CASES if case.parent.name == rule}
    assert names == {"trips", "passes"}
