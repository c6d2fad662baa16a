"""Stores audit events: updates the events of a topic from its windows with findings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from headrace.audit.event import (
    EVENT_VERDICTS,
    REOPEN_MS,
    AuditEvent,
    BadWindow,
    event_id,
    events_of,
    suspects,
    with_producers,
)
from headrace.audit.row import Tier
from headrace.audit.storage.rows import in_batches, upsert
from headrace.audit.storage.tables import AUDIT_ROW, EVENT, WINDOW_VERDICT
from headrace.audit.verdict import SEVERITY, AuditVerdict, Hop
from headrace.audit.window import SPECIAL_WINDOWS, WINDOW_MS

NEARBY_MS: Final = 6 * WINDOW_MS
"""Complete windows up to this far from an event show which producers are not its cause."""

SPAN_MS_MAX: Final = 7 * 86_400_000
"""The producers of a longer event are not compared."""

_V = WINDOW_VERDICT.c
_E = EVENT.c
_VERDICTS: Final = sorted(verdict.value for verdict in EVENT_VERDICTS)


def update_events(connection: Connection, topic: str, now_ms: int) -> None:
    """Opens, extends, merges and closes the events of a topic, after its verdicts were written."""
    bad = _bad_windows(connection, topic)
    ids = {event_id(topic, one.verdict, one.hop, one.window_start_ms) for one in bad}
    existing = _existing(connection, topic, ids, now_ms)
    before = {event.id: event for event in existing}
    resolution = {event.id: _resolution(connection, event) for event in existing if event.is_open}
    after = events_of(topic, bad, existing, now_ms=now_ms, resolution=resolution)
    changed = [event for event in after if before.get(event.id) is not event]
    upsert(connection, EVENT, [_values(_with_evidence(connection, event)) for event in changed])


def _bad_windows(connection: Connection, topic: str) -> list[BadWindow]:
    columns = (_V.window_start_ms, _V.verdict, _V.hop, _V.missing, _V.extra, _V.sentence)
    differs = _V.verdict.notin_((AuditVerdict.COMPLETE.value, AuditVerdict.UNTRACKED.value))
    query = sa.select(*columns).where(_V.topic == topic, differs, _V.verdict.in_(_VERDICTS))
    return [
        BadWindow(start_ms, AuditVerdict(verdict), Hop(hop), missing, extra, sentence)
        for start_ms, verdict, hop, missing, extra, sentence in connection.execute(query)
    ]


def _existing(connection: Connection, topic: str, ids: Iterable[str], now_ms: int) -> list[AuditEvent]:
    """Returns the events of a topic that are open, may reopen, or have one of the ids."""
    is_recent = _E.closed_at_ms.is_(None) | (_E.closed_at_ms > now_ms - REOPEN_MS)
    found = {event.id: event for event in read_events(connection, (_E.topic == topic) & is_recent)}
    for batch in in_batches(sorted(set(ids) - found.keys())):
        found |= {event.id: event for event in read_events(connection, _E.id.in_(batch))}
    return list(found.values())


def _resolution(connection: Connection, event: AuditEvent) -> str:
    """Returns the most severe verdict of the windows of an event, which may close; `deleted` if they are gone."""
    in_event = (_V.window_start_ms >= event.start_ms) & (_V.window_start_ms < event.end_ms)
    query = sa.select(_V.verdict).where(_V.topic == event.topic, in_event).distinct()
    verdicts = [AuditVerdict(verdict) for verdict in connection.execute(query).scalars()]
    return max(verdicts, key=SEVERITY.index).value if verdicts else "deleted"


def _with_evidence(connection: Connection, event: AuditEvent) -> AuditEvent:
    """Returns the event with the producers that alone could be its cause, if it is a difference between producers and
    the log."""
    is_timed = event.start_ms not in SPECIAL_WINDOWS and event.end_ms - event.start_ms <= SPAN_MS_MAX
    if not event.is_open or event.hop is not Hop.PRODUCER_TO_LOG or not is_timed:
        return event
    since_ms, until_ms = max(0, event.start_ms - NEARBY_MS), event.end_ms + NEARBY_MS
    row = AUDIT_ROW.c
    query = (
        sa.select(row.window_start_ms, row.application, row.host)
        .where(row.topic == event.topic, row.window_start_ms >= since_ms, row.window_start_ms < until_ms)
        .where(row.tier == Tier.PRODUCER.value)
        .distinct()
    )
    counted: dict[int, set[tuple[str, str]]] = {}
    for start_ms, application, host in connection.execute(query):
        counted.setdefault(start_ms, set()).add((application, host))
    verdicts = dict(
        connection.execute(
            sa.select(_V.window_start_ms, _V.verdict).where(
                _V.topic == event.topic, _V.window_start_ms >= since_ms, _V.window_start_ms < until_ms
            )
        ).all()
    )
    bad = [start_ms for start_ms, verdict in verdicts.items() if verdict == event.verdict.value]
    good = [start_ms for start_ms, verdict in verdicts.items() if verdict == AuditVerdict.COMPLETE.value]
    bad = [start_ms for start_ms in bad if event.start_ms <= start_ms < event.end_ms]
    return with_producers(replace(event, producers=()), suspects(counted, bad, good))


def read_events(connection: Connection, condition: sa.ColumnElement[bool]) -> list[AuditEvent]:
    """Returns the events that meet a condition, by time."""
    query = sa.select(EVENT).where(condition).order_by(_E.start_ms, _E.topic, _E.id)
    return [_event(values) for values in connection.execute(query)]


def _event(values: Any) -> AuditEvent:
    fields = dict(values._mapping)
    fields["verdict"], fields["hop"] = AuditVerdict(fields["verdict"]), Hop(fields["hop"])
    fields["producers"] = tuple((application, host) for application, host in json.loads(fields["producers"]))
    return AuditEvent(**fields)


def _values(event: AuditEvent) -> dict[str, Any]:
    values = {column.name: getattr(event, column.name) for column in EVENT.c}
    values |= {"verdict": event.verdict.value, "hop": event.hop.value, "producers": json.dumps(event.producers)}
    return values


def clean_windows(connection: Connection, events: Sequence[AuditEvent]) -> list[AuditEvent]:
    """Returns the events with `clean_windows`."""
    found = []
    for event in events:
        is_clean = _V.verdict.notin_([*_VERDICTS, AuditVerdict.PENDING.value])
        later = sa.select(_V.window_start_ms).where(
            _V.topic == event.topic, _V.window_start_ms >= event.end_ms, is_clean
        )
        count = connection.execute(sa.select(sa.func.count()).select_from(later.limit(10).subquery())).scalar_one()
        found.append(replace(event, clean_windows=count))
    return found
