"""The lag of each topic, unread messages that retention deletes soon, offsets that were deleted before they were read,
and deleted topics.

Expiry needs a request for the retention of each 500 topics, and at most two per broker: for each partition with unread
messages, the offset of the first message that is younger than a limit; the second only where the first found some. If
the next offset is before it, the unread messages between them are older than the limit. A younger message at a lower
offset protects them: retention deletes whole segments, from the log start on, and stops at the first with a message
that has not expired. Messages may live longer than reported. For partitions with messages that expire within the longer
limit, `HALVINGS` more requests per broker find when the first one may expire.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.kafka_wire.admin import retention_times
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.inspect.backlog import TopicBacklog, backlogs
from headrace.loader.plan.discover import discover, is_wanted
from headrace.pipeline.status.context import LATE_FACTOR, StatusContext
from headrace.pipeline.status.finding import SourceReport, StatusFact, StatusFinding, finding
from headrace.pipeline.status.metric import StatusMetric, largest_topics
from headrace.pipeline.status.probe import Health
from headrace.pipeline.status.wording import age_text, count_text

SOON_INTERVALS: Final = 6
SOON_MS_MIN: Final = 2 * 3_600_000
LATER_MS: Final = 86_400_000
HALVINGS: Final = 10
"""Steps of the search for the time until messages expire: its error is 0.1 % of the longer limit."""


@dataclass(frozen=True, slots=True)
class _Limits:
    """The remaining times of unread messages, in milliseconds, below which they are a failure or need attention."""

    soon_ms: int
    later_ms: int


def backlog(context: StatusContext) -> SourceReport:
    """Reports lag, expiry and lost offsets; nothing if the brokers do not answer, which `parts` reports."""
    if context.brokers.health not in (Health.UP, Health.DEGRADED):
        reason = context.brokers.reason if context.brokers.health == Health.DOWN else "the brokers do not respond"
        return SourceReport((StatusFact("lag", f"unknown: {reason}"),), is_checked=False)
    found = _backlogs(context)
    expiring, expiry_text = _expiring(found, context)
    findings = [*_lost(found), *_unavailable(found), *_deleted(found, context), *expiring]
    findings += _without_runs(found, context)
    return SourceReport((_lag_fact(found, expiry_text),), tuple(findings))


def reported_losses(context: StatusContext) -> Mapping[str, Collection[str]]:
    """Returns by topic the sentences about lost offsets that `backlog` reports; none if the brokers do not answer."""
    if context.brokers.health not in (Health.UP, Health.DEGRADED):
        return {}
    return {one.topic: one.losses for one in _backlogs(context) if one.losses}


def _backlogs(context: StatusContext) -> Sequence[TopicBacklog]:
    """Returns the backlog of each topic on the brokers that is to be loaded. Requests the offsets once."""
    loader = context.settings.loader

    def requested() -> Sequence[TopicBacklog]:
        discovery = discover(context.cluster, loader.topics_include, loader.topics_exclude, context.state)
        return backlogs(context.state, discovery, lambda topic: loader.of_topic(topic).on_data_loss)

    return context.once("backlogs", requested)


def _lag_fact(found: Sequence[TopicBacklog], expiry_text: str) -> StatusFact:
    behind = sorted((one for one in found if one.lag), key=lambda one: -one.lag)
    total = sum(one.lag for one in behind)
    most = f", most in {behind[0].topic} ({behind[0].lag:,})" if behind else ""
    waiting = sum(not one.is_loaded for one in found)
    waiting_text = f"; {count_text(waiting, 'topic')} not loaded yet" if waiting else ""
    text = f"{count_text(total, 'message')} in {count_text(len(behind), 'topic')}{most}{waiting_text}{expiry_text}"
    metrics = largest_topics("headrace_load_lag_messages", {one.topic: one.lag for one in found})
    return StatusFact("lag", text, (StatusMetric("headrace_load_unread_messages", total), *metrics))


def _without_runs(found: Iterable[TopicBacklog], context: StatusContext) -> list[StatusFinding]:
    """Returns a finding about late loads if no run log shows them, because they run on another machine: messages are
    unread, and no load has committed any for long."""
    age_ms = context.now_ms - context.state.committed_at_ms
    is_late = age_ms > LATE_FACTOR * context.load_interval_ms and context.state.commit_number > 0
    if context.runs or not is_late or not any(one.lag and one.is_loaded for one in found):
        return []
    problem = f"messages are unread, and the newest commit is {age_text(age_ms)} old"
    return [finding("load-late", "load", problem, since_ms=context.state.committed_at_ms)]


def _lost(found: Iterable[TopicBacklog]) -> list[StatusFinding]:
    return [
        finding("data-skipped" if one.is_skipped else "data-lost", one.topic, "; ".join(one.losses[:3]))
        for one in found
        if one.losses
    ]


def _unavailable(found: Iterable[TopicBacklog]) -> list[StatusFinding]:
    return [
        finding("partition-unavailable", one.topic, next(iter(sorted(set(one.errors.values())))))
        for one in found
        if one.errors
    ]


def _deleted(found: Iterable[TopicBacklog], context: StatusContext) -> list[StatusFinding]:
    """Returns a finding for each topic with commits that is to be loaded and is not on the brokers."""
    loader, present = context.settings.loader, {one.topic for one in found}
    problem = "the brokers do not have it any more; messages that were not loaded are lost"
    return [
        finding("topic-deleted", topic, problem)
        for topic in sorted(context.state.topics)
        if topic not in present and is_wanted(topic, loader.topics_include, loader.topics_exclude)
    ]


def _expiring(found: Sequence[TopicBacklog], context: StatusContext) -> tuple[list[StatusFinding], str]:
    """Returns findings about unread messages that expire soon, and the end of the sentence about the lag."""
    behind = {one.topic: one for one in found if one.lag}
    if not behind:
        return [], ""
    retention = context.cluster.request_any(lambda connection: retention_times(connection, sorted(behind)))
    unknown = len(behind) - len(retention)
    unread = {
        TopicPartition(topic, number): offset
        for topic in retention
        for number, offset in behind[topic].next_offsets.items()
        if retention[topic] >= 0
    }
    limits = {topic: limits_of(ms, context.load_interval_ms) for topic, ms in retention.items()}
    found_later = _older(context, unread, {topic: retention[topic] - limits[topic].later_ms for topic in limits})
    rest = {tp: offset for tp, offset in unread.items() if tp.topic in found_later}
    found_soon = _older(context, rest, {topic: retention[topic] - limits[topic].soon_ms for topic in limits})
    first = first_expiry(context, rest, retention, limits)
    most_first = sorted(found_later, key=lambda topic: -behind[topic].lag)
    findings = [
        _expiry_finding(behind[topic], limits[topic].soon_ms, first, is_soon=True)
        for topic in most_first
        if topic in found_soon
    ]
    findings += [
        _expiry_finding(behind[topic], limits[topic].later_ms, first, is_soon=False)
        for topic in most_first
        if topic not in found_soon
    ]
    note = f"; retention of {count_text(unknown, 'topic')} unknown" if unknown else ""
    text = f"none expires within {age_text(LATER_MS)} or half its retention"
    return findings, f"; unread messages: {first if findings else text}{note}"


def first_expiry(
    context: StatusContext,
    unread: Mapping[TopicPartition, int],
    retention_ms: Mapping[str, int],
    limits: Mapping[str, _Limits],
) -> str:
    """Returns a sentence about the unread message that may expire first, "" without messages.

    Args:
        unread: by partition with messages that may expire within the longer limit, its first unread offset.
    """
    if not unread:
        return ""
    earliest, latest = dict.fromkeys(unread, 0), {tp: limits[tp.topic].later_ms for tp in unread}
    for _ in range(HALVINGS):
        middle = {tp: (earliest[tp] + latest[tp]) // 2 for tp in unread}
        expiring = _older_partitions(context, unread, {tp: retention_ms[tp.topic] - middle[tp] for tp in unread})
        latest |= {tp: middle[tp] for tp in expiring}
        earliest |= {tp: middle[tp] for tp in unread.keys() - expiring}
    first = min(unread, key=lambda tp: (latest[tp], tp))
    when = "at any time" if not earliest[first] else f"in {age_text(earliest[first])}"
    return f"the first one, of {first.topic}, may expire {when}"


def limits_of(retention_ms: int, interval_ms: int) -> _Limits:
    """Returns the limits for a topic: six intervals, at least two hours; and a day. Both are at most half its
    retention, so that messages of a normal age are no finding."""
    soon_ms = min(max(SOON_INTERVALS * interval_ms, SOON_MS_MIN), retention_ms // 2)
    return _Limits(soon_ms, max(soon_ms, min(LATER_MS, retention_ms // 2)))


def _older(context: StatusContext, unread: Mapping[TopicPartition, int], age_ms: Mapping[str, int]) -> set[str]:
    """Returns the topics with unread messages that are older than an age.

    Args:
        unread: by partition, its first unread offset.
        age_ms: the age by topic, in milliseconds.
    """
    return {tp.topic for tp in _older_partitions(context, unread, {tp: age_ms[tp.topic] for tp in unread})}


def _older_partitions(
    context: StatusContext, unread: Mapping[TopicPartition, int], age_ms: Mapping[TopicPartition, int]
) -> set[TopicPartition]:
    """Returns the partitions with unread messages that are older than an age, as `_older` does for topics."""
    if not unread:
        return set()
    timestamps = {tp: max(0, context.now_ms - age_ms[tp]) for tp in unread}
    younger = context.cluster.lookup_offsets_at(timestamps).offsets
    # -1: no message is younger.
    return {tp for tp, offset in younger.items() if offset == -1 or offset > unread[tp]}


def _expiry_finding(one: TopicBacklog, within_ms: int, first: str, *, is_soon: bool) -> StatusFinding:
    waits = (
        ""
        if one.is_loaded
        else "; the topic is not loaded yet: register its schema, or exclude it with loader.topics_exclude"
    )
    kind = "data-expires-soon" if is_soon and one.is_loaded else "data-expires"
    return finding(kind, one.topic, f"unread messages may expire within {age_text(within_ms)}; {first}{waits}")
