"""The counters of the times to completeness."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from headrace.audit.row import AuditOutcome, AuditRow, Tier
from headrace.audit.storage.store import AuditStore
from headrace.audit.stored import COMPLETENESS_BOUNDS_MS
from headrace.audit.window import WINDOW_MS

NewAddress = Callable[[], Path | str]

START_MS = 1_795_000_200_000 // WINDOW_MS * WINDOW_MS
END_MS = START_MS + WINDOW_MS
MINUTE_MS, GRACE_MS = 60_000, 20 * 60_000
OUTCOMES = {
    Tier.PRODUCER: AuditOutcome.ACKNOWLEDGED,
    Tier.BROKER: AuditOutcome.STORED,
    Tier.LOADER: AuditOutcome.WRITTEN,
}


def counted(tier: Tier, offset: int, emitted_at_ms: int, window_start_ms: int = START_MS) -> AuditRow:
    """Returns the count of one message by a tier."""
    row = AuditRow(
        id=f"{tier}-{offset}-{window_start_ms}",
        tier=tier,
        outcome=OUTCOMES[tier],
        topic="t",
        window_start_ms=window_start_ms,
        count=1,
        bytes=2,
        fingerprint=5,
        application="a",
        host="h",
        instance="i",
        emitted_at_ms=emitted_at_ms,
        partition=0,
        start=offset,
        end=offset + 1,
    )
    return dataclasses.replace(row, sent=1) if tier is Tier.PRODUCER else row


def totals_after(store: AuditStore, rows: list[AuditRow], now_ms: int) -> dict[str, tuple[list[int], int]]:
    """Adds rows and updates the verdicts. Returns by tier the times to 99.9 %, as bounds of their bucket, and their
    sum."""
    store.add_rows(rows)
    store.update_verdicts(now_ms=now_ms, grace_ms=GRACE_MS)
    return {
        tier: (
            [bound for bound, number in zip(COMPLETENESS_BOUNDS_MS, one.windows, strict=False) if number],
            one.sum_ms,
        )
        for (tier, share), one in store.completeness_totals().items()
        if share == "99.9"
    }


def test_window_is_counted_once_when_it_is_complete_after_its_end(tmp_path: Path) -> None:
    with AuditStore(tmp_path / "audit.db") as store:
        now_ms = START_MS + MINUTE_MS
        assert totals_after(store, [counted(tier, 0, now_ms) for tier in OUTCOMES], now_ms) == {}, "not at its end yet"
        late_ms = END_MS + 3 * MINUTE_MS
        sent = [counted(Tier.PRODUCER, 1, END_MS), counted(Tier.BROKER, 1, END_MS + MINUTE_MS)]
        assert totals_after(store, sent, END_MS + 2 * MINUTE_MS) == {}, "not loaded yet"
        expected = {"log": ([MINUTE_MS], MINUTE_MS), "loaded": ([5 * MINUTE_MS], 3 * MINUTE_MS)}
        assert totals_after(store, [counted(Tier.LOADER, 1, late_ms)], late_ms) == expected
        more = [counted(tier, 2, late_ms + MINUTE_MS) for tier in OUTCOMES]
        assert totals_after(store, more, late_ms + 2 * MINUTE_MS) == expected, "later messages change nothing"


def test_counts_of_further_windows_are_added(tmp_path: Path) -> None:
    with AuditStore(tmp_path / "audit.db") as store:
        for number in range(3):
            start_ms = START_MS + number * WINDOW_MS
            now_ms = start_ms + WINDOW_MS + 2 * MINUTE_MS
            totals_after(store, [counted(tier, number, now_ms, start_ms) for tier in OUTCOMES], now_ms)
        windows = {key: sum(one.windows) for key, one in store.completeness_totals().items()}
        assert windows == {(tier, share): 3 for tier in ("log", "loaded") for share in ("99", "99.9", "100")}


def test_each_share_has_its_own_time(new_address: NewAddress) -> None:
    """Of 1,000 messages the log has 990 after a minute, 999 after three and all after six."""
    rows = [dataclasses.replace(counted(Tier.PRODUCER, 0, END_MS), count=1_000, sent=1_000, fingerprint=15, bytes=6)]
    for offset, count, minutes in ((0, 990, 1), (990, 9, 3), (999, 1, 6)):
        place = {"count": count, "start": offset, "end": offset + count}
        rows.append(dataclasses.replace(counted(Tier.BROKER, offset, END_MS + minutes * MINUTE_MS), **place))
        rows.append(dataclasses.replace(counted(Tier.LOADER, offset, END_MS + (minutes + 1) * MINUTE_MS), **place))
    with AuditStore(new_address()) as store:
        totals_after(store, rows, END_MS + 7 * MINUTE_MS)
        sums = {key: one.sum_ms // MINUTE_MS for key, one in store.completeness_totals().items()}
    log, table = {"99": 1, "99.9": 3, "100": 6}, {"99": 2, "99.9": 4, "100": 7}
    assert sums == {
        **{("log", share): minutes for share, minutes in log.items()},
        **{("loaded", share): minutes for share, minutes in table.items()},
    }


def test_missing_messages_are_not_counted(tmp_path: Path) -> None:
    with AuditStore(tmp_path / "audit.db") as store:
        rows = [counted(Tier.PRODUCER, 0, END_MS), counted(Tier.PRODUCER, 1, END_MS), counted(Tier.BROKER, 0, END_MS)]
        assert totals_after(store, rows, END_MS + 10 * GRACE_MS) == {}
