"""Reads the pending messages of one topic as a load would, and reports which of them cannot be loaded. Changes nothing.

The messages pass through the code of a task (`loader.task`); its files are kept in memory and dropped. Partitions are
read in turn, in pieces of a few hundred offsets. The limits on messages, bytes and time are checked after each piece,
so that the last one may exceed them.

A schema id that the plan does not know stops a load until the next one. A preview looks it up in the registry, counts
the message under the result, and continues.
"""

from __future__ import annotations

import dataclasses
import io
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Final

from headrace.avro_codec import BadBody
from headrace.avro_schema import AvroSchemaError
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.commit.revalidate import QUARANTINED_MIN
from headrace.loader.inspect.producer_hint import FRAME_BYTES, producer_hint
from headrace.loader.inspect.quarantine import QuarantinedRow, read_rows
from headrace.loader.plan.load_plan import LoadPlan, topic_plan
from headrace.loader.plan.ranges import PlannedRange, TopicRanges, topic_ranges
from headrace.loader.plan.schemas import FetchedIds
from headrace.loader.project.quarantine import QuarantineCode
from headrace.loader.project.topic_projection import TopicProjection
from headrace.loader.run import RunDependencies, RunSettings, plan_load
from headrace.loader.task import run_work_unit
from headrace.loader.work_unit import FileKind, OffsetRange, RangeResult, TopicPlan, UnitResult, WorkUnit

PIECE_OFFSETS: Final = 500
GROUPS_MAX: Final = 20
SAMPLES_MAX: Final = 5  # offsets per group
UNBOUNDED: Final = 1 << 62
REGISTERED_ELSEWHERE: Final = "registered_elsewhere"
"""Code of messages whose schema id is registered, but is not one of the topic's subject. The load after next reads
them."""
NO_COLUMNS: Final = '{"type":"record","name":"Unknown","fields":[]}'
"""Load schema of a topic without a usable schema; no message is converted with it."""


@dataclass(frozen=True, slots=True)
class PreviewLimits:
    """Limits of a preview. `bytes_max` counts fetched record batches."""

    messages_max: int = 10_000
    bytes_max: int = 64 * 1024 * 1024
    seconds_max: float = 30.0


@dataclass(frozen=True, slots=True)
class PreviewGroup:
    """Messages that cannot be loaded for one reason. `code` is a quarantine code or `REGISTERED_ELSEWHERE`, `reason`
    the sentence of the first one. `samples` are the first partitions and offsets, `value` is the first one's value.
    `hint` is a guess at the producer's mistake, "" for none."""

    code: str
    reason: str
    count: int
    samples: tuple[tuple[int, int], ...]
    value: bytes | None
    schema_id: int | None
    hint: str


@dataclass(frozen=True, slots=True)
class Preview:
    """The result of a preview.

    `pending` are the offsets that the next loads have to read, `read` those of them that were read here; the others are
    unknown. `limit` is the limit that ended the reading: `messages`, `bytes`, `seconds`, or "" if all was read that can
    be. `loadable` messages become rows; `quarantined` cannot be loaded. `others` are offsets without a message or with
    a null value. `problems` are sentences about the topic or about partitions that could not be read to the end.
    `is_waiting` means that the topic has no usable schema yet: loads do not read it. `is_held_back` means that a load
    of exactly these messages would hold back the topic.
    """

    topic: str
    pending: int
    read: int
    limit: str
    loadable: int
    quarantined: int
    others: int
    groups: tuple[PreviewGroup, ...]
    problems: tuple[str, ...]
    is_waiting: bool
    is_held_back: bool


def preview(
    ports: RunDependencies,
    settings: RunSettings,
    topic: str,
    limits: PreviewLimits,
    clock_s: Callable[[], float] = time.monotonic,
) -> Preview:
    """Returns a preview of the topic's pending messages.

    Args:
        ports: the interfaces of a load that is only planned.
        clock_s: a clock in seconds.

    Raises:
        NoSuchTopic: the topic is not on the brokers, or excluded.
        KafkaError: the brokers are unavailable.
        CommitLogError: the commits cannot be read.
        OSError: the storage failed.
    """
    plan = plan_load(ports, dataclasses.replace(settings, topics_only=(topic,)))
    problems = [*plan.problems.get(topic, ()), *filter(None, [plan.waiting.get(topic), plan.registry_outage])]
    ranges = _pending(ports, plan, topic)
    unit = _unit(plan, settings, topic)
    reading = _Reading(unit, ranges, limits, ports.schemas.look_up, clock_s)
    reading.run()
    counts = [result.counts for result in reading.results]
    loadable = sum(one.records for one in counts)
    quarantined = sum(one.quarantined for one in counts)
    read = sum(one.total for one in counts)
    share_max = settings.plan.policy_of(topic).quarantine_ratio_max
    return Preview(
        topic=topic,
        pending=sum(one.end - one.start for one in ranges.ranges),
        read=read,
        limit=reading.limit,
        loadable=loadable,
        quarantined=quarantined,
        others=read - loadable - quarantined,
        groups=tuple(reading.groups.groups(unit.topics[topic])),
        problems=tuple(dict.fromkeys((*problems, *reading.problems))),
        is_waiting=topic in plan.waiting,
        is_held_back=quarantined > max(QUARANTINED_MIN, share_max * (loadable + quarantined)),
    )


def _pending(ports: RunDependencies, plan: LoadPlan, topic: str) -> TopicRanges:
    """Returns all offsets that are not loaded. Where messages were lost, they begin with the first that exists."""
    found, state = plan.discovered.get(topic), ports.log.state
    if found is None:
        return TopicRanges("", False, (), ())
    known, starts = state.topics.get(topic), state.starts.get(topic, {})
    return topic_ranges(found, known, starts, on_data_loss="skip", range_bytes_max=UNBOUNDED)


def _unit(plan: LoadPlan, settings: RunSettings, topic: str) -> WorkUnit:
    """Returns the input of a task for the topic, without ranges."""
    planned = plan.planned_topics.get(topic)
    known = TopicPlan(topic, NO_COLUMNS, {}, settings.plan.policy_of(topic)) if planned is None else topic_plan(planned)
    known = dataclasses.replace(known, policy=dataclasses.replace(known.policy, codec="null"))
    task = dataclasses.replace(settings.task, now_ms=plan.discovery_start_ms)
    return WorkUnit(plan.run_id, 0, (), {topic: known}, task, settings.plan.build)


class _MemorySink:
    """A `BlockSink` that keeps the files of one task in memory."""

    directory = "preview"

    def __init__(self) -> None:
        self.files: dict[str, io.BytesIO] = {}

    def append(self, file: str, data: bytes) -> None:
        self.files.setdefault(file, io.BytesIO()).write(data)

    def finish(self, files: Sequence[str]) -> None:
        pass

    def abandon(self) -> None:
        pass

    def scratch(self) -> IO[bytes]:
        return tempfile.TemporaryFile()


class _Reading:
    """Reads the pending ranges piece by piece, until their end or a limit."""

    def __init__(
        self,
        unit: WorkUnit,
        ranges: TopicRanges,
        limits: PreviewLimits,
        look_up: Callable[[Sequence[int]], FetchedIds],
        clock_s: Callable[[], float],
    ) -> None:
        (self._topic,) = unit.topics
        self._unit = unit
        self._topic_id = ranges.topic_id
        self._waiting = deque(one for one in ranges.ranges if one.end > one.start)
        self._limits = limits
        self._look_up = look_up
        self._clock_s = clock_s
        self._absent: dict[int, str] = {}
        self.groups = _Groups()
        self.results: list[RangeResult] = []
        self.problems: list[str] = []
        self.limit = ""

    def run(self) -> None:
        deadline_s = self._clock_s() + self._limits.seconds_max
        while self._waiting:
            self.limit = self._reached_limit(deadline_s)
            if self.limit:
                return
            planned = self._waiting.popleft()
            rest = self._read_piece(planned)
            if rest.start < rest.end:
                self._waiting.append(rest)

    def _reached_limit(self, deadline_s: float) -> str:
        if sum(one.counts.total for one in self.results) >= self._limits.messages_max:
            return "messages"
        if sum(one.bytes_read for one in self.results) >= self._limits.bytes_max:
            return "bytes"
        return "seconds" if self._clock_s() >= deadline_s else ""

    def _read_piece(self, planned: PlannedRange) -> PlannedRange:
        """Reads the next piece of a partition. Returns the rest of the partition's range, which is empty after a
        failure."""
        read = sum(one.counts.total for one in self.results)
        piece_end = min(planned.end, planned.start + min(PIECE_OFFSETS, self._limits.messages_max - read))
        sink, offsets = _MemorySink(), self._offsets(planned, piece_end)
        plan = dataclasses.replace(self._unit.topics[self._topic], absent_ids=frozenset(self._absent))
        unit = dataclasses.replace(self._unit, ranges=(offsets,), topics={self._topic: plan})
        outcome = run_work_unit(unit, lambda location, task: sink)
        if outcome.error or outcome.disk_error:
            self.problems.append(outcome.error or outcome.disk_error)
            return dataclasses.replace(planned, start=planned.end)
        (result,) = outcome.ranges
        self.results.append(result)
        for row in _quarantined(outcome, sink):
            self.groups.add(row, self._absent)
        if result.error:
            self.problems.append(f"partition {planned.partition}: not read from {result.done.end}: {result.error}")
            return dataclasses.replace(planned, start=planned.end)
        self._note_unknown(result.unknown_ids)
        return dataclasses.replace(planned, start=result.done.end)

    def _offsets(self, planned: PlannedRange, end: int) -> OffsetRange:
        where = TopicPartition(self._topic, planned.partition)
        return OffsetRange(where, planned.start, end, self._topic_id, planned.leader_epoch)

    def _note_unknown(self, schema_ids: Sequence[int]) -> None:
        """Looks up schema ids and treats them as absent from now on, with the result of the lookup as the reason."""
        if not schema_ids:
            return
        found = self._look_up(schema_ids)
        for one in schema_ids:
            if one in found.registered:
                self._absent[one] = REGISTERED_ELSEWHERE
            elif one in found.absent:
                self._absent[one] = ""
            else:
                self._absent[one] = found.refused.get(one, "the registry could not be used")


def _quarantined(outcome: UnitResult, sink: _MemorySink) -> Iterator[QuarantinedRow]:
    for file in outcome.files:
        if file.kind is FileKind.QUARANTINE:
            content = sink.files[file.path.rpartition("/")[2]]
            content.seek(0)
            yield from read_rows(content)


@dataclass(slots=True)
class _Group:
    first: QuarantinedRow
    reason: str
    samples: list[tuple[int, int]] = field(default_factory=list)
    count: int = 0


class _Groups:
    """Counts messages that cannot be loaded, by code, schema id and guess. Beyond `GROUPS_MAX` groups, a message counts
    with the first group of its code, or with the last group."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, int | None, str], _Group] = {}

    def add(self, row: QuarantinedRow, absent: Mapping[int, str]) -> None:
        """Adds a row of the quarantine.

        Args:
            absent: the results of the lookups of schema ids.
        """
        code, reason = row.code, row.reason
        looked_up = absent.get(row.schema_id, "") if row.schema_id is not None else ""
        if looked_up == REGISTERED_ELSEWHERE:
            code, reason = looked_up, f"schema {row.schema_id} is registered, but not under the subject of this topic"
        elif looked_up:
            reason = f"schema {row.schema_id}: {looked_up}"
        key = (code, row.schema_id, producer_hint(row.value, code))
        if key not in self._groups and len(self._groups) >= GROUPS_MAX:
            key = next((one for one in self._groups if one[0] == code), [*self._groups][-1])
        group = self._groups.setdefault(key, _Group(row, reason))
        group.count += 1
        if len(group.samples) < SAMPLES_MAX:
            group.samples.append((row.partition, row.offset))

    def groups(self, plan: TopicPlan) -> Iterator[PreviewGroup]:
        """Yields the groups, the largest first.

        Args:
            plan: has the topic's schemas, to guess which of them a message without a usable schema id has.
        """
        for (code, schema_id, hint), group in sorted(self._groups.items(), key=lambda item: -item[1].count):
            value = group.first.value
            guess = hint or _schema_hint(value, group.first.code, plan)
            yield PreviewGroup(code, group.reason, group.count, tuple(group.samples), value, schema_id, guess)


def _schema_hint(value: bytes | None, code: str, plan: TopicPlan) -> str:
    """Returns a guess which schema of the topic the value of a message has, "" if it has none of them."""
    if not value or code not in (QuarantineCode.FRAMING, QuarantineCode.MALFORMED):
        return ""
    is_framed = code == QuarantineCode.MALFORMED
    body = value[FRAME_BYTES:] if is_framed else value
    schema_id = next(_matching_ids(body, plan), None) if body else None
    if schema_id is None:
        return ""
    where = "with another schema id" if is_framed else "without the magic byte and the schema id"
    return f"Avro data of schema {schema_id} {where}: this producer has no serializer of a registry"


def _matching_ids(body: bytes, plan: TopicPlan) -> Iterator[int]:
    projection = TopicProjection(plan, ())
    for schema_id in sorted(plan.writer_schemas, reverse=True):
        try:
            project = projection.writer(schema_id).project
            if project is not None:
                project(body)
                yield schema_id
        except (BadBody, AvroSchemaError):
            continue
