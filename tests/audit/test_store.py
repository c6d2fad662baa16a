"""The database of rows."""

from __future__ import annotations

import dataclasses
import multiprocessing
import sqlite3
from pathlib import Path

import pytest

from headrace.audit.errors import StoreUnavailable
from headrace.audit.offsets import OffsetCheck
from headrace.audit.row import AuditRow, Outcome, Tier
from headrace.audit.store import AuditStore
from headrace.audit.verdict import Acceptance, State
from headrace.audit.window import NAMES


def row(identity: str, topic: str = "t", **values: object) -> AuditRow:
    base = AuditRow(
        id=identity,
        tier=Tier.BROKER,
        outcome=Outcome.STORED,
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


def test_each_id_counts_once(tmp_path: Path) -> None:
    with AuditStore(tmp_path / "sub" / "audit.db") as store:
        assert store.add_rows([row("1"), row("2")]) == 2
        assert store.add_rows([row("2"), row("3", "u")]) == 1
        assert store.rows("t") == [row("1"), row("2")]
        assert store.topics() == ["t", "u"]
        (facts,) = store.facts("t")
        assert facts.stored is not None and (facts.stored.count, facts.stored.fingerprint) == (2, 2**64 - 2)


def test_windows_of_absurd_times_are_kept(tmp_path: Path) -> None:
    rows = [row(str(start_ms), window_start_ms=start_ms) for start_ms in sorted(NAMES)]
    with AuditStore(tmp_path / "audit.db") as store:
        assert store.add_rows(rows) == 2
        assert sorted(store.rows("t"), key=lambda one: one.window_start_ms) == rows


def test_rows_and_offsets_change_together(tmp_path: Path) -> None:
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


def test_offsets_of_broker_rows_are_checked(tmp_path: Path) -> None:
    with AuditStore(tmp_path / "audit.db") as store:
        store.add_rows([row("1", start=0, end=4), row("2", start=6, end=8), row("3", start=0, end=4)])
        store.add_rows([row("4", tier=Tier.LOADER, outcome=Outcome.WRITTEN, start=4, end=6)])
        assert store.offset_check("t").holes == ((0, 4, 6),)


def test_what_was_passed_over_is_no_count_of_a_window(tmp_path: Path) -> None:
    with AuditStore(tmp_path / "audit.db") as store:
        store.add_rows([row("1", start=0, end=8)])
        before = list(store.facts("t"))
        store.add_rows([row("2", tier=Tier.LOADER, outcome=Outcome.PASSED_OVER, start=4, end=6)])
        assert list(store.facts("t")) == before
        assert store.offset_check("t") == OffsetCheck(passed_over=((0, 4, 6),))
        assert store.offset_check("t").passed_over_count == 2


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    path.write_bytes(b"not a database, but long enough to be taken for one" * 50)
    with pytest.raises(StoreUnavailable, match=r"audit\.db"):
        AuditStore(path)


def test_rows_of_before_hashes_were_named_have_the_name_of_theirs(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    with AuditStore(path) as store:
        store.add_rows([row("1")])
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE audit_row DROP COLUMN hash")
        connection.execute("PRAGMA user_version = 2")
    with AuditStore(path) as store, AuditStore(path) as other:
        assert store.add_rows([row("2", tier=Tier.LOADER, outcome=Outcome.WRITTEN)]) == 1
        assert [one.hash for one in other.rows("t")] == ["blake2b-64", "xxh64"]
        (facts,) = other.facts("t")
    assert facts.stored is not None
    assert facts.written is not None
    assert (facts.stored.hash, facts.written.hash) == ("blake2b-64", "xxh64")


def test_what_was_accepted_is_kept_once_for_each_window_and_can_be_withdrawn(tmp_path: Path) -> None:
    first = Acceptance("t", 0, State.SHORT, -1, "disk", "ann", 5)
    again = dataclasses.replace(first, difference=-2, reason="two disks")
    other = dataclasses.replace(first, window_start_ms=600_000, state=State.UNKNOWN)
    with AuditStore(tmp_path / "audit.db") as store:
        store.accept([first, other])
        store.accept([again])
    with AuditStore(tmp_path / "audit.db") as store:
        assert store.accepted() == (again, other)
        store.withdraw([first])
        assert store.accepted() == (other,)


def test_a_database_of_before_acceptances_has_room_for_them(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    with AuditStore(path) as store:
        store.add_rows([row("1")])
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE accepted")
        connection.execute("PRAGMA user_version = 3")
    with AuditStore(path) as store:
        store.accept([Acceptance("t", 0, State.SHORT, -1, "disk", "ann", 5)])
        assert (len(store.accepted()), len(store.rows("t"))) == (1, 1)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreUnavailable, match=r"audit\.db.*\b99\b"):
        AuditStore(path)


def add_many(path: Path, writer: int) -> None:
    with AuditStore(path) as store:
        for batch in range(10):
            store.add_rows([row(f"{writer}-{batch}-{n}") for n in range(50)] + [row(f"shared-{batch}")])


def test_several_processes_may_write(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    processes = [multiprocessing.get_context("spawn").Process(target=add_many, args=(path, n)) for n in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    with AuditStore(path) as store:
        assert len(store.rows("t")) == 3 * 10 * 50 + 10
