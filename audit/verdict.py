"""What can be said of a window and of a topic, and what a person has said of it: values only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from headrace.audit.facts import WindowFacts
from headrace.audit.offsets import CONTIGUOUS, OffsetCheck


class State(StrEnum):
    """The verdict of a window; of a topic, the worst of its windows."""

    COMPLETE = "complete"  # every tier counted the same messages
    PASSED_OVER = "passed over"  # fewer messages than before, as many as a decision passed over in the topic
    UNCOUNTED = "uncounted"  # more in the log than producers sent that count; others send there too
    ACCEPTED = "accepted"  # a finding that a person accepted, with a reason
    PAST = "past"  # a finding that nothing was counted for since longer than `audit.findings_ttl`
    PENDING = "pending"  # not equal yet, and too early to say more
    UNKNOWN = "unknown"  # a tier that must have counted is silent
    SURPLUS = "surplus"  # more messages than before
    SHORT = "short"  # fewer messages than before
    MIXED = "mixed"  # other messages than before: some lost, some doubled or foreign


SEVERITY: Final = (
    State.COMPLETE,
    State.PASSED_OVER,
    State.UNCOUNTED,
    State.PAST,
    State.ACCEPTED,
    State.PENDING,
    State.UNKNOWN,
    State.SURPLUS,
    State.SHORT,
    State.MIXED,
)
FINDINGS: Final = frozenset({State.SURPLUS, State.SHORT, State.MIXED})
MAY_END: Final = FINDINGS | {State.UNKNOWN}
"""What a person can accept, and what ends by itself."""
IN_TABLE: Final = frozenset({State.COMPLETE, State.PASSED_OVER, State.UNCOUNTED, State.ACCEPTED})
"""Nothing more will come of such a window."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A finding that a person accepted: of this topic, window and verdict, with as many messages too many or too few.

    One that has grown since is another finding.
    """

    topic: str
    window_start_ms: int
    state: State
    difference: int
    reason: str
    accepted_by: str
    accepted_at_ms: int


@dataclass(frozen=True, slots=True)
class TopicContext:
    """What is known of a topic beyond one window: whether any broker or loader row of it exists, and its offsets.

    `all_count` says that no producer sends to it without counting.
    """

    is_read: bool = True
    is_loaded: bool = True
    offsets: OffsetCheck = CONTIGUOUS
    all_count: bool = False


UNKNOWN_TOPIC: Final = TopicContext()


@dataclass(frozen=True, slots=True)
class Ruling:
    """What people have said about findings: which topics' producers all count, what is accepted, and after how many
    milliseconds without a count a finding ends by itself (None: never)."""

    all_count: Callable[[str], bool] = lambda topic: False
    accepted: tuple[Acceptance, ...] = ()
    findings_ttl_ms: int | None = None


NO_RULING: Final = Ruling()


@dataclass(frozen=True, slots=True)
class Period:
    """Message time, half-open [since_ms, until_ms); None is no bound."""

    since_ms: int | None = None
    until_ms: int | None = None

    def has(self, facts: WindowFacts) -> bool:
        """Whether some of a window is inside; of one without an end, whether it was counted from the beginning on."""
        if not facts.has_end:
            return self.since_ms is None or facts.last_counted_ms >= self.since_ms
        is_since = self.since_ms is None or facts.window_end_ms > self.since_ms
        return is_since and (self.until_ms is None or facts.window_start_ms < self.until_ms)


ALL_TIME: Final = Period()


@dataclass(frozen=True, slots=True)
class WindowVerdict:
    """`latency_ms` is from the window's end, or its last message sent if that was later, until 99.9 % of it were
    loaded; None while they are not. `difference` is messages too many (positive) or too few (negative)."""

    facts: WindowFacts
    state: State
    sentence: str
    difference: int = 0
    latency_ms: int | None = None


@dataclass(frozen=True, slots=True)
class TopicVerdict:
    """A topic as a whole. `complete_until_ms` is the end of the last window with all earlier ones complete,
    `uncounted` how many messages the log holds of producers that do not count, where others of the topic do."""

    topic: str
    state: State
    sentence: str
    windows: tuple[WindowVerdict, ...]
    totals: Mapping[str, int]
    states: Mapping[State, int] = field(default_factory=dict)
    producer_is_silent: bool = False
    uncounted: int = 0
    complete_until_ms: int | None = None
    latency_p50_ms: int | None = None
    latency_p95_ms: int | None = None
