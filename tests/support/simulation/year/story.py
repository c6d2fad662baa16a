"""The produced messages, their expected results and the expected sentences of reports, recorded without knowing the
loader.

A message is identified by its number, which its value contains. It is `committed` once a commit contains its offset,
`loss` if the brokers lost it before that, and `retired` once a rewrite or an operator has removed its row.
"""

from __future__ import annotations

import io
import itertools
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import fastavro

from headrace.audit.count import WindowCounter
from headrace.audit.row import AuditOutcome, AuditRow, Tier, counted_row_id
from headrace.avro_schema import frame
from support.simulation.year.broker import Sent
from support.simulation.year.schemas import EvolvingRecord


class Kind(StrEnum):
    ROW = "row"
    BAD = "bad"
    TOMBSTONE = "tombstone"
    ABORTED = "aborted"


class Loss(StrEnum):
    """The reason why the brokers lost an unread message."""

    REMOVED = "removed"  # by retention or compaction, so that its offset is a gap
    REPLACED = "replaced"  # by another one at its offset, after an unclean election
    RECREATED = "re-created"  # with the topic
    CORRUPT = "corrupt"  # and skipped


@dataclass(slots=True)
class Message:
    """A produced message.

    Attributes:
        n: its number.
        log: the number of the topic's log in which it is; a re-created topic has a new log.
        event_ms: the time under which the audit counts it.
        time: the value of its time field.
        committed: number of the commit that contains it; 0 for none.
        loss: why the brokers lost it unread.
        retired: why its row was removed.
    """

    n: int
    topic: str
    log: int
    kind: Kind
    event_ms: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    record: EvolvingRecord | None
    schema_id: int
    time: int
    partition: int = -1
    offset: int = -1
    committed: int = 0  # the commit number
    loss: Loss | None = None
    retired: str = ""

    @property
    def sent(self) -> Sent:
        return Sent(self.timestamp_ms, self.key, self.value)

    def fields(self) -> dict[str, Any]:
        assert self.record is not None
        return self.record.value(self.n, self.time)


class Encoder:
    """Encodes messages with fastavro, without logical types, so that times are numbers."""

    def __init__(self) -> None:
        self._parsed: dict[EvolvingRecord, Any] = {}

    def __call__(self, record: EvolvingRecord, schema_id: int, value: Mapping[str, Any]) -> bytes:
        parsed = self._parsed.get(record)
        if parsed is None:
            parsed = self._parsed[record] = fastavro.parse_schema(_without_logical_types(json.loads(record.text())))
        body = io.BytesIO()
        fastavro.schemaless_writer(body, parsed, value)
        return frame(schema_id, body.getvalue())


def _without_logical_types(node: Any) -> Any:
    if isinstance(node, dict):
        return {
            key: _without_logical_types(value)
            for key, value in node.items()
            if key not in ("logicalType", "default", "aliases")
        }
    return [_without_logical_types(item) for item in node] if isinstance(node, list) else node


@dataclass
class Expectation:
    """A sentence that loads may report for a topic, and how often they did.

    Attributes:
        topic: the topic; "" for any.
        reported: number of reports with the sentence.
    """

    topic: str
    pattern: re.Pattern[str]
    reason: str
    reported: int = 0


@dataclass
class Story:
    """Everything that has happened in a year.

    Attributes:
        messages: all messages by number.
        places: by topic, log and partition: the messages by offset.
        unread: by topic: numbers of the messages on the brokers that are not committed.
        lines: by topic: descriptions of its events.
        expectations: the sentences that may be reported at present.
        producer_rows: the message counts that the producers have published.
    """

    seed: int
    messages: dict[int, Message] = field(default_factory=dict)
    places: dict[tuple[str, int, int], dict[int, Message]] = field(default_factory=lambda: defaultdict(dict))
    by_topic: dict[str, list[Message]] = field(default_factory=lambda: defaultdict(list))
    unread: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    lines: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    expectations: list[Expectation] = field(default_factory=list)
    producer_rows: list[AuditRow] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def number(self) -> int:
        return next(self._numbers)

    def record_event(self, topic: str, day: int, line: str) -> None:
        self.lines[topic].append(f"day {day}: {line}")

    def failed(self, topic: str, problem: str) -> AssertionError:
        """Returns the error that ends the simulation. Its message has the seed and the events of the topic."""
        events = [*(self.lines[topic] if topic else ()), *self.lines[""][-12:]]
        story = "\n".join(f"  {line}" for line in events[-60:])
        return AssertionError(f"seed {self.seed}, topic {topic or '(any)'}: {problem}\nwhat happened:\n{story}")

    def sent(self, messages: Sequence[Message], partition: int, offsets: Iterable[int], now_ms: int) -> None:
        """Notes the offsets of acknowledged messages, and adds the counts that their producer would publish."""
        counter = WindowCounter()
        for message, offset in zip(messages, offsets, strict=True):
            message.partition, message.offset = partition, offset
            self.messages[message.n] = message
            self.places[message.topic, message.log, partition][offset] = message
            self.by_topic[message.topic].append(message)
            self.unread[message.topic].add(message.n)
            if message.value is not None and message.kind is not Kind.ABORTED:
                counter.add(message.topic, message.event_ms, message.key, message.value)
        for topic, start_ms, tally in counter:
            self.producer_rows.append(
                AuditRow(
                    id=counted_row_id("year", len(self.producer_rows)),
                    tier=Tier.PRODUCER,
                    outcome=AuditOutcome.ACKNOWLEDGED,
                    topic=topic,
                    window_start_ms=start_ms,
                    count=tally.count,
                    bytes=tally.bytes,
                    fingerprint=tally.fingerprint,
                    application="year",
                    host="host",
                    instance="year",
                    emitted_at_ms=now_ms,
                    sent=tally.count,
                )
            )

    def removed(self, topic: str, log: int, partition: int, offsets: Iterable[int], reason: Loss) -> int:
        """Notes that the brokers have deleted these offsets. Returns the number of unread messages among them."""
        known = self.places[topic, log, partition]
        lost = 0
        for offset in offsets:
            message = known.pop(offset, None)
            if message is not None and not message.committed:
                message.loss = reason
                self.unread[topic].discard(message.n)
                lost += 1
        return lost

    def expect(self, topic: str, pattern: str, reason: str) -> Expectation:
        found = Expectation(topic, re.compile(pattern), reason)
        self.expectations.append(found)
        return found

    def over(self, expectation: Expectation) -> None:
        self.expectations.remove(expectation)

    def is_expected(self, topic: str, sentence: str) -> bool:
        """Notes a sentence of a report, and returns whether it was expected."""
        found = [
            one for one in self.expectations if one.topic in ("", topic) and one.pattern.search(sentence) is not None
        ]
        for one in found:
            one.reported += 1
        return bool(found)
