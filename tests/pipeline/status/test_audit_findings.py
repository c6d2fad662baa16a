"""Findings of the audit in the status: late windows, tiers that do not count, and their identities."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from headrace.audit.report import completeness_json, completeness_listing
from headrace.audit.row import AuditOutcome, AuditRow, Tier
from headrace.audit.storage.store import AuditStore
from headrace.audit.stored import DATABASE_NAME
from headrace.audit.window import WINDOW_MS
from headrace.pipeline.status.audit import (
    AUDITOR_AGE_MS_MAX,
    EXTRA_MIN,
    INCOMPLETE_MS,
    REPORT_AGE_MS_MAX,
    SILENT_WINDOWS_MIN,
    audit,
)
from headrace.pipeline.status.context import StatusContext
from headrace.pipeline.status.finding import StatusFinding
from headrace.pipeline.status.metric import StatusMetric
from headrace.pipeline.up.up_file import UpFile
from headrace.pipeline.up.up_log import PART_DIED, UP_STARTED, UpEvent
from headrace.settings import Settings
from headrace.settings.addresses import LiveAddresses

START_MS = 1_795_000_200_000 // WINDOW_MS * WINDOW_MS
SENT = AuditRow(
    id="sent",
    tier=Tier.PRODUCER,
    outcome=AuditOutcome.ACKNOWLEDGED,
    topic="orders",
    window_start_ms=START_MS,
    count=1000,
    bytes=2,
    fingerprint=5,
    application="shop",
    host="web-1",
    instance="i",
    emitted_at_ms=START_MS + WINDOW_MS,
    partition=-1,
    start=-1,
    end=-1,
    sent=1000,
)


def loaded(count: int) -> list[AuditRow]:
    """The rows of a load that read and wrote `count` messages."""
    place = {"count": count, "sent": 0, "partition": 0, "start": 0, "end": count}
    return [
        dataclasses.replace(SENT, id="read", tier=Tier.BROKER, outcome=AuditOutcome.STORED, **place),
        dataclasses.replace(SENT, id="written", tier=Tier.LOADER, outcome=AuditOutcome.WRITTEN, **place),
    ]


def findings(tmp_path: Path, rows: list[AuditRow], now_ms: int, grace_ms: int) -> list[StatusFinding]:
    with AuditStore(tmp_path / DATABASE_NAME) as store:
        store.add_rows(rows)
        store.update_verdicts(now_ms=now_ms, grace_ms=grace_ms)
    found = audit(StatusContext(Settings(data_dir=tmp_path), now_ms)).findings
    return [one for one in found if one.kind != "audit-old"]


@pytest.mark.parametrize(
    ("count", "after_ms", "kinds"),
    [
        (998, INCOMPLETE_MS, []),
        (998, INCOMPLETE_MS + 1, ["audit-incomplete"]),
        (999, INCOMPLETE_MS + 1, []),  # 99.9 %
        (998, 2 * 86_400_000, []),  # a window of another day
    ],
)
def test_windows_below_99_9_percent_are_late_after_half_an_hour(
    tmp_path: Path, count: int, after_ms: int, kinds: list[str]
) -> None:
    now_ms = START_MS + WINDOW_MS + after_ms
    found = findings(tmp_path, [SENT, *loaded(count)], now_ms, grace_ms=10 * 86_400_000)
    assert [(one.kind, one.subject) for one in found] == [(kind, "orders") for kind in kinds]


@pytest.mark.parametrize(
    ("windows", "kind"), [(SILENT_WINDOWS_MIN - 1, "audit-differs"), (SILENT_WINDOWS_MIN, "audit-silent")]
)
def test_a_tier_that_does_not_count_for_six_windows_is_a_failure(tmp_path: Path, windows: int, kind: str) -> None:
    """The loader has counted nothing."""
    rows = [
        dataclasses.replace(SENT, id=str(number), window_start_ms=START_MS + number * WINDOW_MS)
        for number in range(windows)
    ]
    found = findings(tmp_path, rows, START_MS + 20 * WINDOW_MS, grace_ms=0)
    assert [one.kind for one in found] == [kind]
    with AuditStore(tmp_path / DATABASE_NAME) as store:
        (incident,) = store.incidents(0)
    assert found[0].identity == incident.id


@pytest.mark.parametrize(
    ("parts", "started_ms", "age_ms", "is_old"),
    [
        (("audit",), 0, AUDITOR_AGE_MS_MAX, False),
        (("audit",), 0, AUDITOR_AGE_MS_MAX + 1, True),
        (("audit",), 2, AUDITOR_AGE_MS_MAX + 1, False),  # `headrace up` started later
        (("broker",), 0, AUDITOR_AGE_MS_MAX + 1, False),  # cron runs the report
        (("broker",), 0, REPORT_AGE_MS_MAX, False),
        (("broker",), 0, REPORT_AGE_MS_MAX + 1, True),
        ((), 0, REPORT_AGE_MS_MAX + 1, True),
    ],
)
@pytest.mark.parametrize("is_restarting", [False, True])
@pytest.mark.parametrize("stale", ["counts", "verdicts"])
def test_counts_and_verdicts_are_old_after_15_minutes_with_an_auditor_and_after_a_day_without(
    tmp_path: Path, parts: tuple[str, ...], started_ms: int, age_ms: int, is_old: bool, is_restarting: bool, stale: str
) -> None:
    now_ms = START_MS + age_ms
    with AuditStore(tmp_path / DATABASE_NAME) as store:
        store.add_rows([SENT])
        store.set_ingested(START_MS if stale == "counts" else now_ms)
        store.update_verdicts(now_ms=START_MS if stale == "verdicts" else now_ms, grace_ms=0)
    context = StatusContext(Settings(data_dir=tmp_path), now_ms)
    events = [UpEvent(START_MS + started_ms, UP_STARTED, {}, "")]
    events += [UpEvent(now_ms, PART_DIED, {"part": part}, "") for part in parts]
    context.once("up_events", lambda: events)
    with UpFile(tmp_path / "up.json") as up_file:
        if parts:
            pids = {} if is_restarting else dict.fromkeys(parts, 2**22 + 1)
            up_file.publish(LiveAddresses(os.getpid(), "now", "", "", "", "", "", "/w", pids))
        found = audit(context)
    old = [one for one in found.findings if one.kind == "audit-old"]
    assert [(one.subject, one.since_ms) for one in old] == ([("audit", START_MS)] if is_old else [])
    metrics = {one.name: one.value for fact in found.facts for one in fact.metrics if not one.labels}
    limit_ms = AUDITOR_AGE_MS_MAX if parts == ("audit",) else REPORT_AGE_MS_MAX
    assert metrics["headrace_audit_age_max_seconds"] == limit_ms / 1000
    assert metrics["headrace_audit_verdicts_timestamp_seconds"] * 1000 == (START_MS if stale == "verdicts" else now_ms)


def test_findings_of_an_incident_name_all_its_topics(tmp_path: Path) -> None:
    topics = ("clicks", "orders", "payments", "visits")
    rows = [
        dataclasses.replace(row, id=f"{topic} {row.id}", topic=topic)
        for topic in topics
        for row in [SENT, *loaded(900)]
    ]
    (found,) = findings(tmp_path, rows, START_MS + 20 * WINDOW_MS, grace_ms=0)
    assert (found.kind, found.count, found.subject, *found.others) == ("audit-missing", 4, *topics)


@pytest.mark.parametrize(
    ("sent", "extra", "kind"),
    [
        (99_900, 10, "audit-few-extra"),
        (100_000, 10, "audit-few-extra"),
        (120_000, 12, "audit-few-extra"),  # exactly 0.01 %
        (100_000, 11, "audit-extra"),
        (20, 11, "audit-extra"),
    ],
)
def test_duplicated_messages_are_a_finding_of_their_own_above_their_limits(
    tmp_path: Path, sent: int, extra: int, kind: str
) -> None:
    """The table has rows of messages twice."""
    read, written = loaded(sent)
    rows = [dataclasses.replace(SENT, count=sent, sent=sent), read, dataclasses.replace(written, count=sent + extra)]
    now_ms = START_MS + 20 * WINDOW_MS
    (found,) = findings(tmp_path, rows, now_ms, grace_ms=0)
    assert (found.kind, found.subject) == (kind, "orders")
    source = audit(StatusContext(Settings(data_dir=tmp_path), now_ms))
    ratios = [one for fact in source.facts for one in fact.metrics if one.name == "headrace_audit_extra_ratio"]
    expected = [StatusMetric("headrace_audit_extra_ratio", extra / sent, (("topic", "orders"),))]
    assert ratios == (expected if extra > EXTRA_MIN else [])


def test_report_shows_the_stored_times_to_completeness(tmp_path: Path) -> None:
    """Of three windows, the log has all of one and 99 % of another; the table has none of the third."""
    rows, now_ms = [], START_MS + 20 * WINDOW_MS
    for number, (stored, written) in enumerate([(1000, 1000), (990, 990), (1000, 0)]):
        window = {"window_start_ms": START_MS + number * WINDOW_MS, "topic": "orders"}
        place = {"partition": 0, "start": 1000 * number, "end": 1000 * number + stored, "sent": 0}
        minutes = {"emitted_at_ms": START_MS + (number + 1) * WINDOW_MS + (number + 1) * 60_000}
        rows.append(dataclasses.replace(SENT, id=f"sent {number}", **window))
        read, wrote = loaded(0)
        rows.append(dataclasses.replace(read, id=f"read {number}", count=stored, **window, **place, **minutes))
        if written:
            rows.append(dataclasses.replace(wrote, id=f"wrote {number}", count=written, **window, **place, **minutes))
    with AuditStore(tmp_path / DATABASE_NAME) as store:
        store.add_rows(rows)
        store.update_verdicts(now_ms=now_ms, grace_ms=0)
        times = store.completeness_times(0, now_ms)
    assert {tier: [one.unreached for one in shares.by_share.values()] for tier, shares in times.items()} == {
        "log": [0, 1, 1],
        "loaded": [1, 2, 2],
    }
    document = completeness_json(times)
    expected = {
        ("log", "99"): (3, 0, 120_000, 180_000, 180_000),
        ("log", "99.9"): (3, 1, 180_000, None, None),
        ("log", "100"): (3, 1, 180_000, None, None),
        ("table", "99"): (3, 1, 120_000, None, None),
        ("table", "99.9"): (3, 2, None, None, None),
        ("table", "100"): (3, 2, None, None, None),
    }
    assert {
        (tier, share): tuple(one.values()) for tier in document for share, one in document[tier].items()
    } == expected
    assert ("log", "99.9 %", "3", "3 min", "-", "-", "1") in completeness_listing(times).rows
