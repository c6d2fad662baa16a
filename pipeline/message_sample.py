"""A bounded sample of a partition's messages, decoded as far as possible.

Reads as loads do: committed messages only, with checksums. Reading stops at a number of messages, at a number of bytes
of keys, values and headers, or after a time. The first message is read even if it is larger than the limit. A message
that cannot be decoded has the reason in place of its value, as has one that is read after the time for decoding.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from headrace.avro_schema import FramingError, unframe
from headrace.clients.decoding import Decoder, FetchedRecord
from headrace.clients.errors import SourceUnavailable, UndecodableMessage
from headrace.kafka_wire.cluster import FetchSlice, KafkaCluster
from headrace.kafka_wire.errors import CorruptBatch, KafkaUnavailable
from headrace.kafka_wire.record_batch import Record, parse_headers
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.read.batch_neighbors import CorruptSpan
from headrace.loader.read.range_reader import ReadOptions, ReadProgress, StopBefore, read_range
from headrace.loader.work_unit import OffsetRange, SkippedOffsets
from headrace.registry.client import RegistryClient
from headrace.settings import LoaderSettings

FETCH_BYTES: Final = 1024 * 1024
BATCH_BYTES_MAX: Final = 16 * 1024 * 1024
"""Limit of a decompressed batch."""
FETCH_WAIT_MS: Final = 250


class SampleEnd(StrEnum):
    """Why reading stopped: at the end of the log, or at a limit."""

    LOG_END = "the end of the log"
    MESSAGES = "the limit of messages"
    BYTES = "the limit of bytes"
    TIME = "the limit of time"


@dataclass(frozen=True, slots=True)
class SampleLimits:
    """Limits of a sample. `time_s` limits reading and decoding, each."""

    messages: int
    payload_bytes: int = 1_000_000
    time_s: float = 2.0


@dataclass(frozen=True, slots=True)
class SampleStart:
    """The start of a sample: an offset, or a time (milliseconds since 1970): the first message at or after it. Without
    both, the sample ends at the end of the log."""

    offset: int | None = None
    time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SampledMessage:
    """A message.

    Attributes:
        timestamp_ms: the record's timestamp, -1 for none.
        text: the decoded value as JSON; "" without a value, and for the reason `problem`.
        time_ms: the time in the message, None without one.
        problem: "" or the reason why the value is not decoded.
    """

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    schema_id: int | None = None
    text: str = ""
    time_ms: int | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class MessageSample:
    """The messages of the offsets `[start, end)`.

    `log_start` and `log_end` are the offsets that can be read now. `other_offsets` is the number of offsets without a
    shown message: transaction markers, messages of aborted transactions, and gaps. `corrupt` are sentences about
    batches that cannot be read.
    """

    log_start: int
    log_end: int
    start: int
    end: int
    ended_by: SampleEnd
    messages: tuple[SampledMessage, ...] = ()
    other_offsets: int = 0
    corrupt: tuple[str, ...] = ()

    def undecoded(self, problem: str) -> MessageSample:
        """Returns the sample with this problem at each message that has a value."""
        messages = (one if one.value is None else replace(one, problem=problem) for one in self.messages)
        return replace(self, messages=tuple(messages))


def read_sample(
    cluster: KafkaCluster,
    topic_partition: TopicPartition,
    start: SampleStart,
    limits: SampleLimits,
    clock: Callable[[], float] = time.monotonic,
) -> MessageSample:
    """Returns a sample with undecoded messages.

    Raises:
        KafkaError: the brokers cannot be reached, the partition does not exist, or its log cannot be read.
    """
    return _SampleReader(cluster, topic_partition, limits, clock).read(start)


class _OutOfTime(Exception):
    """The time for reading is over."""


class _SampleReader:
    def __init__(
        self, cluster: KafkaCluster, topic_partition: TopicPartition, limits: SampleLimits, clock: Callable[[], float]
    ) -> None:
        self._cluster = cluster
        self._topic_partition = topic_partition
        self._limits = limits
        self._clock = clock
        self._end_s = clock() + limits.time_s
        self._messages: list[SampledMessage] = []
        self._bytes = 0
        self._ended_by = SampleEnd.LOG_END

    def read(self, start: SampleStart) -> MessageSample:
        tp, bounds = self._topic_partition, self._bounds()
        first = min(max(self._first(start, *bounds), bounds[0]), bounds[1])
        progress = ReadProgress(first)
        options = ReadOptions(BATCH_BYTES_MAX, self._limits.time_s, skip_corrupt=_skipped)
        problems: list[str] = []
        try:
            read_range(self._fetch, OffsetRange(tp, first, bounds[1]), self._take, progress, options)
        except _OutOfTime:
            self._ended_by = SampleEnd.TIME
        except StopBefore:
            pass  # `_take` states the limit
        except CorruptBatch as error:
            problems = [str(error)]
        offsets = progress.position - first
        return MessageSample(
            *bounds,
            first,
            progress.position,
            self._ended_by,
            tuple(self._messages),
            offsets - len(self._messages) - progress.corrupt,
            (*(f"offsets {one.start} to {one.end - 1}: {one.reason}" for one in progress.skipped), *problems),
        )

    def _bounds(self) -> tuple[int, int]:
        tp = self._topic_partition
        found = []
        for position in ("earliest", "latest"):
            response = self._cluster.lookup_offsets([tp], position)
            if tp not in response.offsets:
                raise KafkaUnavailable(response.errors.get(tp, "the brokers return no offsets of the partition"))
            found.append(response.offsets[tp])
        return found[0], max(found)

    def _first(self, start: SampleStart, log_start: int, log_end: int) -> int:
        if start.offset is not None:
            return start.offset
        if start.time_ms is None:
            return log_end - self._limits.messages
        found = self._cluster.lookup_offsets_at({self._topic_partition: start.time_ms})
        if self._topic_partition in found.errors:
            raise KafkaUnavailable(found.errors[self._topic_partition])
        offset = found.offsets[self._topic_partition]
        return log_end if offset < 0 else offset

    def _fetch(self, offset: int, bytes_max: int | None = None) -> FetchSlice:
        if self._clock() > self._end_s:
            raise _OutOfTime
        size = bytes_max or FETCH_BYTES
        return self._cluster.fetch(self._topic_partition, offset, size, max_wait_ms=FETCH_WAIT_MS)

    def _take(self, records: Sequence[Record]) -> None:
        for offset, timestamp_ms, key, value, raw_headers in records:
            size = len(key or b"") + len(value or b"") + len(raw_headers)
            if reached := self._reached_limit(size):
                self._ended_by = reached
                raise StopBefore(offset)
            self._bytes += size
            problem = ""
            headers: list[tuple[str, bytes | None]] = []
            try:
                headers = parse_headers(raw_headers)
            except ValueError as error:
                problem = str(error)
            self._messages.append(SampledMessage(offset, timestamp_ms, key, value, tuple(headers), problem=problem))

    def _reached_limit(self, size: int) -> SampleEnd | None:
        if len(self._messages) >= self._limits.messages:
            return SampleEnd.MESSAGES
        if self._messages and self._bytes + size > self._limits.payload_bytes:
            return SampleEnd.BYTES
        return SampleEnd.TIME if self._messages and self._clock() > self._end_s else None


def _skipped(span: CorruptSpan) -> SkippedOffsets:
    return SkippedOffsets(span.start, span.end, span.reason)


@dataclass(slots=True)
class _Unavailable:
    """Schemas that could not be requested. After `ATTEMPTS_MAX` failures no other schema is requested."""

    reasons: dict[int, str] = field(default_factory=dict)
    decoded: set[int] = field(default_factory=set)

    def reason(self, schema_id: int) -> str:
        if schema_id in self.decoded:
            return ""
        if len(self.reasons) >= ATTEMPTS_MAX:
            return self.reasons.get(schema_id) or f"schema {schema_id} was not requested: the registry does not respond"
        return self.reasons.get(schema_id, "")


ATTEMPTS_MAX: Final = 2


def decode_sample(
    sample: MessageSample,
    topic_partition: TopicPartition,
    registry: RegistryClient,
    loader: LoaderSettings,
    limits: SampleLimits,
    clock: Callable[[], float] = time.monotonic,
) -> MessageSample:
    """Returns the sample with decoded messages.

    Args:
        registry: has the schemas.
        loader: settings with the subjects and time fields of topics.
    """
    decoder, unavailable = Decoder(registry, None, loader), _Unavailable()
    end_s = clock() + limits.time_s
    found = []
    for one in sample.messages:
        if clock() > end_s:
            one = replace(one, problem="not decoded within the time limit")
        elif one.value is not None and not one.problem:
            one = _decoded(one, topic_partition, decoder, unavailable)
        found.append(one)
    return replace(sample, messages=tuple(found))


def _decoded(
    one: SampledMessage, topic_partition: TopicPartition, decoder: Decoder, unavailable: _Unavailable
) -> SampledMessage:
    assert one.value is not None
    # Headers without a value have no schema id.
    headers = tuple((name, value) for name, value in one.headers if value is not None)
    try:
        schema_id = unframe(one.value, headers).schema_id
    except FramingError as error:
        return replace(one, problem=str(error))
    if reason := unavailable.reason(schema_id):
        return replace(one, schema_id=schema_id, problem=reason)
    tp = topic_partition
    record = FetchedRecord(tp.topic, tp.partition, one.offset, one.timestamp_ms, one.key, one.value, headers)
    try:
        _, value, time_ms = decoder.decode(record)
        unavailable.decoded.add(schema_id)
        return replace(one, schema_id=schema_id, text=json_text(value), time_ms=time_ms)
    except SourceUnavailable as error:
        unavailable.reasons[schema_id] = str(error)
        return replace(one, schema_id=schema_id, problem=str(error))
    except UndecodableMessage as error:
        prefix = f"topic {tp.topic} partition {tp.partition} offset {one.offset}: "
        return replace(one, schema_id=schema_id, problem=str(error).removeprefix(prefix))
    except (RecursionError, ValueError) as error:
        return replace(one, schema_id=schema_id, problem=f"the value cannot be shown: {error}")


def json_text(value: Any) -> str:
    """Returns a decoded value as JSON. Numbers keep all digits; bytes are hexadecimal, other types are texts."""
    return json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> object:
    if isinstance(value, bytes | bytearray):
        return f"0x{bytes(value).hex()}"
    if isinstance(value, Mapping):
        return dict(value)
    isoformat = getattr(value, "isoformat", None)
    return str(isoformat()) if isoformat is not None else str(value)
