"""Renders a single report as text or JSON; `compat.formats` renders whole runs in every format.

The module also exports `confluent_messages`, which renders a report in the wording of the registry's API.
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
    """Converts the report of one check to a `CheckedSchema`, the value that all output formats render.

    Args:
        subject: the subject of the schema; "" if it has none.
        baseline: name of the source of the earlier versions.
        level_origin: phrase for the source of the level, such as "as requested".
        version_count: number of earlier versions that exist; at least the number compared.
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
    """Renders a report as text: each finding with position, source line and fix, then a summary line.

    Args:
        style: terminal colours; none by default.
    """
    return render_checked_schema(to_checked_schema(report), style)


def json_report(report: Report) -> dict[str, Any]:
    """Converts the report of one schema's check to a JSON value."""
    return {
        "file": report.candidate.source,
        "compatible": report.is_compatible,
        "level": report.level.value,
        "compared": [{"version": version.version, "name": version.name} for version in report.compared],
        "findings": [problem_document(problem) for problem in describe_findings(report)],
    }
