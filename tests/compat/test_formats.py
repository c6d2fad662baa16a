"""Each output format is valid by its own standard."""

from __future__ import annotations

import dataclasses
import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import xmlschema

from headrace.compat.check_result import CheckedSchema, CompatCheckResult
from headrace.compat.formats import FORMATS, render
from headrace.compat.formats.text import COLOURED, render_text
from support.schemas.check_results import HOSTILE, checked, everything

STANDARDS = Path(__file__).parent / "standards"

GITLAB_ENTRY: dict[str, Any] = {
    "type": "object",
    "required": ["description", "check_name", "fingerprint", "severity", "location"],
    "additionalProperties": False,
    "properties": {
        "description": {"type": "string", "minLength": 1},
        "check_name": {"type": "string", "minLength": 1},
        "fingerprint": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
        "severity": {"enum": ["info", "minor", "major", "critical", "blocker"]},
        "location": {
            "type": "object",
            "required": ["path", "lines"],
            "properties": {
                "path": {"type": "string", "not": {"pattern": r"^(\./|/)"}},
                "lines": {
                    "type": "object",
                    "required": ["begin"],
                    "properties": {"begin": {"type": "integer", "minimum": 1}},
                },
            },
        },
    },
}
"""Schema of an entry as documented for GitLab's code quality report."""


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("check_result", [everything(), CompatCheckResult(())], ids=["everything", "nothing"])
def test_every_format_can_be_encoded(name: str, check_result: CompatCheckResult) -> None:
    text = render(name, check_result)
    assert text == "" or text.endswith("\n")
    assert text.encode("utf-8", "backslashreplace").decode() == text.replace("\udcff", "\\udcff")


@pytest.mark.parametrize("check_result", [everything(), CompatCheckResult(())], ids=["everything", "nothing"])
def test_sarif_is_valid(check_result: CompatCheckResult) -> None:
    standard = json.loads((STANDARDS / "sarif-schema-2.1.0.json").read_text(encoding="utf-8"))
    document = json.loads(render("sarif", check_result))
    jsonschema.Draft7Validator(standard, format_checker=jsonschema.FormatChecker()).validate(document)
    (run,) = document["runs"]
    for result in run["results"]:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        assert re.fullmatch(r"[A-Za-z0-9/~!$&'()*+,;=@._%-]+", uri), uri
    if check_result.checked:
        suppressed = [result for result in run["results"] if result.get("suppressions")]
        assert [item["suppressions"][0]["justification"] for item in suppressed] == ["we know"]
        assert run["invocations"][0]["executionSuccessful"] is False
        assert all(re.fullmatch("[0-9a-f]{32}", r["partialFingerprints"]["headraceFinding/v1"]) for r in run["results"])


@pytest.mark.parametrize("check_result", [everything(), CompatCheckResult(())], ids=["everything", "nothing"])
def test_junit_is_valid(check_result: CompatCheckResult) -> None:
    text = render("junit", check_result)
    xmlschema.XMLSchema(str(STANDARDS / "junit-10.xsd")).validate(text)
    suite = ET.fromstring(text.encode()).find("testsuite")
    assert suite is not None
    cases = suite.findall("testcase")
    assert int(suite.attrib["tests"]) == len(cases) == len(check_result.checked) + len(check_result.failures)
    assert int(suite.attrib["failures"]) == len(suite.findall("testcase/failure"))
    assert int(suite.attrib["errors"]) == len(suite.findall("testcase/error"))


def test_github_annotations_follow_the_runners_syntax() -> None:
    """As the runner parses them: a command, properties without bare `:` and `,`, then the message on the same line."""
    command = re.compile(r"::(error|warning|notice) ([a-z]+=[^,:\r\n]+(?:,[a-z]+=[^,:\r\n]+)*)::([^\r\n]+)")
    lines = render("github", everything()).splitlines()
    found = [command.fullmatch(line) for line in lines]
    assert all(found), [line for line, match in zip(lines, found, strict=True) if not match]
    properties = [dict(pair.split("=", 1) for pair in match[2].split(",")) for match in found if match]
    assert all(set(item) <= {"file", "line", "endLine", "col", "endColumn", "title"} for item in properties)
    files = {item.get("file", "").replace("%3A", ":").replace("%2C", ",") for item in properties}
    names = {name.replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%") for name in files}
    assert {"schemas/order.avsc", HOSTILE, "x.avsc"} <= names
    assert "b.avsc" not in names, "suppressed problems are not annotated"
    assert {"line": "3", "col": "4"}.items() <= next(
        item for item in properties if item.get("file") == "x.avsc"
    ).items()


def test_gitlab_report_matches_documented_schema() -> None:
    entries = json.loads(render("gitlab", everything()))
    jsonschema.Draft7Validator({"type": "array", "items": GITLAB_ENTRY}).validate(entries)
    assert len({entry["fingerprint"] for entry in entries}) == len(entries)
    assert {entry["severity"] for entry in entries} == {"major", "critical"}
    (unreachable,) = (entry for entry in entries if entry["check_name"] == "schema-registry")
    assert unreachable["location"]["lines"] == {"begin": 1}


def test_gitlab_fingerprints_differ_by_file() -> None:
    """Otherwise, when the first file is fixed, the second would reuse its fingerprint and never appear as new."""
    first, second = replace(checked(), file="a/order.avsc"), replace(checked(), file="b/order.avsc")

    def fingerprints(*items: CheckedSchema) -> set[str]:
        return {entry["fingerprint"] for entry in json.loads(render("gitlab", CompatCheckResult(items)))}

    assert fingerprints(second) == fingerprints(first, second) - fingerprints(first)


def test_json_report_contains_everything() -> None:
    document = json.loads(render("json", everything()))
    assert document["format"] == 1
    assert document["compatible"] is False
    bad, suppressed, new, same, _ = document["reports"]
    assert (bad["compatible"], suppressed["compatible"], same["compatible"]) == (False, True, True)
    assert suppressed["findings"][0]["suppressed"] == {"reason": "we know", "origin": "settings"}
    assert (new["new"], new["compared"]) == (True, [])
    assert bad["compared"] == [{"version": 7, "name": "main:schemas/order.avsc"}]
    assert [error["kind"] for error in document["errors"]] == ["invalid", "registry"]


def test_markdown_escapes_cells() -> None:
    text = render("markdown", everything())
    for line in text.splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) in (3, 5), line
    assert "<&>" not in text.replace("`a,b:c%d <&>", "")
    title, _, _ = text.partition("\n")
    assert re.findall(r"\d+", title) == ["2", "5", "2"]


def test_text_report_ends_with_counts() -> None:
    lines = render_text(everything()).splitlines()
    assert re.findall(r"\d+", lines[-1]) == ["7", "2", "2", "1"]
    assert any(line.startswith("new schema.avsc: ") and "git:main" in line for line in lines)
    assert any(line.startswith("b.avsc: ") and "(1 suppressed)" in line for line in lines)
    assert "\x1b[1;31m" in render_text(everything(), COLOURED)
    assert "\x00" not in render_text(everything())
    quiet = render_text(everything(), quiet=True)
    assert "same.avsc" not in quiet
    assert "schemas/order.avsc: " in quiet


def test_many_compatible_schemas_are_counted_in_text() -> None:
    report = everything()
    (same,) = [one for one in report.checked if one.file == "same.avsc"]
    many = dataclasses.replace(report, checked=(*report.checked, *[same] * 2_000))
    lines = render_text(many).splitlines()
    assert len(lines) < 60
    assert "2,002 compatible schemas without problems; --verbose shows them" in lines, "and a new one"
    assert any(line.startswith("schemas/order.avsc:") for line in lines)
    assert sum(line.startswith("same.avsc: ") for line in render_text(many, verbose=True).splitlines()) == 2_001
