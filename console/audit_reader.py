"""Reads of the audit's stored verdicts. Pages get values; the database stays open between requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from headrace.audit.event import AuditEvent, Incident
from headrace.audit.storage.store import AuditStore, audit_address
from headrace.audit.stored import CompletenessTimes, StoredWindow, TopicSummary
from headrace.console.drawing.periods import ShownPeriod
from headrace.pipeline.audit_store import has_audit_store, open_audit_store
from headrace.settings import Settings

T = TypeVar("T")

DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class AuditOverview:
    """The stored verdicts of all topics in a period. `strips` have the length of the period. `missing` and `extra` are
    the messages of the events in the period, by topic."""

    revision: int = 0
    incidents: Sequence[Incident] = ()
    summaries: Sequence[TopicSummary] = ()
    strips: Mapping[str, bytes] = field(default_factory=dict)
    missing: Mapping[str, int] = field(default_factory=dict)
    extra: Mapping[str, int] = field(default_factory=dict)
    last_counted_ms: int | None = None

    @property
    def open_incidents(self) -> list[Incident]:
        return [one for one in self.incidents if one.closed_at_ms is None]

    @property
    def closed_incidents(self) -> list[Incident]:
        return [one for one in self.incidents if one.closed_at_ms is not None]


@dataclass(frozen=True, slots=True)
class TopicAudit:
    """The stored verdicts of one topic in a period. `summary` is None for a topic without counts."""

    summary: TopicSummary | None
    windows: Sequence[StoredWindow]
    events: Sequence[AuditEvent]
    strip: bytes


class AuditReader:
    """Reads the audit's database. Thread-safe. A database file that was replaced is opened again."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._store: AuditStore | None = None
        self._identity: tuple[int, int] | None = None

    def revision(self) -> int:
        """Returns a number that grows with each change of the verdicts; -1 without a database."""
        return self._read(lambda store: store.revision(), -1)

    def overview(self, period: ShownPeriod, now_ms: int) -> AuditOverview:
        """Returns the verdicts of all topics; an empty overview if nothing was counted yet."""

        def read(store: AuditStore) -> AuditOverview:
            strips = {topic: period.cut(strip) for topic, strip in store.strips(*period.days).items()}
            incidents = store.incidents(period.first_ms, counts_clean_windows=False)
            events = [event for incident in incidents for event in incident.events]
            counted = store.last_counted_by_tier()
            return AuditOverview(
                revision=store.revision(),
                incidents=incidents,
                summaries=store.topic_summaries(now_ms),
                strips=strips,
                missing=_sums(events, lambda event: event.missing),
                extra=_sums(events, lambda event: event.extra),
                last_counted_ms=max(counted.values(), default=None),
            )

        return self._read(read, AuditOverview())

    def summaries(self, now_ms: int) -> list[TopicSummary]:
        return self._read(lambda store: store.topic_summaries(now_ms), [])

    def topic(self, topic: str, period: ShownPeriod, now_ms: int) -> TopicAudit:
        """Returns the verdicts of one topic. Special windows, which have no time, are in every period."""

        def read(store: AuditStore) -> TopicAudit:
            found = store.topic_summaries(now_ms, [topic])
            if not found:
                return empty
            windows = store.windows(topic, period.first_ms, period.end_ms)
            special = store.windows(topic, None, 0)
            strip = store.strips(*period.days, [topic]).get(topic, b"")
            events = store.events(period.first_ms, counts_clean_windows=False, topic=topic)
            return TopicAudit(found[0], [*special, *windows], events, period.cut(strip) or bytes(period.windows))

        empty = TopicAudit(None, (), (), bytes(period.windows))
        return self._read(read, empty)

    def completeness(self, now_ms: int) -> dict[str, CompletenessTimes]:
        """Returns the times to completeness of the windows of the last day, by tier."""
        return self._read(lambda store: store.completeness_times(now_ms - DAY_MS, now_ms), {})

    def _read(self, read: Callable[[AuditStore], T], empty: T) -> T:
        if not has_audit_store(self._settings):
            return empty
        return read(self._opened())

    def _opened(self) -> AuditStore:
        address = audit_address(self._settings.data_dir, self._settings.audit.database_url)
        identity = None
        if not isinstance(address, str):
            stat = address.stat()
            identity = stat.st_dev, stat.st_ino
        with self._lock:
            if self._store is None or identity != self._identity:
                self._store, self._identity = open_audit_store(self._settings), identity
            return self._store


def _sums(events: Sequence[AuditEvent], value: Callable[[AuditEvent], int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for event in events:
        found[event.topic] = found.get(event.topic, 0) + value(event)
    return found
