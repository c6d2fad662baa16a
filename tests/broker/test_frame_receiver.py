"""Frames out of bytes that come in any pieces, and what the buffers for them take."""

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
    FIRST_BUFFER_BYTES,
    LOGIN_FRAME_BYTES_MAX,
    SPARE_BYTES_MAX,
    SPARES_MAX,
    FrameReceiver,
    ReceivedBytes,
)
from headrace.broker.protocol.api_versions import METADATA, PRODUCE

SIZES = st.sampled_from(
    (10, 11, 100, FIRST_BUFFER_BYTES - 4, FIRST_BUFFER_BYTES, BUFFER_BYTES, BUFFER_BYTES + 1, 900_000)
)


def frame_of(size: int, filled_with: int, key: int = PRODUCE) -> bytes:
    return struct.pack(">h", key) + bytes([filled_with]) * (size - 2)


def receive(receiver: FrameReceiver, raw: bytes) -> int:
    """As much of it as there is room for."""
    room = receiver.room()
    count = min(len(room), len(raw))
    assert count
    room[:count] = raw[:count]
    receiver.received(count)
    return count


@given(st.lists(SIZES, max_size=8), st.lists(st.sampled_from((1, 3, 5, 1000, 70_000, 2_000_000)), max_size=20))
def test_frames_are_whole_however_they_come(sizes: list[int], pieces: list[int]) -> None:
    in_all = ReceivedBytes()
    receiver = FrameReceiver(in_all)
    sent = [frame_of(size, number + 1) for number, size in enumerate(sizes)]
    stream = b"".join(struct.pack(">i", len(frame)) + frame for frame in sent)
    found, at = [], 0
    piece_sizes = itertools.cycle([*pieces, 70_000])
    while at < len(stream):
        at += receive(receiver, stream[at : at + next(piece_sizes)])
        while (frame := receiver.frame(is_in=True)) is not None:
            found.append(bytes(frame))
            receiver.handled(frame)
    assert found == sent
    assert receiver.frame(is_in=True) is None
    receiver.room()
    assert in_all.beyond_buffers == 0
    receiver.close()


def test_a_frame_stays_until_it_is_handled() -> None:
    """It may have to wait for its turn, while more comes behind it."""
    receiver = FrameReceiver(ReceivedBytes())
    first, second = (frame_of(9_000, number) for number in (1, 2))
    for frame in (first, second):
        raw = struct.pack(">i", len(frame)) + frame
        while raw:
            raw = raw[receive(receiver, raw) :]
        assert receiver.frame(is_in=True) == first
    receiver.handled(receiver.frame(is_in=True) or memoryview(b""))
    assert receiver.frame(is_in=True) == second


def test_a_length_may_come_in_pieces_behind_another_frame() -> None:
    receiver = FrameReceiver(ReceivedBytes())
    first, second = (struct.pack(">i", 20) + frame_of(20, number) for number in (1, 2))
    for size in range(1, 4):
        receive(receiver, first + second[:size])
        receiver.handled(receiver.frame(is_in=True) or memoryview(b""))
        assert receiver.frame(is_in=True) is None
        receive(receiver, second[size:])
        found = receiver.frame(is_in=True)
        assert found == second[4:]
        receiver.handled(found or memoryview(b""))


def test_a_large_buffer_is_kept_while_something_in_it_is_unhandled() -> None:
    in_all = ReceivedBytes()
    receiver = FrameReceiver(in_all)
    raw = struct.pack(">i", 1_000_000) + frame_of(1_000_000, 1)
    for part in (raw[:600_000], raw[600_000:]):
        while part:
            part = part[receive(receiver, part) :]
        receiver.release()
    assert receiver.frame(is_in=True) == raw[4:]
    assert in_all.beyond_buffers > 700_000


def test_a_buffer_grows_with_what_came_and_not_with_what_is_claimed() -> None:
    in_all = ReceivedBytes()
    receiver = FrameReceiver(in_all)
    raw = struct.pack(">i", 90_000_000) + frame_of(2_000_000, 1)
    while raw:
        raw = raw[receive(receiver, raw) :]
        assert receiver.frame(is_in=True) is None
    assert 2_000_000 - BUFFER_BYTES < in_all.beyond_buffers < 2 * 2_100_000
    receiver.close()
    assert in_all.beyond_buffers == 0


def whole(receiver: FrameReceiver, frame: bytes) -> bytes:
    raw = struct.pack(">i", len(frame)) + frame
    while raw:
        raw = raw[receive(receiver, raw) :]
    found = receiver.frame(is_in=True)
    assert found is not None
    content = bytes(found)
    receiver.handled(found)
    return content


def test_large_buffers_are_used_again_by_whoever_needs_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def buffer(size: int = 0) -> bytearray:
        made.append(size)
        return bytearray(size)

    monkeypatch.setattr(frame_receiver, "bytearray", buffer, raising=False)
    in_all = ReceivedBytes()
    one, other = FrameReceiver(in_all), FrameReceiver(in_all)
    for receiver in (one, other, one):
        assert whole(receiver, frame_of(BUFFER_BYTES - 4, 1)) == frame_of(BUFFER_BYTES - 4, 1)
    made.clear()
    for number, receiver in enumerate((one, one, other, one, other)):
        assert whole(receiver, frame_of(1_000_000, number + 1)) == frame_of(1_000_000, number + 1)
        assert in_all.beyond_buffers == 4 * BUFFER_BYTES - BUFFER_BYTES
        receiver.room()
        assert in_all.beyond_buffers == 0
    assert made == [2 * BUFFER_BYTES, 4 * BUFFER_BYTES]


def test_a_large_buffer_is_let_go_of_when_its_request_is_handled() -> None:
    in_all = ReceivedBytes()
    receiver = FrameReceiver(in_all)
    receive(receiver, struct.pack(">i", 10))
    receiver.release()
    receive(receiver, bytes(10))
    found = receiver.frame(is_in=True)
    assert found is not None
    receiver.handled(found)
    whole(receiver, frame_of(5_000_000, 1))
    assert in_all.beyond_buffers > 4_000_000
    receiver.release()
    assert in_all.beyond_buffers == 0
    assert whole(receiver, frame_of(1_000, 2)) == frame_of(1_000, 2)


def test_few_spare_buffers_are_kept_and_none_that_is_very_large() -> None:
    in_all = ReceivedBytes()
    largest = BUFFER_BYTES + 2 * SPARES_MAX
    for size in (SPARE_BYTES_MAX + 1, *range(largest, BUFFER_BYTES, -1)):
        in_all.give_back(bytearray(size))
    assert len(in_all.buffer(largest + 1)) == largest + 1
    for size in (largest, SPARE_BYTES_MAX):
        again = in_all.buffer(size)
        in_all.give_back(again)
        assert in_all.buffer(size) is again
    in_all.give_back(bytearray(largest))
    found = [len(in_all.buffer(1)) for _ in range(SPARES_MAX + 1)]
    assert found == [*range(largest, largest - SPARES_MAX, -1), 1]


def test_what_is_too_much_in_all_refuses_who_sends_more_of_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_receiver, "RECEIVED_BYTES_MAX", 1_000_000)
    in_all = ReceivedBytes()
    large, small = FrameReceiver(in_all), FrameReceiver(in_all)
    raw = struct.pack(">i", 3_000_000) + frame_of(3_000_000, 1)
    with pytest.raises(FrameRefused) as refused:
        while raw:
            raw = raw[receive(large, raw) :]
            large.frame(is_in=True)
    assert in_all.beyond_buffers > 1_000_000 and str(in_all.beyond_buffers) in str(refused.value)
    raw = struct.pack(">i", BUFFER_BYTES) + frame_of(200_000, 2)
    while raw:
        raw = raw[receive(small, raw) :]
    assert small.frame(is_in=True) is None, "no larger buffer than all have"
    monkeypatch.setattr(frame_receiver, "RECEIVED_BYTES_MAX", in_all.beyond_buffers)
    assert large.frame(is_in=True) is None
    large.close()


@pytest.mark.parametrize("size", [LOGIN_FRAME_BYTES_MAX, LOGIN_FRAME_BYTES_MAX + 1])
def test_who_has_not_logged_in_may_send_little(size: int) -> None:
    receiver = FrameReceiver(ReceivedBytes())
    receive(receiver, struct.pack(">i", size) + frame_of(100, 0, METADATA))
    assert receiver.frame(is_in=True) is None
    if size <= LOGIN_FRAME_BYTES_MAX:
        assert receiver.frame(is_in=False) is None
        return
    with pytest.raises(FrameRefused, match=f"{size}"):
        receiver.frame(is_in=False)
