"""Deletion of old counts and verdicts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from headrace.audit.storage.retention import HISTORY_DAYS, INTERVAL_MS
from headrace.audit.storage.store import AuditStore
from headrace.audit.strip import DAY_MS, STATE_BYTES
from headrace.audit.verdict import AuditVerdict
from headrace.audit.window import WINDOW_MS
from support.audit_rows import audit_row, three_tiers

GRACE_MS = 2 * WINDOW_MS

RETENTION_MS = 30 * DAY_MS
OLD_MS = 40 * DAY_MS


def update_at(store: AuditStore, now_ms: int) -> int:
    deleted = store.prune(now_ms=now_ms, retention_ms=RETENTION_MS)
    store.update_verdicts(now_ms=now_ms, grace_ms=GRACE_MS)
    return deleted


def test_old_windows_are_deleted_and_their_strips_stay(new_address: Callable[[], Path | str]) -> None:
    with AuditStore(new_address()) as store:
        store.add_rows([*three_tiers("a", 0), *three_tiers("a", 1, lost=1), *three_tiers("b", 1)])
        recent = [dataclasses.replace(row, emitted_at_ms=OLD_MS) for row in three_tiers("a", 2)]
        store.add_rows(recent)
        assert update_at(store, RETENTION_MS) == 0
        assert store.topic_summaries(OLD_MS)[0].findings == 1
        assert update_at(store, OLD_MS) == 3
        assert [row.window_start_ms for row in store.rows("a")] == [2 * WINDOW_MS] * 3
        assert store.rows("b") == store.windows("b") == []
        check_stored_windows = [(one.window_start_ms, one.verdict) for one in store.windows("a")]
        assert check_stored_windows == [(2 * WINDOW_MS, AuditVerdict.COMPLETE)]
        assert store.strips(0, 0)["a"][:3] == bytes(
            (STATE_BYTES[AuditVerdict.COMPLETE], STATE_BYTES[AuditVerdict.MISSING], STATE_BYTES[AuditVerdict.COMPLETE])
        )
        (event,) = store.events(0)
        assert (event.closed_at_ms, event.resolution) == (OLD_MS, "deleted")
        assert store.topic_summaries(OLD_MS)[0].findings == 0


def test_late_counts_of_deleted_windows_are_not_stored(new_address: Callable[[], Path | str]) -> None:
    with AuditStore(new_address()) as store:
        rows = three_tiers("a", 0)
        store.add_rows([*rows, *three_tiers("a", 1)])
        update_at(store, RETENTION_MS)
        assert update_at(store, OLD_MS) == 2
        assert store.add_rows([*rows, audit_row("late", emitted_at_ms=OLD_MS)]) == 0
        assert store.offset_check("a").overlaps == (), "equal ranges that were deleted are no overlap"
        update_at(store, OLD_MS + INTERVAL_MS)
        assert (store.windows("a"), store.rows("a")) == ([], [])
        store.add_rows(three_tiers("a", 5))
        update_at(store, OLD_MS)
        check_stored_of_new = [one.verdict for one in store.windows("a")]
        assert check_stored_of_new == [AuditVerdict.COMPLETE]


def test_deletion_waits_for_its_interval_and_ends_history(new_address: Callable[[], Path | str]) -> None:
    with AuditStore(new_address()) as store:
        store.add_rows(three_tiers("a", 0, lost=1))
        update_at(store, OLD_MS - INTERVAL_MS + 1)
        store.add_rows([dataclasses.replace(row, emitted_at_ms=0) for row in three_tiers("b", 3)])
        store.update_verdicts(now_ms=OLD_MS, grace_ms=GRACE_MS)
        assert update_at(store, OLD_MS) == 0, "the last deletion was less than an interval ago"
        assert len(store.windows("b")) == 1
        end_ms = OLD_MS + (HISTORY_DAYS + 1) * DAY_MS
        assert update_at(store, end_ms) == 2
        assert store.strips(0, 0) == {}
        assert [one.closed_at_ms for one in store.events(0)] == [end_ms]
        update_at(store, end_ms + (HISTORY_DAYS + 1) * DAY_MS)
        assert store.events(0) == []
