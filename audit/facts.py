"""Sums of the audit rows of one window, by tier."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from headrace.audit.count import FINGERPRINT_MASK, HASH
from headrace.audit.row import AUDITOR, AuditOutcome
from headrace.audit.window import SPECIAL_WINDOWS, WINDOW_MS


class RowCounts(NamedTuple):
    """The columns of an audit row that reconciliation uses. A tuple, because there are hundreds of thousands of
    rows.
    """

    topic: str
    window_start_ms: int
    outcome: str
    application: str
    messages: int
    size_bytes: int
    fingerprint: int  # signed or unsigned: sums are modulo 2**64
    sent: int
    crashed: int
    emitted_at_ms: int
    hash: str = HASH


@dataclass(frozen=True, slots=True)
class Count:
    """The sum of the audit rows of one tier and window.

    `last_ms` is the creation time of the newest row. `hash` names the hash of the fingerprint; it is "" if the rows
    used different hashes.
    """

    count: int
    bytes: int
    fingerprint: int
    last_ms: int = 0
    hash: str = HASH

    def differs_from(self, other: Count) -> bool:
        """Returns whether the fingerprints of this count and the other one prove that different messages were counted.
        Fingerprints with different hashes prove nothing."""
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
    """The counts of one topic and window by tier; None for a tier without a row.

    Attributes:
        sent: messages that producers handed to their Kafka clients.
        stored: messages in the log, counted by the auditor or else by loads.
        is_audited: whether `stored` is the auditor's count.
        read: messages that loads read, if `is_audited`.
        crashed: whether a producer ended without closing.
        loads: (time, messages) of the loader's rows, ordered by time.
        stores: (time, messages) of the rows that count the log, ordered by time.
        sends: (time, acknowledged messages) of the producers' rows, ordered by time; only for special windows.
        first_counted_ms: creation time of the oldest audit row.
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
    stores: tuple[tuple[int, int], ...] = field(default=(), compare=False)
    first_counted_ms: int = field(default=0, compare=False)
    is_audited: bool = False
    read: Count | None = None

    @property
    def has_end(self) -> bool:
        """Whether the window is ten minutes of time, and not one of `SPECIAL_WINDOWS`."""
        return self.window_start_ms not in SPECIAL_WINDOWS

    @property
    def window_end_ms(self) -> int:
        return self.window_start_ms + WINDOW_MS

    @property
    def loaded(self) -> Count | None:
        """Messages that the loader wrote to the table or to the quarantine."""
        if self.written is None:
            return self.quarantined
        return self.written.plus(self.quarantined)

    @property
    def last_counted_ms(self) -> int:
        """Creation time of the newest audit row of this window, from producers, log or loader, in milliseconds since
        1970; 0 without rows."""
        last_ms = 0
        for count in (self.acknowledged, self.stored, self.written, self.quarantined):
            if count is not None and count.last_ms > last_ms:
                last_ms = count.last_ms
        return last_ms


# Plain strings: a comparison with a member of an enum takes ten times as long.
_ACKNOWLEDGED: Final = AuditOutcome.ACKNOWLEDGED.value
_STORED: Final = AuditOutcome.STORED.value
_CONSUMED: Final = AuditOutcome.CONSUMED.value
_WRITTEN: Final = AuditOutcome.WRITTEN.value
_QUARANTINED: Final = AuditOutcome.QUARANTINED.value
_LOADED: Final = (_WRITTEN, _QUARANTINED)


def collect_facts(rows: Iterable[RowCounts]) -> Iterator[WindowFacts]:
    """Adds up the audit rows of each topic and window, and yields one `WindowFacts` for each. The rows must be ordered
    by topic and window."""
    for (topic, window_start_ms), group in groupby(rows, key=itemgetter(0, 1)):
        yield _window_facts(topic, window_start_ms, group)


def _window_facts(topic: str, window_start_ms: int, rows: Iterable[RowCounts]) -> WindowFacts:
    counts: dict[str, Count] = {}
    consumed: dict[str, Count] = {}
    loads: list[tuple[int, int]] = []
    sends: list[tuple[int, int]] = []
    stores: list[tuple[int, int]] = []
    audits: list[tuple[int, int]] = []
    sent = 0
    crashed = False
    first_ms = None
    for _, _, outcome, application, messages, size_bytes, fingerprint, tried, has_crashed, time_ms, hash_name in rows:
        if first_ms is None or time_ms < first_ms:
            first_ms = time_ms
        group, name = counts, outcome
        if outcome == _STORED:
            is_audited = application == AUDITOR
            name = AUDITOR if is_audited else outcome
            (audits if is_audited else stores).append((time_ms, messages))
        elif outcome == _ACKNOWLEDGED:
            sent += tried
            crashed = crashed or bool(has_crashed)
            sends.append((time_ms, messages))
        elif outcome in _LOADED:
            loads.append((time_ms, messages))
        elif outcome == _CONSUMED:
            group, name = consumed, application
        count = Count(messages, size_bytes, fingerprint & FINGERPRINT_MASK, time_ms, hash_name)
        group[name] = count.plus(group[name]) if name in group else count
    audited, read = counts.get(AUDITOR), counts.get(_STORED)
    is_usable = _is_usable(audited, read)
    return WindowFacts(
        topic=topic,
        window_start_ms=window_start_ms,
        acknowledged=counts.get(_ACKNOWLEDGED),
        sent=sent,
        crashed=crashed,
        stored=audited if is_usable else read,
        is_audited=is_usable,
        read=read if is_usable else None,
        written=counts.get(_WRITTEN),
        quarantined=counts.get(_QUARANTINED),
        consumed=tuple(sorted(consumed.items())),
        loads=tuple(sorted(loads)),
        sends=tuple(sorted(sends)) if window_start_ms in SPECIAL_WINDOWS else (),
        stores=tuple(sorted(audits if is_usable else stores)),
        first_counted_ms=first_ms or 0,
    )


def _is_usable(audited: Count | None, read: Count | None) -> bool:
    """Returns whether the auditor's count stands for the log.

    Loads cannot read more than the log holds. If the auditor has counted less, it has not yet come so far, or it began
    after retention had deleted the rest; then the count of the loads stands for the log, as it does without an auditor.
    """
    return audited is not None and (read is None or audited.count >= read.count)


def merge_windows(facts: Sequence[WindowFacts], window_start_ms: int) -> WindowFacts:
    """Returns the sum of several windows of one topic as one window that starts at `window_start_ms`. `facts` are the
    counts of these windows, at least one."""
    consumed: dict[str, Count] = {}
    is_audited = any(window.is_audited for window in facts)
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
        is_audited=is_audited,
        read=_sum(window.read if window.is_audited else window.stored for window in facts) if is_audited else None,
        written=_sum(window.written for window in facts),
        quarantined=_sum(window.quarantined for window in facts),
        consumed=tuple(sorted(consumed.items())),
        loads=tuple(sorted(load for window in facts for load in window.loads)),
        sends=tuple(sorted(send for window in facts for send in window.sends)),
        stores=tuple(sorted(store for window in facts for store in window.stores)),
        first_counted_ms=min(window.first_counted_ms for window in facts),
    )


def _sum(counts: Iterable[Count | None]) -> Count | None:
    total: Count | None = None
    for count in counts:
        if count is not None:
            total = count.plus(total)
    return total
