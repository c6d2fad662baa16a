"""Faults of producers that are no difference between tiers: wrong clocks, and crashes with undelivered messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.audit.row import AuditRow
from headrace.audit.storage.producer_faults import AHEAD_MS, BEHIND_FOR_MS
from headrace.audit.storage.store import AuditStore
from headrace.audit.stored import ProducerFault, ProducerFaultKind
from headrace.audit.window import WINDOW_MS
from support.audit_rows import three_tiers

NewAddress = Callable[[], Path | str]
NOW = 3000
"""The number of the current window."""
NOW_MS = NOW * WINDOW_MS


def rows_of(topic: str, number: int, lost: int = 0, **producer: Any) -> list[AuditRow]:
    """Returns the rows of a window of ten messages, counted now; `producer` changes that of the producer."""
    sent, *others = three_tiers(topic, number, lost, emitted_at_ms=NOW_MS)
    return [replace(sent, **producer), *others]


def faults(address: Path | str, *rows: list[AuditRow], now_ms: int = NOW_MS) -> list[ProducerFault]:
    with AuditStore(address) as store:
        store.add_rows([row for group in rows for row in group])
        store.update_verdicts(now_ms=now_ms, grace_ms=0)
        return store.producer_faults(now_ms)


def test_messages_of_the_near_future_are_no_fault(new_address: NewAddress) -> None:
    near = NOW + AHEAD_MS // WINDOW_MS
    assert faults(new_address(), rows_of("a", NOW), rows_of("a", near)) == []
    (found,) = faults(
        new_address(), rows_of("a", near), rows_of("a", near + 1, host="x"), rows_of("a", near + 3, host="y")
    )
    assert (found.kind, found.messages, found.producers) == ("ahead", 20, (("shop", "x"), ("shop", "y")))
    assert (found.start_ms, found.end_ms) == ((near + 1) * WINDOW_MS, (near + 4) * WINDOW_MS)
    assert "up to 1 h in the future" in found.sentence(NOW_MS)


@pytest.mark.parametrize(
    ("producer", "lost"),
    [
        ({"crashed": True, "sent": 10}, 0),  # all were acknowledged
        ({"crashed": False, "sent": 13}, 0),  # still in flight
        ({"crashed": True, "sent": 10, "count": 8}, 0),  # those without acknowledgement arrived
    ],
)
def test_crash_without_lost_messages_is_no_fault(new_address: NewAddress, producer: dict[str, Any], lost: int) -> None:
    assert faults(new_address(), rows_of("a", NOW - 2, lost, **producer)) == []


def test_crash_with_lost_messages_names_the_producer_that_crashed_for_a_day(new_address: NewAddress) -> None:
    address, crash = new_address(), rows_of("a", NOW - 2, crashed=True, sent=13, host="x")
    (found,) = faults(address, crash)
    assert (found.kind, found.messages, found.producers) == ("crashed", 3, (("shop", "x"),))
    with AuditStore(address) as store:
        assert store.producer_faults(NOW_MS + 142 * WINDOW_MS) == []


def counted(number: int, at: int, host: str = "web", **changed: Any) -> list[AuditRow]:
    """Returns the rows of a window that were counted `at` windows before now, together in one range of offsets; the
    producer's clock gave the same time to its row as to its messages."""
    sent, *others = three_tiers("a", number, 0, emitted_at_ms=NOW_MS - at * WINDOW_MS)
    others = [replace(row, start=1_000 - 10 * at, end=1_010 - 10 * at) for row in others]
    sent = replace(sent, host=host, emitted_at_ms=(number + 1) * WINDOW_MS)
    return [replace(row, id=f"{row.id}-{host}-{at}", **changed) for row in (sent, *others)]


def test_clock_behind_names_the_producer_without_newer_messages(new_address: NewAddress) -> None:
    address = new_address()
    (found,) = faults(
        address,
        counted(NOW - 8, 7),
        counted(NOW - 3, 2),
        counted(NOW - 8, 1, "slow"),
        counted(NOW - 7, 0, "slow"),
        counted(NOW - 2, 0),
    )
    assert (found.kind, found.messages, found.producers) == ("behind", 20, (("shop", "slow"),))
    assert (found.start_ms, found.end_ms) == ((NOW - 8) * WINDOW_MS, (NOW - 6) * WINDOW_MS)
    assert "20 messages with times up to 50 min before" in found.sentence(NOW_MS)
    with AuditStore(address) as store:
        assert store.producer_faults(NOW_MS + BEHIND_FOR_MS) == []
        store.add_rows(counted(NOW - 1, 0, "slow"))  # its clock was corrected
        store.update_verdicts(now_ms=NOW_MS, grace_ms=0)
        assert store.producer_faults(NOW_MS) == []


@pytest.mark.parametrize(
    "rows",
    [
        (counted(NOW - 8, 0, "slow"), counted(NOW - 2, 0)),  # one load after a pause
        (counted(NOW - 8, 1, "slow"), counted(NOW - 2, 0)),  # in the order of the log
        (counted(NOW - 5, 1), counted(NOW - 8, 0, "slow")),  # a difference that is usual
        (counted(NOW - 2, 1), counted(NOW - 150, 0, "slow")),  # too old for a wrong clock
        (counted(NOW - 2, 1), counted(NOW - 8, 0)),  # by a producer that also sends newer messages
        (counted(NOW - 2, 1, partition=1), counted(NOW - 8, 0, "slow", partition=2)),
        (counted(NOW + 1, 1, "fast"), counted(NOW - 3, 0)),  # the other one's clock is ahead
    ],
    ids=["together", "in-order", "near", "too-old", "also-newer", "other-partition", "after-one-ahead"],
)
def test_old_messages_without_a_wrong_clock_are_no_fault(
    new_address: NewAddress, rows: tuple[list[AuditRow], ...]
) -> None:
    assert faults(new_address(), *rows) == []


def test_faults_of_many_producers_name_the_first_three() -> None:
    fault = ProducerFault(
        "a", ProducerFaultKind.CRASHED, 0, WINDOW_MS, 5, tuple(("shop", f"web-{n}") for n in range(5))
    )
    assert fault.sentence(0).endswith("sent by shop on web-0, shop on web-1, shop on web-2 and 2 more")
