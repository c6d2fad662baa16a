"""The audit's verdicts, as stored by loads and by `headrace audit report`.

A load counts the log and the tables. Counts of producers and consumers come from the audit topic, which `headrace audit
report` reads; the status needs attention if that was long ago.
"""

from __future__ import annotations

from typing import Final

from headrace.audit.event import Incident
from headrace.audit.verdict import AuditVerdict
from headrace.pipeline.audit_store import has_audit_store, open_audit_store
from headrace.pipeline.status.context import StatusContext
from headrace.pipeline.status.finding import SourceReport, StatusFact, StatusFinding, finding
from headrace.pipeline.status.metric import StatusMetric
from headrace.pipeline.status.wording import age_text, count_text

INGEST_AGE_MS_MAX: Final = 86_400_000
LOSSES: Final = frozenset({AuditVerdict.MISSING, AuditVerdict.MISMATCH})


def audit(context: StatusContext) -> SourceReport:
    """Reports the open incidents of the audit, and the age of the counts from the audit topic."""
    if not has_audit_store(context.settings):
        return SourceReport((StatusFact("audit", "no counts yet"),))
    with open_audit_store(context.settings) as store:
        incidents, topics, ingested_ms = store.incidents(0, only_open=True), store.topics(), store.ingested_at_ms()
    if not topics:
        return SourceReport((StatusFact("audit", "no counts yet"),))
    age_ms = context.now_ms - ingested_ms
    affected = {topic for incident in incidents for topic in incident.topics}
    text = f"{count_text(len(affected), 'topic')} with findings, counts of producers read {age_text(age_ms)} ago"
    metrics = (
        StatusMetric("headrace_audit_ingest_timestamp_seconds", ingested_ms / 1000),
        StatusMetric("headrace_audit_topics_with_findings", len(affected)),
    )
    old = f"the counts in the audit topic were not read for {age_text(age_ms)}"
    findings = [finding("audit-old", "audit", old, since_ms=ingested_ms)] if age_ms > INGEST_AGE_MS_MAX else []
    return SourceReport((StatusFact("audit", text, metrics),), (*map(_finding, incidents), *findings))


def _finding(incident: Incident) -> StatusFinding:
    kind = "audit-missing" if incident.verdict in LOSSES else "audit-differs"
    return finding(
        kind,
        incident.topics[0],
        f"{incident.verdict.value}: {incident.sentence}",
        show=incident.command,
        since_ms=incident.opened_at_ms,
        count=len(incident.topics),
        identity=incident.id,
    )
