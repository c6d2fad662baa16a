"""Compares the counts of all tiers for each window of a topic, and returns verdicts.

Two pairs of tiers are compared. Producer and log: every message that a broker acknowledged must be in the log. Log and
tables: every message that the loader read must be a row of the table or of the quarantine. Equal counts with different
fingerprints mean different messages, so a lost and a duplicated message are found although the count is right. All
functions are pure; the current time is an argument.

- `untracked`: the log contains more messages than producers counted: a producer of the topic does not count, or a
  producer sent messages twice. This is not a finding, but it may hide as many lost messages between producer and log.
  If offsets were counted twice, or if the settings declare that all producers of the topic count, the verdict is
  `extra`.
- `accepted`: a finding or `unknown` window that an operator accepted, as long as verdict and difference are the same. A
  finding or `unknown` window for which nothing was counted for `findings_ttl_ms` becomes `expired`, so that old
  findings do not stay in the report for ever.
- A producer that crashed or received no response leaves messages that may or may not be in the log. Neither case is a
  finding.

The window of times out of range (`window.OUT_OF_RANGE_MS`) is compared like any other, but it has no end after which
its counts are final. Missing messages are a finding when they exceed the number that producers counted within the grace
period.

A tier that found times in too many windows counted the rest in `window.SCATTERED_MS`, and each tier may have put
different messages there. This window is therefore added to the windows of the topic whose producer and log counts
differ, and the sum is compared. Windows with counts made within the grace period are not added. If no producer counted
some of the added windows, extra messages or other content in the log are `unknown`.

Consumer counts are shown without a verdict, because an application may start late or stop early.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from headrace.audit.compare import EQUAL, IN_FLIGHT, compare_log_with_tables, counted_after, reconcile_window
from headrace.audit.facts import Count, WindowFacts, merge_windows
from headrace.audit.offsets import CONTIGUOUS, OffsetCheck, ranges_text
from headrace.audit.verdict import (
    ALL_TIME,
    EXPIRABLE,
    FINAL_VERDICTS,
    FINDINGS,
    NO_FINDING_POLICY,
    SEVERITY,
    AuditVerdict,
    FindingPolicy,
    Period,
    TopicContext,
    TopicResult,
    WindowResult,
)
from headrace.audit.window import OUT_OF_RANGE_MS, SCATTERED_MS, WINDOWS_MAX, count_text, duration_text, time_text


def reconcile_topics(
    facts: Iterable[WindowFacts],
    offsets: Mapping[str, OffsetCheck],
    *,
    now_ms: int,
    grace_ms: int,
    policy: FindingPolicy = NO_FINDING_POLICY,
    period: Period = ALL_TIME,
) -> tuple[TopicResult, ...]:
    """Returns the results of all topics that have a window in the period: the most severe first, then by name.

    Args:
        facts: the counts of all windows, ordered by topic and time.
        offsets: the holes, overlaps and skipped ranges of each topic's counted offsets.
        now_ms: the current time.
        grace_ms: time in which further counts may arrive, as in `reconcile_window`.
        policy: decisions of operators about findings.
        period: limits the windows of the results.
    """
    results = [
        reconcile_topic(
            topic,
            tuple(group),
            offsets.get(topic, CONTIGUOUS),
            now_ms=now_ms,
            grace_ms=grace_ms,
            policy=policy,
            period=period,
        )
        for topic, group in groupby(facts, key=lambda window: window.topic)
    ]
    results = [result for result in results if result.windows]
    return tuple(sorted(results, key=lambda result: (-SEVERITY.index(result.verdict), result.topic)))


def reconcile_topic(
    topic: str,
    facts: Sequence[WindowFacts],
    offsets: OffsetCheck,
    *,
    now_ms: int,
    grace_ms: int,
    policy: FindingPolicy = NO_FINDING_POLICY,
    period: Period = ALL_TIME,
) -> TopicResult:
    """Compares the counts of all windows of one topic, and returns the result for its windows in the period.

    Args:
        topic: the topic.
        facts: the counts of all its windows, ordered by time.
        offsets: the holes, overlaps and skipped ranges of its counted offsets.
        now_ms: the current time.
        grace_ms: time in which further counts may arrive, as in `reconcile_window`.
        policy: decisions of operators about findings.
        period: limits the windows of the result.
    """
    context = TopicContext(
        is_read=any(window.stored is not None for window in facts),
        is_loaded=any(window.loaded is not None for window in facts),
        offsets=offsets,
        all_producers_count=policy.all_producers_count(topic),
    )
    windows = reconcile_windows(facts, context, now_ms=now_ms, grace_ms=grace_ms, policy=policy)
    silent = all(window.acknowledged is None for window in facts)
    windows = tuple(window for window in windows if period.overlaps(window.facts))
    facts = tuple(window for window in facts if period.overlaps(window))
    sums = _sums(windows, facts)
    latencies = sorted(window.latency_ms for window in windows if window.latency_ms is not None)
    return TopicResult(
        topic=topic,
        verdict=sums.verdict,
        sentence=topic_sentence(sums),
        windows=windows,
        totals=_totals(facts),
        verdict_counts=sums.verdict_counts,
        producer_is_silent=silent,
        untracked=0 if silent else _untracked_count(windows),
        complete_until_ms=_complete_until(windows, now_ms),
        latency_p50_ms=percentile(latencies, 50),
        latency_p95_ms=percentile(latencies, 95),
    )


def reconcile_windows(
    facts: Sequence[WindowFacts],
    context: TopicContext,
    *,
    now_ms: int,
    grace_ms: int,
    policy: FindingPolicy = NO_FINDING_POLICY,
) -> tuple[WindowResult, ...]:
    """Compares the counts of windows of one topic, and returns their results.

    The result of a window depends on other windows in two cases: if the topic has a window SCATTERED_MS, `facts` must
    be all its windows; if commits skipped offsets of the topic, all windows whose log lacks messages.

    Args:
        facts: the counts of the windows, ordered by time.
        context: properties of the topic.
        now_ms: the current time.
        grace_ms: time in which further counts may arrive, as in `reconcile_window`.
        policy: decisions of operators about findings.
    """
    pooled, separate = _split_scattered(facts, now_ms - grace_ms)
    windows = tuple(reconcile_window(window, context, now_ms=now_ms, grace_ms=grace_ms) for window in separate)
    if pooled:
        windows = (_reconcile_pooled(pooled, separate, context, now_ms=now_ms, grace_ms=grace_ms), *windows)
    return _apply_policy(_explain_by_skipped_offsets(windows, context), policy, now_ms)


def verdict_thresholds(facts: WindowFacts, grace_ms: int, findings_ttl_ms: int | None) -> tuple[int, ...]:
    """Returns the times at which the verdict of a window may change although no counts arrive. Between two of them it
    stays. A window with the verdict `complete` has none, unless its topic has a window SCATTERED_MS.

    Args:
        facts: the counts of the window.
        grace_ms: time in which further counts may arrive.
        findings_ttl_ms: time after which a finding expires; None means never.
    """
    times = {facts.window_end_ms, facts.last_counted_ms}
    times.update(count.last_ms for count in (facts.acknowledged, facts.stored) if count is not None)
    times.update(emitted_at_ms for emitted_at_ms, _ in facts.sends)
    expiry = () if findings_ttl_ms is None else (facts.last_counted_ms + findings_ttl_ms,)
    return (*(time_ms + grace_ms for time_ms in times), *expiry)


def _explain_by_skipped_offsets(windows: tuple[WindowResult, ...], context: TopicContext) -> tuple[WindowResult, ...]:
    """Returns the windows of a topic, with the verdict `skipped` instead of `missing` if the offsets that commits
    skipped can explain all missing messages of the topic.

    The windows of the messages at skipped offsets, such as those of a corrupt batch, are unknown. The explanation
    therefore holds for all windows or for none: it holds if no more messages are missing than offsets were skipped.
    Only messages that are missing in the log are explained, because every message that was read must be in a row.

    Args:
        windows: all windows of the topic with their verdicts.
        context: properties of the topic, among them the skipped offsets.
    """
    offsets = context.offsets
    incomplete = [
        window
        for window in windows
        if window.verdict is AuditVerdict.MISSING
        and compare_log_with_tables(window.facts, context).verdict is AuditVerdict.COMPLETE
    ]
    missing = -sum(window.difference for window in incomplete)
    if not incomplete or missing > offsets.skipped_count:
        return windows
    reason = f"commits skipped {count_text(offsets.skipped_count, 'offset')}: {ranges_text(offsets.skipped)}"
    explained = {id(window): _override(window, AuditVerdict.SKIPPED, reason) for window in incomplete}
    return tuple(explained.get(id(window), window) for window in windows)


def _apply_policy(windows: tuple[WindowResult, ...], policy: FindingPolicy, now_ms: int) -> tuple[WindowResult, ...]:
    accepted = {(one.topic, one.window_start_ms, one.verdict, one.difference): one for one in policy.accepted}
    found = []
    for window in windows:
        key = (window.facts.topic, window.facts.window_start_ms, window.verdict, window.difference)
        if key in accepted:
            acceptance = accepted[key]
            reason = f"accepted {time_text(acceptance.accepted_at_ms)} by {acceptance.accepted_by}: {acceptance.reason}"
            window = replace(window, verdict=AuditVerdict.ACCEPTED, sentence=f"{window.sentence}; {reason}")
        elif window.verdict in EXPIRABLE and _has_expired(window.facts, policy.findings_ttl_ms, now_ms):
            since = time_text(window.facts.last_counted_ms)
            reason = f"{window.verdict}, but nothing was counted for it since {since}"
            window = replace(window, verdict=AuditVerdict.EXPIRED, sentence=f"{window.sentence}; {reason}")
        found.append(window)
    return tuple(found)


def _has_expired(facts: WindowFacts, findings_ttl_ms: int | None, now_ms: int) -> bool:
    return findings_ttl_ms is not None and facts.last_counted_ms + findings_ttl_ms <= now_ms


def _untracked_count(windows: Sequence[WindowResult]) -> int:
    """Returns how many messages in the log of a topic come from producers that publish no audit counts. `windows` are
    the topic's windows of the result, with their verdicts."""
    untracked = sum(window.difference for window in windows if window.verdict is AuditVerdict.UNTRACKED)
    uncounted = [window.facts.stored for window in windows if window.facts.acknowledged is None]
    return untracked + sum(stored.count for stored in uncounted if stored is not None)


def _split_scattered(
    facts: Sequence[WindowFacts], before_ms: int
) -> tuple[tuple[WindowFacts, ...], tuple[WindowFacts, ...]]:
    """Splits the windows of a topic into two groups, and returns both: the first one is added up and compared as a sum,
    the windows of the second one are compared separately.

    The first group consists of the special window SCATTERED_MS, in which a tier counts messages when their times open
    too many windows, and of windows whose producer and log counts differ or which have unacknowledged messages. It is
    empty without a SCATTERED_MS window, and if no producer counted.

    Args:
        facts: the counts of each window.
        before_ms: a window with a count that was made after this time belongs to the second group, because it would
            make the verdict of the sum pending.
    """
    scattered = [window for window in facts if window.window_start_ms == SCATTERED_MS]
    if not scattered or all(window.acknowledged is None for window in facts):
        return (), tuple(facts)
    differing = [
        window for window in facts if window.has_end and not _is_equal(window) and window.last_counted_ms <= before_ms
    ]
    pooled_ids = {id(window) for window in (*scattered, *differing)}
    return (*scattered, *differing), tuple(window for window in facts if id(window) not in pooled_ids)


def _is_equal(facts: WindowFacts) -> bool:
    """Returns whether producers and log counted the same messages in a window, and all sent ones are acknowledged."""
    acknowledged, stored = facts.acknowledged, facts.stored
    if acknowledged is None or stored is None:
        return False
    return facts.sent <= acknowledged.count == stored.count and not acknowledged.differs_from(stored)


def _reconcile_pooled(
    facts: Sequence[WindowFacts],
    separate: Sequence[WindowFacts],
    context: TopicContext,
    *,
    now_ms: int,
    grace_ms: int,
) -> WindowResult:
    """Adds up the counts of several windows, and returns the verdict of the sum. The result stands for the special
    window SCATTERED_MS, in which a tier counts messages when their times open too many windows.

    Args:
        facts: the windows to add up; one of them is SCATTERED_MS.
        separate: the topic's other windows, which are compared one by one. If their counts differ, they may contain the
            messages that are missing in the sum.
        context: properties of the topic.
        now_ms: the current time.
        grace_ms: time in which further counts may arrive, as in `reconcile_window`.
    """
    total = merge_windows(facts, SCATTERED_MS)
    result = reconcile_window(total, context, now_ms=now_ms, grace_ms=grace_ms)
    if result.verdict in FINDINGS | {AuditVerdict.UNTRACKED} and compare_log_with_tables(total, context) is EQUAL:
        untracked = sum(window.acknowledged is None for window in facts if window.has_end)
        if _may_resolve(total, result, separate, now_ms - grace_ms):
            result = _override(result, AuditVerdict.PENDING, IN_FLIGHT)
        elif untracked and result.verdict is not AuditVerdict.MISSING:
            reason = f"in {count_text(untracked, 'window')} no producer counted, so missing messages cannot be detected"
            result = _override(result, AuditVerdict.UNKNOWN, reason)
    note = f"sum of {count_text(len(facts), 'window')}, because a tier found times in more than {WINDOWS_MAX:,} windows"
    return replace(result, sentence=f"{result.sentence} ({note})")


def _may_resolve(total: WindowFacts, result: WindowResult, separate: Sequence[WindowFacts], before_ms: int) -> bool:
    """Returns whether the difference of a sum of windows may disappear once all counts have arrived. Two causes are
    possible: messages are in flight, or other windows of the topic have the opposite difference.

    Args:
        total: the sum of the windows.
        result: the verdict of the sum.
        separate: the topic's windows that are not part of the sum.
        before_ms: messages that producers counted after this time may still arrive in the log.
    """
    excess = [_excess_in_log(window) for window in separate if window.has_end]
    if result.verdict is AuditVerdict.MISSING:
        return -result.difference <= counted_after(total, before_ms) + sum(count for count in excess if count > 0)
    if result.verdict in (AuditVerdict.EXTRA, AuditVerdict.UNTRACKED):
        return result.difference <= -sum(count for count in excess if count < 0)
    return any(not _is_equal(window) for window in separate if window.has_end)


def _excess_in_log(facts: WindowFacts) -> int:
    """Returns how many more messages of a window the log contains than producers counted; negative if fewer."""
    stored, acknowledged = facts.stored, facts.acknowledged
    return (stored.count if stored else 0) - (acknowledged.count if acknowledged else 0)


def _override(result: WindowResult, verdict: AuditVerdict, reason: str) -> WindowResult:
    return replace(result, verdict=verdict, difference=0, missing=0, extra=0, sentence=f"{result.sentence}; {reason}")


def percentile(ordered: Sequence[int], percent: int) -> int | None:
    """Returns the smallest value such that at least `percent` percent of the values are not greater; None without
    values.

    Args:
        ordered: the values, ascending.
        percent: the percentage, such as 95.
    """
    return ordered[(len(ordered) * percent + 99) // 100 - 1] if ordered else None


def _complete_until(windows: Sequence[WindowResult], now_ms: int) -> int | None:
    until = None
    for window in windows:
        if window.facts.window_start_ms == OUT_OF_RANGE_MS:
            continue  # its messages have no usable time
        if window.facts.window_start_ms == SCATTERED_MS:
            if window.verdict in (AuditVerdict.COMPLETE, AuditVerdict.ACCEPTED):
                continue
            break  # its missing messages may have any time
        if window.verdict not in FINAL_VERDICTS or window.facts.window_end_ms > now_ms:
            break
        until = window.facts.window_end_ms
    return until


def _totals(facts: Sequence[WindowFacts]) -> dict[str, int]:
    """Returns the sums of a topic's counts over its windows `facts`. The keys are `sent`, `acknowledged`, `stored`,
    `written`, `quarantined` and `consumed by <application>`. A count that no tier reported has no key; 0 means that a
    tier reported 0."""
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


@dataclass(frozen=True, slots=True)
class TopicSums:
    """Sums over the windows of a topic, for the sentence about it.

    Attributes:
        windows: number of windows.
        verdict_counts: the same by verdict.
        uncounted: number of windows in which no producer counted.
        missing, extra: messages, by the sign of a window's difference; `extra` without untracked windows.
        untracked: extra messages of untracked windows.
        slowest_ms: the longest latency of a window; None without latencies.
    """

    windows: int
    verdict_counts: Mapping[AuditVerdict, int]
    uncounted: int
    missing: int
    extra: int
    untracked: int
    slowest_ms: int | None

    @property
    def verdict(self) -> AuditVerdict:
        """The most severe verdict."""
        return max(
            (one for one, count in self.verdict_counts.items() if count), key=SEVERITY.index, default=SEVERITY[0]
        )


def _sums(windows: Sequence[WindowResult], facts: Sequence[WindowFacts]) -> TopicSums:
    differences = [(window.verdict, window.difference) for window in windows]
    untracked = sum(difference for verdict, difference in differences if verdict is AuditVerdict.UNTRACKED)
    return TopicSums(
        windows=len(windows),
        verdict_counts=Counter(window.verdict for window in windows),
        uncounted=sum(window.acknowledged is None for window in facts),
        missing=-sum(difference for _, difference in differences if difference < 0),
        extra=sum(difference for _, difference in differences if difference > 0) - untracked,
        untracked=untracked,
        slowest_ms=max((window.latency_ms for window in windows if window.latency_ms is not None), default=None),
    )


def topic_sentence(sums: TopicSums) -> str:
    """Returns the sentence about a topic: its windows by verdict, and the messages that differ."""
    if sums.uncounted == sums.windows:
        note = "; its producers do not count, so only log and tables are compared"
    elif sums.uncounted:
        uncounted = count_text(sums.uncounted, "window")
        note = f"; in {uncounted} no producer counted, so only log and tables are compared there"
    else:
        note = ""
    if sums.verdict is AuditVerdict.COMPLETE:
        latency = "" if sums.slowest_ms is None else f", the slowest after {duration_text(sums.slowest_ms)}"
        return f"{'all ' if sums.windows > 1 else ''}{count_text(sums.windows, 'window')} complete{latency}{note}"
    verdicts = [f"{sums.verdict_counts[kind]} {kind}" for kind in reversed(SEVERITY) if sums.verdict_counts.get(kind)]
    messages = [f"{count_text(sums.missing, 'message')} missing"] if sums.missing else []
    messages += [f"{count_text(sums.extra, 'message')} extra"] if sums.extra else []
    if sums.untracked:
        messages.append(f"{count_text(sums.untracked, 'message')} of producers that do not count")
    return (
        f"of {count_text(sums.windows, 'window')} {', '.join(verdicts)}"
        + "".join(f"; {text}" for text in messages)
        + note
    )
