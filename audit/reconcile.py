"""What the counts of the tiers prove about each (topic, window), and about a topic as a whole.

Two steps are compared. From producer to log: what brokers acknowledged must be in the log. From log to tables: what
the loader read must be rows, good or quarantined. Equal counts with different fingerprints are different messages,
so a loss and a duplicate that cancel are still seen. Everything here is pure; the present time is an argument.

More messages in the log than producers sent are `uncounted`: a producer that does not count sends there too. That is no
finding, but hides as many losses on the way to the log. Where offsets were counted twice, or all producers of the
topic are said to count, they are `surplus`.

A person may accept a finding, which then is none while it stays what it was; and a finding that nothing has been
counted for since long ends by itself, so that no report is red for ever.

A producer that crashed, or got no answer, leaves messages of which nobody knows whether they arrived: the log may
hold any number of them, and that alone is no finding.

Times that are out of range are counted in one window by every tier, which is compared like any other, but has no end
after which its counts stand still: what is missing there is a finding at once when it is more than what producers
counted within the grace. A tier that met times in too many windows counted the rest in one, and which those are
differs from tier to tier (`window.SCATTERED_MS`). So that window is compared in total with all those of the topic that
producers and log counted differently: only sums and fingerprints over all of them can tell whether something is
missing. Where they are not equal and some of these windows were counted by no producer at all, nothing can be told.

Consumers are shown and not judged: an application that started late or stopped early has lost nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import groupby
from typing import Final

from headrace.audit.facts import Count, WindowFacts, merge
from headrace.audit.offsets import CONTIGUOUS, OffsetCheck, ranges_text
from headrace.audit.window import OUT_OF_RANGE_MS, SCATTERED_MS, WINDOWS_MAX, duration_text, many, time_text

COMPLETE_SHARE: Final = (999, 1000)
"""A window counts as complete for the measure of latency from this share of its messages on."""


class State(StrEnum):
    """The verdict of a window; of a topic, the worst of its windows."""

    COMPLETE = "complete"  # every tier counted the same messages
    PASSED_OVER = "passed over"  # fewer messages than before, as many as a decision passed over in the topic
    UNCOUNTED = "uncounted"  # more in the log than producers sent that count; others send there too
    ACCEPTED = "accepted"  # a finding that a person accepted, with a reason
    PAST = "past"  # a finding that nothing was counted for since longer than `audit.findings_end`
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


@dataclass(frozen=True, slots=True)
class Ruling:
    """What people have said about findings: which topics' producers all count, what is accepted, and after how many
    milliseconds without a count a finding ends by itself (None: never)."""

    all_count: Callable[[str], bool] = lambda topic: False
    accepted: tuple[Acceptance, ...] = ()
    findings_end_ms: int | None = None


NO_RULING: Final = Ruling()


@dataclass(frozen=True, slots=True)
class Period:
    """Message time, half-open [since_ms, until_ms); None is no bound."""

    since_ms: int | None = None
    until_ms: int | None = None

    def has(self, facts: WindowFacts) -> bool:
        """Whether some of a window is inside; of one without an end, whether it was counted from the beginning on."""
        if not facts.has_end:
            return self.since_ms is None or _last_counted_ms(facts) >= self.since_ms
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


@dataclass(frozen=True, slots=True)
class _Step:
    """The comparison of two neighbouring tiers."""

    state: State
    sentence: str = ""
    difference: int = 0


_EQUAL = _Step(State.COMPLETE)
UNDER_WAY: Final = "counts may still be under way"


def reconcile_topics(
    facts: Iterable[WindowFacts],
    offsets: Mapping[str, OffsetCheck],
    *,
    now_ms: int,
    grace_ms: int,
    ruling: Ruling = NO_RULING,
    period: Period = ALL_TIME,
) -> tuple[TopicVerdict, ...]:
    """The verdicts of the topics with a window in the period, the worst first; `facts` come by topic and window."""
    verdicts = [
        reconcile_topic(
            topic,
            tuple(group),
            offsets.get(topic, CONTIGUOUS),
            now_ms=now_ms,
            grace_ms=grace_ms,
            ruling=ruling,
            period=period,
        )
        for topic, group in groupby(facts, key=lambda window: window.topic)
    ]
    verdicts = [verdict for verdict in verdicts if verdict.windows]
    return tuple(sorted(verdicts, key=lambda verdict: (-SEVERITY.index(verdict.state), verdict.topic)))


def reconcile_topic(
    topic: str,
    facts: Sequence[WindowFacts],
    offsets: OffsetCheck,
    *,
    now_ms: int,
    grace_ms: int,
    ruling: Ruling = NO_RULING,
    period: Period = ALL_TIME,
) -> TopicVerdict:
    """The verdict of one topic over its windows in the period, from the facts of all, in the order of time."""
    context = TopicContext(
        is_read=any(window.stored is not None for window in facts),
        is_loaded=any(window.loaded is not None for window in facts),
        offsets=offsets,
        all_count=ruling.all_count(topic),
    )
    pooled, alone = _split_scattered(facts, now_ms - grace_ms)
    windows = tuple(reconcile_window(window, context, now_ms=now_ms, grace_ms=grace_ms) for window in alone)
    if pooled:
        windows = (_reconcile_pooled(pooled, alone, context, now_ms=now_ms, grace_ms=grace_ms), *windows)
    windows = _with_ruling(_with_passed_over(windows, context), ruling, now_ms)
    silent = all(window.acknowledged is None for window in facts)
    windows = tuple(window for window in windows if period.has(window.facts))
    facts = tuple(window for window in facts if period.has(window))
    state = max((window.state for window in windows), key=SEVERITY.index, default=State.COMPLETE)
    states = Counter(window.state for window in windows)
    latencies = sorted(window.latency_ms for window in windows if window.latency_ms is not None)
    return TopicVerdict(
        topic=topic,
        state=state,
        sentence=_topic_sentence(windows, state, states, facts),
        windows=windows,
        totals=_totals(facts),
        states=states,
        producer_is_silent=silent,
        uncounted=0 if silent else _uncounted(windows),
        complete_until_ms=_complete_until(windows, now_ms),
        latency_p50_ms=_percentile(latencies, 50),
        latency_p95_ms=_percentile(latencies, 95),
    )


def _with_passed_over(windows: tuple[WindowVerdict, ...], context: TopicContext) -> tuple[WindowVerdict, ...]:
    """What a decision passed over, such as a corrupt batch, is missing in windows that nobody can tell from its bytes.

    So the topic's short windows have one answer: what is missing in all of them is no more than what was passed over,
    or they are short. Only what is missing in the log counts, since what was read must be in rows.
    """
    offsets = context.offsets
    short = [
        window
        for window in windows
        if window.state is State.SHORT and _log_to_tables(window.facts, context).state is State.COMPLETE
    ]
    missing = -sum(window.difference for window in short)
    if not short or missing > offsets.passed_over_count:
        return windows
    why = f"a decision passed over {many(offsets.passed_over_count, 'offset')}: {ranges_text(offsets.passed_over)}"
    explained = {id(window): _told_otherwise(window, State.PASSED_OVER, why) for window in short}
    return tuple(explained.get(id(window), window) for window in windows)


def _with_ruling(windows: tuple[WindowVerdict, ...], ruling: Ruling, now_ms: int) -> tuple[WindowVerdict, ...]:
    accepted = {(one.topic, one.window_start_ms, one.state, one.difference): one for one in ruling.accepted}
    found = []
    for window in windows:
        key = (window.facts.topic, window.facts.window_start_ms, window.state, window.difference)
        if key in accepted:
            one = accepted[key]
            when = f"accepted {time_text(one.accepted_at_ms)} by {one.accepted_by}"
            window = replace(window, state=State.ACCEPTED, sentence=f"{window.sentence}; {when}: {one.reason}")
        elif window.state in MAY_END and _has_ended(window.facts, ruling.findings_end_ms, now_ms):
            since = time_text(_last_counted_ms(window.facts))
            why = f"{window.state}, but nothing was counted for it since {since}"
            window = replace(window, state=State.PAST, sentence=f"{window.sentence}; {why}")
        found.append(window)
    return tuple(found)


def _has_ended(facts: WindowFacts, findings_end_ms: int | None, now_ms: int) -> bool:
    return findings_end_ms is not None and _last_counted_ms(facts) + findings_end_ms <= now_ms


def _uncounted(windows: Sequence[WindowVerdict]) -> int:
    """How many messages came from producers that do not count."""
    more = sum(window.difference for window in windows if window.state is State.UNCOUNTED)
    alone = [window.facts.stored for window in windows if window.facts.acknowledged is None]
    return more + sum(stored.count for stored in alone if stored is not None)


def _split_scattered(
    facts: Sequence[WindowFacts], before_ms: int
) -> tuple[tuple[WindowFacts, ...], tuple[WindowFacts, ...]]:
    """The windows that can only be compared in total, none of them unless times were too scattered, and the others.

    A window that was counted after `before_ms` is compared alone: it would keep the others pending.
    """
    scattered = [window for window in facts if window.window_start_ms == SCATTERED_MS]
    if not scattered or all(window.acknowledged is None for window in facts):
        return (), tuple(facts)
    moved = [
        window
        for window in facts
        if window.has_end and not _names_same_messages(window) and _last_counted_ms(window) <= before_ms
    ]
    left = {id(window) for window in (*scattered, *moved)}
    return (*scattered, *moved), tuple(window for window in facts if id(window) not in left)


def _names_same_messages(facts: WindowFacts) -> bool:
    """Whether producers and log counted exactly the same, and nothing is unanswered."""
    acknowledged, stored = facts.acknowledged, facts.stored
    if acknowledged is None or stored is None:
        return False
    return facts.sent <= acknowledged.count == stored.count and not acknowledged.has_others_than(stored)


def _last_counted_ms(facts: WindowFacts) -> int:
    counts = (facts.acknowledged, facts.stored, facts.loaded)
    return max((count.last_ms for count in counts if count is not None), default=0)


def _reconcile_pooled(
    facts: Sequence[WindowFacts],
    alone: Sequence[WindowFacts],
    context: TopicContext,
    *,
    now_ms: int,
    grace_ms: int,
) -> WindowVerdict:
    """The verdict of windows that can only be compared in total, under the name of the one of scattered times.

    Args:
        alone: the topic's other windows; where they are not equal yet, they may hold what is missing here.
    """
    total = merge(facts, SCATTERED_MS)
    verdict = reconcile_window(total, context, now_ms=now_ms, grace_ms=grace_ms)
    if verdict.state in FINDINGS | {State.UNCOUNTED} and _log_to_tables(total, context) is _EQUAL:
        uncounted = sum(window.acknowledged is None for window in facts if window.has_end)
        if _is_under_way(total, verdict, alone, now_ms - grace_ms):
            verdict = _told_otherwise(verdict, State.PENDING, UNDER_WAY)
        elif uncounted and verdict.state is not State.SHORT:
            why = f"in {many(uncounted, 'window')} no producer counted, so whether any is missing cannot be told"
            verdict = _told_otherwise(verdict, State.UNKNOWN, why)
    note = f"in total over {many(len(facts), 'window')}, since a tier met times in more than {WINDOWS_MAX:,}"
    return replace(verdict, sentence=f"{verdict.sentence} ({note})")


def _is_under_way(total: WindowFacts, verdict: WindowVerdict, alone: Sequence[WindowFacts], before_ms: int) -> bool:
    """Whether counts of other windows that are not equal yet may explain a difference."""
    more = [_stored_more(window) for window in alone if window.has_end]
    if verdict.state is State.SHORT:
        return -verdict.difference <= _recent(total, before_ms) + sum(count for count in more if count > 0)
    if verdict.state in (State.SURPLUS, State.UNCOUNTED):
        return verdict.difference <= -sum(count for count in more if count < 0)
    return any(not _names_same_messages(window) for window in alone if window.has_end)


def _stored_more(facts: WindowFacts) -> int:
    """How many messages more the log holds than producers counted."""
    stored, acknowledged = facts.stored, facts.acknowledged
    return (stored.count if stored else 0) - (acknowledged.count if acknowledged else 0)


def _told_otherwise(verdict: WindowVerdict, state: State, why: str) -> WindowVerdict:
    return replace(verdict, state=state, difference=0, sentence=f"{verdict.sentence}; {why}")


def reconcile_window(
    facts: WindowFacts, context: TopicContext = TopicContext(), *, now_ms: int, grace_ms: int
) -> WindowVerdict:
    """Classifies one window.

    Args:
        now_ms: the present time.
        grace_ms: how long after the end of a window, or after the last count of it, a difference may be a count
            still under way.
    """
    to_log = _producer_to_log(facts, context)
    to_tables = _log_to_tables(facts, context)
    is_early = now_ms < _settled_ms(facts, to_log) + grace_ms and not _is_overdue(facts, to_log, now_ms - grace_ms)
    if to_log.state is not State.COMPLETE and is_early:
        to_log = _Step(State.PENDING, f"{to_log.sentence}; {UNDER_WAY}")
    steps = [step for step in (to_log, to_tables) if step.state is not State.COMPLETE]
    return WindowVerdict(
        facts=facts,
        state=_worse(to_log.state, to_tables.state),
        sentence="; ".join(step.sentence for step in steps) or _complete_sentence(facts),
        difference=to_log.difference + to_tables.difference,
        latency_ms=_latency_ms(facts),
    )


def _producer_to_log(facts: WindowFacts, context: TopicContext) -> _Step:
    acknowledged, stored = facts.acknowledged, facts.stored
    if acknowledged is None:
        if stored is not None or facts.loaded is not None:
            return _EQUAL
        return _Step(State.UNKNOWN, "neither producers nor the loader counted it")
    if stored is None:
        if acknowledged.count == 0:
            return _EQUAL
        if not context.is_read:
            return _Step(
                State.UNKNOWN,
                f"producers sent {many(acknowledged.count, 'message')} and the loader has never counted this topic",
            )
        stored = Count(0, 0, 0)
    return _compare_with_log(facts, acknowledged, stored, context)


def _compare_with_log(facts: WindowFacts, acknowledged: Count, stored: Count, context: TopicContext) -> _Step:
    offsets = context.offsets
    unsure = max(facts.sent - acknowledged.count, 0)
    missing = acknowledged.count - stored.count
    if missing > 0:
        where = (
            f"offsets that no load counted: {ranges_text(offsets.holes)}"
            if offsets.holes
            else "the loader read without a hole, so they are not loaded yet or the log lost them"
        )
        return _Step(
            State.SHORT,
            f"{missing:,} of {many(acknowledged.count, 'message')} acknowledged to producers not found in the log "
            f"({where})",
            -missing,
        )
    if -missing > unsure:
        if offsets.overlaps:
            state, cause = State.SURPLUS, f"offsets counted twice: {ranges_text(offsets.overlaps)}"
        elif context.all_count:
            state, cause = State.SURPLUS, "producers sent them twice, or one sends here that does not count after all"
        else:
            state, cause = State.UNCOUNTED, "a producer that does not count sends here too, or one sent them twice"
        return _Step(
            state,
            f"the log holds {many(stored.count, 'message')} and producers sent {max(facts.sent, acknowledged.count):,} "
            f"({cause})",
            -missing - unsure,
        )
    if missing == 0 and stored.has_others_than(acknowledged) and unsure == 0:
        return _Step(
            State.MIXED,
            f"the log holds {many(stored.count, 'message')} as acknowledged, but not the same ones: as many were lost "
            "as were doubled or came from elsewhere",
        )
    return _EQUAL


def _log_to_tables(facts: WindowFacts, context: TopicContext) -> _Step:
    stored, loaded = facts.stored, facts.loaded
    if stored is None:
        if loaded is None:
            return _EQUAL
        return _Step(State.SURPLUS, f"{many(loaded.count, 'row')} written of messages that nobody read", loaded.count)
    if loaded is None and not context.is_loaded:
        return _Step(State.UNKNOWN, f"{many(stored.count, 'message')} read, and the loader has counted no row of them")
    loaded = loaded or Count(0, 0, 0)
    if loaded.count < stored.count:
        missing = stored.count - loaded.count
        return _Step(State.SHORT, f"{missing:,} of {many(stored.count, 'message')} read in no row", -missing)
    if loaded.count > stored.count:
        more = loaded.count - stored.count
        return _Step(State.SURPLUS, f"{many(loaded.count, 'row')} made of {many(stored.count, 'message')} read", more)
    if loaded.has_others_than(stored):
        return _Step(State.MIXED, f"{many(loaded.count, 'row')} made of as many messages, but not of the same ones")
    return _EQUAL


def _settled_ms(facts: WindowFacts, step: _Step) -> int:
    """From when on the counts that the step compares should have arrived."""
    times = [facts.window_end_ms]
    if facts.acknowledged is not None:
        times.append(facts.acknowledged.last_ms)
    if facts.stored is not None and step.state in (State.SURPLUS, State.UNCOUNTED):
        times.append(facts.stored.last_ms)
    return max(times)


def _is_overdue(facts: WindowFacts, step: _Step, before_ms: int) -> bool:
    """Whether a window without an end lacks messages that were acknowledged until `before_ms`."""
    return not facts.has_end and step.state is State.SHORT and -step.difference > _recent(facts, before_ms)


def _recent(facts: WindowFacts, before_ms: int) -> int:
    """Messages that producers counted after `before_ms` in a window without an end."""
    return sum(count for emitted_at_ms, count in facts.sends if emitted_at_ms > before_ms)


def _worse(first: State, second: State) -> State:
    if State.SHORT in (first, second) and {first, second} & {State.SURPLUS, State.UNCOUNTED}:
        return State.MIXED
    return max(first, second, key=SEVERITY.index)


def _complete_sentence(facts: WindowFacts) -> str:
    if facts.acknowledged is None:
        return "what was read from the log was loaded; no producer counted"
    unsure = facts.sent - facts.acknowledged.count
    if unsure > 0:
        arrived = (facts.stored.count if facts.stored else 0) - facts.acknowledged.count
        why = "a producer crashed" if facts.crashed else "sends failed or are under way"
        unanswered = f"of {many(unsure, 'message')} without an answer ({why}) {arrived:,} arrived"
        return f"all that was acknowledged was loaded; {unanswered}"
    return "every tier counted the same messages"


def _latency_ms(facts: WindowFacts) -> int | None:
    expected = facts.acknowledged or facts.stored
    if expected is None or expected.count == 0 or not facts.has_end:
        return None
    begin_ms = max(facts.window_end_ms, facts.acknowledged.last_ms if facts.acknowledged else 0)
    loaded = 0
    share, whole = COMPLETE_SHARE
    for emitted_at_ms, count in facts.loads:
        loaded += count
        if loaded * whole >= expected.count * share:
            return max(0, emitted_at_ms - begin_ms)
    return None


def _percentile(ordered: Sequence[int], percent: int) -> int | None:
    """The smallest value that at least `percent` of the values do not exceed."""
    return ordered[(len(ordered) * percent + 99) // 100 - 1] if ordered else None


def _complete_until(windows: Sequence[WindowVerdict], now_ms: int) -> int | None:
    until = None
    for window in windows:
        if window.facts.window_start_ms == OUT_OF_RANGE_MS:
            continue  # what is missing there is missing at no known time
        if window.facts.window_start_ms == SCATTERED_MS:
            if window.state in (State.COMPLETE, State.ACCEPTED):
                continue
            break  # whatever is told otherwise than by equal counts may be missing at any time
        if window.state not in IN_TABLE or window.facts.window_end_ms > now_ms:
            break
        until = window.facts.window_end_ms
    return until


def _totals(facts: Sequence[WindowFacts]) -> dict[str, int]:
    """Messages per outcome; an outcome that no tier reported is absent, which is not the same as 0."""
    totals: Counter[str] = Counter()
    for window in facts:
        if window.acknowledged is not None:
            totals["sent"] += max(window.sent, window.acknowledged.count)
        for outcome in ("acknowledged", "stored", "written", "quarantined"):
            count: Count | None = getattr(window, outcome)
            if count is not None:
                totals[outcome] += count.count
        for application, consumed in window.consumed:
            totals[f"consumed by {application or 'unnamed'}"] += consumed.count
    return dict(totals)


def _topic_sentence(
    windows: Sequence[WindowVerdict], state: State, states: Mapping[State, int], facts: Sequence[WindowFacts]
) -> str:
    uncounted = sum(window.acknowledged is None for window in facts)
    if uncounted == len(facts):
        note = "; producer silent (its producers do not count), so only log and tables are compared"
    elif uncounted:
        note = f"; in {many(uncounted, 'window')} no producer counted, so only log and tables are compared there"
    else:
        note = ""
    if state is State.COMPLETE:
        latencies = [window.latency_ms for window in windows if window.latency_ms is not None]
        speed = f", the slowest after {duration_text(max(latencies))}" if latencies else ""
        return f"{'all ' if len(windows) > 1 else ''}{many(len(windows), 'window')} complete{speed}{note}"
    parts = [f"{states[kind]} {kind}" for kind in reversed(SEVERITY) if states.get(kind)]
    lost = -sum(window.difference for window in windows if window.difference < 0)
    more = sum(window.difference for window in windows if window.difference > 0 and window.state is not State.UNCOUNTED)
    sums = [f"{many(lost, 'message')} missing"] if lost else []
    sums += [f"{many(more, 'message')} too many"] if more else []
    others = sum(window.difference for window in windows if window.state is State.UNCOUNTED)
    sums += [f"{many(others, 'message')} of producers that do not count"] if others else []
    return f"of {many(len(windows), 'window')} {', '.join(parts)}" + "".join(f"; {text}" for text in sums) + note
