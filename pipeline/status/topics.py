"""The topics: open alarms, messages that the loads hold back, and the registry as the loads see
it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from headrace.loader.commit.alarms import AlarmKind
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.inspect.alarms import OpenAlarm, open_alarms
from headrace.loader.inspect.published_files import newest_file
from headrace.loader.inspect.quarantine import read_rows
from headrace.loader.open_problems import SENTENCE_CHARS_MAX, OpenProblems, TopicProblems, read_problems
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
from headrace.pipeline.status.metric import StatusMetric, largest_topics
from headrace.pipeline.status.wording import count_text
from headrace.registry.client.responses import LOGIN_REMEDY
from headrace.settings.addresses import RemoteDirectory, warehouse_location

OTHER_ALARM: Final = "alarm"
ALARM_KINDS: Final = {str(kind): f"alarm-{kind.value}" for kind in AlarmKind}
"""Kinds of findings, by the kind of the alarm."""
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
    findings = tuple(_alarm_finding(alarm, examples.get(alarm.topic, "")) for alarm in found)
    return SourceReport((StatusFact("quarantine", text, metrics),), findings)


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
