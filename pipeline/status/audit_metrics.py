"""The metrics of the audit, from its stored verdicts. Pure.

The cost depends on the number of topics, not on the history: a summary and two strips for each topic, and the incidents
of a day.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from headrace.audit.event import AuditEvent, Incident
from headrace.audit.row import Tier
from headrace.audit.stored import (
    COMPLETENESS_BOUNDS_MS,
    LOADED,
    LOG,
    CompletenessTotals,
    ProducerFault,
    ProducerFaultKind,
    TopicSummary,
)
from headrace.audit.strip import STATE_BYTES, WINDOWS_OF_DAY, place_of
from headrace.audit.verdict import AuditVerdict
from headrace.pipeline.status.metric import OTHER, TOPICS_MAX, StatusMetric, histogram

TIER_NAMES: Final[Mapping[Tier, str]] = {
    Tier.PRODUCER: "producer",
    Tier.BROKER: "log",
    Tier.LOADER: "table",
    Tier.CONSUMER: "consumer",
}
COMPLETENESS_NAMES: Final[Mapping[str, str]] = {LOG: "log", LOADED: "table"}


def measured_topics(summaries: Iterable[TopicSummary]) -> frozenset[str]:
    """Returns the topics with their own series: those with most findings, then with most pending windows and messages
    of the last 24 hours."""
    ordered = sorted(summaries, key=lambda one: (-one.findings, -one.pending, -one.messages_24h, one.topic))
    return frozenset(one.topic for one in ordered[:TOPICS_MAX])


def windows_by_verdict(strips: Mapping[str, bytes], topics: Collection[str], now_ms: int) -> Iterator[StatusMetric]:
    """Yields the number of windows of the last 24 hours by topic and verdict.

    Args:
        strips: by topic, the strips of yesterday and today, joined.
        topics: the topics with their own series.
    """
    end = WINDOWS_OF_DAY + place_of(now_ms) + 1
    counts: Counter[tuple[str, AuditVerdict]] = Counter()
    for topic, strip in strips.items():
        day = strip[end - WINDOWS_OF_DAY : end]
        for verdict, byte in STATE_BYTES.items():
            if number := day.count(byte):
                counts[topic if topic in topics else OTHER, verdict] += number
    for (topic, verdict), number in sorted(counts.items()):
        yield StatusMetric("headrace_audit_windows", number, (("topic", topic), ("state", verdict.value)))


def differences(events: Iterable[AuditEvent], topics: Collection[str]) -> Iterator[StatusMetric]:
    """Yields the missing and extra messages of open events by topic and hop."""
    missing: Counter[tuple[str, str]] = Counter()
    extra: Counter[tuple[str, str]] = Counter()
    for event in events:
        if event.is_open:
            key = (event.topic if event.topic in topics else OTHER, event.hop.value)
            missing[key] += event.missing
            extra[key] += event.extra
    for name, counts in (("missing", missing), ("extra", extra)):
        for (topic, hop), number in sorted(counts.items()):
            yield StatusMetric(f"headrace_audit_{name}_messages", number, (("topic", topic), ("hop", hop)))


def extra_shares(shares: Mapping[str, float], topics: Collection[str]) -> Iterator[StatusMetric]:
    """Yields the largest share of extra messages in a window by topic; for the other topics the largest one."""
    largest: dict[str, float] = {}
    for topic, share in shares.items():
        name = topic if topic in topics else OTHER
        largest[name] = max(largest.get(name, 0), share)
    for topic, share in sorted(largest.items()):
        yield StatusMetric("headrace_audit_extra_ratio", share, (("topic", topic),))


_FAULT_NAMES: Final = {
    ProducerFaultKind.CRASHED: "undelivered",
    ProducerFaultKind.AHEAD: "future",
    ProducerFaultKind.BEHIND: "past",
}


def producer_faults(faults: Iterable[ProducerFault], topics: Collection[str]) -> Iterator[StatusMetric]:
    """Yields the messages of crashed producers that did not arrive, and those with times in the future or the past, by
    topic."""
    counts: Counter[tuple[str, str]] = Counter()
    for fault in faults:
        name = _FAULT_NAMES[fault.kind]
        counts[name, fault.topic if fault.topic in topics else OTHER] += fault.messages
    for (name, topic), number in sorted(counts.items()):
        yield StatusMetric(f"headrace_audit_{name}_messages", number, (("topic", topic),))


def incident_counts(incidents: Iterable[Incident], losses: Collection[AuditVerdict]) -> Iterator[StatusMetric]:
    """Yields the number of incidents by state and severity, also if it is 0.

    Args:
        losses: the verdicts that are failures; the others need attention.
    """
    counts = Counter(
        ("open" if one.closed_at_ms is None else "closed", "failure" if one.verdict in losses else "attention")
        for one in incidents
    )
    for state in ("open", "closed"):
        for severity in ("failure", "attention"):
            labels = (("state", state), ("severity", severity))
            yield StatusMetric("headrace_audit_events", counts[state, severity], labels)


def complete_until(summaries: Sequence[TopicSummary], topics: Collection[str]) -> Iterator[StatusMetric]:
    """Yields the time until which each topic is complete, by tier; for the other topics the earliest one, of those with
    messages in the last 24 hours."""
    earliest: dict[tuple[str, str], float] = {}
    for one in summaries:
        is_measured = one.topic in topics
        if not (is_measured or one.messages_24h):
            continue
        for tier, time_ms in (("log", one.complete_until_log_ms), ("table", one.complete_until_loaded_ms)):
            if time_ms is not None:
                key = (one.topic if is_measured else OTHER, tier)
                earliest[key] = min(earliest.get(key, float("inf")), time_ms / 1000)
    for (topic, tier), time_s in sorted(earliest.items()):
        labels = (("topic", topic), ("tier", tier))
        yield StatusMetric("headrace_audit_complete_until_timestamp_seconds", time_s, labels)


def completeness(totals: Mapping[tuple[str, str], CompletenessTotals]) -> Iterator[StatusMetric]:
    """Yields the histograms of the times to completeness, by tier and share."""
    bounds_s = [bound_ms // 1000 for bound_ms in COMPLETENESS_BOUNDS_MS]
    for (tier, share), one in totals.items():
        labels = (("tier", COMPLETENESS_NAMES[tier]), ("share", share))
        yield from histogram("headrace_audit_completeness_seconds", bounds_s, one.windows, one.sum_ms / 1000, labels)


def last_counts(times_ms: Mapping[Tier, int]) -> Iterator[StatusMetric]:
    for tier, time_ms in sorted(times_ms.items()):
        labels = (("tier", TIER_NAMES[tier]),)
        yield StatusMetric("headrace_audit_tier_last_count_timestamp_seconds", time_ms / 1000, labels)
