"""Verdicts of windows and topics, and the findings that operators accepted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from headrace.audit.facts import WindowFacts
from headrace.audit.offsets import CONTIGUOUS, OffsetCheck


class AuditVerdict(StrEnum):
    """The verdict of a window. The verdict of a topic is the most severe of its windows."""

    COMPLETE = "complete"  # the tiers with counts have the same messages, apart from unacknowledged ones
    SKIPPED = "skipped"  # missing messages that are explained by offsets that commits skipped
    UNTRACKED = "untracked"  # more messages in the log than sent: a producer does not count, or sent some twice
    ACCEPTED = "accepted"  # a finding or unknown window that an operator accepted, with a reason
    EXPIRED = "expired"  # a finding or unknown window without new counts for `audit.findings_ttl`
    PENDING = "pending"  # the counts differ, and the grace period has not ended
    UNKNOWN = "unknown"  # a tier has no counts to compare
    EXTRA = "extra"  # more messages than in the tier before
    MISSING = "missing"  # fewer messages than in the tier before
    MISMATCH = "mismatch"  # the same number of messages with other content, or some missing and others extra


class Hop(StrEnum):
    """A comparison of the counts of two neighbouring tiers."""

    NONE = ""  # no difference
    PRODUCER_TO_LOG = "producer_to_log"
    LOG_TO_READ = "log_to_read"  # only where the auditor counts the log
    LOG_TO_TABLES = "log_to_tables"


SEVERITY: Final = (
    AuditVerdict.COMPLETE,
    AuditVerdict.SKIPPED,
    AuditVerdict.UNTRACKED,
    AuditVerdict.EXPIRED,
    AuditVerdict.ACCEPTED,
    AuditVerdict.PENDING,
    AuditVerdict.UNKNOWN,
    AuditVerdict.EXTRA,
    AuditVerdict.MISSING,
    AuditVerdict.MISMATCH,
)
FINDINGS: Final = frozenset({AuditVerdict.EXTRA, AuditVerdict.MISSING, AuditVerdict.MISMATCH})
EXPIRABLE: Final = FINDINGS | {AuditVerdict.UNKNOWN}
"""Verdicts of the windows that `headrace audit accept` accepts. A window with such a verdict becomes `expired` after
`audit.findings_ttl`."""
FINAL_VERDICTS: Final = frozenset(
    {AuditVerdict.COMPLETE, AuditVerdict.SKIPPED, AuditVerdict.UNTRACKED, AuditVerdict.ACCEPTED}
)
"""Verdicts of windows for which no further change is expected."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A window with a finding or the verdict `unknown` that an operator accepted.

    It applies to one topic, window, verdict and difference. If the verdict or the difference changes, it does not apply
    any more.
    """

    topic: str
    window_start_ms: int
    verdict: AuditVerdict
    difference: int
    reason: str
    accepted_by: str
    accepted_at_ms: int


@dataclass(frozen=True, slots=True)
class TopicContext:
    """Properties of a topic that apply to all its windows.

    Attributes:
        is_read: whether messages in the topic's log have been counted.
        is_loaded: whether the loader has counted rows of the topic's table or quarantine.
        offsets: holes, overlaps and skipped ranges of the offsets that the loader counted.
        all_producers_count: whether, by the settings, every producer of the topic publishes audit counts.
    """

    is_read: bool = True
    is_loaded: bool = True
    offsets: OffsetCheck = CONTIGUOUS
    all_producers_count: bool = False


UNKNOWN_TOPIC: Final = TopicContext()


@dataclass(frozen=True, slots=True)
class FindingPolicy:
    """Decisions of operators about findings: which verdicts of windows need action.

    Attributes:
        all_producers_count: returns for a topic whether, by the settings, all of its producers publish audit counts.
        accepted: windows that an operator accepted, with the reasons.
        findings_ttl_ms: time without a count after which a window with a verdict in `EXPIRABLE` becomes `expired`; None
            means never.
    """

    all_producers_count: Callable[[str], bool] = lambda topic: False
    accepted: tuple[Acceptance, ...] = ()
    findings_ttl_ms: int | None = None


NO_FINDING_POLICY: Final = FindingPolicy()


@dataclass(frozen=True, slots=True)
class Period:
    """A half-open interval of message time, [since_ms, until_ms); None is unbounded."""

    since_ms: int | None = None
    until_ms: int | None = None

    def overlaps(self, facts: WindowFacts) -> bool:
        """Returns whether a window overlaps the period. A special window, which has no end, overlaps it if messages of
        the window were counted at or after `since_ms`; `until_ms` does not matter then."""
        if not facts.has_end:
            return self.since_ms is None or facts.last_counted_ms >= self.since_ms
        ends_after_start = self.since_ms is None or facts.window_end_ms > self.since_ms
        return ends_after_start and (self.until_ms is None or facts.window_start_ms < self.until_ms)


ALL_TIME: Final = Period()


@dataclass(frozen=True, slots=True)
class WindowResult:
    """The verdict of one window.

    Attributes:
        sentence: explanation of the verdict.
        difference: extra (positive) or missing (negative) messages, added up over both comparisons (producer with log,
            log with tables); 0 if the verdict is `pending` or `skipped`.
        latency_ms: time until 99.9 % of the window's messages were loaded. It begins at the end of the window, or at
            the creation of its newest producer row if that is later. None before 99.9 % are loaded, for a special
            window, and without counted messages.
        hop: the pair of tiers that differs; the first one if both do.
        missing, extra: `difference` for each direction apart.
    """

    facts: WindowFacts
    verdict: AuditVerdict
    sentence: str
    difference: int = 0
    latency_ms: int | None = None
    hop: Hop = Hop.NONE
    missing: int = 0
    extra: int = 0


@dataclass(frozen=True, slots=True)
class TopicResult:
    """The verdict of a topic, for its windows in a period.

    Attributes:
        verdict: the most severe verdict of its windows.
        windows: their results; those read from the audit's database without the complete ones.
        verdict_counts: number of windows by verdict.
        producer_is_silent: whether no producer of the topic publishes audit counts.
        untracked: messages in the log from producers that publish no audit counts; 0 if no producer of the topic
            publishes counts.
        complete_until_ms: all windows that end at or before this time have a verdict in `FINAL_VERDICTS`, such as
            `complete` or `accepted`; None if the first window has another one.
    """

    topic: str
    verdict: AuditVerdict
    sentence: str
    windows: tuple[WindowResult, ...]
    totals: Mapping[str, int]
    verdict_counts: Mapping[AuditVerdict, int] = field(default_factory=dict)
    producer_is_silent: bool = False
    untracked: int = 0
    complete_until_ms: int | None = None
    latency_p50_ms: int | None = None
    latency_p95_ms: int | None = None
