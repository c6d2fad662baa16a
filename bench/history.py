"""Measures an idle load after years of loads: `python -m bench.history`; 100,000 runs are two years.

Creates logs of 1,000 topics with 10 partitions, in which every run committed two topics. For each length it measures,
in a new process: the start (reading the newest checkpoint and later commits), a pass over appliers without work,
cleaning, the peak memory, and the size of the checkpoint. The figures should not depend on the length; the last column
is the ratio to the shortest log.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from headrace.loader.apply.base import Step
from headrace.loader.apply.engine import ApplierEngine, Cursor, cursor_path
from headrace.loader.commit.cleaning import clean
from headrace.loader.commit.commit import (
    Commit,
    CommitKind,
    CommittedFile,
    CommittedRange,
    CountSeries,
    LoadSchema,
    TopicCommit,
    WindowCount,
)
from headrace.loader.commit.commit_files import ARCHIVE_COMMITS, commit_path
from headrace.loader.commit.commit_log import CHECKPOINT_INTERVAL_COMMITS, CommitLog, checkpoint_path
from headrace.loader.commit.document import stated_sha256, write_document
from headrace.loader.commit.state import EMPTY, LoaderState, as_next_commit, fold
from headrace.loader.inspect.status import APPLIERS, load_status
from headrace.loader.storage.local.commit_storage import LocalCommitStorage
from headrace.loader.storage.local.staging import LocalStaging
from headrace.loader.work_unit import FileKind, FileRange, RangeCounts

TOPICS, PARTITIONS, TOPICS_PER_RUN = 1_000, 10, 2
RUNS = (1, 10_000, 100_000)
SCHEMA = LoadSchema(1, "", 1, "{}", json.dumps({"type": "record", "name": "R", "fields": []}), frozenset({1}), "")


@dataclass
class Idle:
    """An applier that does nothing, so that a pass over the appliers has only its own cost."""

    name: str
    is_advisory: bool = False

    def apply(self, step: Step) -> None:
        pass


def committed(run: int, topic: str, state: LoaderState) -> TopicCommit:
    known = state.topics.get(topic)
    ranges, files = [], []
    for partition in range(PARTITIONS):
        next_offset = known.partitions[partition].next_offset if known else None
        start = next_offset or 0
        ranges.append(CommittedRange(partition, next_offset, start, start + 100, 0, RangeCounts(100), (), 10_000))
        files.append(FileRange(partition, start, start + 99, 100))
    time_partition = f"dt={2026 + run // 52_560:04d}-{run // 4380 % 12 + 1:02d}-01/hr={run // 6 % 24:02d}"
    file = CommittedFile(
        FileKind.DATA, time_partition, "0-0.avro", "task-0/000001.avro", 90_000, "00" * 32, 1_000, tuple(files)
    )
    counts = CountSeries("loader", "written", 0, (WindowCount(1_767_225_600_000 + run * 600_000, 1000, 90_000, run),))
    return TopicCommit(
        "id", "id" if known else None, 1 if known else 0, topic, topic, "hour", None if known else SCHEMA,
        tuple(ranges), (file,), (counts,), {"record": 1_000}, frozenset(),
    )  # fmt: skip


def make_log(root: Path, runs: int) -> None:
    """Writes a commit log with this number of runs: commits, archives and checkpoints, as loads would leave them. The
    first run creates all topics."""
    storage = LocalCommitStorage(root)
    log = CommitLog(storage)
    log.open()
    state, pack = EMPTY, b""
    for run in range(1, runs + 1):
        first = (run * TOPICS_PER_RUN) % TOPICS
        topics = range(TOPICS) if run == 1 else range(first, first + TOPICS_PER_RUN)
        names = [f"topic-{number:04d}" for number in topics]
        proposal = Commit(
            0, CommitKind.LOAD, f"work-{run:09d}", run * 600_000, "bench",
            {name: committed(run, name, state) for name in names}, frozenset(), state.staged_runs,
        )  # fmt: skip
        commit = as_next_commit(proposal, state)
        content = write_document(commit)
        state = fold(state, commit, stated_sha256(content))
        pack += content
        if runs - run < 2 * ARCHIVE_COMMITS + runs % ARCHIVE_COMMITS:
            (root / "log").mkdir(exist_ok=True)
            (root / commit_path(run)).write_bytes(content)
        elif run % ARCHIVE_COMMITS == 0:
            (root / "archive").mkdir(exist_ok=True)
            (root / f"archive/{run:09d}.jsonl").write_bytes(pack)
        if run % ARCHIVE_COMMITS == 0:
            pack = b""
        if run % CHECKPOINT_INTERVAL_COMMITS == 0 and runs - run < 2 * CHECKPOINT_INTERVAL_COMMITS:
            storage.replace(checkpoint_path(run), write_document(state))
    storage.replace("head.json", json.dumps({"commit_number": runs}).encode())
    # The positions after the last run: new appliers would read all commits.
    for name in APPLIERS:
        storage.replace(cursor_path(name), write_document(Cursor(runs, sha256=state.sha256)))


def engine(log: CommitLog) -> ApplierEngine:
    return ApplierEngine(log, LocalStaging(log.storage.root), [Idle(name) for name in APPLIERS])


def measure(root: Path) -> dict[str, float]:
    """Runs an idle load on a log in this process, and returns the measured values by their names in the table."""
    log = CommitLog(LocalCommitStorage(root))
    started = time.perf_counter()
    log.check_format(writing=False)
    log.read_state()
    read = time.perf_counter()
    engine(log).apply_pending()
    applied = time.perf_counter()
    clean(log, LocalStaging(log.storage.root), run_id="clean", build="bench", now_ms=0, age_ms=1)
    cleaned = time.perf_counter()
    load_status(log, None, {})
    status_read = time.perf_counter()
    checkpoints = sorted((root / "checkpoint").glob("*.json")) if (root / "checkpoint").exists() else []
    return {
        "start, s": read - started,
        "appliers without work, s": applied - read,
        "cleaning, s": cleaned - applied,
        "status, s": status_read - cleaned,
        "peak memory, MB": peak_memory_mb(),
        "checkpoint, bytes": checkpoints[-1].stat().st_size if checkpoints else 0,
        "files of the log": sum(1 for path in itertools.chain(root.glob("log/*"), root.glob("archive/*"))),
    }


def peak_memory_mb() -> float:
    """Returns the peak memory of this program. It is read from /proc, because getrusage would include the memory of the
    process that started this one."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, nargs="*", default=list(RUNS), help="lengths of the logs")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure is not None:
        print(json.dumps(measure(args.measure)))
        return
    print(f"{TOPICS:,} topics x {PARTITIONS} partitions, {TOPICS_PER_RUN} topics a run, local files, one core")
    base: dict[str, float] = {}
    for runs in args.runs:
        with tempfile.TemporaryDirectory() as directory:
            started = time.perf_counter()
            make_log(Path(directory), runs)
            made = time.perf_counter() - started
            command = [sys.executable, "-m", "bench.history", "--measure", directory]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        base = base or found
        print(f"\nafter {runs:,} runs (made in {made:.0f} s)")
        for name, value in found.items():
            shown = f"{value:,.3f}" if value < 10 else f"{value:,.0f}"
            print(f"  {name:34} {shown:>12}   x{value / base[name]:.2f}" if base[name] else f"  {name:34} {shown:>12}")


if __name__ == "__main__":
    main()
