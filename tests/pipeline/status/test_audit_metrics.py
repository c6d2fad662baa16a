"""The metrics of the audit's stored verdicts."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from headrace.audit.row import AuditOutcome, AuditRow, Tier
from headrace.audit.storage.store import AuditStore
from headrace.audit.stored import DATABASE_NAME, TopicSummary
from headrace.audit.strip import DAY_MS, STATE_BYTES, WINDOWS_OF_DAY
from headrace.audit.verdict import AuditVerdict
from headrace.audit.window import WINDOW_MS
from headrace.pipeline.status.audit import audit
from headrace.pipeline.status.audit_metrics import complete_until, measured_topics, windows_by_verdict
from headrace.pipeline.status.context import StatusContext
from headrace.pipeline.status.metric import OTHER, TOPICS_MAX
from headrace.settings import Settings

NOW_MS = 1_795_000_200_000 // DAY_MS * DAY_MS + 7 * WINDOW_MS + 1  # in the eighth window of a day
SUMMARY = TopicSummary("t", AuditVerdict.COMPLETE, 0, 0, 0, 0, 1_000, 500, NOW_MS, 10, True, True)


def strips_with(places: dict[int, AuditVerdict]) -> bytes:
    """Returns the strips of yesterday and today with verdicts at these places."""
    strip = bytearray(2 * WINDOWS_OF_DAY)
    for place, verdict in places.items():
        strip[place] = STATE_BYTES[verdict]
    return bytes(strip)


def test_windows_are_those_of_the_last_24_hours() -> None:
    present, oldest = WINDOWS_OF_DAY + 7, 8
    verdicts = {
        present: AuditVerdict.PENDING,
        oldest: AuditVerdict.COMPLETE,
        oldest - 1: AuditVerdict.MISSING,
        present + 1: AuditVerdict.MISSING,
    }
    found = {metric.labels: metric.value for metric in windows_by_verdict({"t": strips_with(verdicts)}, {"t"}, NOW_MS)}
    assert found == {(("topic", "t"), ("state", "pending")): 1, (("topic", "t"), ("state", "complete")): 1}


def test_topics_with_findings_have_their_own_series_and_the_others_are_summed() -> None:
    many = [dataclasses.replace(SUMMARY, topic=f"t{number:04d}") for number in range(TOPICS_MAX + 2)]
    topics = measured_topics([*many, dataclasses.replace(SUMMARY, topic="z", findings=1, messages_24h=0)])
    assert len(topics) == TOPICS_MAX and "z" in topics
    strips = {one.topic: strips_with({WINDOWS_OF_DAY: AuditVerdict.COMPLETE}) for one in many}
    found = [metric for metric in windows_by_verdict(strips, topics, NOW_MS) if ("topic", OTHER) in metric.labels]
    assert [metric.value for metric in found] == [3]


def test_other_topics_are_complete_until_the_earliest_time_of_those_with_messages() -> None:
    idle = dataclasses.replace(
        SUMMARY, topic="idle", messages_24h=0, complete_until_log_ms=1, complete_until_loaded_ms=1
    )
    late = dataclasses.replace(SUMMARY, topic="late", complete_until_loaded_ms=200)
    new = dataclasses.replace(SUMMARY, topic="new", complete_until_log_ms=None, complete_until_loaded_ms=None)
    found = {metric.labels: metric.value for metric in complete_until([SUMMARY, idle, late, new], {"t"})}
    assert found == {
        (("topic", "t"), ("tier", "log")): 1.0,
        (("topic", "t"), ("tier", "table")): 0.5,
        (("topic", OTHER), ("tier", "log")): 1.0,
        (("topic", OTHER), ("tier", "table")): 0.2,
    }


def test_lost_messages_are_metrics_and_findings(tmp_path: Path) -> None:
    start_ms = NOW_MS - 6 * WINDOW_MS - 1
    sent = AuditRow(
        id="1",
        tier=Tier.PRODUCER,
        outcome=AuditOutcome.ACKNOWLEDGED,
        topic="orders",
        window_start_ms=start_ms,
        count=5,
        bytes=2,
        fingerprint=5,
        application="shop",
        host="web-1",
        instance="i",
        emitted_at_ms=start_ms + WINDOW_MS,
        partition=-1,
        start=-1,
        end=-1,
        sent=5,
    )
    stored = dataclasses.replace(
        sent, id="2", tier=Tier.BROKER, outcome=AuditOutcome.STORED, count=3, sent=0, partition=0, start=0, end=3
    )
    with AuditStore(tmp_path / DATABASE_NAME) as store:
        store.add_rows([sent, stored])
        store.update_verdicts(now_ms=NOW_MS, grace_ms=WINDOW_MS)
    report = audit(StatusContext(Settings(data_dir=tmp_path), NOW_MS))
    found = {(metric.name, *dict(metric.labels).values()): metric.value for metric in report.facts[0].metrics}
    assert found["headrace_audit_missing_messages", "orders", "producer_to_log"] == 2
    assert found["headrace_audit_extra_messages", "orders", "producer_to_log"] == 0
    assert found["headrace_audit_windows", "orders", "missing"] == 1
    assert found["headrace_audit_events", "open", "failure"] == 1
    assert found["headrace_audit_events", "closed", "failure"] == 0
    assert found["headrace_audit_tier_last_count_timestamp_seconds", "log"] == (start_ms + WINDOW_MS) / 1000
    assert [(one.kind, one.subject) for one in report.findings][:1] == [("audit-missing", "orders")]
