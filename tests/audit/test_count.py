"""Windows, hashes and counters."""

from __future__ import annotations

import random
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.audit.count import FINGERPRINT_MASK, Tally, WindowCounter, message_hash
from headrace.audit.window import FIRST_WINDOW_MS, WINDOW_MS, duration_text, time_text, window_start

messages = st.lists(st.tuples(st.none() | st.binary(max_size=8), st.binary(max_size=16)), max_size=20)


@pytest.mark.parametrize(
    ("time_ms", "start_ms"), [(0, 0), (599_999, 0), (600_000, 600_000), (-1, -600_000), (-600_000, -600_000)]
)
def test_windows_are_aligned_and_half_open(time_ms: int, start_ms: int) -> None:
    assert window_start(time_ms) == start_ms


@pytest.mark.parametrize("time_ms", [-(2**63), FIRST_WINDOW_MS - 1, FIRST_WINDOW_MS, FIRST_WINDOW_MS + WINDOW_MS - 1])
def test_every_long_has_a_window_whose_start_is_a_long(time_ms: int) -> None:
    start_ms = window_start(time_ms)
    assert start_ms == FIRST_WINDOW_MS == window_start(start_ms)
    assert start_ms >= -(2**63) and start_ms % WINDOW_MS == 0
    counter = WindowCounter()
    counter.add("t", time_ms, None, b"v")
    assert [(topic, start) for topic, start, _ in counter] == [("t", start_ms)]


def test_times_read_well() -> None:
    assert time_text(1_356_998_400_000) == "2013-01-01 00:00Z"
    assert time_text(10**18) == f"{10**18} ms"
    assert [duration_text(ms) for ms in (0, 61_000, 7_260_000, 90_000_000)] == ["0 s", "1 min", "2 h 1 min", "1 d 1 h"]


def test_the_hash_is_the_documented_one() -> None:
    expected = blake2b((3).to_bytes(4, "big") + b"key" + b"value", digest_size=8).digest()
    assert message_hash(b"key", b"value") == int.from_bytes(expected, "big")
    expected = blake2b((-1).to_bytes(4, "big", signed=True) + b"value", digest_size=8).digest()
    assert message_hash(None, b"value") == int.from_bytes(expected, "big")


def test_the_border_of_key_and_value_counts() -> None:
    assert len({message_hash(b"ab", b"c"), message_hash(b"a", b"bc"), message_hash(b"", b"abc")}) == 3
    assert message_hash(None, b"abc") != message_hash(b"", b"abc")


@given(messages, st.randoms(use_true_random=False))
def test_order_does_not_matter(sample: list[tuple[bytes | None, bytes]], shuffler: random.Random) -> None:
    shuffled = list(sample)
    shuffler.shuffle(shuffled)
    first, second = WindowCounter(), WindowCounter()
    for key, value in sample:
        first.add("t", 5, key, value)
    for key, value in shuffled:
        second.add("t", 5, key, value)
    assert list(first) == list(second)


def test_a_duplicate_does_not_cancel() -> None:
    counter = WindowCounter()
    counter.add("t", 0, None, b"x")
    counter.add("t", WINDOW_MS - 1, None, b"x")
    counter.add("t", WINDOW_MS, b"k", b"y")
    assert {(topic, start): tally for topic, start, tally in counter} == {
        ("t", 0): Tally(2, 2, 2 * message_hash(None, b"x") & FINGERPRINT_MASK),
        ("t", WINDOW_MS): Tally(1, 2, message_hash(b"k", b"y")),
    }
    counter.clear()
    assert len(counter) == 0
