"""Collects the status of the platform from a table of sources."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.errors import CommitLogError
from headrace.pipeline.status.alerts import alerts
from headrace.pipeline.status.audit import audit
from headrace.pipeline.status.backlog import backlog
from headrace.pipeline.status.commits import commits
from headrace.pipeline.status.context import SourceSkipped, StatusContext
from headrace.pipeline.status.disk import disks, segments
from headrace.pipeline.status.finding import (
    PlatformStatus,
    SourceReport,
    StatusFact,
    StatusFinding,
    finding,
    folded,
)
from headrace.pipeline.status.loads import loads
from headrace.pipeline.status.metric import StatusMetric
from headrace.pipeline.status.parts import parts
from headrace.pipeline.status.topics import alarms, held_back
from headrace.pipeline.status.warehouse import warehouse
from headrace.settings import Settings

logger = logging.getLogger(__name__)

Source = Callable[[StatusContext], SourceReport]

SOURCES: Final[Mapping[str, Source]] = {
    "parts": parts,
    "loads": loads,
    "commit log": commits,
    "lag": backlog,
    "audit": audit,
    "disks": disks,
    "broker log": segments,
    "held back": held_back,
    "quarantine": alarms,
    "files": warehouse,
    "alerts": alerts,
}
"""The sources by the name of what they check, in the order of their facts. A source reads only, in at most about a
second, and returns facts and findings. An error that it raises becomes the finding `not-checked`."""


def platform_status(
    settings: Settings,
    now_ms: int | None = None,
    *,
    expects_servers: bool = True,
    open_log: Callable[[], CommitLog] | None = None,
) -> PlatformStatus:
    """Returns the status of the platform that the settings describe. Changes nothing, and raises no error of a source:
    each failed check is a finding.

    Args:
        now_ms: the time to which ages refer, in milliseconds since 1970; by default the current time.
        expects_servers: whether registry and broker should run although no setting names them and no `headrace up`
            runs them. Otherwise they are not checked then, as before the first start.
        open_log: returns the commit log, for callers that cache its state; by default it is opened and read. It raises
            `SourceSkipped` if the log must not be read: its sources are then `skipped`.
    """
    with contextlib.closing(StatusContext(settings, now_ms, expects_servers, open_log)) as context:
        reports = source_reports(context)
    findings = tuple(found for report in reports for found in report.findings)
    facts = tuple(fact for report in reports for fact in report.facts)
    skipped = tuple(report.source for report in reports if report.skipped)
    reason = next((report.skipped for report in reports if report.skipped), "")
    status = PlatformStatus(context.now_ms, folded(findings), facts, skipped, reason)
    summary = StatusFact("checked", f"{len(SOURCES) - len(skipped)} sources", _summary_metrics(status, findings))
    return dataclasses.replace(status, facts=(*facts, summary))


def source_reports(context: StatusContext) -> list[SourceReport]:
    """Calls each source and returns its report, with findings that are not folded. If a value that several sources
    share cannot be read, its error becomes one finding."""
    reports: list[SourceReport] = []
    reported: list[Exception] = []
    for name, source in SOURCES.items():
        try:
            reports.append(dataclasses.replace(source(context), source=name))
        except SourceSkipped as error:
            reports.append(SourceReport(is_checked=False, source=name, skipped=str(error)))
        except Exception as error:  # findings of other sources must still be reported
            logger.debug("source_failed source=%s", name, exc_info=True)
            is_new = not any(error is known for known in reported)
            findings = (_error_finding(name, error),) if is_new else ()
            reports.append(SourceReport(findings=findings, is_checked=False, source=name))
            reported.append(error)
    return reports


def _error_finding(source: str, error: Exception) -> StatusFinding:
    kind = "commit-log-damaged" if isinstance(error, CommitLogError) else "not-checked"
    return finding(kind, source, _error_text(error))


def _error_text(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:  # without the number of the error
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def _summary_metrics(status: PlatformStatus, findings: tuple[StatusFinding, ...]) -> tuple[StatusMetric, ...]:
    counts: Counter[tuple[str, str]] = Counter()
    for found in findings:
        counts[found.kind, found.severity.name.lower()] += found.count
    return (
        StatusMetric("headrace_status_severity", status.severity),
        StatusMetric("headrace_status_checked_timestamp_seconds", status.checked_at_ms / 1000),
        *(
            StatusMetric("headrace_status_findings", count, (("kind", kind), ("severity", severity)))
            for (kind, severity), count in sorted(counts.items())
        ),
    )
