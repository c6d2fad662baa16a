"""Windows, hashes and counters."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

from headrace.audit import window
from headrace.audit.count import FINGERPRINT_MASK, MessageTally, WindowCounter, message_hash
from headrace.audit.window import (
    OUT_OF_RANGE_MS,
    SCATTERED_MS,
    SPECIAL_WINDOWS,
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
def test_times_out_of_range_share_one_window(time_ms: int) -> None:
    assert window_start(time_ms) == OUT_OF_RANGE_MS
    counter = WindowCounter()
    counter.add("t", time_ms, None, b"v")
    assert [(topic, start) for topic, start, _ in counter] == [("t", OUT_OF_RANGE_MS)]


def test_special_windows_are_aligned_and_have_calendar_starts() -> None:
    assert list(SPECIAL_WINDOWS) == [OUT_OF_RANGE_MS, SCATTERED_MS] == [-WINDOW_MS, -2 * WINDOW_MS]
    assert [window_text(start_ms) for start_ms in SPECIAL_WINDOWS] == list(SPECIAL_WINDOWS.values())
    assert time_text(SCATTERED_MS) == "1969-12-31 23:40Z"
    assert window_text(0) == "1970-01-01 00:00Z"


@pytest.mark.parametrize("start_ms", [0, WINDOW_MS, TIME_MS_MAX + 1 - WINDOW_MS, OUT_OF_RANGE_MS, SCATTERED_MS])
def test_known_window_returns_valid_starts_unchanged(start_ms: int) -> None:
    assert known_window(start_ms) == start_ms


@pytest.mark.parametrize("start_ms", [-(2**63 // WINDOW_MS) * WINDOW_MS, -3 * WINDOW_MS, TIME_MS_MAX + 1])
def test_known_window_maps_invalid_starts_to_out_of_range(start_ms: int) -> None:
    assert known_window(start_ms) == OUT_OF_RANGE_MS


def test_full_tier_counts_only_known_windows_separately() -> None:
    counted = range(0, WINDOWS_MAX * WINDOW_MS, WINDOW_MS)
    assert counted_window(WINDOWS_MAX * WINDOW_MS, counted[:-1]) == WINDOWS_MAX * WINDOW_MS
    assert counted_window(WINDOWS_MAX * WINDOW_MS, counted) == SCATTERED_MS
    assert counted_window(WINDOW_MS + 1, counted) == WINDOW_MS
    assert counted_window(-1, counted) == OUT_OF_RANGE_MS
    assert counted_window(0, range(WINDOW_MS, (WINDOWS_MAX + 1) * WINDOW_MS, WINDOW_MS)) == SCATTERED_MS


def test_window_limit_applies_to_each_topic(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_times_and_durations_as_text() -> None:
    assert time_text(1_356_998_400_000) == "2013-01-01 00:00Z"
    assert time_text(10**18) == f"{10**18} ms"
    assert [duration_text(ms) for ms in (0, 61_000, 7_260_000, 90_000_000)] == ["0 s", "1 min", "2 h 1 min", "1 d 1 h"]


def test_message_hash_is_xxh64_seeded_with_the_key() -> None:
    """The two constants are from XXH64's test program for empty input."""
    assert (xxh64_intdigest(b"", 0), xxh64_intdigest(b"", 2654435761)) == (0xEF46DB3751D8E999, 0xAC75FDA2929B17EF)
    assert message_hash(b"key", b"value") == xxh64_intdigest(b"value", xxh64_intdigest(b"key", 1))
    assert message_hash(None, b"value") == xxh64_intdigest(b"value", 0)


def test_message_hash_depends_on_the_boundary_of_key_and_value() -> None:
    assert len({message_hash(b"ab", b"c"), message_hash(b"a", b"bc"), message_hash(b"", b"abc")}) == 3
    assert message_hash(None, b"abc") != message_hash(b"", b"abc")


@given(messages, st.randoms(use_true_random=False))
def test_fingerprint_does_not_depend_on_order(
    sample: list[tuple[bytes | None, bytes]], shuffler: random.Random
) -> None:
    shuffled = list(sample)
    shuffler.shuffle(shuffled)
    first, second = WindowCounter(), WindowCounter()
    for key, value in sample:
        first.add("t", 5, key, value)
    for key, value in shuffled:
        second.add("t", 5, key, value)
    assert list(first) == list(second)


def test_duplicate_changes_the_fingerprint() -> None:
    counter = WindowCounter()
    counter.add("t", 0, None, b"x")
    counter.add("t", WINDOW_MS - 1, None, b"x")
    counter.add("t", WINDOW_MS, b"k", b"y")
    assert {(topic, start): tally for topic, start, tally in counter} == {
        ("t", 0): MessageTally(2, 2, 2 * message_hash(None, b"x") & FINGERPRINT_MASK),
        ("t", WINDOW_MS): MessageTally(1, 2, message_hash(b"k", b"y")),
    }
    counter.clear()
    assert len(counter) == 0
