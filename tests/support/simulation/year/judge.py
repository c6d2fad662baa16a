"""Checks the reports and results of loads against the story, which has the produced messages and the expected
results."""

from __future__ import annotations

import datetime
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.audit.reconcile import reconcile_topics
from headrace.audit.storage.store import AuditStore
from headrace.audit.verdict import FINDINGS, AuditVerdict
from headrace.audit.window import TIME_MS_MAX, window_start, window_text
from headrace.avro_schema import Schema, parse_schema
from headrace.loader.commit.commit import Commit, CommittedRange, LoadSchema
from support.loader.projection_oracle import expected_row
from support.simulation.year.reader import Row
from support.simulation.year.schemas import NOT_MARKED, marks
from support.simulation.year.story import Kind, Loss, Message, Story
from support.simulation.year.world import DAY_MS, HOUR_MS

NUMBER = re.compile(rb"#(\d+)#")
SAMPLED = 7
"""Of this many rows, one is compared with the projection oracle, which is slow."""

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
GRACE_MS = 900_000
CLOCK_BACK_MS = 30 * HOUR_MS
"""The largest difference by which the loader's clock may be behind."""


@dataclass
class Judge:
    """Checks commits and rows.

    Attributes:
        pending: by topic: numbers of committed messages that have not been read from the tables yet.
        time_partitions: by topic: the time partitions in which these messages may be.
        gaps: by topic, log and partition: the offset ranges that commits have declared as gaps.
        corrupt: by topic, log, partition and offset: the number of the message that stands for a quarantined batch.
        load_schemas: by topic: the load schemas, in the order of their commits.
        bad: by topic: number of messages that the newest commits have quarantined.
        late_ids: schema ids of replayed messages whose schemas are not versions of the topic's subject.
    """

    story: Story
    pending: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    time_partitions: dict[str, set[tuple[str, ...]]] = field(default_factory=lambda: defaultdict(set))
    gaps: dict[tuple[str, int, int], list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    corrupt: dict[tuple[str, int, int, int], int] = field(default_factory=dict)
    load_schemas: dict[str, list[LoadSchema]] = field(default_factory=lambda: defaultdict(list))
    bad: Counter[str] = field(default_factory=Counter)
    late_ids: set[int] = field(default_factory=set)
    rows_sampled: int = 0
    _schemas: dict[str, Schema] = field(default_factory=dict)

    def committed(self, commit: Commit, logs: Mapping[str, int]) -> None:
        """Notes the offset ranges of a commit, and checks its counts against the produced messages.

        Args:
            logs: by topic: the number of its present log; a re-created topic has a new log.
        """
        for topic, committed in commit.topics.items():
            if committed.load_schema is not None:
                self.load_schemas[topic].append(committed.load_schema)
            for offsets in committed.ranges:
                self._range(topic, logs[topic], offsets, commit.commit_number)
            changed = [file.time_partition for file in committed.files] + [
                one.time_partition for one in committed.rewrites
            ]
            self.time_partitions[topic].update(
                tuple(part.partition("=")[2] for part in one.split("/")) for one in changed
            )

    def _range(self, topic: str, log: int, offsets: CommittedRange, commit_number: int) -> None:
        key = (topic, log, offsets.partition)
        self.gaps[key] += offsets.gaps
        passed = {offset for one in offsets.skipped for offset in range(one.start, one.end)}
        known = self.story.places[key]
        counted: Counter[str] = Counter()
        for offset in sorted({*range(offsets.start, offsets.end), *passed}):
            message = known.get(offset)
            if message is None:
                continue
            if message.committed:
                raise self.story.failed(
                    topic,
                    f"{message} is committed in commit {commit_number} too (range [{offsets.start}, {offsets.end}))",
                )
            message.committed = commit_number
            self.story.unread[topic].discard(message.n)
            if offset in passed:
                message.loss = Loss.CORRUPT
                continue
            counted[message.kind] += 1
            if message.kind in (Kind.ROW, Kind.BAD):
                self.pending[topic].add(message.n)
        self.bad[topic] += counted[Kind.BAD]
        for one in offsets.skipped:
            number = self.corrupt.get((*key, one.start), 0)
            if one.is_quarantined and number:
                self.story.messages[number].committed = commit_number
                self.pending[topic].add(number)
        counts = offsets.counts
        reported = (counts.records, counts.quarantined, counts.tombstones, counts.aborted)
        if reported != (counted[Kind.ROW], counted[Kind.BAD], counted[Kind.TOMBSTONE], counted[Kind.ABORTED]):
            raise self.story.failed(
                topic,
                f"commit {commit_number} has {offsets} and the log held {dict(counted)} (rows, bad, tombstones, "
                f"aborted: {reported})",
            )

    def states_bad_messages(self, topic: str, sentence: str) -> bool:
        """Returns whether a sentence of a report states the number of bad messages, and states it correctly."""
        match = re.match(r"([\d,]+) of [\d,]+ messages? cannot be loaded, more than", sentence)
        return match is not None and int(match[1].replace(",", "")) == self.bad[topic] > 0

    def take(self, topic: str, row: Row) -> int:
        """Returns the number of the message from which a row was made.

        Raises:
            AssertionError: the row belongs to no message, or differs from it.
        """
        message = self._quarantined(topic, row) if row.is_quarantined else self._loaded(topic, row)
        if not message.committed:
            raise self.story.failed(topic, f"{message} is in {row.path} and was not committed")
        return message.n

    def _quarantined(self, topic: str, row: Row) -> Message:
        values = row.values
        found = NUMBER.search(values["value"] or b"")
        if values["code"] == "corrupt_batch":
            places = [at for at in self.corrupt if (at[0], *at[2:]) == (topic, values["partition"], values["offset"])]
            number = self.corrupt[max(places)] if places else 0
        elif found:
            number = int(found[1])
        else:
            number = next(
                (
                    one.n
                    for (name, _, partition), known in reversed(self.story.places.items())
                    if (name, partition) == (topic, values["partition"])
                    and (one := known.get(values["offset"])) is not None
                    and one.value == values["value"]
                ),
                0,
            )
        message = self.story.messages.get(number)
        position = (topic, values["partition"], values["offset"], values["value"])
        if message is None or position != (message.topic, message.partition, message.offset, message.value):
            raise self.story.failed(topic, f"quarantined is {dict(values)}, and produced was {message}")
        if message.kind is not Kind.BAD:
            raise self.story.failed(topic, f"{message} is quarantined: {values['code']}, {values['reason']}")
        return message

    def _loaded(self, topic: str, row: Row) -> Message:
        message = self.story.messages.get(row.values["n"])
        if message is None or message.topic != topic or message.kind is not Kind.ROW:
            raise self.story.failed(topic, f"{row.path} has the row {row.values}, and produced was {message}")
        expected = message.fields()
        if marks(row.values) != marks(expected):
            raise self.story.failed(
                topic, f"{row.path} has the row {row.values}, and produced was {message}: {expected}"
            )
        kafka = row.values["kafka"]
        at = (kafka["partition"], kafka["offset"], _ms(kafka["timestamp"]))
        if at != (message.partition, message.offset, message.timestamp_ms):
            raise self.story.failed(topic, f"{row.path} has {kafka} of {message}")
        if not _may_be_in(message, row.time_partition):
            raise self.story.failed(topic, f"{row.path} has {message}")
        if message.n % SAMPLED == 0 and message.schema_id not in self.late_ids:
            self._compare(topic, row, message)
        return message

    def _compare(self, topic: str, row: Row, message: Message) -> None:
        """Compares a row with the row that the projection oracle computes from the message."""
        load_schema = next((one for one in self.load_schemas[topic] if message.schema_id in one.writer_ids), None)
        if load_schema is None:
            raise self.story.failed(topic, f"{message} is a row, and its schema is not in the load schema")
        file = json.loads(row.file_schema)
        file["fields"] = [one for one in file["fields"] if not one["name"].startswith("kafka")]
        assert message.record is not None
        expected = expected_row(
            self._schema(message.record.text()),
            self._schema(load_schema.text),
            self._schema(json.dumps(file)),
            message.fields(),
        )
        expected = {name: value for name, value in expected.items() if name not in NOT_MARKED}
        if not _agrees(expected, row.values):
            raise self.story.failed(topic, f"{row.path} has {row.values}, and should have {expected}, of {message}")
        self.rows_sampled += 1

    def _schema(self, text: str) -> Schema:
        if text not in self._schemas:
            self._schemas[text] = parse_schema(text, strict=False)
        return self._schemas[text]

    def seen(self, topic: str, live: Counter[int], quarantined: Counter[int]) -> None:
        """Checks that the committed messages in `pending` can be read, and removes them from it.

        Args:
            live: number of rows of each message.
            quarantined: number of quarantined rows of each message.

        Raises:
            AssertionError: a message is missing or duplicated.
        """
        for number in self.pending[topic]:
            self._check(self.story.messages[number], live, quarantined)
        self.pending[topic].clear()
        self.time_partitions[topic].clear()

    def check_all(self, topic: str, live: Counter[int], quarantined: Counter[int]) -> None:
        """Checks for every message of a topic that it is a row or in quarantine as expected, once, and nowhere else."""
        for message in self.story.by_topic[topic]:
            self._check(message, live, quarantined)

    def _check(self, message: Message, live: Counter[int], quarantined: Counter[int]) -> None:
        has_row = bool(message.committed) and message.loss is None and not message.retired
        expected = (int(has_row and message.kind is Kind.ROW), int(has_row and message.kind is Kind.BAD))
        found = (live[message.n], quarantined[message.n])
        if found != expected:
            raise self.story.failed(
                message.topic, f"in (rows, quarantine) should be {expected} and are {found}: {message}"
            )

    def explained(self, topic: str) -> Counter[Loss]:
        """Checks that each offset which the brokers removed before it was read is in a declared gap.

        Raises:
            AssertionError: one is in none.
        """
        lost = Counter[Loss]()
        for message in self.story.by_topic[topic]:
            if message.loss is None:
                continue
            lost[message.loss] += 1
            gaps = self.gaps[topic, message.log, message.partition]
            if message.loss is Loss.REMOVED and not any(start <= message.offset < end for start, end in gaps):
                raise self.story.failed(topic, f"{message} was removed and is in no gap: {gaps}")
        return lost

    def audited(self, store: AuditStore, topics: Iterable[str], now_ms: int) -> Counter[str]:
        """Compares the counts of all tiers, as `headrace audit report` does. The story must explain every difference.

        Returns:
            The number of windows by verdict.
        """
        verdict_counts: Counter[str] = Counter()
        for topic in topics:
            read: Counter[int] = Counter()
            unread: Counter[int] = Counter()
            for message in self.story.by_topic[topic]:
                if message.value is not None and message.kind is not Kind.ABORTED and message.event_ms >= -1:
                    is_read = bool(message.committed) and message.loss is None
                    (read if is_read else unread)[window_start(message.event_ms)] += 1
            facts = list(store.facts(topic))
            offsets = {topic: store.offset_check(topic)}
            (result, *_) = reconcile_topics(facts, offsets, now_ms=now_ms, grace_ms=GRACE_MS) or [None]
            for window in result.windows if result else ():
                start_ms = window.facts.window_start_ms
                counted = (_count(window.facts.acknowledged), _count(window.facts.stored), _count(window.facts.loaded))
                expected = (read[start_ms] + unread[start_ms], read.pop(start_ms, 0))
                missing = unread.pop(start_ms, 0)
                fits = (
                    window.verdict is AuditVerdict.COMPLETE
                    if not missing
                    else window.verdict is not AuditVerdict.COMPLETE
                )
                if window.verdict in (FINDINGS - {AuditVerdict.MISSING}) | {AuditVerdict.UNTRACKED}:
                    fits = False
                if counted != (*expected, expected[1]) or not fits:
                    raise self.story.failed(
                        topic,
                        f"the audit of {window_text(start_ms)} has {counted} (acknowledged, stored, loaded), should "
                        f"have {expected}, {missing} of them unread, and says {window.verdict}: {window.sentence}",
                    )
                verdict_counts[window.verdict] += 1
            if read or unread:
                raise self.story.failed(topic, f"no tier has counted {read or unread}")
        return verdict_counts


def _count(count: Any) -> int:
    return count.count if count is not None else 0


def _ms(value: Any) -> int:
    return (value - EPOCH) // datetime.timedelta(milliseconds=1) if isinstance(value, datetime.datetime) else value


def _agrees(expected: Any, found: Any) -> bool:
    """Returns whether a row that was read with a later schema of its table has the values that were written. Columns
    with other names are not compared here; the marks of their values identify them."""
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(
            _agrees(value, found[name]) for name, value in expected.items() if name in found
        )
    return _text(expected) == _text(found)


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _may_be_in(message: Message, time_partition: str) -> bool:
    """Returns whether a message may be in a time partition. It may be in that of its own time; if this time is
    implausible, in that of its arrival, or in an earlier one if the loader's clock was behind."""
    day, _, hour = time_partition.removeprefix("dt=").partition("/hr=")
    start_ms = (datetime.date.fromisoformat(day).toordinal() - 719_163) * DAY_MS + int(hour or 0) * HOUR_MS
    length_ms = HOUR_MS if hour else DAY_MS
    if start_ms <= message.event_ms < start_ms + length_ms:
        return True
    is_implausible = not 0 <= message.event_ms <= TIME_MS_MAX or message.event_ms > message.timestamp_ms - CLOCK_BACK_MS
    return is_implausible and message.timestamp_ms - CLOCK_BACK_MS - length_ms < start_ms <= message.timestamp_ms
