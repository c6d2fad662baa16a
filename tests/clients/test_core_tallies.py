"""The compiled core adds up messages like the reference in Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.audit.count import MessageTally, message_hash
from headrace.audit.open_row import DIGEST, OpenRow, message_digest
from headrace.audit.spool import Spool, leftover_spools
from headrace.audit.tally import Tally, tally_delivered
from headrace.audit.window import TIME_MS_MAX, WINDOW_MS
from headrace.clients.core_tallies import delivered_tallies, row_type
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
CORE_ROW = row_type(required_core())
of_delivered = delivered_tallies(required_core())


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

    expected = sums(tally_delivered(messages, NOW_MS, late_after_ms), place)
    assert sums(of_delivered(messages, NOW_MS, late_after_ms), place) == expected


@given(st.lists(st.tuples(RECORDS, TIMES), max_size=60), st.integers(0, 3 * WINDOW_MS))
def test_core_adds_up_delivered_messages_like_the_reference(
    messages: list[tuple[FetchedRecord, int]], late_after_ms: int
) -> None:
    check_delivered(messages, late_after_ms)


DIGESTS = st.builds(DIGEST.pack, st.integers(0, 2**64 - 1), st.integers(0, 2**40))
CALLS = st.one_of(
    st.tuples(st.just("count"), st.none() | TIMES, st.none() | BODIES, BODIES),
    st.tuples(st.just("acknowledge"), DIGESTS, LATENCIES_S, st.integers(0, 3)),
    st.tuples(st.just("acknowledge_together"), st.integers(2, 2**20), DIGESTS, LATENCIES_S, st.integers(0, 3)),
    st.sampled_from([("add_sent", 3), ("withdraw",), ("withdraw", 2), ("leave_spool",), ("close",)]),
)
SPECIAL = -WINDOW_MS
MESSAGES_MAX = 40


@given(
    st.lists(CALLS, max_size=MESSAGES_MAX),
    st.sampled_from([NOW_MS - NOW_MS % WINDOW_MS, SPECIAL]),
    st.sampled_from([None, 1]),
)
def test_row_of_the_core_counts_like_the_reference(
    calls: list[tuple[Any, ...]], start_ms: int, late_from_ms: int | None
) -> None:
    rows = [each("t", start_ms, late_from_ms, 1, -1, None) for each in (OpenRow, CORE_ROW)]
    for row in rows * 2 * MESSAGES_MAX:
        row.count(None, None, b"to withdraw")
    for name, *arguments in calls:
        expected, found = (getattr(row, name)(*arguments) for row in rows)
        assert found == expected
    for row in rows:
        row.close()
    expected, found = (
        (row.sums(), row.is_open, row.late, row.latencies.buckets, row.latencies.latency()) for row in rows
    )
    assert found == expected


def test_row_of_the_core_counts_in_the_spool(tmp_path: Path) -> None:
    spool = Spool(tmp_path, "i", "shop", "h")
    for sequence in range(3):
        slot = spool.open_slot(sequence, f"t{sequence}", 0)
        row = CORE_ROW(f"t{sequence}", 0, None, sequence, slot, spool)
        digest = row.count(5, b"k", b"value")
        assert digest is not None and digest == message_digest(b"k", b"value")
        assert row.count(WINDOW_MS, None, b"") is None
        assert row.count(None, None, b"") is not None
        assert row.acknowledge(digest, 0.1, 0)
        row.leave_spool()
        row.count(5, None, b"")
        assert row.sums() == (3, 1, 6, message_hash(b"k", b"value"))
    spool.close()
    (left,) = leftover_spools(tmp_path)
    with left:
        assert [(row.topic, row.sent, row.count, row.bytes, row.fingerprint) for row in left.rows] == [
            (f"t{sequence}", 2, 1, 6, message_hash(b"k", b"value")) for sequence in range(3)
        ]


def test_row_of_the_core_rejects_other_arguments_without_counting() -> None:
    row = CORE_ROW("t", 0, None, 1, -1, None)
    for arguments in ((0, "text", b""), (0, None, None), (0, b""), ()):
        with pytest.raises(TypeError):
            row.count(*arguments)
    for time_ms in (2**64, -(2**64), "text"):
        assert row.count(time_ms, None, b"") is None  # type: ignore[arg-type]
    digest = message_digest(None, b"")
    for arguments in ((digest, 0.5), ("text", 0.5, 0), (digest[1:], 0.5, 0), (digest, "0.5", 0), (digest, 0.5, None)):
        with pytest.raises(TypeError):
            row.acknowledge(*arguments)  # type: ignore[arg-type]
    assert row.sums() == (0, 0, 0, 0)


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


def test_without_core_the_reference_is_used() -> None:
    assert (row_type(None), delivered_tallies(None)) == (OpenRow, tally_delivered)
