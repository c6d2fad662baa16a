"""The audit report from stored verdicts: sums by topic in SQL, and the windows that are not complete."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from headrace.audit.facts import Count, WindowFacts
from headrace.audit.reconcile import TopicSums, percentile, topic_sentence
from headrace.audit.storage.rows import in_batches
from headrace.audit.storage.tables import WINDOW_VERDICT
from headrace.audit.verdict import (
    FINAL_VERDICTS,
    SEVERITY,
    AuditVerdict,
    Hop,
    Period,
    TopicResult,
    WindowResult,
)
from headrace.audit.window import SCATTERED_MS, WINDOW_MS

_V = WINDOW_VERDICT.c
_OUTCOMES = ("acknowledged", "stored", "written", "quarantined")


def read_report(
    connection: Connection, topics: Collection[str], now_ms: int, period: Period
) -> tuple[TopicResult, ...]:
    """See `AuditStore.report`."""
    results = []
    for batch in in_batches(topics):
        in_period = _V.topic.in_(batch) & _overlaps(period)
        groups = _by_topic(connection, _sums().where(in_period))
        windows = _by_topic(connection, _incomplete().where(in_period))
        consumed = _by_topic(connection, sa.select(_V.topic, _V.consumed).where(in_period, _V.consumed != ""))
        latencies = _by_topic(
            connection, sa.select(_V.topic, _V.latency_ms).where(in_period, _V.latency_ms.is_not(None))
        )
        for topic, rows in groups.items():
            results.append(
                _result(
                    topic,
                    rows,
                    [_window_result(row) for row in windows.get(topic, ())],
                    totals=_totals(rows, consumed.get(topic, ())),
                    latencies=sorted(row.latency_ms for row in latencies.get(topic, ())),
                    silent=_is_silent(connection, topic),
                    complete_until_ms=_complete_until(connection, topic, rows, now_ms, period),
                )
            )
    return tuple(sorted(results, key=lambda one: (-SEVERITY.index(one.verdict), one.topic)))


def _overlaps(period: Period) -> sa.ColumnElement[bool]:
    """Returns the condition for windows that overlap the period, as `Period.overlaps`."""
    timed, special = _V.window_start_ms >= 0, _V.window_start_ms < 0
    if period.since_ms is not None:
        timed &= _V.window_start_ms > period.since_ms - WINDOW_MS
        special &= _V.last_counted_ms >= period.since_ms
    if period.until_ms is not None:
        timed &= _V.window_start_ms < period.until_ms
    return timed | special


def _by_topic(connection: Connection, query: sa.Select[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in connection.execute(query):
        found.setdefault(row.topic, []).append(row)
    return found


def _sums() -> sa.Select[Any]:
    """Returns the query of the sums by topic and verdict."""

    def when(condition: Any, value: Any) -> Any:
        return sa.func.coalesce(sa.func.sum(sa.case((condition, value), else_=0)), 0)

    is_counted = _V.acknowledged.is_not(None)
    handed = sa.case((_V.sent > _V.acknowledged, _V.sent), else_=_V.acknowledged)
    return sa.select(
        _V.topic,
        _V.verdict,
        sa.func.count().label("windows"),
        when(_V.acknowledged.is_(None), 1).label("uncounted"),
        when(_V.acknowledged.is_(None), sa.func.coalesce(_V.stored, 0)).label("uncounted_stored"),
        when(_V.difference < 0, -_V.difference).label("missing"),
        when(_V.difference > 0, _V.difference).label("extra"),
        sa.func.max(_V.latency_ms).label("slowest_ms"),
        sa.func.min(sa.case((_V.window_start_ms >= 0, _V.window_start_ms))).label("first_ms"),
        sa.func.min(_V.window_start_ms).label("first_any_ms"),
        sa.func.sum(sa.case((is_counted, handed))).label("sent"),
        *(sa.func.sum(_V[outcome]).label(outcome) for outcome in _OUTCOMES),
    ).group_by(_V.topic, _V.verdict)


def _incomplete() -> sa.Select[Any]:
    return (
        sa.select(WINDOW_VERDICT)
        .where(_V.verdict != AuditVerdict.COMPLETE.value)
        .order_by(_V.topic, _V.window_start_ms)
    )


def _totals(groups: Sequence[Any], consumed: Iterable[Any]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for name in ("sent", *_OUTCOMES):
        counts = [int(count) for group in groups if (count := getattr(group, name)) is not None]
        if counts:
            totals[name] = sum(counts)
    by_application: Counter[str] = Counter()
    for row in consumed:
        by_application.update(json.loads(row.consumed))
    for application, count in sorted(by_application.items()):
        totals[f"consumed by {application or 'unnamed'}"] = count
    return totals


def _result(
    topic: str,
    groups: Sequence[Any],
    windows: Sequence[WindowResult],
    *,
    totals: dict[str, int],
    latencies: Sequence[int],
    silent: bool,
    complete_until_ms: int | None,
) -> TopicResult:
    untracked = sum(int(group.extra) for group in groups if group.verdict == AuditVerdict.UNTRACKED.value)
    sums = TopicSums(
        windows=sum(group.windows for group in groups),
        verdict_counts=Counter({AuditVerdict(group.verdict): group.windows for group in groups}),
        uncounted=sum(int(group.uncounted) for group in groups),
        missing=sum(int(group.missing) for group in groups),
        extra=sum(int(group.extra) for group in groups) - untracked,
        untracked=untracked,
        slowest_ms=max(latencies, default=None),
    )
    return TopicResult(
        topic=topic,
        verdict=sums.verdict,
        sentence=topic_sentence(sums),
        windows=tuple(windows),
        totals=totals,
        verdict_counts=sums.verdict_counts,
        producer_is_silent=silent,
        untracked=0 if silent else untracked + sum(int(group.uncounted_stored) for group in groups),
        complete_until_ms=complete_until_ms,
        latency_p50_ms=percentile(latencies, 50),
        latency_p95_ms=percentile(latencies, 95),
    )


def _is_silent(connection: Connection, topic: str) -> bool:
    query = sa.select(_V.topic).where(_V.topic == topic, _V.acknowledged.is_not(None)).limit(1)
    return connection.execute(query).first() is None


def _complete_until(
    connection: Connection, topic: str, groups: Sequence[Any], now_ms: int, period: Period
) -> int | None:
    unfinished = [group for group in groups if AuditVerdict(group.verdict) not in FINAL_VERDICTS]
    # Missing messages of an open window SCATTERED_MS may have any time.
    closing = (AuditVerdict.COMPLETE.value, AuditVerdict.ACCEPTED.value)
    if any(group.first_any_ms == SCATTERED_MS and group.verdict not in closing for group in groups):
        return None
    query = sa.select(sa.func.max(_V.window_start_ms)).where(_V.topic == topic, _V.window_start_ms >= 0)
    query = query.where(_overlaps(period), _V.window_start_ms <= now_ms - WINDOW_MS)
    starts = [group.first_ms for group in unfinished if group.first_ms is not None]
    if starts:
        query = query.where(_V.window_start_ms < min(starts))
    last_ms = connection.execute(query).scalar_one()
    return None if last_ms is None else last_ms + WINDOW_MS


def _window_result(row: Any) -> WindowResult:
    def count(messages: int | None, last_ms: int = 0) -> Count | None:
        return None if messages is None else Count(messages, 0, 0, last_ms)

    facts = WindowFacts(
        topic=row.topic,
        window_start_ms=row.window_start_ms,
        acknowledged=count(row.acknowledged, row.last_counted_ms),
        sent=row.sent,
        crashed=bool(row.crashed),
        stored=count(row.stored, row.last_counted_ms),
        written=count(row.written, row.last_counted_ms),
        quarantined=count(row.quarantined, row.last_counted_ms),
        first_counted_ms=row.first_counted_ms,
    )
    return WindowResult(
        facts=facts,
        verdict=AuditVerdict(row.verdict),
        sentence=row.sentence,
        difference=row.difference,
        latency_ms=row.latency_ms,
        hop=Hop(row.hop),
        missing=row.missing,
        extra=row.extra,
    )
