"""The pool of receive buffers: a buffer with a view is not reused, and the pool is limited."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.kafka_wire import connection
from headrace.kafka_wire.connection import BUFFERS_MAX, ReceiveBuffers


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3)), max_size=40))
def test_buffer_with_a_view_is_not_reused(requested: list[tuple[int, int]]) -> None:
    pool = ReceiveBuffers()
    held: list[tuple[memoryview, bytes]] = []
    for number, (size, is_held) in enumerate(requested):
        view = pool.take(size)
        assert len(view) == size
        view[:] = bytes([number]) * size
        held.append((view[size // 2 :], bytes([number]) * (size - size // 2)))
        del view, held[: max(0, len(held) - is_held)]
        assert all(bytes(part) == content for part, content in held)
        assert len(pool._buffers) <= BUFFERS_MAX


def test_two_buffers_alternate() -> None:
    pool = ReceiveBuffers()
    owners = []
    before = pool.take(1)
    for size in (1000, 900, 1000, 10, 1000):
        view = pool.take(size)
        owners.append(id(view.obj))
        before = view
    assert len(before) == 1000
    assert len(set(owners[1:])) == 2
    assert owners[1] == owners[3]


def test_large_response_is_not_pooled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "POOLED_BYTES_MAX", 100)
    pool = ReceiveBuffers()
    pooled = pool.take(100).obj
    assert len(pool.take(101)) == 101
    assert pool.take(100).obj is pooled
    assert [len(buffer) for buffer in pool._buffers] == [100]
