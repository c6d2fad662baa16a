"""Bounded samples of a log in memory."""

from __future__ import annotations

import datetime
import decimal
import itertools
import json
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from headrace.avro_schema.wire import VALUE_HEADER
from headrace.kafka_wire.cluster import AbortedTransaction, FetchSlice, OffsetLookup
from headrace.kafka_wire.errors import KafkaUnavailable
from headrace.kafka_wire.record_batch import read_batch_header
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.pipeline.message_sample import (
    MessageSample,
    SampledMessage,
    SampleEnd,
    SampleLimits,
    SampleStart,
    decode_sample,
    json_text,
    read_sample,
)
from headrace.registry.client import RegisteredSchema
from headrace.registry.errors import RegistryUnavailable, SubjectNotFound
from headrace.settings import LoaderSettings
from support.broker.record_batches import make_batch

ORDERS = TopicPartition("orders", 0)
SCHEMA = '{"type":"record","name":"O","fields":[{"name":"id","type":"long"}]}'


class LogOfBatches:
    """The client of a partition with these batches, whose first offset is 10."""

    def __init__(self, *batches: bytes, end: int, aborted: tuple[AbortedTransaction, ...] = ()) -> None:
        self.batches = batches
        self.end = end
        self.aborted = aborted

    def lookup_offsets(self, topic_partitions: Iterable[TopicPartition], position: str) -> OffsetLookup:
        found = dict.fromkeys(topic_partitions, 10 if position == "earliest" else self.end)
        return OffsetLookup({tp: offset for tp, offset in found.items() if tp == ORDERS}, {})

    def lookup_offsets_at(self, timestamps: Mapping[TopicPartition, int]) -> OffsetLookup:
        return OffsetLookup({tp: ms - 1000 if ms < 1000 + self.end else -1 for tp, ms in timestamps.items()})

    def fetch(self, topic_partition: TopicPartition, offset: int, size: int, *, max_wait_ms: int) -> FetchSlice:
        left = (one for one in self.batches if read_batch_header(one).last_offset >= offset)
        return FetchSlice(b"".join(left), self.end, self.end, 10, self.aborted, "b:1")


def sample(log: LogOfBatches, start: SampleStart, *, clock: Any = lambda: 0.0, **limits: Any) -> MessageSample:
    return read_sample(log, ORDERS, start, SampleLimits(**{"messages": 50, **limits}), clock)  # type: ignore[arg-type]


def offsets(found: MessageSample) -> list[int]:
    return [one.offset for one in found.messages]


TEN = LogOfBatches(make_batch(range(10, 15)), make_batch(range(15, 20)), end=20)


@pytest.mark.parametrize(
    ("start", "messages", "expected", "ended_by"),
    [
        (SampleStart(), 3, [17, 18, 19], SampleEnd.LOG_END),
        (SampleStart(), 50, list(range(10, 20)), SampleEnd.LOG_END),
        (SampleStart(offset=12), 4, [12, 13, 14, 15], SampleEnd.MESSAGES),
        (SampleStart(offset=0), 2, [10, 11], SampleEnd.MESSAGES),  # deleted offsets
        (SampleStart(offset=20), 2, [], SampleEnd.LOG_END),
        (SampleStart(offset=10**17), 2, [], SampleEnd.LOG_END),
        (SampleStart(time_ms=1000), 50, list(range(10, 20)), SampleEnd.LOG_END),  # the brokers respond offset 0
        (SampleStart(time_ms=1018), 50, [18, 19], SampleEnd.LOG_END),
        (SampleStart(time_ms=5000), 50, [], SampleEnd.LOG_END),  # no message is younger
    ],
)
def test_sample_begins_at_offset_time_or_before_the_end(
    start: SampleStart, messages: int, expected: list[int], ended_by: SampleEnd
) -> None:
    found = sample(TEN, start, messages=messages)
    assert offsets(found) == expected
    assert (found.log_start, found.log_end, found.ended_by) == (10, 20, ended_by)
    assert found.end == (expected[-1] + 1 if expected else 20)
    assert found.other_offsets == 0


def test_bytes_are_limited_and_the_first_message_is_always_read() -> None:
    log = LogOfBatches(make_batch(range(10, 20), value=lambda offset: b"x" * 400), end=20)
    found = sample(log, SampleStart(offset=10), payload_bytes=1000)
    assert (offsets(found), found.ended_by, found.end) == ([10, 11], SampleEnd.BYTES, 12)
    found = sample(log, SampleStart(offset=14), payload_bytes=1)
    assert (offsets(found), found.ended_by, found.end) == ([14], SampleEnd.BYTES, 15)


def test_time_ends_reading_between_messages_and_between_fetches() -> None:
    ticks = itertools.count()
    found = sample(TEN, SampleStart(offset=10), clock=lambda: float(next(ticks)), time_s=4.0)
    assert found.ended_by == SampleEnd.TIME
    assert 0 < len(found.messages) < 10
    assert found.end == found.messages[-1].offset + 1
    ticks = itertools.count(step=100)
    found = sample(TEN, SampleStart(offset=10), clock=lambda: float(next(ticks)), time_s=4.0)
    assert (offsets(found), found.ended_by, found.end) == ([], SampleEnd.TIME, 10)


def test_markers_aborted_messages_and_gaps_are_counted() -> None:
    log = LogOfBatches(
        make_batch([10]),
        make_batch([11, 12], producer_id=7, transactional=True),
        make_batch([13], producer_id=7, transactional=True, control=0),
        make_batch([16, 17]),
        end=18,
        aborted=(AbortedTransaction(7, 11),),
    )
    found = sample(log, SampleStart(offset=10))
    assert (offsets(found), found.other_offsets, found.corrupt) == ([10, 16, 17], 5, ())


def test_corrupt_batch_is_a_sentence_between_the_others() -> None:
    damaged = bytearray(make_batch([11, 12]))
    damaged[-1] ^= 1
    log = LogOfBatches(make_batch([10]), bytes(damaged), make_batch([13]), end=14)
    found = sample(log, SampleStart(offset=10))
    assert (offsets(found), found.other_offsets) == ([10, 13], 0)
    (sentence,) = found.corrupt
    assert sentence.startswith("offsets 11 to 12: ")


def test_partition_without_offsets_is_an_error() -> None:
    with pytest.raises(KafkaUnavailable, match="no offsets"):
        read_sample(TEN, TopicPartition("orders", 9), SampleStart(), SampleLimits(5))  # type: ignore[arg-type]


class Registry:
    """A registry with schema 1. Requests for other ids fail as if it did not respond."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def schema_by_id(self, schema_id: int) -> RegisteredSchema:
        self.asked.append(schema_id)
        if schema_id != 1:
            raise RegistryUnavailable("http://registry", "timed out")
        return RegisteredSchema(1, SCHEMA)

    def parsed(self, schema: RegisteredSchema) -> Any:
        from headrace.avro_schema import parse_schema

        return parse_schema(schema.text)

    def version(self, subject: str, version: str) -> RegisteredSchema:
        raise SubjectNotFound(subject)


def decoded(values: list[bytes | None], registry: Registry) -> MessageSample:
    log = LogOfBatches(make_batch(range(10, 10 + len(values)), value=lambda at: values[at - 10]), end=10 + len(values))
    found = sample(log, SampleStart(offset=10))
    return decode_sample(found, ORDERS, registry, LoaderSettings(), SampleLimits(50), lambda: 0.0)  # type: ignore[arg-type]


def framed(schema_id: int, body: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + body


def test_values_are_decoded_or_have_the_reason() -> None:
    found = decoded([framed(1, b"\x0e"), None, b"{}", framed(1, b""), framed(1, b"\x0e\x0e")], Registry())
    good, tombstone, text, short, long = found.messages
    assert (good.text, good.schema_id, good.problem) == ('{"id": 7}', 1, "")
    assert (tombstone.value, tombstone.text, tombstone.problem) == (None, "", "")
    assert (text.schema_id, bool(text.problem)) == (None, True)
    for one in (short, long):
        assert one.problem.startswith("the value does not match schema 1")
        assert "topic orders" not in one.problem


def test_silent_registry_is_asked_for_two_schemas_only_and_known_ones_are_still_decoded() -> None:
    registry = Registry()
    values = [framed(1, b"\x0e"), *(framed(number, b"\x0e") for number in (2, 2, 3, 4, 5, 6)), framed(1, b"\x10")]
    found = decoded(values, registry)
    assert [one.text for one in found.messages if one.text] == ['{"id": 7}', '{"id": 8}']
    assert registry.asked == [1, 2, 3]
    assert all(one.problem for one in found.messages[1:7])


def test_time_for_decoding_is_limited() -> None:
    ticks = itertools.count()
    found = decode_sample(
        sample(TEN, SampleStart(offset=10)),
        ORDERS,
        Registry(),  # type: ignore[arg-type]
        LoaderSettings(),
        SampleLimits(50, time_s=4.0),
        lambda: float(next(ticks)),
    )
    late = [one for one in found.messages if "time limit" in one.problem]
    assert 0 < len(late) < 10


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (9_007_199_254_740_993, "9007199254740993"),
        (b"\x00\xff", '"0x00ff"'),
        (decimal.Decimal("12345678901234567890.10"), '"12345678901234567890.10"'),
        (datetime.date(2026, 1, 31), '"2026-01-31"'),
        (datetime.datetime(2026, 1, 31, 7, tzinfo=datetime.UTC), '"2026-01-31T07:00:00+00:00"'),
        (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        ({"a": [None, True, "é\u202e"]}, '{"a": [null, true, "é\u202e"]}'),
    ],
)
def test_json_has_all_digits(value: Any, shown: str) -> None:
    assert json_text(value) == shown
    json.loads(shown)


def test_schema_id_may_be_in_a_header_and_headers_may_have_no_value() -> None:
    header = b"\0" + (1).to_bytes(4, "big")
    message = SampledMessage(10, 1, None, b"\x0e", (("other", None), (VALUE_HEADER, header)))
    found = MessageSample(10, 11, 10, 11, SampleEnd.LOG_END, (message,))
    limits = SampleLimits(50)
    (one,) = decode_sample(found, ORDERS, Registry(), LoaderSettings(), limits, lambda: 0.0).messages  # type: ignore[arg-type]
    assert (one.text, one.schema_id, one.problem) == ('{"id": 7}', 1, "")


def test_sample_without_a_registry_has_the_reason_at_each_value() -> None:
    values = (SampledMessage(10, 1, None, b"x", ()), SampledMessage(11, 1, None, None, ()))
    found = MessageSample(10, 12, 10, 12, SampleEnd.LOG_END, values).undecoded("no registry")
    assert [one.problem for one in found.messages] == ["no registry", ""]
