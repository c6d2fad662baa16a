"""Measures a load's share in comparing files with the commits: `python -m bench.warehouse_check`.

Creates a warehouse of 2,000 topics with 5 partitions, in memory if the machine has `/dev/shm`, as loads every ten
minutes would leave it: each adds a file to each topic. Then it runs checks of one share each, in new processes, and
prints for each part: the files, the seconds, the files or megabytes per second, and how many loads a round over all
files takes. The last check also compares the time partitions of a new commit. Times, also the limit of a share, are CPU
seconds, so that other processes do not matter; the files are cached.

`--keep` appends the output to `bench/results/warehouse_check.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import xxhash

from bench.support.own_process import run_in_new_process
from bench.support.results import add_keep_flag, append_result, as_printed, describe_run
from headrace.loader.apply.base import Step
from headrace.loader.apply.chain import IndexApplier
from headrace.loader.apply.engine import FILES, ApplierEngine
from headrace.loader.commit.commit import (
    Commit,
    CommitKind,
    CommittedFile,
    CommittedRange,
    LoadSchema,
    TopicCommit,
)
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.commit.state import LoaderState
from headrace.loader.inspect import rolling_check
from headrace.loader.inspect.compare_files import ExpectedFile, ExpectedTimePartition
from headrace.loader.inspect.rolling_check import CheckBudget, RollingCheck
from headrace.loader.storage.local import local_storage
from headrace.loader.storage.local.files import LocalFiles
from headrace.loader.work_unit import FileKind, FileRange, RangeCounts

PARTITIONS = 5
LOADS_PER_HOUR = 6
SCHEMA = LoadSchema(1, "", 1, "{}", json.dumps({"type": "record", "name": "R", "fields": []}), frozenset({1}), "")


@dataclass(frozen=True, slots=True)
class Case:
    """A check to measure in the warehouse `root`; `seconds` limits each of its parts."""

    root: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Published:
    """An applier that publishes nothing, because the benchmark writes the files itself."""

    name: str = FILES
    is_advisory: bool = False

    def apply(self, step: Step) -> None:
        pass


def time_partition_of(load: int) -> str:
    hour = load // LOADS_PER_HOUR
    return f"dt=2026-01-{hour // 24 + 1:02}/hr={hour % 24:02}"


def committed(load: int, topic: str, state: LoaderState, content: bytes) -> TopicCommit:
    """Returns the part of a load's commit for one topic: one file with the messages of all partitions."""
    known = state.topics.get(topic)
    begins = {number: known.partitions[number].next_offset if known else None for number in range(PARTITIONS)}
    ranges = tuple(
        CommittedRange(number, begin, begin or 0, (begin or 0) + 10, 0, RangeCounts(10), (), 1_000)
        for number, begin in begins.items()
    )
    spans = tuple(FileRange(number, begin or 0, (begin or 0) + 9, 10) for number, begin in begins.items())
    checksum = f"xxh3-128:{xxhash.xxh3_128(content).hexdigest()}"
    file = CommittedFile(
        FileKind.DATA, time_partition_of(load), "0-0.avro", "0/0.avro", len(content), checksum, 10 * PARTITIONS, spans
    )
    return TopicCommit(
        "id", "id" if known else None, 1 if known else 0, topic, topic, "hour", None if known else SCHEMA,
        ranges, (file,), (), {}, frozenset(),
    )  # fmt: skip


def make_warehouse(root: Path, topics: int, loads: int, file_bytes: int) -> None:
    storage = local_storage(root)
    log = CommitLog(storage.commits)
    log.open()
    content = os.urandom(file_bytes)
    for load in range(loads):
        add_load(log, root, topics, load, content)


def add_load(log: CommitLog, root: Path, topics: int, load: int, content: bytes) -> None:
    """Commits and indexes one load, and writes its files."""
    names = [f"topic{number:04}" for number in range(topics)]
    state = log.read_state()
    parts = {topic: committed(load, topic, state, content) for topic in names}
    proposal = Commit(0, CommitKind.LOAD, f"run-{load}", load, "bench", parts, frozenset())
    commit = log.try_commit(proposal).commit
    assert commit is not None
    for topic in names:
        (file,) = commit.topics[topic].files
        path = root / topic / file.time_partition / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    ApplierEngine(log, local_storage(root).staging, (IndexApplier(FileIndex(log)), Published())).apply_pending()


def measure(case: Case) -> dict[str, float]:
    """Runs one check and returns the files and the seconds of each part."""
    counts = {"listed": 0, "directories": 0, "read": 0}
    seconds: dict[str, float] = {}
    storage = local_storage(Path(case.root))
    log = CommitLog(storage.commits)
    log.read_state()
    lengths, read = LocalFiles.lengths, rolling_check.compare_content

    def counted_lengths(files: LocalFiles, directory: str) -> Mapping[str, int | None]:
        found = lengths(files, directory)
        counts["directories"] += 1
        counts["listed"] += len(found)
        return found

    def counted_read(expected: ExpectedTimePartition, file: ExpectedFile, *more: object) -> object:
        counts["read"] += file.length
        return read(expected, file, *more)  # type: ignore[arg-type]

    LocalFiles.lengths = counted_lengths  # type: ignore[method-assign,assignment]
    rolling_check.compare_content = counted_read  # type: ignore[assignment]
    for part in ("list_recent", "list_next", "read_next"):
        method = getattr(rolling_check._CheckRun, part)

        def timed(run: object, *arguments: object, method: object = method, part: str = part) -> object:
            begin = time.process_time()
            try:
                return method(run, *arguments)  # type: ignore[operator]
            finally:
                seconds[part] = time.process_time() - begin
                seconds[f"{part}_files"] = counts["listed"] - seconds.get("files_before", 0)
                seconds["files_before"] = counts["listed"]

        setattr(rolling_check._CheckRun, part, timed)
    begin = time.process_time()
    budget = CheckBudget(part_seconds=case.seconds)
    RollingCheck(log, storage.files, budget, time.process_time).check(time.time_ns() // 1_000_000)
    return {**seconds, **counts, "total": time.process_time() - begin}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=2_000)
    parser.add_argument("--loads", type=int, default=48, help="number of loads (default: 48, eight hours)")
    parser.add_argument("--file-bytes", type=int, default=4_000)
    parser.add_argument("--seconds", type=float, default=CheckBudget().part_seconds, help="limit of each part")
    parser.add_argument("--checks", type=int, default=5)
    parser.add_argument("--directory", default="/dev/shm" if Path("/dev/shm").is_dir() else None)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    add_keep_flag(parser, "warehouse_check")
    args = parser.parse_args()
    if args.case is not None:
        print(json.dumps(measure(Case(**json.loads(args.case)))))
        return
    lines = [f"{'check':<8}{'recent':>16}{'rolling':>16}{'contents':>14}{'seconds':>9}"]
    with tempfile.TemporaryDirectory(dir=args.directory) as directory:
        root = Path(directory) / "warehouse"
        make_warehouse(root, args.topics, args.loads, args.file_bytes)
        rolling = []
        for number in range(args.checks):
            if number == args.checks - 1:
                log = CommitLog(local_storage(root).commits)
                add_load(log, root, args.topics, args.loads, os.urandom(args.file_bytes))
            found = run_in_new_process("bench.warehouse_check", Case(str(root), args.seconds))
            rolling.append(found["list_next_files"])
            lines.append(
                f"{number + 1:<8}"
                f"{found['list_recent_files']:>8,.0f} {found['list_recent']:>5.2f} s"
                f"{found['list_next_files']:>8,.0f} {found['list_next']:>5.2f} s"
                f"{found['read'] / 1e6:>6,.1f} MB {found['read_next']:>.2f} s{found['total']:>9.2f}"
            )
        files = args.topics * args.loads
        per_load = sum(rolling) / len(rolling)
        lines.append(
            f"{files:,} files: a round takes {files / per_load:,.1f} loads; 144 loads a day compare "
            f"{144 * per_load:,.0f} files"
        )
    print("\n".join(lines))
    if args.keep:
        about = describe_run(f"{args.topics:,} topics, {args.loads} loads")
        append_result("warehouse_check", about, as_printed(lines))


if __name__ == "__main__":
    main()
