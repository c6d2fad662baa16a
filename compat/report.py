"""One report as text for people and as a JSON value; `compat.formats` has whole runs in every format.

`confluent_messages` is the wording of the registry API.
"""

from __future__ import annotations

from typing import Any

from headrace.compat.check_result import CheckedSchema, ComparedVersion, describe_findings
from headrace.compat.confluent import confluent_messages
from headrace.compat.finding import Report
from headrace.compat.formats.json import problem_document
from headrace.compat.formats.text import PLAIN, Style, render_checked_schema

__all__ = ["confluent_messages", "json_report", "text_report", "to_checked_schema"]


def to_checked_schema(
    report: Report, *, subject: str = "", baseline: str = "", level_origin: str = "", version_count: int = 0
) -> CheckedSchema:
    """A report as the flat value that the formats take.

    Args:
        known: number of earlier versions that there are; at least those compared.
    """
    compared = tuple(ComparedVersion(version.version, version.name) for version in report.compared)
    return CheckedSchema(
        report.candidate.source,
        subject,
        baseline,
        report.level,
        level_origin,
        compared,
        max(version_count, len(compared)),
        describe_findings(report),
    )


def text_report(report: Report, style: Style = PLAIN) -> str:
    """A report for people: each finding with its place, source line and fix, then the verdict in one line."""
    return render_checked_schema(to_checked_schema(report), style)


def json_report(report: Report) -> dict[str, Any]:
    """A report as a JSON value."""
    return {
        "file": report.candidate.source,
        "compatible": report.is_compatible,
        "level": report.level.value,
        "compared": [{"version": known.version, "name": known.name} for known in report.compared],
        "findings": [problem_document(problem) for problem in describe_findings(report)],
    }
