"""Open alarms: alarms of all loads (`loader.commit.alarms`) that no operator has accepted yet.

    accepted.json   by topic and kind: the newest acceptance. It is a hint: if it is lost, all alarms are open again.

The commit log has the sums of all alarms, which never decrease; an acceptance has the sum that it covers. An alarm is
open if it is beyond this sum. A quarantined message is open only while it is in the quarantine, so replay and discard
close it too.

An acceptance covers the messages below the next offsets of its time. A backfill that adds messages to the quarantine
adds them below these offsets, and therefore withdraws the acceptance. If the log was truncated or the topic re-created
since, offsets do not identify messages. Then the number of messages quarantined since the acceptance counts as open, as
far as that many are in the quarantine.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headrace.loader.commit.alarms import DAY_MS, AlarmKind, AlarmTotal
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.commit.document import read_document, write_document
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.commit.state import TopicState
from headrace.loader.work_unit import FileKind, FileRange

logger = logging.getLogger(__name__)

ACCEPTED_PATH: Final = "accepted.json"
REASON_CHARS_MAX: Final = 1_000
NO_ALARMS = AlarmTotal(0, ())


class AcceptedEnd(NamedTuple):
    """The end of a partition at the time of an acceptance: its next offset, and how often its log had diverged."""

    next_offset: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class AlarmAcceptance:
    """The acceptance of all alarms of one topic and kind.

    `total` is the sum of the alarms that it covers, and `count` the number that was open. `by` is the user and the
    host, `at_ms` the time in ms since 1970. `topic_id` and `ends` identify the accepted messages; `ends` is empty
    unless the kind is `QUARANTINED`.
    """

    total: int
    count: int
    at_ms: int
    by: str
    reason: str
    topic_id: str = ""
    ends: Mapping[int, AcceptedEnd] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AcceptedAlarms:
    """All acceptances, by topic and kind. `commit_number` is the newest commit at the newest acceptance, and `sha256`
    its checksum: an acceptance is void in another commit log."""

    commit_number: int = 0
    sha256: str = ""
    topics: Mapping[str, Mapping[str, AlarmAcceptance]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OpenAlarm:
    """The alarms of one topic and kind that are not accepted. `count` is their number, `recent` the number of these
    since the start of yesterday (UTC). `since_ms` is the time of the first one and `newest_ms` of the newest day with
    one, in ms since 1970, 0 if unknown. `text` is the sentence of the newest one, "" for quarantined messages."""

    topic: str
    kind: str
    count: int
    recent: int
    since_ms: int
    newest_ms: int
    text: str


def read_accepted(log: CommitLog) -> AcceptedAlarms:
    """Returns the acceptances; none if the file is missing, damaged or of another commit log. The log must have read
    its state."""
    content = log.storage.read(ACCEPTED_PATH)
    if content is None:
        return AcceptedAlarms()
    try:
        accepted = read_document(content, AcceptedAlarms).value
    except ValueError as error:
        logger.warning("accepted_alarms_ignored path=%s reason=%s", ACCEPTED_PATH, error)
        return AcceptedAlarms()
    number = accepted.commit_number
    if number > log.state.commit_number or (number and log.sha256(number) != accepted.sha256):
        logger.warning("accepted_alarms_ignored path=%s reason=belongs to another commit log", ACCEPTED_PATH)
        return AcceptedAlarms()
    return accepted


def open_alarms(
    log: CommitLog, index: FileIndex, now_ms: int, topics: Collection[str] | None = None
) -> tuple[OpenAlarm, ...]:
    """Returns the open alarms, by topic and kind. Reads the index of a topic's files only if messages were quarantined
    after an acceptance. The log must have read its state.

    Args:
        now_ms: the time, in ms since 1970.
        topics: only these topics; None for all.

    Raises:
        CommitLogError: the commits cannot be read.
        OSError: the storage failed.
    """
    accepted = read_accepted(log).topics
    return tuple(
        alarm
        for topic, state in sorted(log.state.topics.items())
        if topics is None or topic in topics
        for alarm in _open_alarms(index, topic, state, accepted.get(topic, {}), now_ms)
    )


def accept(
    log: CommitLog, index: FileIndex, topics: Collection[str], kinds: Collection[str], reason: str, by: str, now_ms: int
) -> tuple[OpenAlarm, ...]:
    """Accepts the open alarms of topics, and returns them.

    If two commands do this at the same time, the acceptances of one may be lost; its alarms are then open again.

    Args:
        kinds: only alarms of these kinds; empty for all.
        reason: the operator's reason, stored.
        by: the user and the host, stored.
        now_ms: the time, in ms since 1970.

    Raises:
        CommitLogError: the commits cannot be read.
        OSError: the storage failed.
    """
    found = tuple(one for one in open_alarms(log, index, now_ms, topics) if not kinds or one.kind in kinds)
    if found:
        acceptances = _copied(log)
        for alarm in found:
            state = log.state.topics[alarm.topic]
            acceptances.setdefault(alarm.topic, {})[alarm.kind] = AlarmAcceptance(
                total=state.alarms.get(alarm.kind, NO_ALARMS).total,
                count=alarm.count,
                at_ms=now_ms,
                by=by,
                reason=reason[:REASON_CHARS_MAX],
                topic_id=state.topic_id,
                ends=_ends(state) if alarm.kind == AlarmKind.QUARANTINED else {},
            )
        _write(log, acceptances)
    return found


def withdraw(log: CommitLog, topics: Collection[str], kinds: Collection[str]) -> int:
    """Removes the acceptances of these topics, so that their alarms are open again. Returns the number of acceptances.

    Args:
        kinds: only acceptances of these kinds; empty for all.
    """
    acceptances = _copied(log)
    chosen = [(topic, kind) for topic in topics for kind in acceptances.get(topic, {}) if not kinds or kind in kinds]
    for topic, kind in chosen:
        del acceptances[topic][kind]
    if chosen:
        _write(log, acceptances)
    return len(chosen)


def _copied(log: CommitLog) -> dict[str, dict[str, AlarmAcceptance]]:
    found = read_accepted(log).topics
    return {topic: dict(kinds) for topic, kinds in found.items() if topic in log.state.topics}


def _write(log: CommitLog, topics: Mapping[str, Mapping[str, AlarmAcceptance]]) -> None:
    kept = {topic: kinds for topic, kinds in topics.items() if kinds}
    log.storage.replace(ACCEPTED_PATH, write_document(AcceptedAlarms(log.state.commit_number, log.state.sha256, kept)))


def _ends(state: TopicState) -> dict[int, AcceptedEnd]:
    return {
        number: AcceptedEnd(partition.next_offset, partition.incarnation)
        for number, partition in state.partitions.items()
    }


def _open_alarms(
    index: FileIndex, topic: str, state: TopicState, accepted: Mapping[str, AlarmAcceptance], now_ms: int
) -> Iterator[OpenAlarm]:
    yesterday_ms = now_ms - now_ms % DAY_MS - DAY_MS
    for kind in sorted({*state.alarms, AlarmKind.QUARANTINED}):
        alarms = state.alarms.get(kind, NO_ALARMS)
        acceptance = accepted.get(kind)
        accepted_total = acceptance.total if acceptance else 0
        count = alarms.total - accepted_total
        if kind == AlarmKind.QUARANTINED:
            count = _quarantined(index, topic, state, acceptance, count)
        if count > 0:
            yield OpenAlarm(
                topic=topic,
                kind=str(kind),
                count=count,
                recent=min(count, alarms.total - alarms.total_before(yesterday_ms)),
                since_ms=max(alarms.since_ms(accepted_total), acceptance.at_ms if acceptance else 0)
                if alarms.days
                else 0,
                newest_ms=alarms.days[-1].first_ms if alarms.days else 0,
                text=alarms.text,
            )


def _quarantined(
    index: FileIndex, topic: str, state: TopicState, acceptance: AlarmAcceptance | None, since: int
) -> int:
    """Returns the number of messages in the quarantine that are not accepted.

    Args:
        index: the index of the files that belong to each topic.
        acceptance: the newest acceptance, None if there is none.
        since: the number of messages that were quarantined after it.
    """
    if acceptance is None:
        return state.quarantine.records
    newer = min(since, state.quarantine.records)
    if newer <= 0 or acceptance.topic_id != state.topic_id:
        return newer
    ranges = _quarantined_ranges(index, topic)
    return min(newer, sum(_not_accepted(offsets, state, acceptance.ends) for offsets in ranges))


def _quarantined_ranges(index: FileIndex, topic: str) -> Iterator[FileRange]:
    kind = FileKind.QUARANTINE
    for day in index.days(topic, kind):
        for time_partition in index.day(topic, kind, day).time_partitions:
            for file in index.live(topic, kind, time_partition):
                yield from file.ranges


def _not_accepted(offsets: FileRange, state: TopicState, ends: Mapping[int, AcceptedEnd]) -> int:
    """Returns the largest possible number of messages in a part of a file that are not accepted."""
    end = ends.get(offsets.partition)
    if end is None or state.partitions[offsets.partition].incarnation != end.incarnation:
        return offsets.records
    return min(offsets.records, max(0, offsets.last + 1 - end.next_offset))
