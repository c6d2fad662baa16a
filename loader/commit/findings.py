"""Adds problems and notes to the report of a topic that is committed anyway: bad messages, skipped offsets, implausible
times and slow conversions. Pure.

Findings do not hold a topic back; only `revalidate` rejects a topic with too many bad messages. A share of bad messages
over the limit is a problem in every run, even if the run read few messages, so that a long series of small runs with
bad messages is noticed.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping

from headrace.audit.window import OUT_OF_RANGE_MS, SCATTERED_MS, SPECIAL_WINDOWS, WINDOWS_MAX, count_text, time_text
from headrace.avro_schema.message_time import TimeUnit
from headrace.loader.commit.alarms import Alarm, AlarmKind
from headrace.loader.commit.commit import CommittedRange
from headrace.loader.commit.reconcile import ReconciledTopic
from headrace.loader.commit.state import TopicState
from headrace.loader.load_schema import SIBLING_RULES, LoadState
from headrace.loader.plan.load_plan import PlannedTopic
from headrace.loader.policy import TopicPolicy
from headrace.loader.project.implausible_times import UNITS_PER_SECOND, likely_unit
from headrace.loader.project.topic_projection import FUTURE_TIME, RECORD_TIME
from headrace.loader.work_unit import ImplausibleTimeCount, ImplausibleTimeKind, SkippedOffsets

SLOW_MIN = 10_000
"""Messages that the C core leaves to Python ("slow") are reported from this number on, if their share is above
`quarantine_ratio_max`. The first message of each schema in a range is always slow."""
NOTED_KINDS = frozenset({ImplausibleTimeKind.NO_TIME, ImplausibleTimeKind.OLD_DAY})
"""Kinds of implausible times that are never a problem, however many messages have them: no row is wrong."""
UNIT_NAMES = {"seconds": "seconds", "millis": "milliseconds", "micros": "microseconds", "nanos": "nanoseconds"}

INCOMPATIBLE_RULES = SIBLING_RULES | {"not-a-record"}
"""Rules of the load schema for a version whose values the columns of the earlier versions cannot hold."""
COLUMNS_NAMED_MAX = 5


def with_findings(
    reconciled: Mapping[str, ReconciledTopic], policies: Mapping[str, TopicPolicy]
) -> dict[str, ReconciledTopic]:
    """Returns the topics of `reconciled` with further problems and notes about the messages read: bad messages, skipped
    offsets, implausible times, slow conversions. A problem needs an action by the operator, a note does not. A share of
    bad messages above `quarantine_ratio_max` of the topic's policy is a problem.

    Args:
        reconciled: by topic, the part of the tasks' results that can be committed.
    """
    return {
        topic: _with_findings(topic, one, policies[topic].quarantine_ratio_max) for topic, one in reconciled.items()
    }


def _with_findings(topic: str, reconciled: ReconciledTopic, share_max: float) -> ReconciledTopic:
    problems, notes = list(reconciled.problems), list(reconciled.notes)
    counts = reconciled.counts
    messages = counts.records + counts.quarantined
    if counts.quarantined > share_max * messages:
        problems.append(
            f"{counts.quarantined:,} of {count_text(messages, 'message')} cannot be loaded, more than "
            f"loader.quarantine_ratio_max ({share_max:.0%}) allows, so they are in the quarantine and the rest was "
            f"loaded; remove the causes that `headrace quarantine list {topic}` shows, then replay, discard or accept "
            "them"
        )
    problems += [
        _skipped_problem(offsets.partition, skipped) for offsets in reconciled.ranges for skipped in offsets.skipped
    ]
    for times in reconciled.implausible_times:
        sentence = f"{times.messages:,} of {count_text(messages, 'message')} {_description(topic, times)}"
        if _is_problem(times, messages, share_max):
            problems.append(sentence)
        else:
            notes.append(f"{topic}: {sentence}")
    slow = reconciled.by_reference - counts.quarantined
    if slow >= SLOW_MIN and slow > share_max * messages:
        notes.append(
            f"{topic}: {slow:,} of {count_text(messages, 'message')} took several times as long as usual, because "
            "Python converts them instead of the C core: they have a recursive type, implausible event times, or "
            "their schema in a header"
        )
    future = reconciled.time_sources.get(FUTURE_TIME, 0)
    if future:
        notes.append(
            f"{topic}: {future:,} of {count_text(messages, 'message')} are dated further after their arrival than "
            "loader.future_max allows; their time partition is that of their arrival"
        )
    return dataclasses.replace(reconciled, problems=tuple(problems), notes=tuple(notes))


def _is_problem(times: ImplausibleTimeCount, messages: int, share_max: float) -> bool:
    return times.messages > share_max * messages and times.kind not in NOTED_KINDS


def alarms_of(planned_topic: PlannedTopic, reconciled: ReconciledTopic) -> tuple[Alarm, ...]:
    """Returns the alarms of a topic in the commit of a load, at most one of each kind, without quarantined messages.

    Args:
        reconciled: the part of the topic's work that is committed.
    """
    alarms: dict[str, Alarm] = {}
    for alarm in _alarms(planned_topic, reconciled):
        before = alarms.get(alarm.kind)
        alarms[alarm.kind] = alarm if before is None else dataclasses.replace(before, count=before.count + alarm.count)
    return tuple(alarms.values())


def _alarms(planned_topic: PlannedTopic, reconciled: ReconciledTopic) -> Iterator[Alarm]:
    if planned_topic.ranges.starts_again:
        text = "the topic was re-created; messages of the former topic that were not loaded are lost"
        yield Alarm(AlarmKind.RECREATED, 1, text)
    yield from _incompatible(planned_topic)
    for offsets in reconciled.ranges:
        yield from _loss_alarms(planned_topic.known, offsets)
        for skipped in offsets.skipped:
            yield Alarm(AlarmKind.CORRUPT, skipped.end - skipped.start, _skipped_problem(offsets.partition, skipped))
    messages = reconciled.counts.records + reconciled.counts.quarantined
    for times in reconciled.implausible_times:
        if _is_problem(times, messages, planned_topic.policy.quarantine_ratio_max):
            text = f"{times.messages:,} of {count_text(messages, 'message')} {_description(planned_topic.topic, times)}"
            yield Alarm(AlarmKind.TIMES, times.messages, text)


def _incompatible(planned_topic: PlannedTopic) -> Iterator[Alarm]:
    """Yields an alarm if a new version of the topic's subject gives a field a type that its column cannot hold, such as
    after a registration with the compatibility level NONE."""
    if planned_topic.known is None or not planned_topic.schemas.is_changed:
        return
    before, after = (
        LoadState.from_json(json.loads(one.fold)).applied
        for one in (planned_topic.known.load_schema, planned_topic.schemas.load_schema)
    )
    found = [one for one in after[len(before) :] if one.rule in INCOMPATIBLE_RULES]
    if found:
        columns = ", ".join(one.column for one in found[:COLUMNS_NAMED_MAX]) + (
            ", …" if len(found) > COLUMNS_NAMED_MAX else ""
        )
        yield Alarm(
            AlarmKind.INCOMPATIBLE,
            len(found),
            f"version {found[0].version} of subject {planned_topic.schemas.load_schema.subject} changes types so that "
            f"the columns cannot hold its values: they are in {columns}, and the former columns are null in these rows",
        )


def _loss_alarms(known: TopicState | None, offsets: CommittedRange) -> Iterator[Alarm]:
    """Yields the alarms about offsets of a partition that were removed before they were read, or that were loaded and
    have other messages now.

    Args:
        known: the topic's state before the load, None for a new topic.
    """
    expected = offsets.previous if offsets.diverged_at is None else offsets.diverged_at
    if expected is not None and expected < offsets.start:
        removed = f"offsets {expected} to {offsets.start - 1} were removed before they were read"
        yield Alarm(AlarmKind.LOST, offsets.start - expected, f"partition {offsets.partition}: {removed}")
    if offsets.replaced is not None and known is not None:
        start, end = offsets.replaced
        partition = known.partitions.get(offsets.partition)
        if start < end and partition is not None and partition.has_rows_from(start):
            text = f"the log was truncated at offset {start}; offsets {start} to {end - 1} were loaded before"
            yield Alarm(AlarmKind.REPLACED, end - start, f"partition {offsets.partition}: {text}")


def _skipped_problem(partition: int, skipped: SkippedOffsets) -> str:
    where = "its bytes are in the quarantine" if skipped.is_quarantined else "its bytes are not stored"
    return (
        f"partition {partition}: corrupt_batches skipped {count_text(skipped.end - skipped.start, 'offset')} from "
        f"{skipped.start} ({skipped.reason}), and {where}; send their messages again, or accept the alarm with "
        "`headrace accept`"
    )


def _description(topic: str, times: ImplausibleTimeCount) -> str:
    if times.kind is ImplausibleTimeKind.OLD_DAY:
        return (
            "have a date or timestamp-millis before 1582-10-15, which Spark shows as another day (0001-01-01 as "
            f"0001-01-03), although the files are right: query the view of `headrace hive latest {topic}`, which "
            "corrects it; docs/hive.md lists other readers"
        )
    where = "the record's timestamp" if times.source == RECORD_TIME else f"the field {times.source}"
    if times.kind is ImplausibleTimeKind.SCATTERED:
        return (
            f"have times in {where} beyond the limit of {WINDOWS_MAX:,} audit windows (such as "
            f"{time_text(times.value)}), and are audited as '{SPECIAL_WINDOWS[SCATTERED_MS]}'; if these are no event "
            f"times, {_another_field(times)}"
        )
    if times.kind is ImplausibleTimeKind.NO_TIME:
        return (
            f"have text in {where} that is not an ISO 8601 time with a zone (such as 2026-01-31T07:00:00Z); they are "
            f"filed by another time field or the record's timestamp: repair the producer, or {_another_field(times)}"
        )
    unit = "" if times.unit == TimeUnit.TEXT else likely_unit(times.value)
    example = f"such as {time_text(times.value) if times.unit == TimeUnit.TEXT else times.value}"
    if unit:
        time_ms = times.value * 1000 // UNITS_PER_SECOND[unit]
        example += f", which in {UNIT_NAMES[unit]} is {time_text(time_ms)}"
    if times.kind is ImplausibleTimeKind.WRONG_UNIT:
        return f"have a time in {where} that seems to be in another unit ({example}); {_remedy(times, unit)}"
    filed = "under 1970-01-01" if times.source == RECORD_TIME else "by the record's timestamp"
    return (
        f"have a time before 1970 or after 9999 in {where} ({example}); they are filed {filed} and audited as "
        f"'{SPECIAL_WINDOWS[OUT_OF_RANGE_MS]}': {_remedy(times, unit)}"
    )


def _remedy(times: ImplausibleTimeCount, unit: str) -> str:
    """Returns the remedy for the implausible times, as text that ends a message. The remedy is usually the
    logical type of the unit that the times seem to have; Avro has none for seconds.

    Args:
        unit: this unit, "" if unknown.
    """
    if times.source == RECORD_TIME:
        return "change the producer to set timestamps in milliseconds"
    if not unit:
        return f"repair its producer, or {_another_field(times)}"
    if unit == "seconds":
        return f"there is no logical type for seconds: write milliseconds, or {_another_field(times)}"
    return f"give it the logical type timestamp-{unit} in the next version of the schema, or {_another_field(times)}"


def _another_field(times: ImplausibleTimeCount) -> str:
    if times.source == RECORD_TIME:
        return "change the producer to set no timestamp"
    return "name another field in the subject's metadata property headrace.time"
