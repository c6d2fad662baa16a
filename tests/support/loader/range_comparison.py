"""Processes the record batches of an offset range with the core and with the reference, and compares all results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.avro_codec.core.library import Library
from headrace.avro_codec.encode import encode_bytes, encode_long
from headrace.avro_schema import Schema
from headrace.kafka_wire.record_batch import NO_HEADERS, Record, parse_records
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.project.batches import Columns, OutputBuffers, RecordColumns, RowRun, RowsOfBatches
from headrace.loader.project.kafka_column import compile_suffix
from headrace.loader.project.messages import Clamp, CoreConversion, RangeMessages, StopBeforeUnknownSchema
from headrace.loader.project.topic_projection import TopicProjection
from headrace.loader.work_unit import FileKind, TopicPlan
from headrace.loader.write.time_partitions import TimePartitions
from support.loader.compiled_core import required_core
from support.loader.loader_samples import POLICY
from support.loader.projection_oracle import states_of

T0 = 1_357_002_000_000  # 2013-01-01T01:00Z
BUFFERS = OutputBuffers()


def record_bytes(
    delta: int, time_delta: int, key: bytes | None, value: bytes | None, headers: bytes = NO_HEADERS
) -> bytes:
    """Returns the encoding of a record in a record batch.

    Args:
        delta: its offset relative to the batch's base offset.
        time_delta: its timestamp relative to the batch's first timestamp.
    """
    parts = [b"\x00", encode_long(time_delta), encode_long(delta)]
    parts += [encode_long(-1) if one is None else encode_bytes(one) for one in (key, value)]
    return encode_bytes(b"".join((*parts, headers)))


def headers_bytes(headers: Sequence[tuple[bytes, bytes | None]]) -> bytes:
    items = (encode_bytes(key) + (encode_long(-1) if value is None else encode_bytes(value)) for key, value in headers)
    return b"".join((encode_long(len(headers)), *items))


@dataclass(slots=True)
class Rows:
    """The rows that processing has produced, in order, by kind of file and time partition."""

    found: dict[tuple[FileKind, str], list[tuple[int, bytes]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, kind: FileKind, time_partition: str, offset: int, row: bytes) -> None:
        self.found[kind, time_partition].append((offset, row))

    def add_run(self, kind: FileKind, time_partition: str, run: RowRun) -> None:
        starts = [0, *run.ends[:-1]]
        for offset, start, end in zip(run.offsets, starts, run.ends, strict=True):
            self.found[kind, time_partition].append((offset, bytes(run.data[start:end])))


@dataclass(frozen=True, slots=True)
class RangeInputs:
    """The inputs of processing that are common to all batches of a range."""

    plan: TopicPlan
    time_fields: tuple[str, ...] = ("timestamp",)
    kafka_column: str = "position"
    partition_by: str = "hour"
    clamp: Clamp | None = None
    topic_windows: frozenset[int] = frozenset()

    def messages(self, through: Library | None) -> tuple[RangeMessages, Rows]:
        rows, time_partitions = Rows(), TimePartitions(self.partition_by)
        limits = None if self.clamp is None else (self.clamp.future_ms_max, self.clamp.now_ms)
        core_rows = (
            None
            if through is None
            else RowsOfBatches(through, BUFFERS, self.kafka_column, 3, time_partitions.period_ms, limits)
        )
        messages = RangeMessages(
            TopicPartition("t", 3),
            TopicProjection(self.plan, self.time_fields),
            rows.add,
            time_partitions,
            compile_suffix(self.kafka_column, 3),
            set(self.topic_windows),
            self.clamp,
            None if core_rows is None else CoreConversion(core_rows, time_partitions.period_ms, rows.add_run),
        )
        return messages, rows


def taken(
    given: RangeInputs, batches: Sequence[bytes], counts: Sequence[int], through: Library | None
) -> tuple[Any, ...]:
    """Processes batches and returns everything that this produces: rows, counts, time sources, audit rows and the
    offset at which it stopped.

    Args:
        batches: payloads of batches. Batch number n begins at offset 100 n.
        counts: the number of records of each batch.
        through: the core; None for the reference.
    """
    messages, rows = given.messages(through)
    record_parser = parse_records if through is None else RecordColumns(through)
    stopped = None
    for number, (payload, count) in enumerate(zip(batches, counts, strict=True), 1):
        records: Sequence[Record] = record_parser(payload, count, 100 * number, T0, None)
        assert through is None or isinstance(records, Columns)
        try:
            messages.convert(records)
        except StopBeforeUnknownSchema as stop:
            stopped = stop.offset, stop.schema_id
            break
    counted = messages.written, messages.tombstones, messages.quarantined
    return (
        rows.found,
        list(rows.found),
        counted,
        messages.time_sources,
        messages.audit(),
        messages.implausible_times(),
        stopped,
    )


def check_same(
    given: RangeInputs, batches: Sequence[Sequence[bytes]], counts: Sequence[int] | None = None
) -> tuple[Any, ...]:
    """Processes batches with core and reference, checks that the results are equal, and returns them.

    Args:
        batches: the encoded records of each batch.
        counts: the number of records of each batch, by default of its encoded records.
    """
    payloads, counts = [b"".join(one) for one in batches], counts or [len(one) for one in batches]
    expected = taken(given, payloads, counts, None)
    assert taken(given, payloads, counts, required_core()) == expected
    return expected


def plan_of(versions: Sequence[Schema]) -> TopicPlan:
    """Returns the plan of a topic with these schema versions. Schema ids count from 1; id 404 is known to be absent."""
    texts = {number: version.text for number, version in enumerate(versions, 1)}
    state = states_of(*versions)[-1]
    return TopicPlan("t", state.text, texts, POLICY, routes=state.routes, absent_ids=frozenset({404}))
