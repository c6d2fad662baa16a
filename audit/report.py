"""The audit report, as text and as JSON: one line per topic, then its windows that are not complete. The text lists at
most `WINDOWS_SHOWN` of them per topic, and the pending ones in one line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from headrace.audit.event import AuditEvent, producers_text
from headrace.audit.stored import LOADED, LOG, CompletenessTimes, ProducerFault
from headrace.audit.verdict import FINDINGS, SEVERITY, AuditVerdict, Hop, TopicResult, WindowResult
from headrace.audit.window import count_text, duration_text, time_text, window_text

WINDOWS_SHOWN: Final = 20
"""Maximum number of windows that the text lists per topic, besides the line about pending ones: a larger number usually
has one cause."""

TIERS: Final = ("sent", "acknowledged", "stored", "written", "quarantined")
"""The columns of counts, in the order in which messages pass the tiers."""

TIER_NAMES: Final[Mapping[str, str]] = {LOG: "log", LOADED: "table"}
"""The names of tiers with times to completeness, as in the metrics."""

COLUMN_DESCRIPTIONS: Final = {
    "sent": "messages that counting producers handed to the Kafka client",
    "acknowledged": "of these, messages that brokers acknowledged",
    "stored": "messages that the loader found in the log",
    "written": "rows of the topic's table",
    "quarantined": "rows of the topic's quarantine",
    "loaded within": "95th percentile of the time from a window's end (or last message) until 99.9 % of it were loaded",
}

ACCEPT: Final = "if the cause is known and cannot be repaired: `headrace audit accept {topic} --reason TEXT`"

NEXT_STEPS: Final[Mapping[AuditVerdict, str]] = {
    AuditVerdict.MISMATCH: f"`headrace verify {{topic}} --checksums` reads every file; {ACCEPT}",
    AuditVerdict.MISSING: "`headrace verify {topic}` finds lost files, `headrace quarantine list {topic}` shows "
    f"messages that were not loaded, `headrace load status` shows loads that have not ended; {ACCEPT}",
    AuditVerdict.EXTRA: "`headrace verify {topic}` finds files that no commit contains; producers that retry without "
    f"idempotence send messages twice; {ACCEPT}",
    AuditVerdict.UNKNOWN: "let all producers publish counts (audit.topic), and run a load; " + ACCEPT,
}
"""The next step of an operator, by the verdict of a topic."""

STEPS_BEFORE_THE_LOG: Final[Mapping[AuditVerdict, str]] = {
    AuditVerdict.MISMATCH: "search the logs of the producers for errors, and look for a proxy or library between them "
    f"and the brokers that changes messages; {ACCEPT}",
    AuditVerdict.MISSING: "`headrace load status` shows loads that have not ended; if all have, search the logs of the "
    f"producers and of the brokers at that time; {ACCEPT}",
    AuditVerdict.EXTRA: f"producers that retry without idempotence send messages twice; {ACCEPT}",
}
"""The next step if producers and log differ: the files of the table then have no part in it."""


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table of the audit report. `right` are the indexes of right-aligned columns."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[int, ...]


def worst_verdict(results: Iterable[TopicResult]) -> AuditVerdict:
    """Returns the most severe verdict, or `complete` without results."""
    return max((result.verdict for result in results), key=SEVERITY.index, default=AuditVerdict.COMPLETE)


def has_findings(results: Iterable[TopicResult]) -> bool:
    """Returns whether any window of these topics has the verdict `missing`, `extra` or `mismatch`."""
    return any(verdict in FINDINGS for result in results for verdict in result.verdict_counts)


def topics_listing(results: Sequence[TopicResult]) -> ReportTable:
    """Returns a table with one row per topic: verdict, counts by tier, latency, and the time until which it is
    complete."""
    rows = tuple(
        (
            result.topic,
            result.verdict.value,
            *(_count(result.totals.get(tier)) for tier in TIERS),
            "-" if result.latency_p95_ms is None else duration_text(result.latency_p95_ms),
            "-" if result.complete_until_ms is None else time_text(result.complete_until_ms),
        )
        for result in results
    )
    header = ("topic", "verdict", *TIERS, "loaded within", "complete until")
    return ReportTable(header, rows, tuple(range(2, 2 + len(TIERS))))


def completeness_listing(times: Mapping[str, CompletenessTimes]) -> ReportTable:
    """Returns a table of the times to completeness by tier and share. A dash stands for a percentile that more windows
    have not reached yet."""
    rows = tuple(
        (
            TIER_NAMES[tier],
            f"{share} %",
            f"{one.windows:,}",
            *("-" if ms is None else duration_text(ms) for ms in (one.p50_ms, one.p95_ms, one.p99_ms)),
            f"{one.unreached:,}",
        )
        for tier, shares in times.items()
        for share, one in shares.by_share.items()
        if one.windows
    )
    return ReportTable(("tier", "share", "windows", "p50", "p95", "p99", "not yet"), rows, (1, 2, 3, 4, 5, 6))


def completeness_json(times: Mapping[str, CompletenessTimes]) -> dict[str, Any]:
    """Returns the times to completeness as JSON values, by tier and share in percent."""
    return {
        TIER_NAMES[tier]: {share: one._asdict() for share, one in shares.by_share.items()}
        for tier, shares in times.items()
    }


@dataclass(frozen=True, slots=True)
class TopicCauses:
    """What is known about the cause of a topic's findings: its open events, and other faults of its producers as
    sentences."""

    events: tuple[AuditEvent, ...] = ()
    faults: tuple[str, ...] = ()


NO_CAUSES: Final = TopicCauses()


def causes_by_topic(
    events: Iterable[AuditEvent], faults: Iterable[ProducerFault], now_ms: int
) -> dict[str, TopicCauses]:
    """Returns the causes of the findings of each topic."""
    found: dict[str, TopicCauses] = {}
    for event in events:
        one = found.get(event.topic, NO_CAUSES)
        found[event.topic] = replace(one, events=(*one.events, event))
    for fault in faults:
        one = found.get(fault.topic, NO_CAUSES)
        found[fault.topic] = replace(one, faults=(*one.faults, fault.sentence(now_ms)))
    return found


def topic_lines(result: TopicResult, causes: TopicCauses = NO_CAUSES) -> list[str]:
    """Returns the lines about one topic in the text report: its verdict in a sentence, the counts of consumers, its
    incomplete windows (the most severe first, at most `WINDOWS_SHOWN`), one line about its pending windows, the
    producers that may be the cause, and the next step if its verdict needs action."""
    lines = [f"{result.topic}: {result.sentence}"]
    lines += [f"  {name}: {count:,}" for name, count in result.totals.items() if name.startswith("consumed by ")]
    listed = [window for window in incomplete_windows(result) if window.verdict is not AuditVerdict.PENDING]
    lines += [
        f"  {window.verdict.value:9} {window_text(window.facts.window_start_ms)}  {window.sentence}"
        for window in listed[:WINDOWS_SHOWN]
    ]
    if len(listed) > WINDOWS_SHOWN:
        lines.append(f"  … and {len(listed) - WINDOWS_SHOWN} more windows (--format json lists them)")
    lines += _pending_lines([window for window in result.windows if window.verdict is AuditVerdict.PENDING])
    lines += [
        f"  sent by   {producers_text(one.producers)}  (from {window_text(one.start_ms)} on)"
        for one in causes.events[:WINDOWS_SHOWN]
        if one.producers
    ]
    lines += [f"  producer  {fault}" for fault in causes.faults]
    step = next_step(result)
    return [*lines, f"  next      {step}"] if step else lines


def next_step(result: TopicResult) -> str:
    """Returns the next step of an operator for a topic, by its most severe windows; "" if there is nothing to do."""
    worst = [window.hop for window in result.windows if window.verdict is result.verdict]
    steps = NEXT_STEPS
    if worst and all(hop is Hop.PRODUCER_TO_LOG for hop in worst):
        steps = {**NEXT_STEPS, **STEPS_BEFORE_THE_LOG}
    return steps.get(result.verdict, "").format(topic=result.topic)


def _pending_lines(windows: Sequence[WindowResult]) -> list[str]:
    """Returns the one line of the report that summarizes the pending windows of a topic; empty without such windows."""
    if not windows:
        return []
    first, last = windows[0], windows[-1]
    if first is last:
        return [f"  pending   {window_text(first.facts.window_start_ms)}  {first.sentence}"]
    span = f"{window_text(first.facts.window_start_ms)} … {window_text(last.facts.window_start_ms)}"
    return [f"  pending   {span}  {count_text(len(windows), 'window')}, the first because {first.sentence}"]


def incomplete_windows(result: TopicResult) -> list[WindowResult]:
    """Returns the windows of a topic's result that are not complete, the most severe first, then by time."""
    return sorted(
        (window for window in result.windows if window.verdict is not AuditVerdict.COMPLETE),
        key=lambda window: (-SEVERITY.index(window.verdict), window.facts.window_start_ms),
    )


def as_json(
    results: Sequence[TopicResult], bad_messages: int, causes: Mapping[str, TopicCauses] = MappingProxyType({})
) -> dict[str, Any]:
    """Returns the report as JSON values. Complete windows are counted, but not listed.

    Args:
        results: the results of the topics.
        bad_messages: number of messages of the audit topic that are not audit rows.
        causes: what is known about the causes of findings, by topic.
    """
    return {
        "verdict": worst_verdict(results).value,
        "unreadable_audit_messages": bad_messages,
        "topics": [
            {
                "topic": result.topic,
                "verdict": result.verdict.value,
                "sentence": result.sentence,
                "next_step": next_step(result),
                "producer_is_silent": result.producer_is_silent,
                "untracked": result.untracked,
                "counts": dict(result.totals),
                "windows": {verdict.value: count for verdict, count in result.verdict_counts.items()},
                "complete_until_ms": result.complete_until_ms,
                "latency_p50_ms": result.latency_p50_ms,
                "latency_p95_ms": result.latency_p95_ms,
                "incomplete_windows": [_window_json(window) for window in incomplete_windows(result)],
                "events": [_event_json(event) for event in causes.get(result.topic, NO_CAUSES).events],
                "producer_faults": list(causes.get(result.topic, NO_CAUSES).faults),
            }
            for result in results
        ],
    }


def _event_json(event: AuditEvent) -> dict[str, Any]:
    return {
        "id": event.id,
        "verdict": event.verdict.value,
        "hop": event.hop.value,
        "start_ms": event.start_ms,
        "end_ms": event.end_ms,
        "windows": event.windows,
        "missing": event.missing,
        "extra": event.extra,
        "producers": [{"application": application, "host": host} for application, host in event.producers],
        "sentence": event.sentence,
    }


def _window_json(window: WindowResult) -> dict[str, Any]:
    facts = window.facts
    counts = {
        "acknowledged": facts.acknowledged,
        "stored": facts.stored,
        "written": facts.written,
        "quarantined": facts.quarantined,
    }
    return {
        "window": window_text(facts.window_start_ms),
        "window_start_ms": facts.window_start_ms,
        "window_end_ms": facts.window_end_ms,
        "verdict": window.verdict.value,
        "hop": window.hop.value,
        "sentence": window.sentence,
        "difference": window.difference,
        "counts": {
            "sent": facts.sent,
            **{name: count.count for name, count in counts.items() if count is not None},
        },
        "producer_crashed": facts.crashed,
    }


def _count(number: int | None) -> str:
    """Returns the count of a tier as text; a dash if it is None: the tier reported nothing, which differs from 0."""
    return "-" if number is None else f"{number:,}"
