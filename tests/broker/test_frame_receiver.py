"""Frame receiver: frames from arbitrary chunks of bytes, and the memory of its buffers."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker import frame_receiver
from headrace.broker.errors import FrameRefused
from headrace.broker.frame_receiver import (
    BUFFER_BYTES,
    INITIAL_BUFFER_BYTES,
    POOLED_BUFFER_BYTES_MAX,
    POOLED_BUFFERS_MAX,
    UNAUTHENTICATED_FRAME_BYTES_MAX,
    FrameReceiver,
    ReceiveBufferPool,
)
from headrace.broker.protocol.api_versions import METADATA, PRODUCE

SIZES = st.sampled_from(
    (10, 11, 100, INITIAL_BUFFER_BYTES - 4, INITIAL_BUFFER_BYTES, BUFFER_BYTES, BUFFER_BYTES + 1, 900_000)
)


def frame_of(size: int, filled_with: int, key: int = PRODUCE) -> bytes:
    return struct.pack(">h", key) + bytes([filled_with]) * (size - 2)


def receive(receiver: FrameReceiver, raw: bytes) -> int:
    """Receives as many of the bytes as fit into the free space."""
    free_space = receiver.free_space()
    count = min(len(free_space), len(raw))
    assert count
    free_space[:count] = raw[:count]
    receiver.add_received(count)
    return count


@given(st.lists(SIZES, max_size=8), st.lists(st.sampled_from((1, 3, 5, 1000, 70_000, 2_000_000)), max_size=20))
def test_frames_are_complete_for_any_chunking(sizes: list[int], pieces: list[int]) -> None:
    pool = ReceiveBufferPool()
    receiver = FrameReceiver(pool)
    sent = [frame_of(size, number + 1) for number, size in enumerate(sizes)]
    stream = b"".join(struct.pack(">i", len(frame)) + frame for frame in sent)
    found, at = [], 0
    piece_sizes = itertools.cycle([*pieces, 70_000])
    while at < len(stream):
        at += receive(receiver, stream[at : at + next(piece_sizes)])
        while (frame := receiver.next_frame(is_authenticated=True)) is not None:
            found.append(bytes(frame))
            receiver.discard(frame)
    assert found == sent
    assert receiver.next_frame(is_authenticated=True) is None
    receiver.free_space()
    assert pool.extra_bytes == 0
    receiver.close()


def test_frame_stays_until_discarded() -> None:
    """A frame may wait to be handled while more bytes arrive."""
    receiver = FrameReceiver(ReceiveBufferPool())
    first, second = (frame_of(9_000, number) for number in (1, 2))
    for frame in (first, second):
        raw = struct.pack(">i", len(frame)) + frame
        while raw:
            raw = raw[receive(receiver, raw) :]
        assert receiver.next_frame(is_authenticated=True) == first
    receiver.discard(receiver.next_frame(is_authenticated=True) or memoryview(b""))
    assert receiver.next_frame(is_authenticated=True) == second


def test_length_prefix_may_arrive_in_pieces() -> None:
    receiver = FrameReceiver(ReceiveBufferPool())
    first, second = (struct.pack(">i", 20) + frame_of(20, number) for number in (1, 2))
    for size in range(1, 4):
        receive(receiver, first + second[:size])
        receiver.discard(receiver.next_frame(is_authenticated=True) or memoryview(b""))
        assert receiver.next_frame(is_authenticated=True) is None
        receive(receiver, second[size:])
        found = receiver.next_frame(is_authenticated=True)
        assert found == second[4:]
        receiver.discard(found or memoryview(b""))


def test_large_buffer_stays_while_it_holds_pending_bytes() -> None:
    pool = ReceiveBufferPool()
    receiver = FrameReceiver(pool)
    raw = struct.pack(">i", 1_000_000) + frame_of(1_000_000, 1)
    for part in (raw[:600_000], raw[600_000:]):
        while part:
            part = part[receive(receiver, part) :]
        receiver.shrink()
    assert receiver.next_frame(is_authenticated=True) == raw[4:]
    assert pool.extra_bytes > 700_000


def test_buffer_grows_with_received_bytes_not_claimed_length() -> None:
    pool = ReceiveBufferPool()
    receiver = FrameReceiver(pool)
    raw = struct.pack(">i", 90_000_000) + frame_of(2_000_000, 1)
    while raw:
        raw = raw[receive(receiver, raw) :]
        assert receiver.next_frame(is_authenticated=True) is None
    assert 2_000_000 - BUFFER_BYTES < pool.extra_bytes < 2 * 2_100_000
    receiver.close()
    assert pool.extra_bytes == 0


def receive_complete(receiver: FrameReceiver, frame: bytes) -> bytes:
    raw = struct.pack(">i", len(frame)) + frame
    while raw:
        raw = raw[receive(receiver, raw) :]
    found = receiver.next_frame(is_authenticated=True)
    assert found is not None
    content = bytes(found)
    receiver.discard(found)
    return content


def test_large_buffers_are_reused_across_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def buffer(size: int = 0) -> bytearray:
        made.append(size)
        return bytearray(size)

    monkeypatch.setattr(frame_receiver, "bytearray", buffer, raising=False)
    pool = ReceiveBufferPool()
    one, other = FrameReceiver(pool), FrameReceiver(pool)
    for receiver in (one, other, one):
        assert receive_complete(receiver, frame_of(BUFFER_BYTES - 4, 1)) == frame_of(BUFFER_BYTES - 4, 1)
    made.clear()
    for number, receiver in enumerate((one, one, other, one, other)):
        assert receive_complete(receiver, frame_of(1_000_000, number + 1)) == frame_of(1_000_000, number + 1)
        assert pool.extra_bytes == 4 * BUFFER_BYTES - BUFFER_BYTES
        receiver.free_space()
        assert pool.extra_bytes == 0
    assert made == [2 * BUFFER_BYTES, 4 * BUFFER_BYTES]


def test_large_buffer_is_released_after_its_request() -> None:
    pool = ReceiveBufferPool()
    receiver = FrameReceiver(pool)
    receive(receiver, struct.pack(">i", 10))
    receiver.shrink()
    receive(receiver, bytes(10))
    found = receiver.next_frame(is_authenticated=True)
    assert found is not None
    receiver.discard(found)
    receive_complete(receiver, frame_of(5_000_000, 1))
    assert pool.extra_bytes > 4_000_000
    receiver.shrink()
    assert pool.extra_bytes == 0
    assert receive_complete(receiver, frame_of(1_000, 2)) == frame_of(1_000, 2)


def test_buffer_pool_is_limited_in_number_and_size() -> None:
    pool = ReceiveBufferPool()
    largest = BUFFER_BYTES + 2 * POOLED_BUFFERS_MAX
    for size in (POOLED_BUFFER_BYTES_MAX + 1, *range(largest, BUFFER_BYTES, -1)):
        pool.return_buffer(bytearray(size))
    assert len(pool.take_buffer(largest + 1)) == largest + 1
    for size in (largest, POOLED_BUFFER_BYTES_MAX):
        next_buffer = pool.take_buffer(size)
        pool.return_buffer(next_buffer)
        assert pool.take_buffer(size) is next_buffer
    pool.return_buffer(bytearray(largest))
    found = [len(pool.take_buffer(1)) for _ in range(POOLED_BUFFERS_MAX + 1)]
    assert found == [*range(largest, largest - POOLED_BUFFERS_MAX, -1), 1]


def test_total_receive_memory_limit_refuses_incomplete_large_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_receiver, "EXTRA_BYTES_MAX", 1_000_000)
    pool = ReceiveBufferPool()
    large, small = FrameReceiver(pool), FrameReceiver(pool)
    raw = struct.pack(">i", 3_000_000) + frame_of(3_000_000, 1)
    with pytest.raises(FrameRefused) as refused:
        while raw:
            raw = raw[receive(large, raw) :]
            large.next_frame(is_authenticated=True)
    assert pool.extra_bytes > 1_000_000 and str(pool.extra_bytes) in str(refused.value)
    raw = struct.pack(">i", BUFFER_BYTES) + frame_of(200_000, 2)
    while raw:
        raw = raw[receive(small, raw) :]
    assert small.next_frame(is_authenticated=True) is None, "its buffer is not beyond BUFFER_BYTES"
    monkeypatch.setattr(frame_receiver, "EXTRA_BYTES_MAX", pool.extra_bytes)
    assert large.next_frame(is_authenticated=True) is None
    large.close()


@pytest.mark.parametrize("size", [UNAUTHENTICATED_FRAME_BYTES_MAX, UNAUTHENTICATED_FRAME_BYTES_MAX + 1])
def test_frame_limit_is_lower_before_login(size: int) -> None:
    receiver = FrameReceiver(ReceiveBufferPool())
    receive(receiver, struct.pack(">i", size) + frame_of(100, 0, METADATA))
    assert receiver.next_frame(is_authenticated=True) is None
    if size <= UNAUTHENTICATED_FRAME_BYTES_MAX:
        assert receiver.next_frame(is_authenticated=False) is None
        return
    with pytest.raises(FrameRefused, match=f"{size}"):
        receiver.next_frame(is_authenticated=False)
