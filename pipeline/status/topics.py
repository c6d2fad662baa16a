"""The topics: open alarms, messages that the loads hold back, and the registry as the loads see
it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from headrace.loader.commit.alarms import DAY_MS, AlarmKind
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.inspect.alarms import OpenAlarm, open_alarms
from headrace.loader.inspect.published_files import newest_file
from headrace.loader.inspect.quarantine import read_rows
from headrace.loader.open_problems import SENTENCE_CHARS_MAX, OpenProblems, TopicProblems, read_problems
from headrace.loader.run_log import RunLine
from headrace.loader.work_unit import FileKind
from headrace.pipeline.status.backlog import reported_losses
from headrace.pipeline.status.context import StatusContext
from headrace.pipeline.status.finding import (
    FINDINGS_PER_KIND_MAX,
    SourceReport,
    StatusFact,
    StatusFinding,
    finding,
)
from headrace.pipeline.status.metric import TOPICS_MAX, StatusMetric, largest_topics
from headrace.pipeline.status.wording import count_text
from headrace.registry.client.responses import LOGIN_REMEDY
from headrace.settings.addresses import RemoteDirectory, warehouse_location

OTHER_ALARM: Final = "alarm"
ALARM_KINDS: Final = {str(kind): f"alarm-{kind.value}" for kind in AlarmKind}
"""Kinds of findings, by the kind of the alarm."""
QUARANTINE_RATIO_MAX: Final = 0.001
QUARANTINED_MIN: Final = 10
"""At most this share, or this number, of quarantined messages of a topic in a day is no finding of its own."""
UNITS: Final[Mapping[str, str]] = {
    AlarmKind.QUARANTINED: "message",
    AlarmKind.LOST: "offset",
    AlarmKind.REPLACED: "offset",
    AlarmKind.RECREATED: "new topic",
    AlarmKind.CORRUPT: "offset",
    AlarmKind.INCOMPATIBLE: "column",
    AlarmKind.TIMES: "row",
}


def alarms(context: StatusContext) -> SourceReport:
    """Reports the open alarms of all loads."""
    if not context.state.topics:
        return SourceReport()
    index = FileIndex(context.log)
    found = sorted(open_alarms(context.log, index, context.now_ms), key=lambda alarm: -alarm.count)
    quarantined = sum(one.count for one in found if one.kind == AlarmKind.QUARANTINED)
    total = sum(topic.quarantine.records for topic in context.state.topics.values())
    text = f"{count_text(total, 'message')}, {quarantined:,} of them not accepted"
    metrics = (
        StatusMetric("headrace_quarantined_messages", total),
        StatusMetric("headrace_quarantined_messages_not_accepted", quarantined),
    )
    examples = _examples(context, index, found)
    shares = quarantine_shares(context.runs, context.now_ms - DAY_MS)
    findings = [_alarm_finding(alarm, examples.get(alarm.topic, "")) for alarm in found]
    findings += _share_findings(shares, {one.topic for one in found if one.kind == AlarmKind.QUARANTINED})
    return SourceReport((StatusFact("quarantine", text, (*metrics, *_share_metrics(shares))),), tuple(findings))


class QuarantineShare(NamedTuple):
    """The number of messages of a topic that loads read, and of those that they quarantined."""

    messages: int
    quarantined: int

    @property
    def ratio(self) -> float:
        return self.quarantined / self.messages


def quarantine_shares(runs: Iterable[RunLine], since_ms: int) -> dict[str, QuarantineShare]:
    """Returns the shares of the topics with quarantined messages in the loads since a time, the largest first.

    Args:
        runs: loads of the run log. One with more than 100 topics has the outcomes of those with bad messages, and of
            the largest.
    """
    rows: Counter[str] = Counter()
    quarantined: Counter[str] = Counter()
    for one in (outcome for line in runs if line.started_at_ms >= since_ms for outcome in line.topic_outcomes):
        rows[one.topic] += one.rows
        quarantined[one.topic] += one.quarantined
    shares = {topic: QuarantineShare(rows[topic] + bad, bad) for topic, bad in quarantined.items() if bad}
    return dict(sorted(shares.items(), key=lambda item: (-item[1].ratio, item[0])))


def _share_metrics(shares: Mapping[str, QuarantineShare]) -> Iterator[StatusMetric]:
    for topic, one in itertools.islice(shares.items(), TOPICS_MAX):
        yield StatusMetric("headrace_load_quarantine_ratio", one.ratio, (("topic", topic),))


def _share_findings(shares: Mapping[str, QuarantineShare], with_alarm: Collection[str]) -> Iterator[StatusFinding]:
    """Yields findings about the shares of topics whose quarantined messages nobody has accepted, replayed or discarded
    (`with_alarm`)."""
    for topic, one in shares.items():
        if topic in with_alarm and one.ratio > QUARANTINE_RATIO_MAX and one.quarantined > QUARANTINED_MIN:
            problem = f"{one.quarantined:,} of {one.messages:,} messages of the last day ({one.ratio:.2%})"
            yield finding("quarantine-share", topic, problem)


def _examples(context: StatusContext, index: FileIndex, found: Sequence[OpenAlarm]) -> dict[str, str]:
    """Returns the reason of one of the newest quarantined messages, for the topics with most of them. Without a local
    warehouse, or if a file cannot be read, a topic has none: `headrace quarantine list` reports the error. `found` has
    the alarms with the largest counts first."""
    location = warehouse_location(context.settings)
    if isinstance(location, RemoteDirectory):
        return {}
    quarantined = [one for one in found if one.kind == AlarmKind.QUARANTINED]
    examples = {}
    for alarm in quarantined[:FINDINGS_PER_KIND_MAX]:
        newest = newest_file(index, context.log, alarm.topic, FileKind.QUARANTINE)
        with suppress(OSError, ValueError):
            if newest is not None:
                with (location / newest.path).open("rb") as file:
                    row = next(read_rows(file), None)
                examples[alarm.topic] = "" if row is None else f"; one of them: {row.code}: {row.reason}"
    return examples


def _alarm_finding(alarm: OpenAlarm, example: str) -> StatusFinding:
    """Returns the finding for an alarm.

    Args:
        example: the end of the problem's sentence about quarantined messages; "" for none.
    """
    if alarm.kind != AlarmKind.QUARANTINED:
        example = ""
    count = count_text(alarm.count, UNITS.get(alarm.kind, "case"))
    recent = f", {alarm.recent:,} of them since yesterday" if alarm.recent else ""
    newest = f"; newest: {alarm.text}" if alarm.text else ""
    return finding(
        ALARM_KINDS.get(alarm.kind, OTHER_ALARM),
        alarm.topic,
        f"{count}{recent}{newest}",
        since_ms=alarm.since_ms or None,
        example=example,
    )


def held_back(context: StatusContext) -> SourceReport:
    """Reports the topics with messages that the newest load did not commit, and other problems that it left."""
    problems = read_problems(context.log.storage)
    held = sum(one.held_back for one in problems.topics.values())
    topics = sum(1 for one in problems.topics.values() if one.held_back)
    text = f"{count_text(held, 'message')} of {count_text(topics, 'topic')}" if held else "nothing"
    held_of = {topic: one.held_back for topic, one in problems.topics.items() if one.held_back}
    metrics = (StatusMetric("headrace_held_back_messages", held), *largest_topics("headrace_load_held_back", held_of))
    fact = StatusFact("held back", text, metrics)
    losses = reported_losses(context) if problems.topics else {}
    return SourceReport((fact,), (*_registry_findings(problems), *_topic_findings(problems, losses)))


def _registry_findings(problems: OpenProblems) -> Iterator[StatusFinding]:
    if problems.registry:
        kind = "load-registry-refused" if problems.is_refused else "load-registry-unavailable"
        problem = problems.registry.removesuffix(f"; {LOGIN_REMEDY}")  # the repair of the finding
        yield finding(kind, "registry", problem, since_ms=problems.registry_since_ms)


def _topic_findings(problems: OpenProblems, losses: Mapping[str, Collection[str]]) -> Iterator[StatusFinding]:
    """Yields a finding for each topic with problems that are not all losses reported by `backlog`.

    Args:
        losses: by topic, the sentences about lost offsets that `backlog` reports.
    """
    folds = sum(one.is_waiting for one in problems.topics.values()) > 1
    for topic, one in sorted(problems.topics.items(), key=lambda item: -item[1].held_back):
        reported = {sentence[:SENTENCE_CHARS_MAX] for sentence in losses.get(topic, ())}
        if reported.issuperset(one.sentences):
            continue
        kind = "topic-waiting" if one.is_waiting else "topic-held-back" if one.held_back else "load-problems"
        problem, repair = _split(one)
        if one.is_waiting and folds:
            problem = problem.replace(topic, "<topic>")  # so that topics without a subject become one finding
        yield finding(kind, topic, problem, repair=repair, since_ms=one.since_ms)


def _split(one: TopicProblems) -> tuple[str, str]:
    """Returns the problem and the remedy of the first sentence, with the number of further ones."""
    problem, _, remedy = one.sentences[0].partition("; ")
    more = len(one.sentences) - 1
    return (f"{problem} (and {more} more)" if more else problem), remedy
