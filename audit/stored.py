"""Values that the audit's database stores and returns: verdicts of windows, summaries of topics, times to completeness.

`audit.storage` writes and reads them. They need no library, so that pages, metrics and alerts can import them alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from headrace.audit.event import PRODUCERS_MAX, producers_text
from headrace.audit.verdict import AuditVerdict, Hop
from headrace.audit.window import SPECIAL_WINDOWS, WINDOW_MS, count_text, duration_text, time_text

DATABASE_NAME: Final = "audit.db"
"""The database's file in the data directory, unless `audit.database_url` names another database."""

SHARES: Final = ((99, 100), (999, 1000), (1, 1))
"""Shares of a window's messages: the time until each share arrived is stored."""

SHARE_NAMES: Final = ("99", "99.9", "100")
"""The same in percent, as reports and metrics name them."""


LOG, LOADED = "log", "loaded"
"""The tiers with times to completeness: the log, and the tables with the quarantine."""

COMPLETENESS_BOUNDS_MS: Final = tuple(
    minutes * 60_000 for minutes in (1, 2, 5, 10, 15, 20, 30, 45, 60, 120, 360, 1_440)
)
"""Upper bounds of the times that `CompletenessTotals` counts."""


class CountedCommit(NamedTuple):
    """The number and checksum of a topic's newest counted commit."""

    commit_number: int
    sha256: str


class UncountedBatch(NamedTuple):
    """Offsets [start, end) of a topic partition that the auditor could not read, because their record batch is
    corrupt. `reason` is a sentence; `found_at_ms` is when it was read."""

    topic: str
    partition: int
    start: int
    end: int
    reason: str
    found_at_ms: int


def corrupt_text(batch: UncountedBatch) -> str:
    """Returns a corrupt batch as a sentence without its topic."""
    return f"partition {batch.partition}: offsets {batch.start} to {batch.end - 1} cannot be counted: {batch.reason}"


class TierTimes(NamedTuple):
    """Times from the end of a window until a tier had counted 99 %, 99.9 % and all of its messages, in milliseconds; 0
    if it had before the end. None: not yet, or the window has no end or no messages."""

    share_99_ms: int | None = None
    share_999_ms: int | None = None
    all_ms: int | None = None


NO_TIMES: Final = TierTimes()


@dataclass(frozen=True, slots=True)
class StoredWindow:
    """The stored verdict of one topic and window.

    Attributes:
        hop: the pair of tiers that differs; the first one if both do.
        difference: extra (positive) or missing (negative) messages, added up over both pairs.
        missing, extra: the same for each direction apart; a window with the verdict `mismatch` and equal counts has 0
            in both, because its fingerprints tell that messages differ, but not how many.
        sent, acknowledged, stored, written, quarantined: messages by tier; None for a tier without counts.
        consumed: messages by consuming application.
        sentence: explanation of the verdict; "" for `complete`.
        log_times, loaded_times: when the log, and tables with quarantine, had the window's messages.
        latency_ms: time until 99.9 % were loaded, from the end of the window or from its newest producer row.
        first_counted_ms, last_counted_ms: creation times of the oldest and the newest audit row.
        changed_at_ms: when the verdict or the differences last changed.
    """

    topic: str
    window_start_ms: int
    verdict: AuditVerdict
    hop: Hop
    difference: int
    missing: int
    extra: int
    sent: int
    acknowledged: int | None
    stored: int | None
    written: int | None
    quarantined: int | None
    consumed: Mapping[str, int] = field(default_factory=dict)
    crashed: bool = False
    sentence: str = ""
    log_times: TierTimes = NO_TIMES
    loaded_times: TierTimes = NO_TIMES
    latency_ms: int | None = None
    first_counted_ms: int = 0
    last_counted_ms: int = 0
    changed_at_ms: int = 0

    @property
    def has_end(self) -> bool:
        return self.window_start_ms not in SPECIAL_WINDOWS

    @property
    def window_end_ms(self) -> int:
        return self.window_start_ms + WINDOW_MS


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """A topic's stored verdict over all its windows.

    Attributes:
        verdict: the most severe verdict of its windows.
        findings: number of windows that are missing, extra, mismatch or unknown.
        pending: number of windows with the verdict `pending`.
        missing, extra: messages, over the windows with findings.
        complete_until_log_ms: all windows that end at or before this time are complete in the log (or accepted, and so
            on); None if the first window is not.
        complete_until_loaded_ms: the same for the tables. Never later than that of the log.
        last_counted_ms: creation time of the newest audit row.
        messages_24h: messages of the windows of the last 24 hours: in the log, or acknowledged if the log was not
            counted.
        is_read, is_loaded: whether the messages in the topic's log, and the rows of its table, have been counted.
    """

    topic: str
    verdict: AuditVerdict
    findings: int
    pending: int
    missing: int
    extra: int
    complete_until_log_ms: int | None
    complete_until_loaded_ms: int | None
    last_counted_ms: int
    messages_24h: int
    is_read: bool
    is_loaded: bool


class ProducerFaultKind(StrEnum):
    """A fault of producers that is not a difference between tiers."""

    CRASHED = "crashed"  # a producer ended without the acknowledgement of messages, and not all of them are in the log
    AHEAD = "ahead"  # messages have times in the future
    BEHIND = "behind"  # messages have times long before those of messages that were earlier in the log


@dataclass(frozen=True, slots=True)
class ProducerFault:
    """A fault of producers of a topic that is not a difference between tiers.

    Attributes:
        start_ms, end_ms: start of the first window with the fault and end of the last one.
        messages: the affected messages.
        producers: application and host of the producers that counted in these windows; for a crash those that crashed;
            for times in the past those that did not count in newer windows.
        behind_ms: for times in the past, how much older the oldest message is than earlier messages in the log.
    """

    topic: str
    kind: ProducerFaultKind
    start_ms: int
    end_ms: int
    messages: int
    producers: tuple[tuple[str, str], ...]
    behind_ms: int = 0

    def sentence(self, now_ms: int) -> str:
        """Returns the fault as a sentence; `now_ms` is the current time."""
        more = len(self.producers) - PRODUCERS_MAX
        names = producers_text(self.producers[:PRODUCERS_MAX]) + (f" and {more:,} more" if more > 0 else "")
        text = {
            ProducerFaultKind.CRASHED: "that a crashed producer sent without acknowledgement did not arrive in the log",
            ProducerFaultKind.AHEAD: f"with times up to {duration_text(self.end_ms - now_ms)} in the future",
            ProducerFaultKind.BEHIND: f"with times up to {duration_text(self.behind_ms)} before those of earlier "
            "messages in the log",
        }[self.kind]
        sent = f"; sent by {names}" if names else ""
        return f"{time_text(self.start_ms)}: {count_text(self.messages, 'message')} {text}{sent}"


class Percentiles(NamedTuple):
    """The distribution of a time over `windows` windows. `unreached` windows are not yet there; they count as longer
    than any time, so a percentile that falls on them is None."""

    windows: int
    unreached: int
    p50_ms: int | None
    p95_ms: int | None
    p99_ms: int | None


@dataclass(frozen=True, slots=True)
class CompletenessTimes:
    """The distribution of the times to 99 %, 99.9 % and 100 % of the messages of a window, for one tier."""

    share_99: Percentiles
    share_999: Percentiles
    all: Percentiles

    @property
    def by_share(self) -> dict[str, Percentiles]:
        """The distributions by the name of the share, of `SHARE_NAMES`."""
        return dict(zip(SHARE_NAMES, (self.share_99, self.share_999, self.all), strict=True))


class CompletenessTotals(NamedTuple):
    """How many windows have become complete since the database was created, by the time until a tier had a share of
    their messages: by the bounds of `COMPLETENESS_BOUNDS_MS`, the later ones last. `sum_ms` is the sum of the times.
    The numbers never decrease."""

    windows: tuple[int, ...]
    sum_ms: int


def percentiles(values: Sequence[int | None]) -> Percentiles:
    """Returns the distribution of times in milliseconds; None is a window that is not yet there."""
    reached = sorted(value for value in values if value is not None)
    count = len(values)

    def at(percent: int) -> int | None:
        place = (count * percent + 99) // 100 - 1
        return reached[place] if 0 <= place < len(reached) else None

    return Percentiles(count, count - len(reached), at(50), at(95), at(99))
