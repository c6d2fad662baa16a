"""Windows, hashes and counters."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

from headrace.audit import window
from headrace.audit.count import FINGERPRINT_MASK, Tally, WindowCounter, message_hash
from headrace.audit.window import (
    NAMES,
    OUT_OF_RANGE_MS,
    SCATTERED_MS,
    TIME_MS_MAX,
    WINDOW_MS,
    WINDOWS_MAX,
    counted_window,
    duration_text,
    known_window,
    time_text,
    window_start,
    window_text,
)

messages = st.lists(st.tuples(st.none() | st.binary(max_size=8), st.binary(max_size=16)), max_size=20)


@pytest.mark.parametrize(
    ("time_ms", "start_ms"), [(0, 0), (599_999, 0), (600_000, 600_000), (TIME_MS_MAX, TIME_MS_MAX + 1 - WINDOW_MS)]
)
def test_windows_are_aligned_and_half_open(time_ms: int, start_ms: int) -> None:
    assert window_start(time_ms) == start_ms


@pytest.mark.parametrize("time_ms", [-(2**63), -1, SCATTERED_MS, TIME_MS_MAX + 1, 1_356_998_400_000_000_000, 2**63 - 1])
def test_absurd_times_have_one_window(time_ms: int) -> None:
    assert window_start(time_ms) == OUT_OF_RANGE_MS
    counter = WindowCounter()
    counter.add("t", time_ms, None, b"v")
    assert [(topic, start) for topic, start, _ in counter] == [("t", OUT_OF_RANGE_MS)]


def test_the_windows_of_no_time_are_aligned_and_of_the_calendar() -> None:
    assert list(NAMES) == [OUT_OF_RANGE_MS, SCATTERED_MS] == [-WINDOW_MS, -2 * WINDOW_MS]
    assert [window_text(start_ms) for start_ms in NAMES] == list(NAMES.values())
    assert time_text(SCATTERED_MS) == "1969-12-31 23:40Z"
    assert window_text(0) == "1970-01-01 00:00Z"


@pytest.mark.parametrize("start_ms", [0, WINDOW_MS, TIME_MS_MAX + 1 - WINDOW_MS, OUT_OF_RANGE_MS, SCATTERED_MS])
def test_starts_of_windows_are_known(start_ms: int) -> None:
    assert known_window(start_ms) == start_ms


@pytest.mark.parametrize("start_ms", [-(2**63 // WINDOW_MS) * WINDOW_MS, -3 * WINDOW_MS, TIME_MS_MAX + 1])
def test_windows_that_earlier_versions_opened_for_absurd_times_are_out_of_range(start_ms: int) -> None:
    assert known_window(start_ms) == OUT_OF_RANGE_MS


def test_beyond_so_many_windows_those_that_are_counted_already_go_on() -> None:
    counted = range(0, WINDOWS_MAX * WINDOW_MS, WINDOW_MS)
    assert counted_window(WINDOWS_MAX * WINDOW_MS, counted[:-1]) == WINDOWS_MAX * WINDOW_MS
    assert counted_window(WINDOWS_MAX * WINDOW_MS, counted) == SCATTERED_MS
    assert counted_window(WINDOW_MS + 1, counted) == WINDOW_MS
    assert counted_window(-1, counted) == OUT_OF_RANGE_MS
    assert counted_window(0, range(WINDOW_MS, (WINDOWS_MAX + 1) * WINDOW_MS, WINDOW_MS)) == SCATTERED_MS


def test_a_counter_counts_the_windows_of_each_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "WINDOWS_MAX", 2)
    counter = WindowCounter()
    for n in range(4):
        counter.add("t", n * WINDOW_MS, None, b"v")
    counter.add("u", 9 * WINDOW_MS, None, b"v")
    assert {(topic, start): tally.count for topic, start, tally in counter} == {
        ("t", 0): 1,
        ("t", WINDOW_MS): 1,
        ("t", SCATTERED_MS): 2,
        ("u", 9 * WINDOW_MS): 1,
    }
    assert len(counter) == 4


def test_times_read_well() -> None:
    assert time_text(1_356_998_400_000) == "2013-01-01 00:00Z"
    assert time_text(10**18) == f"{10**18} ms"
    assert [duration_text(ms) for ms in (0, 61_000, 7_260_000, 90_000_000)] == ["0 s", "1 min", "2 h 1 min", "1 d 1 h"]


def test_the_hash_is_the_documented_one() -> None:
    """The two numbers are those of XXH64's own test program for no bytes; all that is sent is hashed as here."""
    assert (xxh64_intdigest(b"", 0), xxh64_intdigest(b"", 2654435761)) == (0xEF46DB3751D8E999, 0xAC75FDA2929B17EF)
    assert message_hash(b"key", b"value") == xxh64_intdigest(b"value", xxh64_intdigest(b"key", 1))
    assert message_hash(None, b"value") == xxh64_intdigest(b"value", 0)


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
