"""What the rows of the audit say about one window, added up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from headrace.audit.count import FINGERPRINT_MASK, HASH
from headrace.audit.row import Outcome
from headrace.audit.window import NAMES, WINDOW_MS


class CountedRow(NamedTuple):
    """The columns of a row that reconciliation needs; a tuple, since there are hundreds of thousands of them."""

    topic: str
    window_start_ms: int
    outcome: str
    application: str
    messages: int
    size_bytes: int
    fingerprint: int  # signed or not: sums are taken modulo 2**64
    sent: int
    crashed: int
    emitted_at_ms: int
    hash: str = HASH


@dataclass(frozen=True, slots=True)
class Count:
    """The sum of a tier's rows of one window; `last_ms` is when the newest of them was made.

    `hash` is of what the fingerprint is a sum, "" where the rows are not of one hash.
    """

    count: int
    bytes: int
    fingerprint: int
    last_ms: int = 0
    hash: str = HASH

    def has_others_than(self, other: Count) -> bool:
        """Whether the fingerprints show that these are not the same messages; sums of different hashes show nothing."""
        return self.hash == other.hash != "" and self.fingerprint != other.fingerprint

    def plus(self, other: Count | None) -> Count:
        if other is None:
            return self
        return Count(
            self.count + other.count,
            self.bytes + other.bytes,
            (self.fingerprint + other.fingerprint) & FINGERPRINT_MASK,
            max(self.last_ms, other.last_ms),
            self.hash if self.hash == other.hash else "",
        )


@dataclass(frozen=True, slots=True)
class WindowFacts:
    """One topic and window; None is a tier that has no row of it.

    `sent` is how many messages producers handed to their Kafka clients, `crashed` whether one of them ended without
    closing. `loads` are (when, how many) of the loader's rows in the order of time, `sends` likewise what producers
    had acknowledged, of windows that never end alone.
    """

    topic: str
    window_start_ms: int
    acknowledged: Count | None = None
    sent: int = 0
    crashed: bool = False
    stored: Count | None = None
    written: Count | None = None
    quarantined: Count | None = None
    consumed: tuple[tuple[str, Count], ...] = ()
    loads: tuple[tuple[int, int], ...] = field(default=(), compare=False)
    sends: tuple[tuple[int, int], ...] = field(default=(), compare=False)

    @property
    def has_end(self) -> bool:
        """Whether it is ten minutes of time, and not the place of times that are out of range or too scattered."""
        return self.window_start_ms not in NAMES

    @property
    def window_end_ms(self) -> int:
        return self.window_start_ms + WINDOW_MS

    @property
    def loaded(self) -> Count | None:
        """What the loader made rows of, whether good or quarantined."""
        if self.written is None:
            return self.quarantined
        return self.written.plus(self.quarantined)

    @property
    def last_counted_ms(self) -> int:
        """When the newest of its counts was made, 0 where there is none."""
        counts = (self.acknowledged, self.stored, self.loaded)
        return max((count.last_ms for count in counts if count is not None), default=0)


@dataclass(slots=True)
class _Sum:
    count: int = 0
    bytes: int = 0
    fingerprint: int = 0
    last_ms: int = 0
    hash: str | None = None

    def add(self, row: CountedRow) -> None:
        self.count += row.messages
        self.bytes += row.size_bytes
        self.fingerprint += row.fingerprint
        self.last_ms = max(self.last_ms, row.emitted_at_ms)
        self.hash = row.hash if self.hash in (None, row.hash) else ""

    def frozen(self) -> Count:
        return Count(self.count, self.bytes, self.fingerprint & FINGERPRINT_MASK, self.last_ms, self.hash or "")


def gather(rows: Iterable[CountedRow]) -> Iterator[WindowFacts]:
    """Facts by topic and window, from rows in that order."""
    for (topic, window_start_ms), group in groupby(rows, key=itemgetter(0, 1)):
        yield _window_facts(topic, window_start_ms, group)


def _window_facts(topic: str, window_start_ms: int, rows: Iterable[CountedRow]) -> WindowFacts:
    sums: dict[str, _Sum] = {}
    consumed: dict[str, _Sum] = {}
    loads: list[tuple[int, int]] = []
    sends: list[tuple[int, int]] = []
    sent = 0
    crashed = False
    for row in rows:
        if row.outcome == Outcome.CONSUMED:
            consumed.setdefault(row.application, _Sum()).add(row)
            continue
        sums.setdefault(row.outcome, _Sum()).add(row)
        sent += row.sent
        crashed = crashed or bool(row.crashed)
        if row.outcome in (Outcome.WRITTEN, Outcome.QUARANTINED):
            loads.append((row.emitted_at_ms, row.messages))
        if row.outcome == Outcome.ACKNOWLEDGED and window_start_ms in NAMES:
            sends.append((row.emitted_at_ms, row.messages))
    counts = {outcome: found.frozen() for outcome, found in sums.items()}
    return WindowFacts(
        topic=topic,
        window_start_ms=window_start_ms,
        acknowledged=counts.get(Outcome.ACKNOWLEDGED),
        sent=sent,
        crashed=crashed,
        stored=counts.get(Outcome.STORED),
        written=counts.get(Outcome.WRITTEN),
        quarantined=counts.get(Outcome.QUARANTINED),
        consumed=tuple((name, found.frozen()) for name, found in sorted(consumed.items())),
        loads=tuple(sorted(loads)),
        sends=tuple(sorted(sends)),
    )


def merge(facts: Sequence[WindowFacts], window_start_ms: int) -> WindowFacts:
    """Several windows of one topic as one."""
    consumed: dict[str, Count] = {}
    for window in facts:
        for application, count in window.consumed:
            consumed[application] = count.plus(consumed.get(application))
    return WindowFacts(
        topic=facts[0].topic,
        window_start_ms=window_start_ms,
        acknowledged=_sum(window.acknowledged for window in facts),
        sent=sum(window.sent for window in facts),
        crashed=any(window.crashed for window in facts),
        stored=_sum(window.stored for window in facts),
        written=_sum(window.written for window in facts),
        quarantined=_sum(window.quarantined for window in facts),
        consumed=tuple(sorted(consumed.items())),
        loads=tuple(sorted(load for window in facts for load in window.loads)),
        sends=tuple(sorted(send for window in facts for send in window.sends)),
    )


def _sum(counts: Iterable[Count | None]) -> Count | None:
    total: Count | None = None
    for count in counts:
        if count is not None:
            total = count.plus(total)
    return total
