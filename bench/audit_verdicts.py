"""Measures how long the audit takes to compare counts: `python -m bench.audit_verdicts --topics 300 --days 30`.

Fills an SQLite database with the counts of `--topics` topics with four partitions: one producer row, four rows of the
log and four of the tables for each window of ten minutes. One window of 500 lacks a message. Then it measures the CPU
time of this process, and prints the best of `--rounds`:

    rebuild        verdicts, strips and events of all windows from the rows
    after a load   the rows of one load: two windows of each topic
      rows         adding them, as the load's applier does, in a transaction for each topic
      verdicts     comparing their windows
    nothing new    an update without new rows, as the auditor does every few seconds
    report         the report of all topics from the stored verdicts
    summaries      all topics; strips: a month of all topics; incidents

The baseline in the same run is a full comparison of all rows, as each report made before verdicts were stored.
`--keep` appends the output to `bench/results/audit_verdicts.md`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from bench.support.results import add_keep_flag, append_result, as_printed, describe_run  # noqa: E402
from headrace.audit.reconcile import reconcile_topics  # noqa: E402
from headrace.audit.row import AuditOutcome, AuditRow, Tier  # noqa: E402
from headrace.audit.storage.store import AuditStore  # noqa: E402
from headrace.audit.storage.tables import AUDIT_ROW, OFFSET_RANGE, TOPIC_STATE, TOUCHED_WINDOW  # noqa: E402
from headrace.audit.strip import DAY_MS, WINDOWS_OF_DAY, day_of  # noqa: E402
from headrace.audit.window import WINDOW_MS  # noqa: E402

DAYS_MAX = 400
START_MS = (time.time_ns() // 1_000_000 // DAY_MS - DAYS_MAX) * DAY_MS
"""The begin of window 0. The filled windows end today at 00:00 UTC, so that a load's windows are of the last day: for
older ones, the store checks whether they were deleted."""
GRACE_MS = 3 * WINDOW_MS
PARTITIONS = 4
MESSAGES = 250  # of a window and partition
LOSS_EVERY = 500  # windows
TIERS = ((Tier.BROKER, AuditOutcome.STORED), (Tier.LOADER, AuditOutcome.WRITTEN))


def window_rows(topic: str, number: int) -> Iterator[AuditRow]:
    """Yields the rows of one window."""
    start_ms = START_MS + number * WINDOW_MS
    count = PARTITIONS * MESSAGES
    yield row(f"{topic}-{number}", topic, start_ms, count, Tier.PRODUCER, AuditOutcome.ACKNOWLEDGED, sent=count)
    for partition in range(PARTITIONS):
        lost = int(partition == 0 and number % LOSS_EVERY == LOSS_EVERY // 2)
        span = {"partition": partition, "start": number * MESSAGES, "end": (number + 1) * MESSAGES}
        for tier, outcome in TIERS:
            identity = f"{topic}-{number}-{tier}-{partition}"
            yield row(identity, topic, start_ms, MESSAGES - lost, tier, outcome, **span)


def row(
    identity: str, topic: str, start_ms: int, count: int, tier: Tier, outcome: AuditOutcome, **values: Any
) -> AuditRow:
    return AuditRow(
        id=identity,
        tier=tier,
        outcome=outcome,
        topic=topic,
        window_start_ms=start_ms,
        count=count,
        bytes=count * 300,
        fingerprint=count * 7,
        application="shop",
        host="web-1",
        instance="bench",
        emitted_at_ms=start_ms + WINDOW_MS + 30_000,
        **values,
    )


def cpu_s(work: Callable[[], object]) -> tuple[float, float]:
    """Returns the CPU and wall seconds of a call."""
    cpu, wall = time.process_time(), time.monotonic()
    work()
    return time.process_time() - cpu, time.monotonic() - wall


def reconcile_all(store: AuditStore, now_ms: int) -> None:
    topics = store.topics()
    reconcile_topics(
        (facts for topic in topics for facts in store.facts(topic)),
        {topic: store.offset_check(topic) for topic in topics},
        now_ms=now_ms,
        grace_ms=GRACE_MS,
    )


def update(store: AuditStore, now_ms: int) -> None:
    store.update_verdicts(now_ms=now_ms, grace_ms=GRACE_MS)


def fill(store: AuditStore, names: Sequence[str], windows: range) -> None:
    """Adds the rows of the first topic, and copies what they changed for the others, which takes a tenth of the
    time."""
    first, *others = names
    store.add_rows(row for number in windows for row in window_rows(first, number))
    for table in (TOPIC_STATE, OFFSET_RANGE, TOUCHED_WINDOW, AUDIT_ROW):
        for topic in others:
            changed = {
                "topic": sa.literal(topic),
                "id": sa.literal(topic).concat(sa.func.substr(AUDIT_ROW.c.id, len(first) + 1)),
            }
            columns = [changed.get(column.name, column) for column in table.c]
            copied = sa.select(*columns).where(table.c.topic == first)
            with store.database.writing() as connection:
                connection.execute(sa.insert(table).from_select(list(table.c), copied))


def measure(path: Path, topics: int, days: int, rounds: int, *, with_baseline: bool) -> list[str]:
    """Prints the results, and returns the printed lines."""
    lines: list[str] = []

    def say(line: str) -> None:
        print(line, flush=True)
        lines.append(line)

    def show(name: str, times: list[tuple[float, float]], windows: int = 0) -> None:
        cpu, wall = min(times)
        each = f"{cpu / windows * 1e6:>22,.1f}" if windows else ""
        say(f"{name:24}{cpu:>10,.3f}{wall:>10,.3f}{each}")

    names = [f"team-{number % 40:02}.events-{number:05}" for number in range(topics)]
    windows, next_window = days * WINDOWS_OF_DAY, DAYS_MAX * WINDOWS_OF_DAY
    now_ms = START_MS + next_window * WINDOW_MS + GRACE_MS * 2
    with AuditStore(path) as store:
        filled = time.monotonic()
        fill(store, names, range(next_window - windows, next_window))
        size = path.stat().st_size / 1e6
        say(f"{topics:,} topics, {topics * windows:,} windows, {topics * windows * 9:,} rows, {size:,.0f} MB of rows")
        say(f"filled in {time.monotonic() - filled:,.0f} s\n")
        say(f"{'':24}{'CPU s':>10}{'wall s':>10}{'µs of CPU a window':>22}")
        show("rebuild", [cpu_s(lambda: update(store, now_ms))], topics * windows)
        if with_baseline:
            show("baseline: full compare", [cpu_s(lambda: reconcile_all(store, now_ms))], topics * windows)
        adding, comparing = [], []
        for _ in range(rounds):
            loaded = [[*window_rows(topic, next_window), *window_rows(topic, next_window + 1)] for topic in names]
            next_window += 2
            now_ms += 2 * WINDOW_MS
            adding.append(cpu_s(lambda: [store.add_rows(rows) for rows in loaded]))  # noqa: B023
            comparing.append(cpu_s(lambda: update(store, now_ms)))  # noqa: B023
        show("after a load: rows", adding, topics * 2)
        show("after a load: verdicts", comparing, topics * 2)
        show("nothing new", [cpu_s(lambda: update(store, now_ms)) for _ in range(rounds)])
        show("report", [cpu_s(lambda: store.report(names, now_ms=now_ms))])
        last_day = day_of(now_ms)
        show("summaries", [cpu_s(lambda: store.topic_summaries(now_ms)) for _ in range(rounds)])
        show("strips", [cpu_s(lambda: store.strips(last_day - days, last_day)) for _ in range(rounds)])
        show("incidents", [cpu_s(lambda: store.incidents(START_MS)) for _ in range(rounds)])
        say(f"\ndatabase with verdicts: {path.stat().st_size / 1e6:,.0f} MB")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=30)
    parser.add_argument("--days", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, help="directory of the database, by default a temporary one")
    parser.add_argument("--without-baseline", action="store_true", help="leave out the full comparison")
    add_keep_flag(parser, "audit_verdicts")
    args = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="headrace-audit-", dir=args.directory))
    try:
        path = directory / "audit.db"
        lines = measure(path, args.topics, args.days, args.rounds, with_baseline=not args.without_baseline)
        if args.keep:
            append_result("audit_verdicts", describe_run(), as_printed(lines))
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
