"""Compares the counts of one window between producers, broker log and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headrace.audit.facts import Count, WindowFacts
from headrace.audit.offsets import ranges_text
from headrace.audit.stored import NO_TIMES, SHARES, TierTimes
from headrace.audit.verdict import SEVERITY, UNKNOWN_TOPIC, AuditVerdict, Hop, TopicContext, WindowResult
from headrace.audit.window import count_text

COMPLETE_SHARE: Final = (999, 1000)
"""The fraction 999/1000 of a window's messages. The latency of a window is the time until this fraction is loaded."""


@dataclass(frozen=True, slots=True)
class TierComparison:
    """The result of comparing a tier with the next one. `difference` is the number of extra (positive) or missing
    (negative) messages in the later tier."""

    verdict: AuditVerdict
    sentence: str = ""
    difference: int = 0


EQUAL = TierComparison(AuditVerdict.COMPLETE)
IN_FLIGHT: Final = "further counts may follow"


def reconcile_window(
    facts: WindowFacts, context: TopicContext = UNKNOWN_TOPIC, *, now_ms: int, grace_ms: int
) -> WindowResult:
    """Compares the counts of one window between producers, log and tables, and returns the verdict.

    A difference between producers and log is `pending` until `grace_ms` after the end of the window and after its
    newest producer row; so are missing counts that would be `unknown`. If the log has more messages, the newest count
    of the log is considered, too. A difference between the auditor's count of the log and the messages that loads read
    is `pending` until `grace_ms` after the end of the window and after the auditor's newest row. A special window has
    no end: missing messages are `pending` only up to the number that producers counted within the last `grace_ms`. A
    difference between the messages read and the tables is never `pending`.

    Args:
        facts: the counts of the window.
        context: properties of the topic, such as whether the loader counts its messages.
        now_ms: the current time.
        grace_ms: time in which further counts may arrive.
    """
    to_log = _producer_to_log(facts, context)
    to_read = _log_to_read(facts, context)
    to_tables = compare_log_with_tables(facts, context)
    if to_log is to_read is to_tables is EQUAL:  # most windows
        sentence = _complete_sentence(facts)
        return WindowResult(facts, AuditVerdict.COMPLETE, sentence, latency_ms=_latency_ms(facts))
    is_early = now_ms < _expected_by_ms(facts, to_log) + grace_ms and not _is_overdue(facts, to_log, now_ms - grace_ms)
    if to_log.verdict is not AuditVerdict.COMPLETE and is_early:
        to_log = TierComparison(AuditVerdict.PENDING, f"{to_log.sentence}; {IN_FLIGHT}")
    if to_read.verdict is not AuditVerdict.COMPLETE and now_ms < _countable_by_ms(facts) + grace_ms:
        to_read = TierComparison(AuditVerdict.PENDING, f"{to_read.sentence}; {IN_FLIGHT}")
    pairs = {Hop.PRODUCER_TO_LOG: to_log, Hop.LOG_TO_READ: to_read, Hop.LOG_TO_TABLES: to_tables}
    differing = {hop: step for hop, step in pairs.items() if step.verdict is not AuditVerdict.COMPLETE}
    return WindowResult(
        facts=facts,
        verdict=_combine_verdicts(to_log.verdict, _combine_verdicts(to_read.verdict, to_tables.verdict)),
        sentence="; ".join(step.sentence for step in differing.values()) or _complete_sentence(facts),
        difference=sum(step.difference for step in pairs.values()),
        latency_ms=_latency_ms(facts),
        hop=next(iter(differing), Hop.NONE),
        missing=sum(-step.difference for step in differing.values() if step.difference < 0),
        extra=sum(step.difference for step in differing.values() if step.difference > 0),
    )


def _producer_to_log(facts: WindowFacts, context: TopicContext) -> TierComparison:
    acknowledged, stored = facts.acknowledged, facts.stored
    if acknowledged is None:
        if stored is not None or facts.loaded is not None:
            return EQUAL
        return TierComparison(AuditVerdict.UNKNOWN, "neither producers nor the loader counted this window")
    if stored is None:
        if acknowledged.count == 0:
            return EQUAL
        if not context.is_read:
            return TierComparison(
                AuditVerdict.UNKNOWN,
                f"producers sent {count_text(acknowledged.count, 'message')} and the loader has not counted this topic",
            )
        stored = Count(0, 0, 0)
    return _compare_with_log(facts, acknowledged, stored, context)


def _compare_with_log(facts: WindowFacts, acknowledged: Count, stored: Count, context: TopicContext) -> TierComparison:
    offsets = context.offsets
    unacknowledged = max(facts.sent - acknowledged.count, 0)
    missing = acknowledged.count - stored.count
    if missing > 0:
        location = (
            f"offsets that no load counted: {ranges_text(offsets.holes)}"
            if offsets.holes
            else "the counted offsets have no gap: the messages are not loaded yet, or the log lost them"
        )
        return TierComparison(
            AuditVerdict.MISSING,
            f"{missing:,} of {count_text(acknowledged.count, 'message')} that brokers acknowledged are missing in "
            f"the log ({location})",
            -missing,
        )
    if -missing > unacknowledged:
        if offsets.overlaps:
            verdict, cause = AuditVerdict.EXTRA, f"offsets counted twice: {ranges_text(offsets.overlaps)}"
        elif context.all_producers_count:
            verdict, cause = (
                AuditVerdict.EXTRA,
                "a producer sent messages twice, or a producer of the topic does not count",
            )
        else:
            verdict, cause = (
                AuditVerdict.UNTRACKED,
                "a producer of the topic does not count, or a producer sent messages twice",
            )
        return TierComparison(
            verdict,
            f"the log holds {count_text(stored.count, 'message')} and producers sent "
            f"{max(facts.sent, acknowledged.count):,} ({cause})",
            -missing - unacknowledged,
        )
    if missing == 0 and stored.differs_from(acknowledged) and unacknowledged == 0:
        return TierComparison(
            AuditVerdict.MISMATCH,
            f"the log holds {count_text(stored.count, 'message')} as acknowledged, but with other content: "
            "messages were altered on their way, or as many were lost as were duplicated or sent by other producers",
        )
    return EQUAL


def _log_to_read(facts: WindowFacts, context: TopicContext) -> TierComparison:
    """Compares the messages that the auditor counted in the log with the messages that loads read. There is nothing to
    compare without counts of the auditor, and for a topic that no load loads."""
    stored = facts.stored
    if not facts.is_audited or stored is None or not context.is_loaded:
        return EQUAL
    read = facts.read or Count(0, 0, 0)
    unread = stored.count - read.count
    if unread > 0:
        return TierComparison(
            AuditVerdict.MISSING,
            f"{unread:,} of {count_text(stored.count, 'message')} in the log were not read by loads",
            -unread,
        )
    if read.differs_from(stored):
        return TierComparison(
            AuditVerdict.MISMATCH,
            f"loads read {count_text(read.count, 'message')}, as many as the log holds, but with other content",
        )
    return EQUAL


def _countable_by_ms(facts: WindowFacts) -> int:
    """Returns the time from which loads have `grace_ms` to read the messages of a window."""
    return max(facts.window_end_ms, facts.stored.last_ms if facts.stored is not None else 0)


def compare_log_with_tables(facts: WindowFacts, context: TopicContext) -> TierComparison:
    """Compares the messages of a window that the loader read from the log with the rows that it wrote to the table and
    the quarantine. The verdict in the result is `complete` if these are the same messages, or if there are neither.

    Args:
        facts: the counts of the window.
        context: properties of the topic. If the loader has counted no row of the topic in any window, messages without
            rows are `unknown` instead of `missing`.
    """
    stored, loaded = facts.read if facts.is_audited else facts.stored, facts.loaded
    if stored is None:
        if loaded is None:
            return EQUAL
        return TierComparison(
            AuditVerdict.EXTRA,
            f"{count_text(loaded.count, 'row')} written for messages that no load read",
            loaded.count,
        )
    if loaded is None and not context.is_loaded:
        return TierComparison(
            AuditVerdict.UNKNOWN,
            f"{count_text(stored.count, 'message')} read, but the loader has counted no row for this topic",
        )
    loaded = loaded or Count(0, 0, 0)
    if loaded.count < stored.count:
        missing = stored.count - loaded.count
        return TierComparison(
            AuditVerdict.MISSING, f"{missing:,} of {count_text(stored.count, 'message')} read are in no row", -missing
        )
    if loaded.count > stored.count:
        extra = loaded.count - stored.count
        return TierComparison(
            AuditVerdict.EXTRA,
            f"{count_text(loaded.count, 'row')} written for {count_text(stored.count, 'message')} read",
            extra,
        )
    if loaded.differs_from(stored):
        return TierComparison(
            AuditVerdict.MISMATCH,
            f"{count_text(loaded.count, 'row')} written for as many messages read, but with other content",
        )
    return EQUAL


def _expected_by_ms(facts: WindowFacts, step: TierComparison) -> int:
    """Returns the time at which the grace period of a window begins, in milliseconds since 1970.

    Args:
        facts: the counts of the window.
        step: the comparison of the window's producer and log counts.
    """
    times = [facts.window_end_ms]
    if facts.acknowledged is not None:
        times.append(facts.acknowledged.last_ms)
    if facts.stored is not None and step.verdict in (AuditVerdict.EXTRA, AuditVerdict.UNTRACKED):
        times.append(facts.stored.last_ms)
    return max(times)


def _is_overdue(facts: WindowFacts, step: TierComparison, before_ms: int) -> bool:
    """Returns whether a special window, which has no end, lacks more messages than producers counted after `before_ms`.
    Older messages should have arrived by now.

    Args:
        facts: the counts of the window.
        step: the comparison of the window's producer and log counts.
        before_ms: the current time minus the grace period.
    """
    return (
        not facts.has_end
        and step.verdict is AuditVerdict.MISSING
        and -step.difference > counted_after(facts, before_ms)
    )


def counted_after(facts: WindowFacts, before_ms: int) -> int:
    """Returns the number of messages of a special window, which has no end, that producers counted after `before_ms`.
    `facts` are the counts of the window."""
    return sum(count for emitted_at_ms, count in facts.sends if emitted_at_ms > before_ms)


def _combine_verdicts(first: AuditVerdict, second: AuditVerdict) -> AuditVerdict:
    if AuditVerdict.MISSING in (first, second) and {first, second} & {AuditVerdict.EXTRA, AuditVerdict.UNTRACKED}:
        return AuditVerdict.MISMATCH
    return max(first, second, key=SEVERITY.index)


def _complete_sentence(facts: WindowFacts) -> str:
    if facts.acknowledged is None:
        return "all messages read from the log were loaded; no producer counted"
    unacknowledged = facts.sent - facts.acknowledged.count
    if unacknowledged > 0:
        arrived = (facts.stored.count if facts.stored else 0) - facts.acknowledged.count
        reason = "a producer crashed" if facts.crashed else "sends failed or are in flight"
        arrivals_text = f"of {count_text(unacknowledged, 'message')} not acknowledged ({reason}), {arrived:,} arrived"
        return f"all acknowledged messages were loaded; {arrivals_text}"
    return "every tier counted the same messages"


def _latency_ms(facts: WindowFacts) -> int | None:
    expected = facts.acknowledged or facts.stored
    if expected is None or expected.count == 0 or not facts.has_end:
        return None
    begin_ms = max(facts.window_end_ms, facts.acknowledged.last_ms if facts.acknowledged else 0)
    loaded = 0
    numerator, denominator = COMPLETE_SHARE
    for emitted_at_ms, count in facts.loads:
        loaded += count
        if loaded * denominator >= expected.count * numerator:
            return max(0, emitted_at_ms - begin_ms)
    return None


def log_times(facts: WindowFacts) -> TierTimes:
    """Returns when the log had the messages of a window: the times from the window's end until 99 %, 99.9 % and all of
    them were counted there. `facts` are the counts of the window."""
    return _tier_times(facts, facts.stores)


def loaded_times(facts: WindowFacts) -> TierTimes:
    """Returns when the tables and the quarantine had the messages of a window, like `log_times`."""
    return _tier_times(facts, facts.loads)


def _tier_times(facts: WindowFacts, counts: Sequence[tuple[int, int]]) -> TierTimes:
    expected = facts.acknowledged or facts.stored
    if expected is None or expected.count == 0 or not facts.has_end:
        return NO_TIMES
    if counts and counts[0][1] >= expected.count:  # most windows are complete with the first count
        time_ms = max(0, counts[0][0] - facts.window_end_ms)
        return TierTimes(time_ms, time_ms, time_ms)
    times: list[int] = []
    reached = 0
    needed = [-(-expected.count * numerator // denominator) for numerator, denominator in SHARES]
    for emitted_at_ms, count in counts:
        reached += count
        while reached >= needed[len(times)]:
            times.append(max(0, emitted_at_ms - facts.window_end_ms))
            if len(times) == len(needed):
                return TierTimes(*times)
    return TierTimes(*times)
