"""Reads with time limits."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from headrace.console.sources import RUNNING_MAX, STALE_FACTOR, Reading, SourceReader
from support.console import NOW_MS, console_world


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


def test_value_of_a_source_is_known() -> None:
    reading = SourceReader(Clock()).read("one", lambda: 7)
    assert (reading.is_known, reading.known, reading.read_at_ms) == (True, 7, 1_000_000)


def test_error_of_a_source_is_one_line() -> None:
    def fail() -> int:
        raise OSError(13, "Permission denied", "/x")

    def fail_long() -> int:
        raise ValueError("first\nsecond " + "x" * 1000)

    reader = SourceReader()
    assert reader.read("one", fail).reason == "Permission denied: /x"
    assert "\n" not in reader.read("two", fail_long).reason
    assert len(reader.read("two", fail_long).reason) < 400


def test_slow_source_is_not_known_and_shares_its_read() -> None:
    release, calls = threading.Event(), []

    def slow() -> int:
        calls.append(1)
        release.wait(20)
        return 7

    reader = SourceReader()
    for _ in range(3):
        reading = reader.read("one", slow, limit_s=0.01)
        assert not reading.is_known
        assert reading.is_running
        assert "no response" in reading.reason
    release.set()
    assert reader.read("one", slow, limit_s=20).known == 7
    assert len(calls) <= 2


def test_changed_sources_are_read_again_at_once_and_a_running_read_is_not_cached() -> None:
    release, values = threading.Event(), iter(range(10))

    def slow() -> int:
        value = next(values)
        release.wait(20)
        return value

    reader = SourceReader()
    reader.read("one", slow, max_age_s=60, limit_s=0.01)
    reader.forget()
    release.set()
    assert reader.read("one", slow, max_age_s=60).known == 1
    assert reader.read("one", slow, max_age_s=60).known == 1
    reader.forget()
    assert reader.read("one", slow, max_age_s=60).known == 2


def test_cached_value_is_returned_and_later_read_again() -> None:
    clock, values = Clock(), iter(range(10))
    reader = SourceReader(clock)

    def read() -> int:
        return reader.read("one", lambda: next(values) + 1, max_age_s=10).known

    assert (read(), read()) == (1, 1)
    clock.ms += 10_001
    assert read() == 1  # at once, while it is read again
    clock.ms += 10_000 * STALE_FACTOR + 1
    assert read() >= 2  # too old to be shown


def test_source_that_waits_forever_leaves_others_readable() -> None:
    release = threading.Event()
    reader = SourceReader()
    for number in range(RUNNING_MAX):
        reader.read(f"stuck {number}", lambda: release.wait(20), limit_s=0.001)
    assert "have not ended" in reader.read("next", lambda: 1).reason
    release.set()


@pytest.mark.parametrize(
    "page",
    [
        "/topics?",
        "/topics/orders?",
        "/partitions?",
        "/partitions?topic=orders",
        "/partitions?topic=orders&show=groups",
        "/messages?topic=orders",
        "/find?topic=orders&at=2026-11-18",
        "/loads?",
        "/loads/run-1?",
        "/loads/run-1?show=tasks",
        "/quarantine?",
        "/quarantine?topic=orders",
        "/tables?",
        "/tables/orders?",
        "/tables/orders?show=days",
        "/schemas?",
        "/schemas/subject?name=orders-value",
        "/schemas/subject?name=orders-value&show=versions",
        "/schemas/diff?name=orders-value",
        "/alerts?",
        "/alerts?show=rules",
        "/actions?",
    ],
)
def test_page_opens_but_has_no_export_when_its_sources_are_down(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> Reading[Any]:
        return Reading(None, "the server refuses connections", NOW_MS)

    monkeypatch.setattr(SourceReader, "read", fail)
    client = console_world(tmp_path).client()
    assert client.get(page).status_code == 200
    for form in ("csv", "json"):
        export = client.get(f"{page}&as={form}")
        assert export.status_code == 503
        assert "The server refuses connections." in export.text
