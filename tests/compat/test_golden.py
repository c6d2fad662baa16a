"""Each rule on files: `tests/golden/compat/<rule>/<case>/` holds a reader, a writer and the expected reports.

The name of a case starts with `trips` if the reader cannot read the writer's data because of that rule, and with
`passes` if it barely can. `HEADRACE_REWRITE_GOLDEN=1` rewrites the expected reports; review their diff like code.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headrace.avro_schema import Schema, parse_schema
from headrace.compat import RULES, CompatibilityLevel, Report, VersionedSchema, check_level, json_report, text_report
from headrace.compat.confluent import confluent_messages
from support.checkout import GOLDEN
from support.golden import golden

CASES = sorted(path.parent for path in GOLDEN.glob("compat/*/*/reader.avsc"))


def schema(path: Path) -> Schema:
    return parse_schema(path.read_text(encoding="utf-8"), source=path.name)


def reports(case: Path) -> dict[str, Report]:
    """Checks the reader as the new schema, and the writer as the new schema."""
    reader, writer = schema(case / "reader.avsc"), schema(case / "writer.avsc")
    return {
        "backward": check_level(reader, [VersionedSchema(1, writer, "writer.avsc")], CompatibilityLevel.BACKWARD),
        "forward": check_level(writer, [VersionedSchema(1, reader, "reader.avsc")], CompatibilityLevel.FORWARD),
    }


def test_rule_reports_only_trip_cases() -> None:
    found = {case: {each.rule.value for each in reports(case)["backward"].findings} for case in CASES}
    assert found == {case: {case.parent.name} if case.name.startswith("trips") else set() for case in CASES}


def test_case_reports_match_golden_files() -> None:
    texts = {}
    for case in CASES:
        found = reports(case)
        text = "".join(f"{direction}:\n{text_report(report)}\n\n" for direction, report in found.items())
        value: dict[str, Any] = {
            direction: {"report": json_report(report), "confluent": confluent_messages(report)}
            for direction, report in found.items()
        }
        path = str(case.relative_to(GOLDEN))
        texts[f"{path}/report.txt"] = text.rstrip("\n") + "\n"
        texts[f"{path}/report.json"] = json.dumps(value, indent=2) + "\n"
    assert texts == {path: golden(path, text) for path, text in texts.items()}


def test_every_rule_has_trip_and_pass_cases() -> None:
    kinds = {rule: {case.name.partition("_")[0] for case in CASES if case.parent.name == rule.value} for rule in RULES}
    assert [rule for rule, names in kinds.items() if names != {"trips", "passes"}] == []
