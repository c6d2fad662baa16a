"""A report as text for people and as JSON for programs; `confluent_messages` is the wording of the registry API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from avro_schema import Position
from compat.confluent import confluent_messages
from compat.finding import Finding, Report

__all__ = [
    "COLOURED",
    "PLAIN",
    "Style",
    "confluent_messages",
    "json_document",
    "json_report",
    "printable",
    "text_report",
]

JSON_FORMAT = 1
"""Counts the incompatible changes of the JSON document's shape."""

EXCERPT_CHARS_MAX = 110
"""Longest excerpt of a source line; a schema in one line is shown around the column."""

DETAIL_CHARS_MAX = 300
"""Longest wording of Avro Java that is shown; a list of missing symbols has no end. JSON has all of it."""


@dataclass(frozen=True, slots=True)
class Style:
    """ANSI sequences around the parts of a text report; empty for plain text."""

    place: str = ""
    error: str = ""
    caret: str = ""
    fix: str = ""
    faint: str = ""
    good: str = ""
    end: str = ""


PLAIN = Style()
COLOURED = Style("\x1b[1m", "\x1b[1;31m", "\x1b[1;31m", "\x1b[1;36m", "\x1b[2m", "\x1b[1;32m", "\x1b[0m")


def text_report(report: Report, style: Style = PLAIN) -> str:
    """A report for people: each finding with its place, source line and fix, then the verdict in one line."""
    parts = [_text_finding(report, group, style) for group in _grouped(report.findings)]
    return "\n".join([*parts, _verdict(report, style)])


def json_document(reports: Sequence[Report], errors: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Several reports as one JSON value, beside the files that could not be judged."""
    return {
        "format": JSON_FORMAT,
        "compatible": not errors and all(report.is_compatible for report in reports),
        "reports": [json_report(report) for report in reports],
        "errors": list(errors),
    }


def json_report(report: Report) -> dict[str, Any]:
    """A report as a JSON value."""
    return {
        "file": report.candidate.source,
        "compatible": report.is_compatible,
        "level": report.level.value,
        "compared": [{"version": known.version, "name": known.name} for known in report.compared],
        "findings": [_json_finding(finding) for finding in report.findings],
    }


def _json_finding(finding: Finding) -> dict[str, Any]:
    problem = finding.incompatibility
    out: dict[str, Any] = {
        "rule": finding.rule.value,
        "severity": finding.severity.value,
        "direction": finding.direction.value,
        "version": finding.version,
        "version_name": finding.version_name,
        "pointer": finding.pointer,
        "line": finding.position.line,
        "column": finding.position.column,
        "sentence": finding.sentence,
        "fix": finding.fix,
        "reader": finding.reader_fragment,
        "writer": finding.writer_fragment,
        "avro": {"location": problem.location, "message": problem.message},
    }
    if finding.causes:
        out["causes"] = [_json_finding(cause) for cause in finding.causes]
    return out


def _grouped(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Findings that tell the same of one place in several versions, or of a type used in several places, once."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        said = finding.sentence.replace(finding.version_name, "")
        groups.setdefault((finding.rule, finding.direction, finding.position, said), []).append(finding)
    return list(groups.values())


def _text_finding(report: Report, group: Sequence[Finding], style: Style) -> str:
    """One finding; where it is about the branch of a union, each problem inside that branch."""
    finding = group[0]
    lines = []
    for leaf in _leaves(finding):
        place = printable(_place(report.candidate.source, leaf.position))
        severity = f"{style.error}{finding.severity.value}{style.end}"
        lines.append(f"{style.place}{place}{style.end}{severity}: {printable(leaf.sentence)}")
        lines += _excerpt(report.candidate.text, leaf.position, style)
        lines.append(f"    {style.fix}fix{style.end}: {printable(leaf.fix)}")
    others = list(dict.fromkeys(other.version_name for other in group if other.version != finding.version))
    if others:
        lines.append(f"    also: the same against {printable(', '.join(others))}")
    problem = finding.incompatibility
    detail = f"{finding.rule.value} ({finding.direction.value}) at {problem.location}: {problem.message}"
    lines.append(f"    {style.faint}rule: {_cut(printable(detail))}{style.end}")
    return "\n".join([*lines, ""])


def _leaves(finding: Finding) -> list[Finding]:
    return list(finding.causes) or [finding]


def _place(source: str, position: Position) -> str:
    where = f"{position.line}:{position.column}" if position.line else ""
    return "".join(f"{part}:" for part in (source, where) if part) + " "


def _excerpt(text: str, position: Position, style: Style) -> list[str]:
    """The source line and a caret under the column, cut around it; nothing when the text is not at hand."""
    lines = text.split("\n", position.line)
    if not 0 < position.line <= len(lines):
        return []
    line = lines[position.line - 1]
    caret = min(position.column - 1, len(line))
    first = 0 if len(line) <= EXCERPT_CHARS_MAX else max(0, caret - EXCERPT_CHARS_MAX // 3)
    indent = len(line) - len(line.lstrip()) if first == 0 else 0
    begin = max(first, indent)
    shown = printable(line[begin : begin + EXCERPT_CHARS_MAX].rstrip())
    before = "…" if begin > indent else ""
    after = "…" if len(line.rstrip()) > begin + EXCERPT_CHARS_MAX else ""
    number = f"{position.line:>6} | "
    blank = " " * (len(number) - 2) + "| " + " " * (len(before) + caret - begin)
    return [
        f"{style.faint}{number}{style.end}{before}{shown}{after}",
        f"{style.faint}{blank}{style.end}{style.caret}^{style.end}",
    ]


def printable(text: str) -> str:
    """Text that a terminal shows as it is: control and formatting characters of a schema are replaced."""
    return text if text.isprintable() else "".join(char if char.isprintable() else "·" for char in text)


def _cut(text: str) -> str:
    return text if len(text) <= DETAIL_CHARS_MAX else f"{text[:DETAIL_CHARS_MAX]}…"


def _verdict(report: Report, style: Style) -> str:
    name = f"{printable(report.candidate.source)}: " if report.candidate.source else ""
    level = report.level.value
    if not report.compared:
        why = "which compares nothing" if report.level.value == "NONE" else "there is no earlier version"
        return f"{name}{style.good}compatible{style.end} at {level}: {why}"
    if report.is_compatible:
        names = printable(", ".join(known.name for known in report.compared))
        return f"{name}{style.good}compatible{style.end} at {level} with {names}"
    failed = list(dict.fromkeys(finding.version_name for finding in report.findings))
    count = sum(len(_leaves(group[0])) for group in _grouped(report.findings))
    problems = "1 problem" if count == 1 else f"{count} problems"
    return f"{name}{style.error}incompatible{style.end} at {level} with {printable(', '.join(failed))}: {problems}"
