"""Messages counted by window: the loader's counts agree with the producer's for any times."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.audit import window
from headrace.audit.count import WindowCounter
from headrace.audit.facts import RowCounts, collect_facts
from headrace.audit.offsets import CONTIGUOUS
from headrace.audit.producer_counter import ProducerCounter, RowSelection
from headrace.audit.reconcile import reconcile_topic
from headrace.audit.row import AuditRow
from headrace.audit.verdict import AuditVerdict, TopicResult
from headrace.audit.window import OUT_OF_RANGE_MS, SCATTERED_MS, SPECIAL_WINDOWS, TIME_MS_MAX, WINDOW_MS
from headrace.avro_schema import frame, parse_schema
from headrace.kafka_wire.record_batch import NO_HEADERS, Record
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.load_schema import EMPTY, fold
from headrace.loader.project.implausible_times import PLAUSIBLE_S, likely_unit
from headrace.loader.project.messages import Clamp, RangeMessages
from headrace.loader.project.topic_projection import TopicProjection
from headrace.loader.work_unit import ImplausibleTimeCount, ImplausibleTimeKind, TopicPlan
from headrace.loader.write.time_partitions import TimePartitions
from support.loader.loader_samples import POLICY
from support.loader.projection_oracle import encode

T0 = 1_357_002_000_000  # 2013-01-01T01:00Z
NOW_MS = 10**15
GRACE_MS = 1_800_000
LOADED_MS = T0 + 3_600_000
TOPIC_PARTITION = TopicPartition("t", 0)


def schema_of(kind: Any = "long", *more: dict[str, Any]) -> str:
    fields = [*more, {"name": "timestamp", "type": kind}]
    return json.dumps({"type": "record", "name": "Event", "fields": fields})


LONG = schema_of()
PARSED = parse_schema(LONG)


def messages_of(text: str = LONG, load: str = "", topic_windows: set[int] | None = None) -> RangeMessages:
    plan = TopicPlan(
        "t", load or fold(EMPTY, 1, parse_schema(text)).text, {1: text}, POLICY, absent_ids=frozenset({404})
    )
    return RangeMessages(
        TOPIC_PARTITION,
        TopicProjection(plan, ("timestamp",)),
        lambda kind, time_partition, offset, row: None,
        TimePartitions("hour"),
        lambda offset, timestamp, key, headers: b"",
        set() if topic_windows is None else topic_windows,
        None,
    )


@pytest.mark.parametrize(
    ("time_ms", "timestamp_ms", "is_future", "arrival_ms"),
    [
        (150, 100, False, 100),
        (151, 100, True, 100),
        (10, 100, False, 100),
        (1_050, 5_000, False, 1_000),  # the producer's clock is wrong too
        (1_051, 5_000, True, 1_000),
        (1_051, -1, True, 1_000),  # the record has no time
        (1_000, 1_000, False, 1_000),
    ],
)
def test_a_future_message_is_partitioned_by_its_arrival(
    time_ms: int, timestamp_ms: int, is_future: bool, arrival_ms: int
) -> None:
    clamp = Clamp(50, now_ms=1_000)
    assert clamp.is_future(time_ms, timestamp_ms) == is_future
    assert clamp.arrival_ms(timestamp_ms) == arrival_ms


def value_at(time_ms: int) -> bytes:
    return frame(1, encode(PARSED, {"timestamp": time_ms}))


def record(offset: int, value: bytes, timestamp: int = T0) -> Record:
    return offset, timestamp, b"%d" % offset, value, NO_HEADERS


def converted(times: Sequence[int], topic_windows: set[int] | None = None) -> RangeMessages:
    messages = messages_of(topic_windows=topic_windows)
    messages.convert([record(offset, value_at(time_ms)) for offset, time_ms in enumerate(times)])
    return messages


times = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, TIME_MS_MAX),
    st.integers(-3 * WINDOW_MS, 8 * WINDOW_MS),
    st.integers(T0, T0 + 4 * WINDOW_MS),
    st.sampled_from([-1, 0, TIME_MS_MAX, TIME_MS_MAX + 1, SCATTERED_MS, -(2**63), 2**63 - 1]),
)


@given(st.lists(times, max_size=40), st.integers(0, 6))
def test_a_range_counts_each_message_once_in_a_limited_number_of_windows(sample: list[int], windows_max: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window, "WINDOWS_MAX", windows_max)
        rows = converted(sample).audit()
    read = [row for row in rows if row.tier == "broker"]
    assert sum(row.count for row in read) == len(sample)
    assert len({row.window_start_ms for row in read}) <= windows_max + len(SPECIAL_WINDOWS)
    assert len(rows) <= 2 * (windows_max + len(SPECIAL_WINDOWS))
    out_of_range = sum(not 0 <= time_ms <= TIME_MS_MAX for time_ms in sample)
    assert sum(row.count for row in read if row.window_start_ms == OUT_OF_RANGE_MS) == out_of_range


def test_a_message_is_counted_in_the_window_of_its_time() -> None:
    rows = converted([T0 + WINDOW_MS, T0 + WINDOW_MS // 2, T0 + WINDOW_MS - 1, T0]).audit()
    read = {row.window_start_ms: row.count for row in rows if row.tier == "broker"}
    assert read == {T0: 3, T0 + WINDOW_MS: 1}


def test_the_ranges_of_a_task_share_the_windows_of_a_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "WINDOWS_MAX", 2)
    topic_windows: set[int] = set()
    starts = [
        {row.window_start_ms for row in converted([n * WINDOW_MS for n in ns], topic_windows).audit()}
        for ns in ((0, 1, 1), (1, 2), (3,))
    ]
    assert starts == [{0, WINDOW_MS}, {WINDOW_MS, SCATTERED_MS}, {SCATTERED_MS}]


def counted_by_producer(times: Sequence[int], acknowledged: int) -> list[AuditRow]:
    counter = ProducerCounter("a", spool_dir=None)
    tickets = [counter.count_sent("t", at, b"%d" % offset, value_at(at)) for offset, at in enumerate(times)]
    counter.acknowledge(tickets[:acknowledged])
    return counter.take_rows(T0, RowSelection.ALL)


def verdict_of(producer: Sequence[AuditRow], loaded: RangeMessages, now_ms: int = NOW_MS) -> TopicResult:
    rows = [
        RowCounts("t", one.window_start_ms, one.outcome, "a", one.count, one.bytes, one.fingerprint, one.sent, 0, T0)
        for one in producer
    ]
    rows += [
        RowCounts(
            "t",
            one.window_start_ms,
            one.outcome or "stored",
            "a",
            one.count,
            one.bytes,
            one.fingerprint,
            0,
            0,
            LOADED_MS,
        )
        for one in loaded.audit()
    ]
    facts = tuple(collect_facts(sorted(rows, key=lambda row: row.window_start_ms)))
    return reconcile_topic("t", facts, CONTIGUOUS, now_ms=now_ms, grace_ms=GRACE_MS)


@given(st.lists(times, min_size=2, max_size=30), st.integers(0, 6), st.integers(0, 6), st.data())
def test_producer_and_loader_counts_agree_for_any_times_and_limits(
    sample: list[int], producer_max: int, loader_max: int, data: st.DataObject
) -> None:
    """The tiers receive the messages in different orders and have counted other windows before."""
    order = data.draw(st.permutations(range(len(sample))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window, "WINDOWS_MAX", producer_max)
        produced = counted_by_producer(sample, len(sample))
        patch.setattr(window, "WINDOWS_MAX", loader_max)
        records = [record(offset, value_at(sample[offset])) for offset in order]
        whole = messages_of()
        whole.convert(records)
        assert verdict_of(produced, whole).verdict is AuditVerdict.COMPLETE
        short = messages_of()
        short.convert(records[1:])
        lost = verdict_of(produced, short)
        assert lost.verdict is AuditVerdict.MISSING
        assert sum(one.difference for one in lost.windows) == -1
        doubled = messages_of()
        doubled.convert([*records, records[0]])
        assert verdict_of(produced, doubled).verdict in (
            AuditVerdict.UNTRACKED,
            AuditVerdict.EXTRA,
            AuditVerdict.UNKNOWN,
        )
        swapped = messages_of()
        swapped.convert([*records[1:], record(99, value_at(sample[order[0]]))])
        assert verdict_of(produced, swapped).verdict in (AuditVerdict.MISMATCH, AuditVerdict.UNKNOWN)


@given(st.lists(times, min_size=1, max_size=20), st.data())
def test_consumer_and_broker_counts_agree(sample: list[int], data: st.DataObject) -> None:
    counter = WindowCounter()
    for offset in data.draw(st.permutations(range(len(sample)))):
        counter.add("t", sample[offset], b"%d" % offset, value_at(sample[offset]))
    consumed = {start_ms: (tally.count, tally.bytes, tally.fingerprint) for _, start_ms, tally in counter}
    read = {
        one.window_start_ms: (one.count, one.bytes, one.fingerprint)
        for one in converted(sample).audit()
        if one.tier == "broker"
    }
    assert consumed == read


@given(st.lists(times, min_size=2, max_size=20), st.integers(0, 3))
def test_a_crashed_producer_is_no_finding(sample: list[int], windows_max: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window, "WINDOWS_MAX", windows_max)
        assert verdict_of(counted_by_producer(sample, len(sample) // 2), converted(sample)).verdict in (
            AuditVerdict.COMPLETE,
            AuditVerdict.UNKNOWN,
        )


@pytest.mark.parametrize(
    ("kind", "value", "time_kind", "unit"),
    [
        ("long", T0 * 1_000_000, ImplausibleTimeKind.OUT_OF_RANGE, "millis"),
        ("long", T0 * 1_000, ImplausibleTimeKind.OUT_OF_RANGE, "millis"),
        ("long", T0 // 1_000, ImplausibleTimeKind.WRONG_UNIT, "millis"),
        ({"type": "long", "logicalType": "timestamp-micros"}, T0, ImplausibleTimeKind.WRONG_UNIT, "micros"),
        (
            {"type": "long", "logicalType": "timestamp-micros"},
            T0 * 1_000_000,
            ImplausibleTimeKind.OUT_OF_RANGE,
            "micros",
        ),
    ],
)
def test_times_in_another_unit_are_noted(kind: Any, value: int, time_kind: ImplausibleTimeKind, unit: str) -> None:
    text = schema_of(kind)
    messages = messages_of(text)
    messages.convert([record(offset, value_at(value)) for offset in range(3)])
    assert messages.implausible_times() == (ImplausibleTimeCount(time_kind, "timestamp", unit, 3, value),)
    assert len(messages.audit()) == 2


def test_plausible_times_are_not_noted() -> None:
    assert converted([T0, T0 + 1, 0, 5 * WINDOW_MS, TIME_MS_MAX]).implausible_times() == ()


def test_times_beyond_the_window_limit_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "WINDOWS_MAX", 1)
    assert converted([T0, T0 + WINDOW_MS, T0 + 2 * WINDOW_MS, T0]).implausible_times() == (
        ImplausibleTimeCount(ImplausibleTimeKind.SCATTERED, "timestamp", "", 2, T0 + WINDOW_MS),
    )


def test_a_record_whose_own_timestamp_is_absurd_is_noted_and_one_without_is_not() -> None:
    messages = messages_of()
    messages.convert([record(0, b"junk", T0 * 1000), record(1, b"junk", -1)])
    assert messages.implausible_times() == (
        ImplausibleTimeCount(ImplausibleTimeKind.OUT_OF_RANGE, "record", "millis", 1, T0 * 1000),
    )
    assert {(row.window_start_ms, row.count) for row in messages.audit()} == {(OUT_OF_RANGE_MS, 2)}


@pytest.mark.parametrize(
    ("value", "unit"),
    [
        (PLAUSIBLE_S.start, "seconds"),
        (PLAUSIBLE_S.start - 1, ""),
        (PLAUSIBLE_S.stop - 1, "seconds"),
        (PLAUSIBLE_S.stop, ""),
        (T0, "millis"),
        (T0 * 1_000, "micros"),
        (T0 * 1_000_000, "nanos"),
        (-T0, ""),
        (0, ""),
    ],
)
def test_unit_is_guessed_from_the_number(value: int, unit: str) -> None:
    assert likely_unit(value) == unit


def windows_of(messages: RangeMessages) -> dict[tuple[str, str], list[int]]:
    found: dict[tuple[str, str], list[int]] = {}
    for row in messages.audit():
        found.setdefault((row.tier, row.outcome), []).append(row.window_start_ms)
    return found


FOREIGN = {"name": "elsewhere", "type": "string"}


def test_messages_without_a_route_are_counted_at_their_time() -> None:
    text = schema_of("long", FOREIGN)
    value = frame(1, encode(parse_schema(text), {"elsewhere": "x", "timestamp": T0 + WINDOW_MS}))
    messages = messages_of(text, fold(EMPTY, 1, PARSED).text)
    messages.convert([record(0, value), record(1, value[:-1], T0 + 5 * WINDOW_MS)])
    assert messages.quarantined == 2
    starts = [T0 + WINDOW_MS, T0 + 5 * WINDOW_MS]
    assert windows_of(messages) == {("broker", ""): starts, ("loader", "quarantined"): starts}
