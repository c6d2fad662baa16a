"""The audit report: one line per topic, then every window that is not complete, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace.audit.verdict import FINDINGS, SEVERITY, State, TopicVerdict, WindowVerdict
from headrace.audit.window import duration_text, many, time_text, window_text

WINDOWS_SHOWN: Final = 20
"""Windows listed per topic in the text: more than that are one event seen many times."""

TIERS: Final = ("sent", "acknowledged", "stored", "written", "quarantined")
"""The columns of counts, in the order in which messages pass."""

MEANINGS: Final = {
    "sent": "handed to the Kafka client by producers that count",
    "acknowledged": "of these, acknowledged by the brokers",
    "stored": "found in the log by the loader",
    "written": "rows of the topic's table",
    "quarantined": "rows of the topic's quarantine",
    "loaded within": "how long 95 % of the windows took from their end, or their last message, until loaded to 99.9 %",
}


@dataclass(frozen=True, slots=True)
class Listing:
    """A table for people; `right` are the columns aligned to the right."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[int, ...]


def worst_state(verdicts: Iterable[TopicVerdict]) -> State:
    """The worst verdict of all; complete when there is none."""
    return max((verdict.state for verdict in verdicts), key=SEVERITY.index, default=State.COMPLETE)


def has_findings(verdicts: Iterable[TopicVerdict]) -> bool:
    """Whether any topic has lost, doubled or mixed messages."""
    return any(state in FINDINGS for verdict in verdicts for state in verdict.states)


def topics_listing(verdicts: Sequence[TopicVerdict]) -> Listing:
    """One row per topic: verdict, counts per tier, how long loads took, and up to where it is complete."""
    rows = tuple(
        (
            verdict.topic,
            verdict.state.value,
            *(_count(verdict.totals.get(tier)) for tier in TIERS),
            "-" if verdict.latency_p95_ms is None else duration_text(verdict.latency_p95_ms),
            "-" if verdict.complete_until_ms is None else time_text(verdict.complete_until_ms),
        )
        for verdict in verdicts
    )
    header = ("topic", "verdict", *TIERS, "loaded within", "complete until")
    return Listing(header, rows, tuple(range(2, 2 + len(TIERS))))


def topic_lines(verdict: TopicVerdict) -> list[str]:
    """What there is to say of one topic beyond its counts, its worst windows first."""
    lines = [f"{verdict.topic}: {verdict.sentence}"]
    lines += [f"  {name}: {count:,}" for name, count in verdict.totals.items() if name.startswith("consumed by ")]
    listed = [window for window in not_complete(verdict) if window.state is not State.PENDING]
    lines += [
        f"  {window.state.value:8} {window_text(window.facts.window_start_ms)}  {window.sentence}"
        for window in listed[:WINDOWS_SHOWN]
    ]
    if len(listed) > WINDOWS_SHOWN:
        lines.append(f"  … and {len(listed) - WINDOWS_SHOWN} more windows (--format json lists them)")
    return lines + _pending_lines([window for window in verdict.windows if window.state is State.PENDING])


def _pending_lines(windows: Sequence[WindowVerdict]) -> list[str]:
    """Windows to wait for need no line each."""
    if not windows:
        return []
    first, last = windows[0], windows[-1]
    if first is last:
        return [f"  pending  {window_text(first.facts.window_start_ms)}  {first.sentence}"]
    span = f"{window_text(first.facts.window_start_ms)} … {window_text(last.facts.window_start_ms)}"
    return [f"  pending  {span}  {many(len(windows), 'window')}, the first because {first.sentence}"]


def not_complete(verdict: TopicVerdict) -> list[WindowVerdict]:
    """The windows to look at, the worst first, then by time."""
    return sorted(
        (window for window in verdict.windows if window.state is not State.COMPLETE),
        key=lambda window: (-SEVERITY.index(window.state), window.facts.window_start_ms),
    )


def as_json(verdicts: Sequence[TopicVerdict], bad_messages: int) -> dict[str, Any]:
    """The report for programs; windows that are complete are counted and not listed."""
    return {
        "verdict": worst_state(verdicts).value,
        "unreadable_audit_messages": bad_messages,
        "topics": [
            {
                "topic": verdict.topic,
                "verdict": verdict.state.value,
                "sentence": verdict.sentence,
                "producer_is_silent": verdict.producer_is_silent,
                "uncounted": verdict.uncounted,
                "counts": dict(verdict.totals),
                "windows": {state.value: count for state, count in verdict.states.items()},
                "complete_until_ms": verdict.complete_until_ms,
                "latency_p50_ms": verdict.latency_p50_ms,
                "latency_p95_ms": verdict.latency_p95_ms,
                "not_complete": [_window_json(window) for window in not_complete(verdict)],
            }
            for verdict in verdicts
        ],
    }


def _window_json(window: WindowVerdict) -> dict[str, Any]:
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
        "verdict": window.state.value,
        "sentence": window.sentence,
        "difference": window.difference,
        "counts": {
            "sent": facts.sent,
            **{name: count.count for name, count in counts.items() if count is not None},
        },
        "producer_crashed": facts.crashed,
    }


def _count(number: int | None) -> str:
    """A dash is a tier that said nothing, which is not 0."""
    return "-" if number is None else f"{number:,}"
