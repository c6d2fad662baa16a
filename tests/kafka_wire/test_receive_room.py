"""Memory that is used again: never what somebody looks at, and no more than is kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.kafka_wire import receive_room
from headrace.kafka_wire.receive_room import KEPT, ReceiveRoom


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3)), max_size=40))
def test_what_is_looked_at_is_left_alone(asked: list[tuple[int, int]]) -> None:
    room = ReceiveRoom()
    held: list[tuple[memoryview, bytes]] = []
    for number, (size, keep) in enumerate(asked):
        view = room.take(size)
        assert len(view) == size
        view[:] = bytes([number]) * size
        held.append((view[size // 2 :], bytes([number]) * (size - size // 2)))
        del view, held[: max(0, len(held) - keep)]
        assert all(bytes(part) == content for part, content in held)
        assert len(room._kept) <= KEPT


def test_two_answers_take_turns_in_memory_that_is_kept() -> None:
    room = ReceiveRoom()
    owners = []
    before = room.take(1)
    for size in (1000, 900, 1000, 10, 1000):
        view = room.take(size)
        owners.append(id(view.obj))
        before = view
    assert len(before) == 1000
    assert len(set(owners[1:])) == 2
    assert owners[1] == owners[3]


def test_a_large_answer_has_memory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receive_room, "KEPT_BYTES_MAX", 100)
    room = ReceiveRoom()
    kept = room.take(100).obj
    assert len(room.take(101)) == 101
    assert room.take(100).obj is kept
    assert [len(buffer) for buffer in room._kept] == [100]
