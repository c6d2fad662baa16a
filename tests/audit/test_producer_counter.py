"""Producer counts and the spool that survives a crash."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from itertools import repeat
from pathlib import Path

import pytest

from headrace.audit import window
from headrace.audit.count import message_hash
from headrace.audit.open_row import Ticket
from headrace.audit.producer_counter import WINDOWS_RETENTION_MS, ProducerCounter, RowSelection
from headrace.audit.row import AuditRow
from headrace.audit.spool import SLOTS, Spool, leftover_spools, sums_index
from headrace.audit.window import OUT_OF_RANGE_MS, SCATTERED_MS, WINDOW_MS
from headrace.clients.core_tallies import row_type
from support.checkout import ROOT
from support.loader.compiled_core import required_core

NOW = 10 * WINDOW_MS
CORE = """
from headrace.audit.producer_counter import ProducerCounter
from headrace.avro_codec import core_library
from headrace.clients.core_tallies import row_type
ProducerCounter.__init__.__kwdefaults__["row_type"] = row_type(core_library())
"""


@pytest.fixture(params=["reference", "core"], autouse=True)
def prelude(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs each test with the rows of the reference and with those of the core. Returns code for other processes."""
    if request.param == "reference":
        return ""
    monkeypatch.setitem(ProducerCounter.__init__.__kwdefaults__, "row_type", row_type(required_core()))
    return CORE


def leftover_rows(directory: Path) -> list[AuditRow]:
    rows = []
    for spool in leftover_spools(directory):
        with spool:
            rows += spool.rows
    return rows


def counts(rows: list[AuditRow]) -> list[tuple[str, int, int, int]]:
    return sorted((row.topic, row.window_start_ms, row.sent, row.count) for row in rows)


def test_take_rows_returns_counts_since_the_last_call(tmp_path: Path) -> None:
    counter = ProducerCounter("shop", spool_dir=tmp_path, host="h", instance="i")
    first = counter.count_sent("t", 5, b"k", b"v")
    second = counter.count_sent("t", 6, None, b"w")
    counter.acknowledge([first])
    (early,) = counter.take_rows(NOW, RowSelection.ALL)
    counter.acknowledge([second])
    (late,) = counter.take_rows(NOW, RowSelection.ALL)
    assert (early.sent, early.count, early.fingerprint) == (2, 1, message_hash(b"k", b"v"))
    assert (late.sent, late.count, late.fingerprint, late.bytes) == (0, 1, message_hash(None, b"w"), 1)
    assert early.id != late.id
    assert (early.application, early.host, early.instance, early.crashed) == ("shop", "h", "i", False)
    counter.close()


def test_messages_that_are_counted_together_count_like_single_ones() -> None:
    rows = []
    for is_together in (False, True):
        counter = ProducerCounter("shop", spool_dir=None, late_after_ms=0)
        hashes = sum(message_hash(None, value) for value in (b"a", b"bc", b"d"))

        def sent(
            counter: ProducerCounter = counter, hashes: int = hashes, is_together: bool = is_together
        ) -> list[Ticket]:
            if is_together:
                return [counter.count_sent_together("t", 5, 3, 4, hashes, has_time=False)]
            found = [counter.count_sent("t", 5, None, value, has_time=False) for value in (b"a", b"bc", b"d")]
            return [ticket for ticket in found if ticket is not None]

        for ticket in sent():
            counter.withdraw(ticket)
        for ticket in sent():
            counter.count_failed(ticket)
        counter.acknowledge(sent(), repeat(0.02), now_ms=NOW)
        late = sent()
        rows += counter.take_rows(NOW, RowSelection.ALL)
        counter.acknowledge(late, repeat(0.5), now_ms=NOW)
        rows += counter.take_rows(NOW, RowSelection.ALL)
    single, together = rows[:2], rows[2:]
    assert [replace(row, instance="", id="") for row in together] == [
        replace(row, instance="", id="") for row in single
    ]
    assert [(row.sent, row.count, row.errors, row.no_time, row.late) for row in together] == [
        (9, 3, 3, 12, 3),
        (0, 3, 0, 0, 3),
    ]


def test_take_unchanged_returns_ended_windows_without_new_counts(tmp_path: Path) -> None:
    counter = ProducerCounter("shop", spool_dir=None)
    counter.count_sent("t", 0, None, b"v")
    counter.count_sent("t", NOW, None, b"v")
    assert counter.take_rows(NOW, RowSelection.UNCHANGED) == []
    counter.count_failed(counter.count_sent("t", 0, None, b"v"))
    assert counter.take_rows(NOW, RowSelection.UNCHANGED) == []
    assert counts(counter.take_rows(NOW, RowSelection.UNCHANGED)) == [("t", 0, 2, 0)]
    assert counter.take_rows(NOW, RowSelection.UNCHANGED) == []
    assert counter.open_rows == 1


def test_take_ended_returns_a_window_from_its_end_on() -> None:
    counter = ProducerCounter("shop", spool_dir=None)
    counter.count_sent("t", NOW - WINDOW_MS, None, b"v")
    assert counter.take_rows(NOW - 1, RowSelection.ENDED) == []
    assert counts(counter.take_rows(NOW, RowSelection.ENDED)) == [("t", NOW - WINDOW_MS, 1, 0)]


def test_delivery_callback_counts_only_successes(tmp_path: Path) -> None:
    class Message:
        def topic(self) -> str:
            return "t"

        def key(self) -> bytes:
            return b"k"

        def value(self) -> bytes:
            return b"v"

        def latency(self) -> float:
            return 0.25

    counter = ProducerCounter("shop", spool_dir=None)
    for _ in range(2):
        counter.count_sent("t", 7, b"k", b"v")
    counter.on_delivery(7)(None, Message())
    counter.on_delivery(7)("timed out", Message())
    (row,) = counter.take_rows(NOW, RowSelection.ALL)
    assert (row.sent, row.count, row.errors, row.latency_max_ms) == (2, 1, 1, 250)


def test_row_states_late_and_failed_messages_times_and_latencies() -> None:
    counter = ProducerCounter("shop", spool_dir=None, datacenter="fra", late_after_ms=1000)
    tickets = [counter.count_sent("t", n, None, b"v", has_time=n > 0) for n in range(101)]
    counter.acknowledge(tickets[:98], [0.1] * 98, now_ms=WINDOW_MS + 1000)
    counter.acknowledge(tickets[98:100], [2.0, None], now_ms=WINDOW_MS + 1001)
    counter.count_failed(tickets[100])
    counter.count_failed(None)
    (row,) = counter.take_rows(NOW, RowSelection.ALL)
    assert (row.datacenter, row.sent, row.count, row.late, row.no_time, row.errors) == ("fra", 101, 100, 2, 1, 1)
    assert (row.latency_mean_ms, row.latency_max_ms) == (round((98 * 100 + 2000) / 99), 2000)
    assert (100 <= row.latency_p95_ms <= 112, row.latency_p99_ms) == (True, 2000)


def test_failure_after_the_row_was_taken_is_counted_in_a_new_row() -> None:
    counter = ProducerCounter("shop", spool_dir=None)
    ticket = counter.count_sent("t", 0, None, b"v")
    counter.take_rows(NOW, RowSelection.ALL)
    counter.count_failed(ticket)
    (row,) = counter.take_rows(NOW, RowSelection.ALL)
    assert (row.sent, row.count, row.errors) == (0, 0, 1)


def test_tombstones_are_not_counted() -> None:
    class Tombstone:
        def topic(self) -> str:
            return "t"

        def key(self) -> bytes:
            return b"k"

        def value(self) -> None:
            return None

        def latency(self) -> float:
            return 0.25

    counter = ProducerCounter("shop", spool_dir=None)
    ticket = counter.count_sent("t", 7, b"k", None)
    counter.on_delivery(7)(None, Tombstone())
    counter.acknowledge([ticket])
    counter.withdraw(ticket)
    assert counts(counter.take_rows(NOW, RowSelection.ALL)) == []


def test_close_deletes_the_spool_when_all_rows_are_published(tmp_path: Path) -> None:
    counter = ProducerCounter("shop", spool_dir=tmp_path)
    counter.count_sent("t", 0, None, b"v")
    for row in counter.take_rows(NOW, RowSelection.ALL):
        counter.mark_published(row.id)
    counter.close()
    assert list(tmp_path.iterdir()) == []


def test_close_leaves_unpublished_rows_with_their_ids(tmp_path: Path) -> None:
    counter = ProducerCounter("shop", spool_dir=tmp_path)
    counter.acknowledge([counter.count_sent("t", 0, None, b"v")])
    taken_rows = counter.take_rows(NOW, RowSelection.ALL)
    assert leftover_rows(tmp_path) == []  # the owner still holds its lock
    counter.count_sent("u", 0, None, b"v")
    counter.close()
    rows = leftover_rows(tmp_path)
    assert counts(rows) == [("t", 0, 1, 1), ("u", 0, 1, 0)]
    assert {row.id for row in taken_rows} < {row.id for row in rows}
    assert not any(row.crashed for row in rows)


def test_spool_of_a_killed_process_has_all_counts(tmp_path: Path, prelude: str) -> None:
    program = """
import sys, time
from pathlib import Path
from headrace.audit.producer_counter import ProducerCounter
counter = ProducerCounter("shop", spool_dir=Path(sys.argv[1]))
tickets = [counter.count_sent("t", n * 600_000 // 2, b"k", b"v") for n in range(100)]
counter.acknowledge(tickets[:60])
print("counted", flush=True)
time.sleep(600)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", prelude + program, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "counted\n"
    assert leftover_rows(tmp_path) == []
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    rows = leftover_rows(tmp_path)
    assert sum(row.sent for row in rows) == 100
    assert sum(row.count for row in rows) == 60
    assert all(row.crashed and row.count <= row.sent for row in rows)
    for spool in leftover_spools(tmp_path):
        with spool:
            spool.delete()
    assert list(tmp_path.iterdir()) == []


def test_log_handler_may_send_messages(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    counter = ProducerCounter("shop", spool_dir=tmp_path / "file")

    class Sending(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            counter.count_sent("logs", 0, None, record.getMessage().encode())

    logger, handler = logging.getLogger("headrace.audit.producer_counter"), Sending()
    logger.addHandler(handler)
    try:
        thread = threading.Thread(target=lambda: counter.count_sent("t", 0, None, b"v"), daemon=True)
        thread.start()
        thread.join(30)
        assert not thread.is_alive()
    finally:
        logger.removeHandler(handler)
    assert {row.topic: row.sent for row in counter.take_rows(NOW, RowSelection.ALL)} == {"t": 1, "logs": 1}


def test_counting_continues_when_the_spool_is_full_or_unusable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    counter = ProducerCounter("shop", spool_dir=tmp_path / "file")
    counter.acknowledge([counter.count_sent("t", 0, None, b"v")])
    assert counts(counter.take_rows(NOW, RowSelection.ALL)) == [("t", 0, 1, 1)]
    assert f"directory={tmp_path / 'file'} " in warning_of(caplog)
    full = ProducerCounter("shop", spool_dir=tmp_path)
    assert not [
        path for path in tmp_path.iterdir() if path.suffix == ".spool"
    ]  # the spool is created for the first row
    for n in range(SLOTS + 2):
        full.count_sent(
            f"t{n % 2}", n * WINDOW_MS, None, b"v"
        )  # two topics, because WINDOWS_MAX limits the windows of one
    assert len(full.take_rows(0, RowSelection.UNCHANGED)) == SLOTS + 2  # over OPEN_ROWS_MAX: rows of all windows
    assert f"spool={tmp_path}/" in warning_of(caplog)
    full.close()
    assert len(leftover_rows(tmp_path)) == SLOTS


def warning_of(caplog: pytest.LogCaptureFixture) -> str:
    """Returns the only warning since the last call."""
    (warning,) = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    caplog.clear()
    return warning


def test_threads_and_publication_lose_no_sent_message(tmp_path: Path) -> None:
    counter = ProducerCounter("shop", spool_dir=tmp_path)
    rows: list[AuditRow] = []
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [
            threading.Thread(
                target=lambda: counter.acknowledge([counter.count_sent("t", NOW, None, b"v") for _ in range(5_000)])
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            rows += counter.take_rows(NOW, RowSelection.ALL)
    finally:
        sys.setswitchinterval(interval_s)
    counter.close()
    left = leftover_rows(tmp_path)
    for each in ([*left, *rows], [*rows, *left]):  # rows that are also in the spool have the same counts there
        unique = {row.id: row for row in each}.values()
        assert (sum(row.sent for row in unique), sum(row.count for row in unique)) == (20_000, 20_000)
        assert sum(row.fingerprint for row in unique) % 2**64 == 20_000 * message_hash(None, b"v") % 2**64


def test_withdrawn_message_is_not_counted_as_sent(tmp_path: Path) -> None:
    counter = ProducerCounter("shop", spool_dir=tmp_path)
    first, second = (counter.count_sent("t", 0, None, b"v") for _ in range(2))
    counter.withdraw(first)
    (early,) = counter.take_rows(NOW, RowSelection.ALL)
    assert (early.sent, early.count) == (1, 0)
    third = counter.count_sent("t", 0, None, b"v")
    counter.withdraw(second)  # its row was taken and stays as published
    counter.count_sent("u", 0, None, b"v")
    counter.withdraw(third)
    counter.close()
    assert counts(leftover_rows(tmp_path)) == [("t", 0, 1, 0), ("u", 0, 1, 0)]


def test_window_limit_applies_per_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "WINDOWS_MAX", 2)
    counter = ProducerCounter("shop", spool_dir=None)

    def windows(first: int, now_ms: int) -> list[tuple[str, int, int, int]]:
        for n in range(first, first + 4):
            counter.acknowledge([counter.count_sent("t", n * WINDOW_MS, None, b"v")])
        counter.count_sent("t", -1, None, b"v")
        return counts(counter.take_rows(now_ms, RowSelection.ALL))

    out_of_range = ("t", OUT_OF_RANGE_MS, 1, 0)
    hour = WINDOWS_RETENTION_MS
    assert windows(0, NOW) == [("t", SCATTERED_MS, 2, 2), out_of_range, ("t", 0, 1, 1), ("t", WINDOW_MS, 1, 1)]
    assert [start for _, start, _, _ in windows(4, NOW + 1)] == [
        SCATTERED_MS,
        OUT_OF_RANGE_MS,
        4 * WINDOW_MS,
        5 * WINDOW_MS,
    ]
    assert windows(6, NOW + hour - 1) == [("t", SCATTERED_MS, 4, 4), out_of_range]
    assert windows(4, NOW + hour) == [
        ("t", SCATTERED_MS, 2, 2),
        out_of_range,
        *(("t", n * WINDOW_MS, 1, 1) for n in (4, 5)),
    ]
    assert windows(8, NOW + hour) == [
        ("t", SCATTERED_MS, 2, 2),
        out_of_range,
        *(("t", n * WINDOW_MS, 1, 1) for n in (8, 9)),
    ]


def test_open_rows_count_towards_the_window_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "WINDOWS_MAX", 1)
    counter = ProducerCounter("shop", spool_dir=None)
    counter.count_sent("t", 100 * NOW, None, b"v")
    assert counter.take_rows(NOW, RowSelection.UNCHANGED) == []
    counter.count_sent("t", 0, None, b"v")
    assert {row.window_start_ms for row in counter.take_rows(NOW, RowSelection.ALL)} == {SCATTERED_MS, 100 * NOW}


def test_acknowledgement_without_ticket_is_counted_in_the_window_of_the_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(window, "WINDOWS_MAX", 1)
    counter = ProducerCounter("shop", spool_dir=None)
    for time_ms in (0, WINDOW_MS, -1):
        counter.count_sent("t", time_ms, None, b"v")
        counter.count_acknowledged("t", time_ms, None, b"v")
    assert counts(counter.take_rows(NOW, RowSelection.ALL)) == [
        ("t", SCATTERED_MS, 1, 1),
        ("t", OUT_OF_RANGE_MS, 1, 1),
        ("t", 0, 1, 1),
    ]


def test_unreadable_spool_is_skipped_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "x.spool").write_bytes(b"{" + b"\0" * 10_000)
    assert leftover_rows(tmp_path) == []
    assert f"path={tmp_path / 'x.spool'} " in warning_of(caplog)


def test_freed_slot_is_reused(tmp_path: Path) -> None:
    spool = Spool(tmp_path, "i", "a", "h")
    slot = spool.open_slot(1, "t", 0)
    spool.words[sums_index(slot)] = 9
    spool.free_slot(slot)
    assert spool.open_slot(2, "u", WINDOW_MS) == slot
    spool.close()
    assert [(row.topic, row.sent) for row in leftover_rows(tmp_path)] == []


FULL_DISK = """
import errno, os, sys
from pathlib import Path
from headrace.audit import spool
from headrace.audit.producer_counter import ProducerCounter, RowSelection
directory = Path(sys.argv[1])
counter = ProducerCounter("shop", spool_dir=directory)
counter.acknowledge([counter.count_sent("t", 0, b"k", b"v")])
(path,) = directory.glob("*.spool")
# Simulates a full disk: a write to an unallocated page of the mapped file kills the process.
os.truncate(path, os.lseek(os.open(path, os.O_RDONLY), 0, os.SEEK_HOLE))

def full(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

spool.os.pwrite = full
windows = 2 * spool.STEP_SLOTS + 1
for n in range(1, windows):
    counter.acknowledge([counter.count_sent("t", n * 600_000, b"k", b"v")])
rows = counter.take_rows(0, RowSelection.ALL)
assert len(rows) == windows and all((row.sent, row.count) == (1, 1) for row in rows), rows
for row in rows:
    counter.mark_published(row.id)
counter.close()
"""


def test_full_disk_does_not_stop_the_application(tmp_path: Path, prelude: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", prelude + FULL_DISK, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert (done.returncode, done.stderr.count("No space left on device")) == (0, 1), done.stderr
    assert list(tmp_path.iterdir()) == []


FORK = """
import os, sys
from pathlib import Path
from headrace.audit.producer_counter import ProducerCounter, RowSelection
counter = ProducerCounter("shop", spool_dir=Path(sys.argv[1]))
counter.acknowledge([counter.count_sent("t", 0, b"k", b"v")])
sent = counter.count_sent("t", 0, b"k", b"x")
with sent.row._lock:  # as another thread may hold it
    child = os.fork()
for _ in range(1 if child else 3):
    counter.count_sent("t", 0, b"k", b"w")
if not child:
    counter.acknowledge([sent])  # the ticket belongs to a row of the parent
(row,) = counter.take_rows(0, RowSelection.ALL)
os.write(1, f"{row.instance} {row.sent} {row.count}\\n".encode())  # one call: both processes write at once
if child:
    assert os.waitpid(child, 0)[1] == 0
    counter.mark_published(row.id)
    counter.close()
else:
    os._exit(0)
"""


def test_forked_child_counts_separately(tmp_path: Path, prelude: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", prelude + FORK, str(tmp_path)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    counted = [line.split() for line in done.stdout.splitlines()]
    assert sorted(numbers for _, *numbers in counted) == [["3", "1"], ["3", "1"]]
    assert len({instance for instance, *_ in counted}) == 2
    assert [(row.sent, row.count) for row in leftover_rows(tmp_path)] == [(3, 1)]  # the child ended without close
