"""The compiled core adds up messages like the reference in Python."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.audit.count import MessageTally, message_hash
from headrace.audit.producer_counter import Ticket
from headrace.audit.tally import REFERENCE, Tally
from headrace.audit.window import TIME_MS_MAX, WINDOW_MS
from headrace.clients.core_tallies import core_tallies
from headrace.clients.decoding import FetchedRecord
from support.loader.compiled_core import required_core

NOW_MS = 1_357_002_000_000
TIMES = st.one_of(
    st.integers(NOW_MS - 10 * WINDOW_MS, NOW_MS + WINDOW_MS),
    st.sampled_from([-1, 0, WINDOW_MS - 1, TIME_MS_MAX, TIME_MS_MAX + 1, -(2**63), 2**63 - 1]),
)
BODIES = st.binary(max_size=80)
RECORDS = st.builds(
    FetchedRecord,
    st.sampled_from(["orders", "bücher", "a" * 249]),
    st.integers(0, 2),
    st.integers(0, 2**63 - 2),
    st.just(0),
    st.none() | BODIES,
    BODIES,
    st.just(()),
)
LATENCIES_S = st.none() | st.floats(-1, 10_000) | st.sampled_from([0.0, 0.0159999, 0.016, 2.0**31])
TALLIES = core_tallies(required_core())


def sums(tallies: Any, place: Any) -> dict[Any, tuple[Any, ...]]:
    """Returns the sums of tallies by place; the core may divide a place into several tallies."""
    found: dict[Any, Tally] = {}
    for tally in tallies:
        merged = MessageTally()
        before = found.get(place(tally), tally)
        for each in [before, tally] if before is not tally else [tally]:
            merged.merge(each.messages)
        start, end = min(before.start, tally.start), max(before.end, tally.end)
        found[place(tally)] = tally._replace(messages=merged, start=start, end=end)
    return {
        place: (
            repr(each.messages),
            each.messages.late,
            each.messages.latencies.latency(),
            each.messages.latencies.buckets,
            each.start,
            each.end,
        )
        for place, each in found.items()
    }


def check_delivered(messages: list[tuple[FetchedRecord, int]], late_after_ms: int = WINDOW_MS) -> None:
    def place(tally: Tally) -> tuple[str, int, int]:
        record = messages[tally.first][0]
        return record.topic, record.partition, tally.window_start_ms

    expected = sums(REFERENCE.of_delivered(messages, NOW_MS, late_after_ms), place)
    assert sums(TALLIES.of_delivered(messages, NOW_MS, late_after_ms), place) == expected


@given(st.lists(st.tuples(RECORDS, TIMES), max_size=60), st.integers(0, 3 * WINDOW_MS))
def test_core_adds_up_delivered_messages_like_the_reference(
    messages: list[tuple[FetchedRecord, int]], late_after_ms: int
) -> None:
    check_delivered(messages, late_after_ms)


@given(st.lists(st.tuples(st.integers(0, 5), st.none() | BODIES, BODIES, LATENCIES_S), max_size=60))
def test_core_adds_up_sent_messages_like_the_reference(
    sent: list[tuple[int, bytes | None, bytes, float | None]],
) -> None:
    rows: Any = [object() for _ in range(6)]
    messages = [
        Ticket(rows[row], len(value), TALLIES.hash(key, value), latency_s) for row, key, value, latency_s in sent
    ]
    assert [message.fingerprint for message in messages] == [message_hash(key, value) for _, key, value, _ in sent]

    def place(tally: Tally) -> int:
        return rows.index(messages[tally.first].row)

    assert sums(TALLIES.of_sent(messages), place) == sums(REFERENCE.of_sent(messages), place)


def test_large_batches_with_a_window_and_a_latency_for_each_message() -> None:
    check_delivered(
        [
            (FetchedRecord("t", n % 7, n, 0, None, b"v", ()), NOW_MS - n * WINDOW_MS * (n % 5) - 2 ** (n % 40))
            for n in range(2_000)
        ]
    )


def test_messages_that_the_core_does_not_support_are_added_up_in_python() -> None:
    record = FetchedRecord("t", 0, 5, 0, None, b"v", ())
    check_delivered([(record, 0)] * 600 + [(record, 2**70)])
    with pytest.raises(TypeError):
        TALLIES.hash("text", b"")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        TALLIES.hash(b"")  # type: ignore[call-arg]


def test_without_core_the_reference_is_used() -> None:
    assert core_tallies(None) is REFERENCE
