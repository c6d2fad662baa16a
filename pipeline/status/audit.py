"""The audit's verdicts, from the newest report of all topics.

A verdict needs the counts of all windows and of the audit topic, which `headrace audit report` reads; it stores its
findings in the audit's database. A status shows them, and needs attention if the report is old.
"""

from __future__ import annotations

from typing import Final

from headrace.audit.store import DATABASE_NAME, AuditStore, ReportedFinding
from headrace.audit.verdict import AuditVerdict
from headrace.pipeline.status.context import StatusContext
from headrace.pipeline.status.finding import SourceReport, StatusFact, StatusFinding, StatusMetric, finding
from headrace.pipeline.status.wording import age_text, count_text

REPORT_AGE_MS_MAX: Final = 86_400_000
LOSSES: Final = frozenset({AuditVerdict.MISSING, AuditVerdict.MISMATCH})


def audit(context: StatusContext) -> SourceReport:
    """Reports the findings of the newest audit report, and its age."""
    path = context.settings.data_dir / DATABASE_NAME
    if not path.exists():
        return SourceReport((StatusFact("audit", "no counts yet"),))
    with AuditStore(path) as store:
        report, first_ms = store.report(), store.first_emitted_ms()
    if report is None:
        findings = [] if first_ms is None else _old(context.now_ms - first_ms, first_ms, "no report yet")
        return SourceReport((StatusFact("audit", "no report yet; headrace audit report makes one"),), tuple(findings))
    age_ms = context.now_ms - report.created_at_ms
    text = f"{count_text(len(report.findings), 'topic')} with findings in the report of {age_text(age_ms)} ago"
    metrics = (
        StatusMetric("headrace_audit_report_timestamp_seconds", report.created_at_ms / 1000),
        StatusMetric("headrace_audit_topics_with_findings", len(report.findings)),
    )
    findings = _old(age_ms, report.created_at_ms, f"the newest report is {age_text(age_ms)} old")
    return SourceReport((StatusFact("audit", text, metrics),), (*map(_reported, report.findings), *findings))


def _old(age_ms: int, since_ms: int, problem: str) -> list[StatusFinding]:
    return [finding("audit-old", "audit", problem, since_ms=since_ms)] if age_ms > REPORT_AGE_MS_MAX else []


def _reported(one: ReportedFinding) -> StatusFinding:
    kind = "audit-missing" if one.verdict in LOSSES else "audit-differs"
    return finding(kind, one.topic, f"{one.verdict.value} in {count_text(one.windows, 'window')}: {one.sentence}")
