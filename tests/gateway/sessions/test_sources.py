from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.gateway.sessions.lanes import lane_of
from headrace.gateway.sessions.sources import (
    LaneState,
    SourceState,
    checkpoint_records,
    owner_record,
    partition_of,
    producer_record,
    source_key,
)
from headrace.kafka_wire.topic_partition import TopicPartition

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers = st.integers(0, 2**63 - 1)
sources = st.builds(
    SourceState, texts, texts, st.integers(0, 1000), numbers, st.integers(-1, 2**62), numbers, numbers, numbers, texts
)


@given(st.lists(sources), st.dictionaries(st.builds(TopicPartition, texts, st.integers(0, 1000)), numbers))
def test_a_checkpoint_loads_as_it_was(written: list[SourceState], reflected: dict[TopicPartition, int]) -> None:
    state = LaneState()
    for key, value in [
        *checkpoint_records(written, reflected.items()),
        producer_record(7, 4),
        producer_record(7, 3),
        owner_record(7),
    ]:
        state.load(key, value)
    expected = {source_key(source.topic, source.source_id): source for source in written}
    assert state == LaneState(expected, reflected, {7: 4}, 7)


def test_state_of_a_source_precedes_the_offset_that_covers_it() -> None:
    partition = TopicPartition("t", 0)
    first, second = checkpoint_records([SourceState("t", "s", 0)], [(partition, 5)])
    assert b"source" in first[0] and b"partition" in second[0]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b'["source","t"]', b"{}"),
        (b'["source","t","s"]', b"{}"),
        (b'["source","t","s"]', b"[]"),
        (b'["else"]', b"{}"),
        (b"{", b"{}"),
        (b'["owner"]', b'{"producer":"x"}'),
        (None, b"{}"),
        (b'["owner"]', None),
    ],
)
def test_foreign_record_is_an_error(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(ValueError):
        LaneState().load(key, value)


def test_record_in_a_log_raises_the_number_and_never_lowers_it() -> None:
    state, partition = LaneState(), TopicPartition("t", 3)
    key = state.found(partition, 10, "s", 100)
    state.found(partition, 11, "s", 90)
    assert state.sources[key] == SourceState("t", "s", 3, 100, 10)


def test_lanes_and_partitions_are_stable_and_spread_independently() -> None:
    keys = [source_key("topic", f"host:/var/log/{n}") for n in range(4000)]
    assert (lane_of(keys[0], 16), partition_of(keys[0], 16)) == (6, 9)
    pairs = {(lane_of(key, 16), partition_of(key, 16)) for key in keys}
    assert len(pairs) == 256, "each lane has sources in each partition"
