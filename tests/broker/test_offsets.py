"""Offset table in memory: it agrees with a plain model, and finds entries without scanning others."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.coordinator import offsets as offsets_module
from headrace.broker.coordinator.offsets import METADATA_CHAR_BYTES, OFFSET_BYTES, RETENTION_MS, OffsetTable
from headrace.broker.coordinator.records import CommittedOffset, OffsetKey
from headrace.broker.errors import RequestRefused
from headrace.broker.protocol.error_codes import ErrorCode
from support.broker.broker_samples import NOW_MS

KEYS = st.builds(OffsetKey, st.sampled_from("gh"), st.sampled_from("tu"), st.integers(0, 1))
PRODUCERS = st.integers(1, 3)
OFFSETS = st.builds(CommittedOffset, st.integers(0, 9), st.just(-1), st.sampled_from(["", "abc"]), st.just(NOW_MS))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("apply"), KEYS, st.none() | OFFSETS),
        st.tuples(st.just("add"), PRODUCERS, st.dictionaries(KEYS, OFFSETS)),
        st.tuples(st.just("drop"), PRODUCERS, st.none()),
        st.tuples(st.just("forget"), st.sampled_from("tu"), st.none()),
    ),
    max_size=30,
)


class OffsetTableModel:
    """The model: correct and slow."""

    def __init__(self) -> None:
        self.committed: dict[OffsetKey, CommittedOffset] = {}
        self.pending: dict[int, dict[OffsetKey, CommittedOffset]] = {}

    def apply(self, key: OffsetKey, committed: CommittedOffset | None) -> None:
        for offsets in self.pending.values():
            offsets.pop(key, None)
        self.committed.pop(key, None)
        if committed is not None:
            self.committed[key] = committed

    def add(self, producer_id: int, offsets: dict[OffsetKey, CommittedOffset]) -> None:
        self.pending.setdefault(producer_id, {}).update(offsets)

    def forget(self, topic: str, unused: None) -> None:
        for key in [key for key in self.committed.keys() | self.pending_keys if key.topic == topic]:
            self.apply(key, None)

    def drop(self, producer_id: int, unused: None) -> None:
        self.pending.pop(producer_id, None)

    @property
    def memory_bytes(self) -> int:
        each = [*self.committed.values(), *(one for offsets in self.pending.values() for one in offsets.values())]
        return sum(OFFSET_BYTES + METADATA_CHAR_BYTES * len(one.metadata) for one in each)

    @property
    def pending_keys(self) -> set[OffsetKey]:
        return {key for offsets in self.pending.values() for key in offsets}


def topic_partitions(keys: set[OffsetKey], group_id: str) -> set[tuple[str, int]]:
    return {(key.topic, key.partition) for key in keys if key.group_id == group_id}


@given(STEPS)
def test_offset_table_agrees_with_plain_model(steps: list[tuple[str, object, object]]) -> None:
    table, model = OffsetTable(), OffsetTableModel()
    for name, argument, value in steps:
        before = model.committed.keys() | model.pending_keys
        getattr(model, name)(argument, value)
        if name == "apply":
            table.apply(argument, value)  # type: ignore[arg-type]
        elif name == "add":
            table.add_pending(argument, 0, value)  # type: ignore[arg-type]
        elif name == "forget":
            removed = table.remove_topic(argument)  # type: ignore[arg-type]
            assert Counter(removed) == Counter(key for key in before if key.topic == argument)
        else:
            table.drop_pending(argument)  # type: ignore[arg-type]
        known = model.committed.keys() | model.pending_keys
        assert set(table.groups()) == {key.group_id for key in model.committed}
        assert set(table.pending_groups()) == {key.group_id for key in model.pending_keys}
        for group_id in "gh":
            of_group = {
                (key.topic, key.partition): value for key, value in model.committed.items() if key.group_id == group_id
            }
            assert table.of_group(group_id) == of_group and len(table.of_group(group_id)) == len(of_group)
            assert table.pending_partitions(group_id) == topic_partitions(model.pending_keys, group_id)
        for topic in "tu":
            found = table.of_topic(topic)
            assert len(found) == len(set(found)) and set(found) == {key for key in known if key.topic == topic}
        assert {key: table.get(key) for key in model.committed} == model.committed
        for producer_id in (1, 2, 3):
            assert table.pending(producer_id) == model.pending.get(producer_id, {})
        assert table.memory_bytes == model.memory_bytes


def test_commit_does_not_scan_unrelated_transactions() -> None:
    """Scanning all transactions would take seconds."""
    table, count = OffsetTable(), 5000
    committed = CommittedOffset(1, -1, "", NOW_MS)
    for number in range(count):
        table.add_pending(number, 0, {OffsetKey(f"g{number}", "t", 0): committed})
    began_s = time.thread_time()
    for number in range(count):
        table.apply(OffsetKey("other", "t", number), committed)
        assert table.pending_partitions(f"g{number}") == {("t", 0)}
    assert time.thread_time() - began_s < 0.5


def test_topic_offsets_are_found_without_full_scan() -> None:
    table, committed = OffsetTable(), CommittedOffset(1, -1, "", NOW_MS)
    for number in range(200_000):
        table.apply(OffsetKey(f"g{number % 20}", "large", number), committed)
    table.apply(OffsetKey("g0", "t", 0), committed)
    began_s = time.thread_time()
    for _ in range(20):
        assert table.of_topic("t") == [OffsetKey("g0", "t", 0)] and not table.of_topic("u")
    removed = table.remove_topic("large")
    assert set(table.groups()) == {"g0"}
    assert time.thread_time() - began_s < 0.05
    assert sum(1 for _ in removed) == 200_000


def test_expiry_of_used_group_scans_no_offsets() -> None:
    table = OffsetTable()
    for at_ms, topic in ((NOW_MS, "old"), (NOW_MS + 10, "newer")):
        table.apply(OffsetKey("g", topic, 0), CommittedOffset(1, -1, "", at_ms))
    later_ms = NOW_MS + RETENTION_MS + 1
    assert table.expired("g", 0, later_ms) == [OffsetKey("g", "old", 0)]
    assert table.expired("g", NOW_MS + 1, later_ms) == []


def keyed(group_id: str, count: int, text: str = "") -> Mapping[OffsetKey, CommittedOffset]:
    return {OffsetKey(group_id, "t", number): CommittedOffset(1, -1, text, NOW_MS) for number in range(count)}


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> OffsetTable:
    """A table at its limit: group `g` has ten offsets without metadata."""
    monkeypatch.setattr(offsets_module, "OFFSETS_MEMORY_BYTES_MAX", 10 * OFFSET_BYTES)
    table = OffsetTable()
    table.check_capacity(keyed("g", 10))
    for key, committed in keyed("g", 10).items():
        table.apply(key, committed)
    return table


def refusal(table: OffsetTable, offsets: Mapping[OffsetKey, CommittedOffset], *, is_pending: bool = False) -> ErrorCode:
    with pytest.raises(RequestRefused, match="3,000") as refused:
        table.check_capacity(offsets, is_pending=is_pending)
    return refused.value.code


def test_memory_limit_refuses_new_offsets_but_not_replacements(full: OffsetTable) -> None:
    assert refusal(full, keyed("h", 1)) is ErrorCode.POLICY_VIOLATION
    assert refusal(full, keyed("g", 11)) is ErrorCode.POLICY_VIOLATION
    assert refusal(full, keyed("g", 1, "x")) is ErrorCode.POLICY_VIOLATION
    full.check_capacity(keyed("g", 10))
    full.remove_topic("t")
    full.check_capacity(keyed("h", 10))


def test_pending_offsets_have_double_memory_limit(full: OffsetTable) -> None:
    full.check_capacity(keyed("h", 10), is_pending=True)
    assert refusal(full, keyed("h", 11), is_pending=True) is ErrorCode.POLICY_VIOLATION
    full.add_pending(1, 0, keyed("g", 10))
    with pytest.raises(RequestRefused, match="6,000"):
        full.check_capacity(keyed("g", 1), is_pending=True)
    full.check_capacity(keyed("g", 10))
    full.drop_pending(1)
    full.check_capacity(keyed("h", 10), is_pending=True)
