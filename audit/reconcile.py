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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from headrace.audit.compare import EQUAL, UNDER_WAY, log_to_tables, recent, reconcile_window
from headrace.audit.facts import Count, WindowFacts, merge
from headrace.audit.offsets import CONTIGUOUS, OffsetCheck, ranges_text
from headrace.audit.verdict import (
    ALL_TIME,
    FINDINGS,
    IN_TABLE,
    MAY_END,
    NO_RULING,
    SEVERITY,
    Period,
    Ruling,
    State,
    TopicContext,
    TopicVerdict,
    WindowVerdict,
)
from headrace.audit.window import OUT_OF_RANGE_MS, SCATTERED_MS, WINDOWS_MAX, duration_text, many, time_text


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
        if window.state is State.SHORT and log_to_tables(window.facts, context).state is State.COMPLETE
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
        elif window.state in MAY_END and _has_ended(window.facts, ruling.findings_ttl_ms, now_ms):
            since = time_text(window.facts.last_counted_ms)
            why = f"{window.state}, but nothing was counted for it since {since}"
            window = replace(window, state=State.PAST, sentence=f"{window.sentence}; {why}")
        found.append(window)
    return tuple(found)


def _has_ended(facts: WindowFacts, findings_ttl_ms: int | None, now_ms: int) -> bool:
    return findings_ttl_ms is not None and facts.last_counted_ms + findings_ttl_ms <= now_ms


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
        if window.has_end and not _names_same_messages(window) and window.last_counted_ms <= before_ms
    ]
    left = {id(window) for window in (*scattered, *moved)}
    return (*scattered, *moved), tuple(window for window in facts if id(window) not in left)


def _names_same_messages(facts: WindowFacts) -> bool:
    """Whether producers and log counted exactly the same, and nothing is unanswered."""
    acknowledged, stored = facts.acknowledged, facts.stored
    if acknowledged is None or stored is None:
        return False
    return facts.sent <= acknowledged.count == stored.count and not acknowledged.has_others_than(stored)


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
    if verdict.state in FINDINGS | {State.UNCOUNTED} and log_to_tables(total, context) is EQUAL:
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
        return -verdict.difference <= recent(total, before_ms) + sum(count for count in more if count > 0)
    if verdict.state in (State.SURPLUS, State.UNCOUNTED):
        return verdict.difference <= -sum(count for count in more if count < 0)
    return any(not _names_same_messages(window) for window in alone if window.has_end)


def _stored_more(facts: WindowFacts) -> int:
    """How many messages more the log holds than producers counted."""
    stored, acknowledged = facts.stored, facts.acknowledged
    return (stored.count if stored else 0) - (acknowledged.count if acknowledged else 0)


def _told_otherwise(verdict: WindowVerdict, state: State, why: str) -> WindowVerdict:
    return replace(verdict, state=state, difference=0, sentence=f"{verdict.sentence}; {why}")


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
