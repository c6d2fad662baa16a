"""One report as text for people and as a JSON value; `compat.formats` has whole runs in every format.

`confluent_messages` is the wording of the registry API.
"""

from __future__ import annotations

from typing import Any

from headrace.compat.confluent import confluent_messages
from headrace.compat.finding import Report
from headrace.compat.formats.json import problem_document
from headrace.compat.formats.text import PLAIN, Style, checked_text
from headrace.compat.outcome import Checked, ComparedVersion, problems_of

__all__ = ["checked_of", "confluent_messages", "json_report", "text_report"]


def checked_of(
    report: Report, *, subject: str = "", baseline: str = "", level_origin: str = "", known: int = 0
) -> Checked:
    """A report as the flat value that the formats take.

    Args:
        known: number of earlier versions that there are; at least those compared.
    """
    compared = tuple(ComparedVersion(version.version, version.name) for version in report.compared)
    return Checked(
        report.candidate.source,
        subject,
        baseline,
        report.level,
        level_origin,
        compared,
        max(known, len(compared)),
        problems_of(report),
    )


def text_report(report: Report, style: Style = PLAIN) -> str:
    """A report for people: each finding with its place, source line and fix, then the verdict in one line."""
    return checked_text(checked_of(report), style)


def json_report(report: Report) -> dict[str, Any]:
    """A report as a JSON value."""
    return {
        "file": report.candidate.source,
        "compatible": report.is_compatible,
        "level": report.level.value,
        "compared": [{"version": known.version, "name": known.name} for known in report.compared],
        "findings": [problem_document(problem) for problem in problems_of(report)],
    }
