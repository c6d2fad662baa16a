"""Groups of quarantined messages by topic and reason, from their newest files within limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Final

from headrace.loader.commit.alarms import AlarmKind
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.commit.state import TopicState
from headrace.loader.inspect.alarms import AlarmAcceptance, open_alarms, read_accepted
from headrace.loader.inspect.producer_hint import producer_hint
from headrace.loader.inspect.published_files import newest_files
from headrace.loader.inspect.quarantine import QuarantinedRow, read_rows
from headrace.loader.work_unit import FileKind

NOT_READ: Final = "not read"
"""The code of the group of all messages of a topic that were not read."""


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """Where reading stops: messages of one topic, of all topics, and bytes of their keys and values."""

    topic_rows_max: int
    rows_max: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class QuarantineGroup:
    """The quarantined messages of one topic with one code. The times are those of the messages, in milliseconds since
    1970; None if no message was read. `reason` and `hint` are those of the newest message that was read."""

    topic: str
    code: str
    count: int
    accepted: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    reason: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class QuarantinedTopic:
    """A topic with messages in the quarantine. `not_accepted` of its `messages` are an open alarm since `since_ms`, 0
    if unknown. `acceptance` is the newest acceptance, None for none; `problem` the error of a file that could not be
    read, "" for none."""

    topic: str
    messages: int
    not_accepted: int
    since_ms: int
    acceptance: AlarmAcceptance | None
    groups: tuple[QuarantineGroup, ...]
    problem: str = ""


@dataclass(slots=True)
class _Reading:
    limits: GroupLimits
    rows: int = 0
    bytes: int = 0
    groups: dict[str, QuarantineGroup] = field(default_factory=dict)
    problem: str = ""

    @property
    def is_over(self) -> bool:
        return self.rows >= self.limits.rows_max or self.bytes >= self.limits.bytes_max


def quarantined_topics(
    log: CommitLog, open_file: Callable[[str], IO[bytes]], now_ms: int, limits: GroupLimits, only: str = ""
) -> tuple[QuarantinedTopic, ...]:
    """Returns the topics with quarantined messages, those with most messages that are not accepted first. The counts of
    the groups of a topic add up to its messages. The log must have read its state.

    Args:
        open_file: opens a file by its path in the warehouse.
        now_ms: the time, in milliseconds since 1970.
        only: only this topic; "" for all.

    Raises:
        CommitLogError: the commits cannot be read.
        OSError: the storage of the commits failed.
    """
    index = FileIndex(log)
    states = {
        topic: state
        for topic, state in log.state.topics.items()
        if state.quarantine.records and (not only or topic == only)
    }
    alarms = {
        one.topic: one for one in open_alarms(log, index, now_ms, states.keys()) if one.kind == AlarmKind.QUARANTINED
    }
    accepted = read_accepted(log).topics
    order = sorted(states, key=lambda topic: (-alarms[topic].count if topic in alarms else 0, topic))
    reading, found = _Reading(limits), []
    for topic in order:
        acceptance = accepted.get(topic, {}).get(AlarmKind.QUARANTINED)
        reading.groups, reading.problem = {}, ""
        _read_topic(reading, log, index, topic, open_file, acceptance)
        groups = _complete(topic, states[topic].quarantine.records, reading.groups)
        alarm = alarms.get(topic)
        not_accepted, since_ms = (0, 0) if alarm is None else (alarm.count, alarm.since_ms)
        messages = states[topic].quarantine.records
        found.append(QuarantinedTopic(topic, messages, not_accepted, since_ms, acceptance, groups, reading.problem))
    return tuple(found)


def _read_topic(
    reading: _Reading,
    log: CommitLog,
    index: FileIndex,
    topic: str,
    open_file: Callable[[str], IO[bytes]],
    acceptance: AlarmAcceptance | None,
) -> None:
    """Adds the messages of a topic, those of the newest files first, until a limit is reached."""
    rows_max = reading.rows + reading.limits.topic_rows_max
    if reading.is_over:
        return
    state = log.state.topics[topic]
    for published in newest_files(index, log, topic, FileKind.QUARANTINE):
        try:
            with open_file(published.path) as file:
                for row in read_rows(file):
                    _add(reading, topic, row, _is_accepted(row, state, acceptance))
                    if reading.is_over or reading.rows >= rows_max:
                        return
        except FileNotFoundError:
            continue  # committed, and published by the next load
        except (OSError, ValueError) as error:
            reading.problem = f"{published.path}: {error}"


def _add(reading: _Reading, topic: str, row: QuarantinedRow, is_accepted: bool) -> None:
    reading.rows += 1
    reading.bytes += len(row.key or b"") + len(row.value or b"")
    known = reading.groups.get(row.code)
    if known is None or known.last_ms is None or row.timestamp_ms >= known.last_ms:
        reason, hint = row.reason, producer_hint(row.value, row.code)
    else:
        reason, hint = known.reason, known.hint
    reading.groups[row.code] = QuarantineGroup(
        topic,
        row.code,
        count=(known.count if known else 0) + 1,
        accepted=(known.accepted if known else 0) + is_accepted,
        first_ms=min(row.timestamp_ms, known.first_ms) if known and known.first_ms is not None else row.timestamp_ms,
        last_ms=max(row.timestamp_ms, known.last_ms) if known and known.last_ms is not None else row.timestamp_ms,
        reason=reason,
        hint=hint,
    )


def _is_accepted(row: QuarantinedRow, state: TopicState, acceptance: AlarmAcceptance | None) -> bool:
    """Returns whether a message is covered by an acceptance, see `alarms`."""
    if acceptance is None or acceptance.topic_id != state.topic_id:
        return False
    end, partition = acceptance.ends.get(row.partition), state.partitions.get(row.partition)
    return (
        end is not None
        and partition is not None
        and partition.incarnation == end.incarnation
        and row.offset < end.next_offset
    )


def _complete(topic: str, messages: int, groups: dict[str, QuarantineGroup]) -> tuple[QuarantineGroup, ...]:
    """Returns the groups, the largest first, and one of the messages that were not read."""
    found = sorted(groups.values(), key=lambda one: (-one.count, one.code))
    rest = messages - sum(one.count for one in found)
    return (*found, QuarantineGroup(topic, NOT_READ, rest)) if rest > 0 else tuple(found)
