"""Deletes old rows and verdicts of the audit's database, and after a longer time strips and closed events.

The age of a window is the time since its newest count, not its message time: messages of last year that were sent today
are new. The strip of a window stays when its rows are deleted. It shows for later counts of the same window, such as
those of a machine that was off for a month, that they cannot be compared any more; they are not stored.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from headrace.audit.row import AuditRow
from headrace.audit.storage.engine import AuditDatabase
from headrace.audit.storage.events import update_events
from headrace.audit.storage.rows import in_batches, lock_topics, touch
from headrace.audit.storage.tables import AUDIT_ROW, EVENT, STORE_STATE, STRIP, TOUCHED_WINDOW, WINDOW_VERDICT
from headrace.audit.strip import DAY_MS, NO_MESSAGES, day_of, place_of
from headrace.audit.window import SPECIAL_WINDOWS, WINDOW_MS

logger = logging.getLogger(__name__)

INTERVAL_MS: Final = 6 * 3_600_000
"""Time between two deletions."""

RETENTION_MS_MIN: Final = DAY_MS
"""The shortest retention: counts of younger windows are never late."""

HISTORY_DAYS: Final = 400
"""Days for which strips and closed events are stored."""

PORTION_WINDOWS: Final = 2_000
NO_WINDOW_MS: Final = -3 * WINDOW_MS
"""The start of no window: its mark makes an update compute the state of a topic."""

_V = WINDOW_VERDICT.c
Key = tuple[str, int]


def prune(database: AuditDatabase, *, now_ms: int, retention_ms: int) -> int:
    """Deletes rows and verdicts of windows without counts for `retention_ms`, and old strips and events, if the last
    deletion was `INTERVAL_MS` ago. Returns the number of deleted windows.

    Raises:
        StoreUnavailable: the database cannot be written.
    """
    with database.reading() as connection:
        pruned_at_ms = connection.execute(sa.select(STORE_STATE.c.pruned_at_ms)).scalar_one()
    if abs(now_ms - pruned_at_ms) < INTERVAL_MS:
        return 0
    before_ms = now_ms - max(retention_ms, RETENTION_MS_MIN)
    deleted = 0
    while keys := _old_windows(database, before_ms):
        deleted += _delete_windows(database, keys, before_ms, now_ms)
    with database.writing() as connection:
        connection.execute(sa.delete(STRIP).where(STRIP.c.day >= 0, STRIP.c.day < day_of(now_ms) - HISTORY_DAYS))
        connection.execute(sa.delete(EVENT).where(EVENT.c.closed_at_ms < now_ms - HISTORY_DAYS * DAY_MS))
        connection.execute(sa.update(STORE_STATE).values(pruned_at_ms=now_ms))
    if deleted:
        logger.info("old audit windows deleted windows=%d", deleted)
    return deleted


def _is_old(before_ms: int) -> sa.ColumnElement[bool]:
    # A window that only consumers counted has no time of a newest count.
    return (_V.last_counted_ms < before_ms) & (_V.first_counted_ms < before_ms)


def _old_windows(database: AuditDatabase, before_ms: int) -> list[Key]:
    is_touched = sa.exists().where(
        TOUCHED_WINDOW.c.topic == _V.topic, TOUCHED_WINDOW.c.window_start_ms == _V.window_start_ms
    )
    query = sa.select(_V.topic, _V.window_start_ms).where(_is_old(before_ms), ~is_touched)
    with database.reading() as connection:
        return [(topic, start_ms) for topic, start_ms in connection.execute(query.limit(PORTION_WINDOWS))]


def _delete_windows(database: AuditDatabase, keys: Sequence[Key], before_ms: int, now_ms: int) -> int:
    """Deletes rows and verdicts of those windows that got no count meanwhile. Returns their number."""
    topics = sorted({topic for topic, _ in keys})
    with database.writing() as connection:
        lock_topics(connection, topics)
        touched = _with_rows(connection, TOUCHED_WINDOW, keys)
        rows = [
            {"old_topic": topic, "old_ms": start_ms} for topic, start_ms in keys if (topic, start_ms) not in touched
        ]
        for table in (AUDIT_ROW, WINDOW_VERDICT):
            matches = (table.c.topic == sa.bindparam("old_topic"), table.c.window_start_ms == sa.bindparam("old_ms"))
            if rows:
                connection.execute(sa.delete(table).where(*matches), rows)
        # The next update counts the remaining windows of the topics.
        touch(connection, {(topic, NO_WINDOW_MS) for topic in topics})
        for topic in topics:
            update_events(connection, topic, now_ms)
    return len(rows)


def _with_rows(connection: Connection, table: sa.Table, keys: Iterable[Key]) -> set[Key]:
    """Returns the windows that have a row in a table."""
    found: set[Key] = set()
    for batch in in_batches(keys, 200):
        query = sa.select(table.c.topic, table.c.window_start_ms)
        query = query.where(sa.tuple_(table.c.topic, table.c.window_start_ms).in_(batch))
        found.update((topic, start_ms) for topic, start_ms in connection.execute(query))
    return found


def without_late(connection: Connection, rows: Sequence[AuditRow], now_ms: int) -> Sequence[AuditRow]:
    """Returns the rows, except rows of windows with deleted rows.

    Args:
        rows: new rows.
        now_ms: the current time.
    """
    old = {
        (row.topic, row.window_start_ms)
        for row in rows
        if row.window_start_ms < now_ms - RETENTION_MS_MIN and row.window_start_ms not in SPECIAL_WINDOWS
    }
    if not old:
        return rows
    compared = _compared(connection, old)
    late = compared - _with_rows(connection, WINDOW_VERDICT, sorted(compared))
    if late:
        logger.warning("late audit counts not stored windows=%d", len(late))
    return [row for row in rows if (row.topic, row.window_start_ms) not in late]


def _compared(connection: Connection, keys: Collection[Key]) -> set[Key]:
    """Returns the windows that have, or had, a verdict."""
    strips: dict[tuple[str, int], bytes] = {}
    days = sorted({(topic, day_of(start_ms)) for topic, start_ms in keys})
    for batch in in_batches(days, 200):
        query = sa.select(STRIP).where(sa.tuple_(STRIP.c.topic, STRIP.c.day).in_(batch))
        strips.update({(topic, day): states for topic, day, states in connection.execute(query)})
    return {
        (topic, start_ms)
        for topic, start_ms in keys
        if (strip := strips.get((topic, day_of(start_ms)))) and strip[place_of(start_ms)] != NO_MESSAGES
    }
