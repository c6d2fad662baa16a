"""The audit's verdicts, as stored by loads, by `headrace audit run` and by `headrace audit report`.

A load counts the log and the tables. Counts of producers and consumers come from the audit topic, which the auditor
reads every few seconds, and `headrace audit report` once. If that was long ago, missing messages are not noticed: where
`headrace up` runs the auditor, after 15 minutes; elsewhere after a day, because cron may run the report once a day.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from headrace.audit.event import Incident
from headrace.audit.storage.store import AuditStore
from headrace.audit.stored import ProducerFault, TopicSummary, UncountedBatch, corrupt_text
from headrace.audit.strip import DAY_MS, day_of
from headrace.audit.verdict import AuditVerdict
from headrace.audit.window import WINDOW_MS
from headrace.pipeline.audit_store import has_audit_store, open_audit_store
from headrace.pipeline.status.audit_metrics import (
    complete_until,
    completeness,
    differences,
    extra_shares,
    incident_counts,
    last_counts,
    measured_topics,
    producer_faults,
    windows_by_verdict,
)
from headrace.pipeline.status.context import StatusContext
from headrace.pipeline.status.finding import KINDS, SourceReport, StatusFact, StatusFinding, finding
from headrace.pipeline.status.metric import StatusMetric
from headrace.pipeline.status.wording import age_text, count_text

AUDITOR_AGE_MS_MAX: Final = 900_000
REPORT_AGE_MS_MAX: Final = 86_400_000
"""The age of counts and verdicts from which they are not up to date, with and without an auditor of `headrace up`."""
LOSSES: Final = frozenset({AuditVerdict.MISSING, AuditVerdict.MISMATCH})
SILENT_WINDOWS_MIN: Final = 6
"""A tier without counts for this number of windows of a topic is a failure."""
EXTRA_MIN: Final = 10
EXTRA_SHARE_MAX: Final = 0.0001
"""At most this number, or this share, of extra messages in a window is normal: producers repeat some requests."""
INCOMPLETE_MS: Final = 1_800_000
"""Time from the end of a window until 99.9 % of its messages should be in the table: two loads and a reserve."""

CORRUPT_REMEDY: Final = KINDS["audit-corrupt"].repair


def audit(context: StatusContext) -> SourceReport:
    """Reports the open incidents of the audit, and the age of the counts from the audit topic."""
    if not has_audit_store(context.settings):
        return SourceReport((StatusFact("audit", "no counts yet"),))
    with open_audit_store(context.settings) as store:
        summaries, ingested_ms = store.topic_summaries(context.now_ms), store.ingested_at_ms()
        checked_ms, corrupt = store.checked_at_ms(), store.corrupt_batches()
        if not (summaries or corrupt):
            return SourceReport((StatusFact("audit", "no counts yet"),))
        recent = store.incidents(context.now_ms - DAY_MS)
        shares, faults = store.extra_shares(EXTRA_MIN), store.producer_faults(context.now_ms)
        metrics = (
            *_metrics(store, summaries, recent, context.now_ms),
            *extra_shares(shares, measured_topics(summaries)),
            *producer_faults(faults, measured_topics(summaries)),
        )
        late = store.late_windows(context.now_ms - DAY_MS, context.now_ms - INCOMPLETE_MS - WINDOW_MS)
    incidents = [one for one in recent if one.closed_at_ms is None]
    age_ms = context.now_ms - ingested_ms
    affected = {event.topic for incident in incidents for event in incident.events if event.is_open}
    text = f"{count_text(len(affected), 'topic')} with findings, counts of producers read {age_text(age_ms)} ago"
    metrics += (
        StatusMetric("headrace_audit_ingest_timestamp_seconds", ingested_ms / 1000),
        StatusMetric("headrace_audit_verdicts_timestamp_seconds", checked_ms / 1000),
        StatusMetric("headrace_audit_age_max_seconds", _age_ms_max(context) / 1000),
        StatusMetric("headrace_audit_topics_with_findings", len(affected)),
    )
    findings = [*_old(context, ingested_ms, checked_ms), *_incomplete(late, summaries)]
    duplicated = {topic for topic, share in shares.items() if share > EXTRA_SHARE_MAX}
    findings += [_of_producer(one, context.now_ms) for one in faults]
    findings += _corrupt(corrupt, context.now_ms - context.settings.audit.findings_ttl.ms)
    findings = [*(_finding(one, duplicated) for one in incidents), *findings]
    return SourceReport((StatusFact("audit", text, metrics),), tuple(findings))


def _age_ms_max(context: StatusContext) -> int:
    return REPORT_AGE_MS_MAX if context.auditor_since_ms is None else AUDITOR_AGE_MS_MAX


def _old(context: StatusContext, ingested_ms: int, checked_ms: int) -> list[StatusFinding]:
    """Returns a finding if the counts of the audit topic, or the verdicts, are not up to date.

    Args:
        ingested_ms: when the audit topic was last read to its end.
        checked_ms: when the verdicts were last updated.
    """
    for time_ms, problem in (
        (ingested_ms, "the counts in the audit topic were not read"),
        (checked_ms or ingested_ms, "the verdicts were not updated"),
    ):
        # The auditor needs time after the start of `headrace up`.
        age_ms = context.now_ms - max(time_ms, context.auditor_since_ms or 0)
        if age_ms <= _age_ms_max(context):
            continue
        text = f"{problem} for {age_text(context.now_ms - time_ms)}, so missing messages would not be noticed"
        if context.auditor_since_ms is None:
            return [finding("audit-old", "audit", text, since_ms=time_ms)]
        log = f"{context.log_dir / 'audit.log'}"
        repair = f"remove the cause that the auditor logs: tail {log}"
        return [finding("audit-old", "audit", text, show=f"tail {log}", repair=repair, since_ms=time_ms)]
    return []


def _incomplete(late: Mapping[str, int], summaries: Sequence[TopicSummary]) -> list[StatusFinding]:
    """Returns a finding for each topic with a table and late windows.

    Args:
        late: the number of late windows by topic.
    """
    return [
        finding("audit-incomplete", one.topic, f"{count_text(late[one.topic], 'window')} ended over 30 minutes ago")
        for one in summaries
        if one.is_loaded and one.topic in late
    ]


def _of_producer(fault: ProducerFault, now_ms: int) -> StatusFinding:
    """Returns the finding about a wrong clock, or about a crash with undelivered messages."""
    return finding(f"audit-{fault.kind}", fault.topic, fault.sentence(now_ms), identity=fault.topic)


def _corrupt(batches: Sequence[UncountedBatch], since_ms: int) -> list[StatusFinding]:
    """Returns a finding for each topic with corrupt batches that the auditor found after `since_ms`."""
    by_topic: dict[str, list[UncountedBatch]] = {}
    for one in batches:
        if one.found_at_ms > since_ms:
            by_topic.setdefault(one.topic, []).append(one)
    return [
        finding(
            "audit-corrupt",
            topic,
            corrupt_text(found[0]) + (f", and {len(found) - 1:,} more" if len(found) > 1 else ""),
            since_ms=min(one.found_at_ms for one in found),
            count=len(found),
        )
        for topic, found in sorted(by_topic.items())
    ]


def _metrics(
    store: AuditStore, summaries: Sequence[TopicSummary], recent: Sequence[Incident], now_ms: int
) -> Iterator[StatusMetric]:
    """Yields the metrics of the stored verdicts.

    Args:
        recent: the incidents of the last 24 hours.
    """
    topics, today = measured_topics(summaries), day_of(now_ms)
    yield from windows_by_verdict(store.strips(today - 1, today), topics, now_ms)
    yield from differences((event for incident in recent for event in incident.events), topics)
    yield from incident_counts(recent, LOSSES)
    yield from complete_until(summaries, topics)
    yield from completeness(store.completeness_totals())
    yield from last_counts(store.last_counted_by_tier())


def _finding(incident: Incident, duplicated: AbstractSet[str]) -> StatusFinding:
    """Returns the finding about an incident. `duplicated` are the topics with many extra messages."""
    return finding(
        _kind(incident, duplicated),
        incident.topics[0],
        f"{incident.verdict.value}: {incident.sentence}",
        show=incident.command,
        since_ms=incident.opened_at_ms,
        count=len(incident.topics),
        identity=incident.id,
        others=incident.topics[1:],
    )


def _kind(incident: Incident, duplicated: AbstractSet[str]) -> str:
    if incident.verdict in LOSSES:
        return "audit-missing"
    if incident.verdict is AuditVerdict.EXTRA:
        return "audit-few-extra" if duplicated.isdisjoint(incident.topics) else "audit-extra"
    is_silent = incident.verdict is AuditVerdict.UNKNOWN
    longest = max(event.windows for event in incident.events)
    return "audit-silent" if is_silent and longest >= SILENT_WINDOWS_MIN else "audit-differs"
