"""Findings of the audit in the status: late windows, tiers that do not count, and their identities."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from headrace.audit.row import AuditOutcome, AuditRow, Tier
from headrace.audit.storage.store import AuditStore
from headrace.audit.stored import DATABASE_NAME
from headrace.audit.window import WINDOW_MS
from headrace.pipeline.status.audit import INCOMPLETE_MS, SILENT_WINDOWS_MIN, audit
from headrace.pipeline.status.context import StatusContext
from headrace.pipeline.status.finding import StatusFinding
from headrace.settings import Settings

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
