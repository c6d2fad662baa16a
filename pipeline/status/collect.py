"""Collects the status of the platform from a table of sources."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from headrace.pipeline.status.context import StatusContext
from headrace.pipeline.status.finding import (
    PlatformStatus,
    SourceReport,
    StatusFact,
    StatusFinding,
    StatusMetric,
    finding,
    folded,
)
from headrace.pipeline.status.loads import loads
from headrace.pipeline.status.parts import parts
from headrace.settings import Settings

logger = logging.getLogger(__name__)

Source = Callable[[StatusContext], SourceReport]

SOURCES: Final[Mapping[str, Source]] = {
    "parts": parts,
    "last load": loads,
}
"""The sources by the name of what they check, in the order of their facts. A source reads only, in at most about a
second, and returns facts and findings. An error that it raises becomes the finding `not-checked`."""


def platform_status(settings: Settings, now_ms: int | None = None) -> PlatformStatus:
    """Returns the status of the platform that the settings describe. Changes nothing, and raises no error of a source:
    what could not be checked is a finding.

    Args:
        now_ms: the time to which ages refer, in milliseconds since 1970; by default the current time.
    """
    with contextlib.closing(StatusContext(settings, now_ms)) as context:
        reports = [_report(name, source, context) for name, source in SOURCES.items()]
    findings = tuple(found for report in reports for found in report.findings)
    facts = tuple(fact for report in reports for fact in report.facts)
    status = PlatformStatus(context.now_ms, folded(findings), facts)
    summary = StatusFact("checked", f"{len(SOURCES)} sources", _summary_metrics(status, findings))
    return PlatformStatus(status.checked_at_ms, status.findings, (*facts, summary))


def _report(name: str, source: Source, context: StatusContext) -> SourceReport:
    try:
        return source(context)
    except Exception as error:  # an error of one source must not hide the findings of the others
        logger.debug("source_failed source=%s", name, exc_info=True)
        reason = str(error) or type(error).__name__
        return SourceReport(findings=(finding("not-checked", name, reason),))


def _summary_metrics(status: PlatformStatus, findings: tuple[StatusFinding, ...]) -> tuple[StatusMetric, ...]:
    counts: Counter[str] = Counter()
    for found in findings:
        counts[found.kind] += found.count
    return (
        StatusMetric("headrace_status_severity", status.severity),
        StatusMetric("headrace_status_checked_timestamp_seconds", status.checked_at_ms / 1000),
        *(StatusMetric("headrace_status_findings", count, (("kind", kind),)) for kind, count in sorted(counts.items())),
    )
