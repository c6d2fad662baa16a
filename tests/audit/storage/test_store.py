"""The audit's database: rows, positions, acceptances, formats."""

from __future__ import annotations

import dataclasses
import multiprocessing
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from headrace.audit.errors import StoreUnavailable
from headrace.audit.offsets import OffsetCheck
from headrace.audit.row import AUDITOR, AuditOutcome, AuditRow, Tier
from headrace.audit.storage import store as store_module
from headrace.audit.storage.rows import upsert
from headrace.audit.storage.store import AuditStore
from headrace.audit.stored import UncountedBatch
from headrace.audit.verdict import Acceptance, AuditVerdict
from headrace.audit.window import SPECIAL_WINDOWS

NewAddress = Callable[[], Path | str]


def row(identity: str, topic: str = "t", **values: object) -> AuditRow:
    base = AuditRow(
        id=identity,
        tier=Tier.BROKER,
        outcome=AuditOutcome.STORED,
        topic=topic,
        window_start_ms=0,
        count=1,
        bytes=2,
        fingerprint=2**64 - 1,
        application="a",
        host="h",
        instance="i",
        emitted_at_ms=3,
        partition=0,
        start=0,
        end=1,
    )
    return dataclasses.replace(base, **values)


def test_row_id_is_stored_once(tmp_path: Path) -> None:
    with AuditStore(tmp_path / "sub" / "audit.db") as store:
        assert store.add_rows([row("1"), row("2")]) == 2
        assert store.add_rows([row("2"), row("3", "u")]) == 1
        assert store.rows("t") == [row("1"), row("2")]
        assert store.topics() == ["t", "u"]
        (facts,) = store.facts("t")
        assert facts.stored is not None and (facts.stored.count, facts.stored.fingerprint) == (2, 2**64 - 2)


def test_rows_of_special_windows_are_stored(tmp_path: Path) -> None:
    rows = [row(str(start_ms), window_start_ms=start_ms) for start_ms in sorted(SPECIAL_WINDOWS)]
    with AuditStore(tmp_path / "audit.db") as store:
        assert store.add_rows(rows) == 2
        assert sorted(store.rows("t"), key=lambda one: one.window_start_ms) == rows


def test_ingested_rows_and_offsets_change_in_one_transaction(tmp_path: Path) -> None:
    with AuditStore(tmp_path / "audit.db") as store:
        assert store.add_ingested("audit", {0: 5, 1: 7}, [row("1")]) == 1
        assert store.add_ingested("audit", {0: 6}, [row("1")]) == 0

        def failing() -> object:
            yield row("2")
            raise RuntimeError("read error")

        with pytest.raises(RuntimeError):
            store.add_ingested("audit", {0: 9}, failing())
        assert store.next_offsets("audit") == {0: 6, 1: 7}
        assert store.rows("t") == [row("1")]
        assert store.next_offsets("other") == {}


def test_counts_of_the_log_and_positions_change_only_if_no_other_auditor_has_moved_them(
    new_address: NewAddress,
) -> None:
    with AuditStore(new_address()) as store:
        assert store.add_log_counts("t/id", {0: None, 1: None}, {0: 5, 1: 7}, [row("1")])
        assert not store.add_log_counts("t/id", {0: None}, {0: 6}, [row("2")])
        assert not store.add_log_counts("t/id", {0: 5, 1: 6}, {0: 8, 1: 9}, [row("3")])
        assert store.add_log_counts("t/id", {0: 5}, {0: 6}, [])
        assert not store.add_log_counts("t/id", {0: 5}, {0: 6}, [row("4")])
        assert store.next_offsets("t/id") == {0: 6, 1: 7}
        assert store.rows("t") == [row("1")]
        assert store.next_offsets("t/other-id") == {}

        def failing() -> object:
            yield row("5")
            raise RuntimeError("read error")

        with pytest.raises(RuntimeError):
            store.add_log_counts("t/id", {0: 6}, {0: 9}, failing())
        assert store.next_offsets("t/id") == {0: 6, 1: 7}


def test_two_auditors_that_begin_together_do_not_move_a_position_back(
    new_address: NewAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one has read tombstones only, which have no counts, and waits before it stores its position."""
    address, has_read, other_is_done = new_address(), threading.Event(), threading.Event()
    results: dict[str, bool] = {}

    def count(name: str, end: int, rows: list[AuditRow]) -> None:
        with AuditStore(address) as store:
            results[name] = store.add_log_counts("t/id", {0: None}, {0: end}, rows)

    def slow_upsert(*arguments: Any) -> None:
        if threading.current_thread() is first:
            has_read.set()
            other_is_done.wait(0.5)
        upsert(*arguments)

    first = threading.Thread(target=count, args=("first", 5, []))
    monkeypatch.setattr(store_module, "upsert", slow_upsert)
    with AuditStore(address) as store:  # the tables exist
        first.start()
        assert has_read.wait(60)
        count("second", 7, [row("0-7")])
        other_is_done.set()
        first.join(60)
        assert sorted(results.values()) == [False, True]
        assert store.next_offsets("t/id") == {0: 5 if results["first"] else 7}
        assert store.rows("t") == ([] if results["first"] else [row("0-7")])


def test_corrupt_batches_change_with_positions_and_are_forgotten_with_their_log(new_address: NewAddress) -> None:
    found = [UncountedBatch("a", partition, 10, 20, "the batch has the wrong checksum", 1) for partition in (0, 1)]
    with AuditStore(new_address()) as store:
        assert store.add_log_counts("a/1", {0: None, 1: None}, {0: 20, 1: 20}, [], found)
        assert not store.add_log_counts("a/1", {0: None}, {0: 20}, [], [found[0]._replace(start=0, end=10)])
        assert store.corrupt_batches() == found
        store.forget_corrupt_batches("b/1", "b", {0: 100, 1: 100})
        store.forget_corrupt_batches("a/1", "a", {0: 19, 1: 20})
        assert store.corrupt_batches() == found[:1]
        store.forget_corrupt_batches("a/2", "a", {0: 0})
        assert store.corrupt_batches() == []


def test_offsets_that_the_auditor_counted_do_not_replace_those_of_loads(tmp_path: Path) -> None:
    with AuditStore(tmp_path / "audit.db") as store:
        store.add_rows([row("audited", application=AUDITOR, start=0, end=10)])
        store.add_rows([row("first", start=0, end=5), row("whole", start=0, end=10, topic="u")])
        store.add_rows([row("audited-2", application=AUDITOR, start=5, end=12)])
        store.add_rows([row("second", start=5, end=10), row("fourth", start=12, end=15)])
        store.add_rows([row("audited-3", application=AUDITOR, start=3, end=15)])
        assert store.offset_check("t") == OffsetCheck(holes=((0, 10, 12),))


def test_offset_check_uses_only_broker_rows(tmp_path: Path) -> None:
    with AuditStore(tmp_path / "audit.db") as store:
        store.add_rows([row("1", start=0, end=4), row("2", start=6, end=8), row("3", start=0, end=4)])
        store.add_rows([row("4", tier=Tier.LOADER, outcome=AuditOutcome.WRITTEN, start=4, end=6)])
        assert store.offset_check("t").holes == ((0, 4, 6),)


def test_skipped_offsets_do_not_change_window_counts(tmp_path: Path) -> None:
    with AuditStore(tmp_path / "audit.db") as store:
        store.add_rows([row("1", start=0, end=8)])
        before = list(store.facts("t"))
        store.add_rows([row("2", tier=Tier.LOADER, outcome=AuditOutcome.SKIPPED, start=4, end=6)])
        assert list(store.facts("t")) == before
        assert store.offset_check("t") == OffsetCheck(skipped=((0, 4, 6),))
        assert store.offset_check("t").skipped_count == 2


def test_error_names_a_file_that_is_not_a_database(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    path.write_bytes(b"not a database, but long enough to be taken for one" * 50)
    with pytest.raises(StoreUnavailable, match=r"audit\.db"):
        AuditStore(path)


def test_newest_acceptance_of_a_window_is_stored_and_can_be_withdrawn(tmp_path: Path) -> None:
    first = Acceptance("t", 0, AuditVerdict.MISSING, -1, "disk", "ann", 5)
    again = dataclasses.replace(first, difference=-2, reason="two disks")
    other = dataclasses.replace(first, window_start_ms=600_000, verdict=AuditVerdict.UNKNOWN)
    with AuditStore(tmp_path / "audit.db") as store:
        store.accept([first, other])
        store.accept([again])
    with AuditStore(tmp_path / "audit.db") as store:
        assert store.accepted() == (again, other)
        store.withdraw([first])
        assert store.accepted() == (other,)


def test_another_format_is_an_error_with_its_remedy(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    AuditStore(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE store_state SET format = 99")
    with pytest.raises(StoreUnavailable, match=r"audit\.db.*\b99\b.*use a newer release"):
        AuditStore(path)


def test_a_database_of_an_older_release_is_an_error_with_its_remedy(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE audit_row (id TEXT PRIMARY KEY)")
    with pytest.raises(StoreUnavailable, match=r"audit\.db.*older release; move it away"):
        AuditStore(path)


@pytest.mark.parametrize("url", ["mysql://host/name", "sqlite://", "sqlite:///:memory:", "no url", "postgresql:/x"])
def test_an_unusable_url_is_an_error(url: str) -> None:
    with pytest.raises(StoreUnavailable, match=r"audit\.database_url|cannot use"):
        AuditStore(url)


def add_many(path: Path, writer: int) -> None:
    with AuditStore(path) as store:
        for batch in range(10):
            store.add_rows([row(f"{writer}-{batch}-{n}") for n in range(50)] + [row(f"shared-{batch}")])


def test_several_processes_can_write(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    processes = [multiprocessing.get_context("spawn").Process(target=add_many, args=(path, n)) for n in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    with AuditStore(path) as store:
        assert len(store.rows("t")) == 3 * 10 * 50 + 10


def test_findings_of_a_status_are_read_from_indexes_and_not_from_all_verdicts(tmp_path: Path) -> None:
    """A month of 300 topics has 1.3 million verdicts, and the console reads the findings every 15 seconds."""
    path, statements = tmp_path / "audit.db", []
    with AuditStore(path) as store:
        sa.event.listen(
            store.database._engine, "before_cursor_execute", lambda *given: statements.append((given[2], given[3]))
        )
        store.producer_faults(now_ms=10**12)
        store.extra_shares(10)
        store.late_windows(0, 10**12)
    with closing(sqlite3.connect(path)) as database:
        plans = [row[3] for one in statements for row in database.execute(f"EXPLAIN QUERY PLAN {one[0]}", one[1])]
    scans = {plan for plan in plans if plan.startswith("SCAN")}
    assert scans == {"SCAN window_verdict USING INDEX window_verdict_differs"}
