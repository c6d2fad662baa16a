"""Queries of the stored verdicts, strips and events. Each reads in one transaction, and changes nothing."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from headrace.audit.event import AuditEvent, Incident, incidents
from headrace.audit.storage.events import clean_windows, read_events
from headrace.audit.storage.rows import in_batches
from headrace.audit.storage.tables import EVENT, STRIP, TOPIC_STATE, WINDOW_VERDICT
from headrace.audit.stored import LOADED, LOG, CompletenessTimes, StoredWindow, TierTimes, TopicSummary, percentiles
from headrace.audit.strip import DAY_MS, DAYS_MAX, joined_strips
from headrace.audit.verdict import AuditVerdict, Hop
from headrace.audit.window import SPECIAL_WINDOWS, WINDOW_MS

_V = WINDOW_VERDICT.c
_DIFFERS = sa.text("verdict NOT IN ('complete', 'untracked')")
"""The condition of the index `window_verdict_differs`. With parameters for the values, SQLite would read all verdicts
instead."""
_S = TOPIC_STATE.c


def read_strips(
    connection: Connection, first_day: int, last_day: int, topics: Collection[str] | None
) -> dict[str, bytes]:
    """See `AuditStore.strips`."""
    if not first_day <= last_day < first_day + DAYS_MAX:
        raise ValueError(f"the days {first_day} to {last_day} are none, or more than {DAYS_MAX:,}")
    query = sa.select(STRIP).where(STRIP.c.day >= first_day, STRIP.c.day <= last_day)
    days: dict[str, list[tuple[int, bytes]]] = {}
    for one in [query] if topics is None else [query.where(STRIP.c.topic.in_(batch)) for batch in in_batches(topics)]:
        for topic, day, states in connection.execute(one):
            days.setdefault(topic, []).append((day, states))
    return {topic: joined_strips(days[topic], first_day, last_day) for topic in sorted(days)}


def read_windows(connection: Connection, query: sa.Select[Any]) -> list[StoredWindow]:
    """Returns the windows of a query of `WINDOW_VERDICT`."""
    return [_window(row) for row in connection.execute(query.with_only_columns(*_COLUMNS)).all()]


_COLUMNS: Final = tuple(
    WINDOW_VERDICT.c[name]
    for name in [
        "topic",
        "window_start_ms",
        "verdict",
        "hop",
        "difference",
        "missing",
        "extra",
        "sent",
        "acknowledged",
        "stored",
        "written",
        "quarantined",
        "consumed",
        "crashed",
        "sentence",
        "log_99_ms",
        "log_999_ms",
        "log_all_ms",
        "loaded_99_ms",
        "loaded_999_ms",
        "loaded_all_ms",
        "latency_ms",
        "first_counted_ms",
        "last_counted_ms",
        "changed_at_ms",
    ]
)


_VERDICTS: Final = {one.value: one for one in AuditVerdict}
_HOPS: Final = {one.value: one for one in Hop}


def _window(row: Sequence[Any]) -> StoredWindow:
    """Returns a window from its `_COLUMNS`; by position, because a page shows thousands of windows."""
    topic, start_ms, verdict, hop, difference, missing, extra, sent, acknowledged, stored, written, quarantined = row[
        :12
    ]
    consumed, crashed, sentence = row[12:15]
    latency_ms, first_counted_ms, last_counted_ms, changed_at_ms = row[21:]
    return StoredWindow(
        topic,
        start_ms,
        _VERDICTS[verdict],
        _HOPS[hop],
        difference,
        missing,
        extra,
        sent,
        acknowledged,
        stored,
        written,
        quarantined,
        json.loads(consumed) if consumed else {},
        bool(crashed),
        sentence,
        TierTimes(*row[15:18]),
        TierTimes(*row[18:21]),
        latency_ms,
        first_counted_ms,
        last_counted_ms,
        changed_at_ms,
    )


def read_summaries(connection: Connection, now_ms: int, topics: Collection[str] | None = None) -> list[TopicSummary]:
    """See `AuditStore.topic_summaries`."""
    columns = [column for column in _S if column.name not in ("overlaps", "holes")]
    query = sa.select(*columns, _complete_until(_S.open_log_ms, now_ms), _complete_until(_S.open_loaded_ms, now_ms))
    query = query.order_by(_S.topic)
    queries = [query] if topics is None else [query.where(_S.topic.in_(batch)) for batch in in_batches(topics)]
    found = []
    for one in queries:
        for *values, log_ms, loaded_ms in connection.execute(one):
            state = dict(zip((column.name for column in columns), values, strict=True))
            found.append(
                TopicSummary(
                    topic=state["topic"],
                    verdict=AuditVerdict(state["verdict"]),
                    findings=state["findings"],
                    pending=state["pending"],
                    missing=state["missing"],
                    extra=state["extra"],
                    complete_until_log_ms=None if log_ms is None else log_ms + WINDOW_MS,
                    complete_until_loaded_ms=None if loaded_ms is None else loaded_ms + WINDOW_MS,
                    last_counted_ms=state["last_counted_ms"],
                    messages_24h=state["messages_24h"] if state["last_counted_ms"] > now_ms - DAY_MS else 0,
                    is_read=bool(state["is_read"]),
                    is_loaded=bool(state["is_loaded"]),
                )
            )
    return found


def _complete_until(open_ms: Any, now_ms: int) -> Any:
    """Returns the expression for the start of the last window that has ended and is before the first open one."""
    end = sa.case((open_ms.is_(None), now_ms), else_=open_ms)
    return (
        sa.select(sa.func.max(_V.window_start_ms))
        .where(_V.topic == _S.topic, _V.window_start_ms >= 0)
        .where(_V.window_start_ms < end, _V.window_start_ms <= now_ms - WINDOW_MS)
        .correlate(TOPIC_STATE)
        .scalar_subquery()
    )


def read_stored_events(
    connection: Connection, since_ms: int, *, only_open: bool, counts_clean_windows: bool, topic: str | None
) -> list[AuditEvent]:
    """See `AuditStore.events`."""
    found = _events(connection, since_ms, only_open=only_open, topic=topic)
    return clean_windows(connection, found) if counts_clean_windows else found


def _events(connection: Connection, since_ms: int, *, only_open: bool, topic: str | None = None) -> list[AuditEvent]:
    condition: sa.ColumnElement[bool] = EVENT.c.closed_at_ms.is_(None)
    if not only_open:
        # A special window has no time: its event is in the period until it closes.
        condition = condition | (EVENT.c.end_ms > since_ms) | (EVENT.c.closed_at_ms > since_ms)
    if topic is not None:
        condition = (EVENT.c.topic == topic) & condition
    return read_events(connection, condition)


def read_incidents(
    connection: Connection, since_ms: int, *, only_open: bool, counts_clean_windows: bool
) -> list[Incident]:
    """See `AuditStore.incidents`."""
    chosen = _events(connection, since_ms, only_open=only_open)
    # With the closed events that began together with them, so that an incident keeps its id.
    starts = sorted({start_ms for event in chosen for start_ms in _neighbours(event)})
    found = {event.id: event for event in chosen}
    for batch in in_batches(starts):
        found |= {event.id: event for event in read_events(connection, EVENT.c.start_ms.in_(batch))}
    grouped = incidents(found.values())
    wanted = {event.id for event in chosen}
    kept = [one for one in grouped if any(event.id in wanted for event in one.events)]
    if not counts_clean_windows:
        return kept
    return [replace(one, events=tuple(clean_windows(connection, one.events))) for one in kept]


def _neighbours(event: AuditEvent) -> tuple[int, ...]:
    """Returns the starts of the events that may be in one incident with this one."""
    if event.start_ms in SPECIAL_WINDOWS:
        return (event.start_ms,)
    return (event.start_ms - WINDOW_MS, event.start_ms, event.start_ms + WINDOW_MS)


def read_late_windows(connection: Connection, since_ms: int, until_ms: int) -> dict[str, int]:
    """See `AuditStore.late_windows`."""
    query = (
        sa.select(_V.topic, sa.func.count())
        .where(_DIFFERS)
        .where(_V.verdict == AuditVerdict.PENDING.value, _V.loaded_999_ms.is_(None))
        .where(_V.window_start_ms >= max(0, since_ms), _V.window_start_ms < until_ms)
        .where(sa.func.coalesce(_V.acknowledged, _V.stored, 0) > 0)
        .group_by(_V.topic)
        .order_by(_V.topic)
    )
    return {row[0]: row[1] for row in connection.execute(query)}


def read_extra_shares(connection: Connection, more_than: int) -> dict[str, float]:
    """See `AuditStore.extra_shares`."""
    messages = sa.func.coalesce(_V.stored, _V.acknowledged, 0)
    share = sa.case((messages > 0, sa.cast(_V.extra, sa.Double) / messages), else_=1.0)
    query = (
        sa.select(_V.topic, sa.func.max(share))
        .where(_DIFFERS)
        .where(_V.verdict == AuditVerdict.EXTRA.value, _V.extra > more_than)
        .group_by(_V.topic)
        .order_by(_V.topic)
    )
    return {row[0]: float(row[1]) for row in connection.execute(query)}


def read_completeness_times(
    connection: Connection, since_ms: int, until_ms: int, topics: Collection[str] | None
) -> dict[str, CompletenessTimes]:
    """Returns the distributions of the times to completeness, by tier (`log` and `loaded`)."""
    names = ("log_99_ms", "log_999_ms", "log_all_ms", "loaded_99_ms", "loaded_999_ms", "loaded_all_ms")
    query = sa.select(*(_V[name] for name in names)).where(
        _V.window_start_ms >= max(0, since_ms),
        _V.window_start_ms < until_ms,
        sa.func.coalesce(_V.acknowledged, _V.stored, 0) > 0,
    )
    queries: Iterable[Any] = (
        [query] if topics is None else (query.where(_V.topic.in_(batch)) for batch in in_batches(topics))
    )
    rows = [row for one in queries for row in connection.execute(one)]
    columns: Sequence[Sequence[int | None]] = list(zip(*rows, strict=True)) or [()] * len(names)
    distributions = [percentiles(column) for column in columns]
    return {LOG: CompletenessTimes(*distributions[:3]), LOADED: CompletenessTimes(*distributions[3:])}
