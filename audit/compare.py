"""One window, tier against tier: what producers, log and tables counted of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace.audit.facts import Count, WindowFacts
from headrace.audit.offsets import ranges_text
from headrace.audit.verdict import SEVERITY, UNKNOWN_TOPIC, State, TopicContext, WindowVerdict
from headrace.audit.window import many

COMPLETE_SHARE: Final = (999, 1000)
"""A window counts as complete for the measure of latency from this share of its messages on."""


@dataclass(frozen=True, slots=True)
class Step:
    """The comparison of two neighbouring tiers."""

    state: State
    sentence: str = ""
    difference: int = 0


EQUAL = Step(State.COMPLETE)
UNDER_WAY: Final = "counts may still be under way"


def reconcile_window(
    facts: WindowFacts, context: TopicContext = UNKNOWN_TOPIC, *, now_ms: int, grace_ms: int
) -> WindowVerdict:
    """Classifies one window.

    Args:
        now_ms: the present time.
        grace_ms: how long after the end of a window, or after the last count of it, a difference may be a count
            still under way.
    """
    to_log = _producer_to_log(facts, context)
    to_tables = log_to_tables(facts, context)
    is_early = now_ms < _settled_ms(facts, to_log) + grace_ms and not _is_overdue(facts, to_log, now_ms - grace_ms)
    if to_log.state is not State.COMPLETE and is_early:
        to_log = Step(State.PENDING, f"{to_log.sentence}; {UNDER_WAY}")
    steps = [step for step in (to_log, to_tables) if step.state is not State.COMPLETE]
    return WindowVerdict(
        facts=facts,
        state=_worse(to_log.state, to_tables.state),
        sentence="; ".join(step.sentence for step in steps) or _complete_sentence(facts),
        difference=to_log.difference + to_tables.difference,
        latency_ms=_latency_ms(facts),
    )


def _producer_to_log(facts: WindowFacts, context: TopicContext) -> Step:
    acknowledged, stored = facts.acknowledged, facts.stored
    if acknowledged is None:
        if stored is not None or facts.loaded is not None:
            return EQUAL
        return Step(State.UNKNOWN, "neither producers nor the loader counted it")
    if stored is None:
        if acknowledged.count == 0:
            return EQUAL
        if not context.is_read:
            return Step(
                State.UNKNOWN,
                f"producers sent {many(acknowledged.count, 'message')} and the loader has never counted this topic",
            )
        stored = Count(0, 0, 0)
    return _compare_with_log(facts, acknowledged, stored, context)


def _compare_with_log(facts: WindowFacts, acknowledged: Count, stored: Count, context: TopicContext) -> Step:
    offsets = context.offsets
    unsure = max(facts.sent - acknowledged.count, 0)
    missing = acknowledged.count - stored.count
    if missing > 0:
        where = (
            f"offsets that no load counted: {ranges_text(offsets.holes)}"
            if offsets.holes
            else "the loader read without a hole, so they are not loaded yet or the log lost them"
        )
        return Step(
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
        return Step(
            state,
            f"the log holds {many(stored.count, 'message')} and producers sent {max(facts.sent, acknowledged.count):,} "
            f"({cause})",
            -missing - unsure,
        )
    if missing == 0 and stored.has_others_than(acknowledged) and unsure == 0:
        return Step(
            State.MIXED,
            f"the log holds {many(stored.count, 'message')} as acknowledged, but not the same ones: as many were lost "
            "as were doubled or came from elsewhere",
        )
    return EQUAL


def log_to_tables(facts: WindowFacts, context: TopicContext) -> Step:
    stored, loaded = facts.stored, facts.loaded
    if stored is None:
        if loaded is None:
            return EQUAL
        return Step(State.SURPLUS, f"{many(loaded.count, 'row')} written of messages that nobody read", loaded.count)
    if loaded is None and not context.is_loaded:
        return Step(State.UNKNOWN, f"{many(stored.count, 'message')} read, and the loader has counted no row of them")
    loaded = loaded or Count(0, 0, 0)
    if loaded.count < stored.count:
        missing = stored.count - loaded.count
        return Step(State.SHORT, f"{missing:,} of {many(stored.count, 'message')} read in no row", -missing)
    if loaded.count > stored.count:
        more = loaded.count - stored.count
        return Step(State.SURPLUS, f"{many(loaded.count, 'row')} made of {many(stored.count, 'message')} read", more)
    if loaded.has_others_than(stored):
        return Step(State.MIXED, f"{many(loaded.count, 'row')} made of as many messages, but not of the same ones")
    return EQUAL


def _settled_ms(facts: WindowFacts, step: Step) -> int:
    """From when on the counts that the step compares should have arrived."""
    times = [facts.window_end_ms]
    if facts.acknowledged is not None:
        times.append(facts.acknowledged.last_ms)
    if facts.stored is not None and step.state in (State.SURPLUS, State.UNCOUNTED):
        times.append(facts.stored.last_ms)
    return max(times)


def _is_overdue(facts: WindowFacts, step: Step, before_ms: int) -> bool:
    """Whether a window without an end lacks messages that were acknowledged until `before_ms`."""
    return not facts.has_end and step.state is State.SHORT and -step.difference > recent(facts, before_ms)


def recent(facts: WindowFacts, before_ms: int) -> int:
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
