"""Computes and stores the verdicts of windows with new counts, and of windows with expired verdicts.

A transaction that adds rows marks their windows in `touched_window`. An update marks further windows: those whose
verdict no longer holds at the current time, and those whose topic changed in a way that concerns all its windows. It
then reconciles the marked windows in portions. A portion is one transaction that writes verdicts, strips, events and
the states of topics, and deletes the marks, so a crash or a concurrent update loses none.

The stored verdicts equal those that `reconcile.reconcile_topic` returns for all rows at the same time. A verdict
depends on its own window, and on

- the topic: whether its log and its table were counted at all, which offsets were counted twice, and whether all its
  producers count. If this changes, all windows that differ are marked.
- the holes in the counted offsets, which sentences about missing messages name, and the skipped offsets, which may
  explain them. If there are any, or they change, all windows whose log lacks messages are marked.
- all windows of the topic, if it has a window SCATTERED_MS.
- the time: the stored verdict holds at times in [valid_from_ms, valid_until_ms).
"""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from headrace.audit.compare import loaded_times, log_times
from headrace.audit.event import EVENT_VERDICTS
from headrace.audit.facts import WindowFacts
from headrace.audit.offsets import CountedOffsets, OffsetCheck, OffsetSpan
from headrace.audit.reconcile import reconcile_windows, verdict_thresholds
from headrace.audit.storage.completeness import count_reached
from headrace.audit.storage.engine import AuditDatabase
from headrace.audit.storage.events import update_events
from headrace.audit.storage.rows import (
    FACT_COLUMNS,
    counted_offsets,
    facts_of,
    in_batches,
    lock_topics,
    upsert,
)
from headrace.audit.storage.tables import (
    ACCEPTED,
    AUDIT_ROW,
    STORE_STATE,
    STRIP,
    TOPIC_STATE,
    TOUCHED_WINDOW,
    WINDOW_VERDICT,
)
from headrace.audit.stored import LOADED, LOG, SHARE_NAMES
from headrace.audit.strip import DAY_MS, EMPTY_STRIP, NO_MESSAGES, STATE_BYTES, day_of, patched, place_of
from headrace.audit.verdict import (
    FINAL_VERDICTS,
    NO_FINDING_POLICY,
    SEVERITY,
    Acceptance,
    AuditVerdict,
    FindingPolicy,
    Hop,
    TopicContext,
    WindowResult,
)
from headrace.audit.window import SCATTERED_MS, SPECIAL_WINDOWS, WINDOW_MS

PORTION_WINDOWS: Final = 4_000
"""Marked windows of one transaction: SQLite's other writers then wait for less than a second."""

TIME_COLUMNS: Final = {
    f"{tier}_{name}_ms": (tier, share)
    for tier in (LOG, LOADED)
    for name, share in zip(("99", "999", "all"), SHARE_NAMES, strict=True)
}
"""The columns with times to completeness of a window, with their tier and share."""

_V = WINDOW_VERDICT.c
_T = TOUCHED_WINDOW.c
_DIFFERS = _V.verdict.notin_((AuditVerdict.COMPLETE.value, AuditVerdict.UNTRACKED.value))
_LACKS = _DIFFERS & (_V.acknowledged > sa.func.coalesce(_V.stored, 0))


@dataclass(frozen=True, slots=True)
class VerdictUpdate:
    """Number of verdicts that an update wrote, and number of their topics."""

    windows: int = 0
    topics: int = 0


@dataclass(slots=True)
class _Topic:
    """A topic in an update: its stored state, and what is known about it so far."""

    state: Any
    offsets: OffsetCheck
    context: TopicContext
    is_whole: bool = False  # whether all its marked windows are in this portion: it has a window SCATTERED_MS
    is_dependent: bool = False  # whether all its marked windows that differed are in this portion
    facts: list[WindowFacts] = field(default_factory=list)
    results: tuple[WindowResult, ...] = ()


def update_verdicts(
    database: AuditDatabase, *, now_ms: int, grace_ms: int, policy: FindingPolicy = NO_FINDING_POLICY
) -> VerdictUpdate:
    """Brings the stored verdicts up to date with the stored rows, for the time `now_ms`. `policy.accepted` is not used:
    the acceptances are in the database.

    Raises:
        StoreUnavailable: the database cannot be read or written. Portions that were written remain.
    """
    _mark_due(database, now_ms=now_ms, grace_ms=grace_ms, policy=policy)
    cursor = ("", -(1 << 63))
    windows = 0
    topics: set[str] = set()
    while True:
        with database.reading() as connection:
            portion = _next_marks(connection, cursor)
        if not portion:
            break
        cursor = portion[-1]
        with database.writing() as connection, _no_garbage_collection():
            update = _Portion(connection, portion, now_ms=now_ms, grace_ms=grace_ms, policy=policy)
            windows += update.run()
        topics.update(topic for topic, _ in portion)
    _set_checked(database, now_ms)
    return VerdictUpdate(windows, len(topics))


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Pauses the garbage collector. A portion creates 50,000 objects that live until its end and have no cycles; the
    collector would traverse them repeatedly, which takes 12 % of the CPU time of a rebuild."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _next_marks(connection: Connection, after: tuple[str, int]) -> list[tuple[str, int]]:
    query = (
        sa.select(_T.topic, _T.window_start_ms)
        .where(sa.tuple_(_T.topic, _T.window_start_ms) > sa.tuple_(sa.literal(after[0]), sa.literal(after[1])))
        .order_by(_T.topic, _T.window_start_ms)
        .limit(PORTION_WINDOWS)
    )
    return [(topic, start_ms) for topic, start_ms in connection.execute(query)]


def _set_checked(database: AuditDatabase, now_ms: int) -> None:
    with database.writing() as connection:
        connection.execute(sa.update(STORE_STATE).values(checked_at_ms=now_ms))


def _mark_due(database: AuditDatabase, *, now_ms: int, grace_ms: int, policy: FindingPolicy) -> None:
    """Marks windows without new counts if their verdicts may differ at this time or with these settings."""
    settings = f"grace {grace_ms} ttl {policy.findings_ttl_ms}"
    is_due = (_V.valid_until_ms <= now_ms) | (_V.valid_from_ms > now_ms)
    topic_is_due = (TOPIC_STATE.c.valid_until_ms <= now_ms) | (TOPIC_STATE.c.valid_from_ms > now_ms)
    with database.reading() as connection:
        has_changed = connection.execute(sa.select(STORE_STATE.c.policy)).scalar_one() != settings
        flags = connection.execute(sa.select(TOPIC_STATE.c.topic, TOPIC_STATE.c.all_producers_count)).all()
        changed = {topic for topic, flag in flags if bool(flag) != policy.all_producers_count(topic)}
        # Without `distinct`, for which SQLite reads all verdicts in the order of their topics.
        due = set(connection.execute(sa.select(_V.topic).where(is_due)).scalars())
        due |= (scattered := set(connection.execute(sa.select(TOPIC_STATE.c.topic).where(topic_is_due)).scalars()))
    if not (has_changed or changed or due):
        return
    with database.writing() as connection:
        lock_topics(connection, [topic for topic, _ in flags] if has_changed else due | changed)
        _mark(connection, sa.select(_V.topic, _V.window_start_ms).where(is_due))
        if has_changed:
            _mark(connection, sa.select(_V.topic, _V.window_start_ms).where(_V.verdict != AuditVerdict.COMPLETE.value))
            connection.execute(sa.update(STORE_STATE).values(policy=settings))
        for batch in in_batches(sorted(scattered)):
            _mark(
                connection,
                sa.select(TOPIC_STATE.c.topic, sa.literal(SCATTERED_MS)).where(TOPIC_STATE.c.topic.in_(batch)),
            )
        for batch in in_batches(sorted(changed)):
            _mark_differing(connection, batch)
            connection.execute(
                sa.update(TOPIC_STATE)
                .where(TOPIC_STATE.c.topic.in_(batch))
                .values(all_producers_count=1 - TOPIC_STATE.c.all_producers_count)
            )


def _mark(connection: Connection, query: sa.Select[Any]) -> None:
    """Marks the windows that a query of topics and window starts returns."""
    missing = ~sa.exists().where(_T.topic == query.selected_columns[0], _T.window_start_ms == query.selected_columns[1])
    connection.execute(sa.insert(TOUCHED_WINDOW).from_select(["topic", "window_start_ms"], query.where(missing)))


def _mark_differing(connection: Connection, topics: Sequence[str]) -> None:
    query = sa.select(_V.topic, _V.window_start_ms)
    _mark(connection, query.where(_V.topic.in_(topics), _V.verdict != AuditVerdict.COMPLETE.value))


class _Portion:
    """Updates the verdicts of some marked windows in the transaction of `connection`."""

    def __init__(
        self,
        connection: Connection,
        marks: Sequence[tuple[str, int]],
        *,
        now_ms: int,
        grace_ms: int,
        policy: FindingPolicy,
    ) -> None:
        self._connection = connection
        self._marks = marks
        self._now_ms = now_ms
        self._grace_ms = grace_ms
        self._policy = policy
        self._topics: dict[str, _Topic] = {}

    def run(self) -> int:
        """Writes the verdicts, and returns their number."""
        names = list(dict.fromkeys(topic for topic, _ in self._marks))
        lock_topics(self._connection, names)
        self._read_topics(names)
        self._mark_dependent()
        self._read_facts()
        self._reconcile()
        changed = self._write_verdicts()
        for topic in changed:
            update_events(self._connection, topic, self._now_ms)
        self._write_states()
        self._connection.execute(sa.update(STORE_STATE).values(revision=STORE_STATE.c.revision + 1))
        return sum(len(topic.results) for topic in self._topics.values())

    def _read_topics(self, names: Sequence[str]) -> None:
        offsets = counted_offsets(self._connection, names)
        for batch in in_batches(names):
            query = sa.select(TOPIC_STATE).where(TOPIC_STATE.c.topic.in_(batch))
            for state in self._connection.execute(query):
                check = offsets.get(state.topic, CountedOffsets()).check()
                context = TopicContext(
                    is_read=bool(state.is_read),
                    is_loaded=bool(state.is_loaded),
                    offsets=check,
                    all_producers_count=bool(state.all_producers_count),
                )
                self._topics[state.topic] = _Topic(state, check, context)

    def _mark_dependent(self) -> None:
        """Marks the windows whose verdicts depend on a property of the topic that changed, and reads all marks of such
        topics."""
        scattered = {topic for topic, start_ms in self._marks if start_ms == SCATTERED_MS}
        scattered |= {name for name, topic in self._topics.items() if topic.state.has_scattered}
        differing, lacking = [], []
        for name, topic in self._topics.items():
            if name in scattered:
                topic.is_whole = True
            elif topic.state.overlaps != _digest(topic.offsets.overlaps):
                differing.append(name)
            elif topic.offsets.skipped or topic.state.holes != _digest(topic.offsets.holes):
                lacking.append(name)
        for batch in in_batches(sorted(scattered)):
            _mark(
                self._connection,
                sa.select(AUDIT_ROW.c.topic, AUDIT_ROW.c.window_start_ms)
                .where(AUDIT_ROW.c.topic.in_(batch))
                .distinct(),
            )
            query = sa.select(_V.topic, _V.window_start_ms)
            _mark(self._connection, query.where(_V.topic.in_(batch)))
        for batch in in_batches(differing):
            _mark_differing(self._connection, batch)
        for batch in in_batches(lacking):
            _mark(self._connection, sa.select(_V.topic, _V.window_start_ms).where(_V.topic.in_(batch), _LACKS))
        for name in (*differing, *lacking):
            self._topics[name].is_dependent = True

    def _in_portion(self, names: Collection[str] | None = None) -> sa.ColumnElement[bool]:
        """Returns the condition for the marks of this portion: those between its first and its last one, all marks of
        topics with `is_whole`, and those of windows that differed of topics with `is_dependent`. It holds until the
        portion writes verdicts. `names` limits the topics."""
        names = self._topics.keys() if names is None else names
        whole = [name for name in names if self._topics[name].is_whole]
        dependent = [name for name in names if self._topics[name].is_dependent]
        (first_topic, first_ms), (last_topic, last_ms) = self._marks[0], self._marks[-1]
        key = sa.tuple_(_T.topic, _T.window_start_ms)
        between = (key >= sa.tuple_(sa.literal(first_topic), sa.literal(first_ms))) & (
            key <= sa.tuple_(sa.literal(last_topic), sa.literal(last_ms))
        )
        found = (between & _T.topic.in_(list(names))) | _T.topic.in_(whole)
        if not dependent:
            return found
        differed = sa.exists().where(
            _V.topic == _T.topic, _V.window_start_ms == _T.window_start_ms, _V.verdict != AuditVerdict.COMPLETE.value
        )
        return found | (_T.topic.in_(dependent) & differed.correlate(TOUCHED_WINDOW))

    def _read_facts(self) -> None:
        """Reads the sums of the marked windows. If a topic's log or table turns out to be counted for the first time,
        reads all windows of it that differ, too."""
        self._read_facts_of(self._topics.keys())
        flipped = self._note_counted_tiers(self._topics.keys())
        differing: set[str] = set()
        for batch in in_batches(flipped):
            query = sa.select(_V.topic).where(_V.topic.in_(batch), _V.verdict != AuditVerdict.COMPLETE.value)
            differing.update(self._connection.execute(query.distinct()).scalars())
            _mark_differing(self._connection, batch)
        for name in differing:
            self._topics[name].is_dependent = True
            self._topics[name].facts = []
        if differing:
            self._read_facts_of(differing)
            self._note_counted_tiers(differing)  # by windows that further portions would have read

    def _note_counted_tiers(self, names: Collection[str]) -> list[str]:
        """Notes which topics have a counted log and a counted table. Returns those for which this is new."""
        flipped = []
        for name in names:
            topic = self._topics[name]
            is_read = topic.context.is_read or any(window.stored is not None for window in topic.facts)
            is_loaded = topic.context.is_loaded or any(window.loaded is not None for window in topic.facts)
            if (is_read, is_loaded) != (topic.context.is_read, topic.context.is_loaded):
                topic.context = replace(topic.context, is_read=is_read, is_loaded=is_loaded)
                flipped.append(name)
        return flipped

    def _read_facts_of(self, names: Collection[str]) -> None:
        marked = (_T.topic == AUDIT_ROW.c.topic) & (_T.window_start_ms == AUDIT_ROW.c.window_start_ms)
        query = sa.select(*FACT_COLUMNS).select_from(TOUCHED_WINDOW.join(AUDIT_ROW, marked))
        for window in facts_of(self._connection, query.where(self._in_portion(names))):
            self._topics[window.topic].facts.append(window)

    def _reconcile(self) -> None:
        accepted: dict[str, list[Acceptance]] = {}
        for batch in in_batches(self._topics):
            for one in acceptances(self._connection, sa.select(ACCEPTED).where(ACCEPTED.c.topic.in_(batch))):
                accepted.setdefault(one.topic, []).append(one)
        for name, topic in self._topics.items():
            topic.results = reconcile_windows(
                topic.facts,
                topic.context,
                now_ms=self._now_ms,
                grace_ms=self._grace_ms,
                policy=replace(self._policy, accepted=tuple(accepted.get(name, ()))),
            )

    def _write_verdicts(self) -> list[str]:
        """Writes verdicts and strips, and deletes the marks. Returns the topics with changes in windows with
        findings."""
        marked = (_T.topic == _V.topic) & (_T.window_start_ms == _V.window_start_ms)
        columns = (
            _V.topic,
            _V.window_start_ms,
            _V.verdict,
            _V.hop,
            _V.missing,
            _V.extra,
            _V.sentence,
            _V.is_counted,
            _V.changed_at_ms,
        )
        query = sa.select(*columns).select_from(TOUCHED_WINDOW.join(WINDOW_VERDICT, marked)).where(self._in_portion())
        old = {(topic, start_ms): tuple(rest) for topic, start_ms, *rest in self._connection.execute(query)}
        self._connection.execute(sa.delete(TOUCHED_WINDOW).where(self._in_portion()))
        rows, states, changed = [], [], set()
        completed = []
        for topic in self._topics.values():
            for result in topic.results:
                key = (result.facts.topic, result.facts.window_start_ms)
                before = old.pop(key, None)
                row = self._row(result, is_scattered=topic.is_whole and _has_scattered(topic))
                kind = (row["verdict"], row["hop"], row["missing"], row["extra"])
                if before is not None and before[:4] == kind:
                    row["changed_at_ms"] = before[-1]
                row["is_counted"] = 0 if before is None else before[5]
                if _first_complete(row, self._now_ms):
                    row["is_counted"] = 1
                    completed.append(row)
                if before is None or before[0] != row["verdict"]:
                    states.append((*key, STATE_BYTES[result.verdict]))
                if _event_kind(before) != _event_kind((*kind, row["sentence"])):
                    changed.add(key[0])
                rows.append(row)
        for key, before in old.items():  # windows that became part of the sum of SCATTERED_MS
            states.append((*key, NO_MESSAGES))
            if _event_kind(before) is not None:
                changed.add(key[0])
        self._delete_verdicts(old)
        upsert(self._connection, WINDOW_VERDICT, rows)
        write_states(self._connection, states)
        count_reached(self._connection, {key: _present(completed, name) for name, key in TIME_COLUMNS.items()})
        return sorted(changed)

    def _delete_verdicts(self, keys: Iterable[tuple[str, int]]) -> None:
        matches = (_V.topic == sa.bindparam("old_topic"), _V.window_start_ms == sa.bindparam("old_start_ms"))
        rows = [{"old_topic": topic, "old_start_ms": start_ms} for topic, start_ms in sorted(keys)]
        if rows:
            self._connection.execute(sa.delete(WINDOW_VERDICT).where(*matches), rows)

    def _row(self, result: WindowResult, *, is_scattered: bool) -> dict[str, Any]:
        facts = result.facts
        valid_from_ms: int | None = None
        valid_until_ms: int | None = None
        if result.verdict is not AuditVerdict.COMPLETE and not is_scattered:
            times = verdict_thresholds(facts, self._grace_ms, self._policy.findings_ttl_ms)
            valid_from_ms, valid_until_ms = _interval(times, self._now_ms)
        log, loaded = log_times(facts), loaded_times(facts)
        return {
            "topic": facts.topic,
            "window_start_ms": facts.window_start_ms,
            "verdict": result.verdict.value,
            "hop": result.hop.value,
            "difference": result.difference,
            "missing": result.missing,
            "extra": result.extra,
            "sent": facts.sent,
            "acknowledged": None if facts.acknowledged is None else facts.acknowledged.count,
            "stored": None if facts.stored is None else facts.stored.count,
            "written": None if facts.written is None else facts.written.count,
            "quarantined": None if facts.quarantined is None else facts.quarantined.count,
            "consumed": json.dumps({name: count.count for name, count in facts.consumed}) if facts.consumed else "",
            "crashed": int(facts.crashed),
            "sentence": "" if result.verdict is AuditVerdict.COMPLETE else result.sentence,
            "log_99_ms": log.share_99_ms,
            "log_999_ms": log.share_999_ms,
            "log_all_ms": log.all_ms,
            "loaded_99_ms": loaded.share_99_ms,
            "loaded_999_ms": loaded.share_999_ms,
            "loaded_all_ms": loaded.all_ms,
            "latency_ms": result.latency_ms,
            "first_counted_ms": facts.first_counted_ms,
            "last_counted_ms": facts.last_counted_ms,
            "changed_at_ms": self._now_ms,
            "valid_from_ms": valid_from_ms,
            "valid_until_ms": valid_until_ms,
        }

    def _write_states(self) -> None:
        names = list(self._topics)
        differing = _differing(self._connection, names)
        untracked = _untracked(self._connection, names)
        messages = _messages_24h(self._connection, names, self._now_ms)
        rows = []
        for name, topic in self._topics.items():
            has_scattered = _has_scattered(topic) or bool(topic.state.has_scattered)
            groups = differing.get(name, [])
            bad = [group for group in groups if group.verdict in EVENT_VERDICTS]
            worst = [AuditVerdict(group.verdict) for group in groups]
            worst += [AuditVerdict.UNTRACKED] if name in untracked else []
            times: list[int] = []
            if has_scattered:
                for window in topic.facts:
                    times += verdict_thresholds(window, self._grace_ms, self._policy.findings_ttl_ms)
            valid_from_ms, valid_until_ms = _interval(times, self._now_ms)
            rows.append(
                {
                    "topic": name,
                    "is_read": int(topic.context.is_read),
                    "is_loaded": int(topic.context.is_loaded),
                    "has_scattered": int(has_scattered),
                    "overlaps": _digest(topic.offsets.overlaps),
                    "holes": _digest(topic.offsets.holes),
                    "verdict": max(worst, key=SEVERITY.index, default=AuditVerdict.COMPLETE).value,
                    "findings": sum(group.windows for group in bad),
                    "pending": sum(group.windows for group in groups if group.verdict == AuditVerdict.PENDING.value),
                    "missing": sum(group.missing for group in bad),
                    "extra": sum(group.extra for group in bad),
                    "open_log_ms": _first_open(topic, groups, in_log=True),
                    "open_loaded_ms": _first_open(topic, groups, in_log=False),
                    "last_counted_ms": max(
                        topic.state.last_counted_ms, *(window.last_counted_ms for window in topic.facts), 0
                    ),
                    "messages_24h": messages.get(name, 0),
                    "valid_from_ms": valid_from_ms,
                    "valid_until_ms": valid_until_ms,
                }
            )
        upsert(self._connection, TOPIC_STATE, rows)


def _has_scattered(topic: _Topic) -> bool:
    return any(window.window_start_ms == SCATTERED_MS for window in topic.facts)


def _interval(times: Iterable[int], now_ms: int) -> tuple[int | None, int | None]:
    """Returns the neighbours of a time among the times at which a verdict may change."""
    ordered = list(times)
    return (
        max((time_ms for time_ms in ordered if time_ms <= now_ms), default=None),
        min((time_ms for time_ms in ordered if time_ms > now_ms), default=None),
    )


def _first_complete(row: Mapping[str, Any], now_ms: int) -> bool:
    """Returns whether a window that has ended is complete for the first time since its end. Before, it may have been
    complete with the messages so far."""
    has_ended = 0 <= row["window_start_ms"] <= now_ms - WINDOW_MS
    return has_ended and not row["is_counted"] and row["verdict"] == AuditVerdict.COMPLETE.value


def _present(rows: Iterable[Mapping[str, Any]], name: str) -> list[Any]:
    """Returns the values of a column that are not NULL."""
    return [row[name] for row in rows if row[name] is not None]


def _event_kind(row: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    """Returns the part of a stored verdict that events depend on; None for a verdict without event."""
    return row[:5] if row is not None and row[0] in EVENT_VERDICTS else None


def _digest(spans: tuple[OffsetSpan, ...]) -> str:
    return hashlib.sha256(repr(spans).encode()).hexdigest()[:16] if spans else ""


def _differing(connection: Connection, names: Sequence[str]) -> dict[str, list[Any]]:
    """Returns by topic, for each verdict but `complete` and `untracked`: the number of windows, sums, and the first
    window that has a time."""
    first = sa.func.min(sa.case((_V.window_start_ms >= 0, _V.window_start_ms)))
    sums = (sa.func.sum(_V.missing).label("missing"), sa.func.sum(_V.extra).label("extra"))
    query = sa.select(_V.topic, _V.verdict, _V.hop, sa.func.count().label("windows"), *sums, first.label("first_ms"))
    found: dict[str, list[Any]] = {}
    for batch in in_batches(names):
        condition = _V.topic.in_(batch) & _DIFFERS
        for group in connection.execute(query.where(condition).group_by(_V.topic, _V.verdict, _V.hop)):
            found.setdefault(group.topic, []).append(group)
    return found


def _first_open(topic: _Topic, groups: Iterable[Any], *, in_log: bool) -> int | None:
    """Returns the start of the first window that is not final: in the log, or also in the tables. An open window
    SCATTERED_MS may lack messages of any time."""
    scattered = [one.verdict for one in topic.results if one.facts.window_start_ms == SCATTERED_MS]
    if scattered and scattered[0] not in (AuditVerdict.COMPLETE, AuditVerdict.ACCEPTED):
        return SCATTERED_MS
    starts = [
        group.first_ms
        for group in groups
        if group.first_ms is not None
        and AuditVerdict(group.verdict) not in FINAL_VERDICTS
        and not (in_log and group.hop == Hop.LOG_TO_TABLES.value)
    ]
    return min(starts, default=None)


def _untracked(connection: Connection, names: Sequence[str]) -> set[str]:
    """Returns the topics with a window that is `untracked`."""
    found: set[str] = set()
    is_untracked = (
        sa.exists()
        .where(_V.topic == TOPIC_STATE.c.topic, _V.verdict == sa.literal_column("'untracked'"))
        .correlate(TOPIC_STATE)
    )
    for batch in in_batches(names):
        query = sa.select(TOPIC_STATE.c.topic).where(TOPIC_STATE.c.topic.in_(batch), is_untracked)
        found.update(connection.execute(query).scalars())
    return found


def _messages_24h(connection: Connection, names: Sequence[str], now_ms: int) -> dict[str, int]:
    count = sa.func.coalesce(_V.stored, _V.acknowledged, 0)
    query = sa.select(_V.topic, sa.func.sum(count)).group_by(_V.topic)
    found: dict[str, int] = {}
    for batch in in_batches(names):
        condition = (_V.topic.in_(batch) & (_V.window_start_ms > now_ms - DAY_MS) & (_V.window_start_ms <= now_ms)) & (
            _V.window_start_ms >= 0
        )
        found.update({topic: int(total) for topic, total in connection.execute(query.where(condition))})
    return found


def write_states(connection: Connection, states: Iterable[tuple[str, int, int]]) -> None:
    """Changes bytes of strips: (topic, window start, byte). Special windows are in no strip."""
    by_day: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for topic, start_ms, state in states:
        if start_ms not in SPECIAL_WINDOWS:
            by_day.setdefault((topic, day_of(start_ms)), []).append((place_of(start_ms), state))
    stored: dict[tuple[str, int], bytes] = {}
    for batch in in_batches(by_day, 200):
        query = sa.select(STRIP).where(sa.tuple_(STRIP.c.topic, STRIP.c.day).in_(batch))
        stored.update({(topic, day): bytes(strip) for topic, day, strip in connection.execute(query)})
    rows = [
        {"topic": topic, "day": day, "states": patched(stored.get((topic, day), EMPTY_STRIP), places)}
        for (topic, day), places in sorted(by_day.items())
    ]
    upsert(connection, STRIP, rows)


def acceptances(connection: Connection, query: sa.Select[Any]) -> list[Acceptance]:
    """Returns the acceptances of a query of the table."""
    return [
        Acceptance(one.topic, one.window_start_ms, AuditVerdict(one.verdict), *tuple(one)[3:])
        for one in connection.execute(query)
    ]
