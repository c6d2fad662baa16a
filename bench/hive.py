"""Compares the time to add partitions as a load does with that of the bare metastore call: `python -m bench.hive`.

The metastore is Hive's code on Derby in Spark's JVM. The benchmark creates tables in pairs, and adds a day of hourly
partitions to each. The first table of a pair gets them as in a load that knows from its log that they are new: it reads
the table, plans, and executes the operations of the plan. The second table gets as many in one prepared bulk call. The
two alternate, so that delays of the metastore affect both; the medians of their rounds are compared. Derby fsyncs every
change; `TMPDIR=/dev/shm` measures without the disk.

    --tables 1000 --partitions 24    number of tables, and of partitions per table

`--keep` appends the output to `bench/results/hive.md`.

Exit code 1: a partition takes more than 1.2 times as long as in the bulk call.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from bench.support.results import add_keep_flag, append_result, as_printed, describe_run
from headrace.hive_ddl.executors.session import close_session, open_session
from headrace.hive_ddl.executors.spark import SparkExecutor
from headrace.hive_ddl.ops import CreateTable, PartitionValues
from headrace.hive_ddl.plan import plan_partitions
from headrace.hive_ddl.table import TableState, desired_table, local_location
from headrace.pipeline.java import ensure_java

DATABASE = "bench"
RATIO_MAX = 1.2
SCHEMA = '{"type":"record","name":"Event","fields":[{"name":"id","type":"long"},{"name":"who","type":"string"}]}'
ROUNDS = 10


def table(base: Path, name: str) -> TableState:
    return desired_table(
        database=DATABASE,
        name=name,
        location=local_location(base / "warehouse" / name),
        topic=name,
        subject=f"{name}-value",
        version=1,
        schema_text=SCHEMA,
        revision="1-bench",
    )


def day(state: TableState, partitions: int) -> dict[PartitionValues, str]:
    """Creates the directories of a table's hourly partitions, as a load would. Returns their locations by the values of
    the partition columns."""
    values = [(f"2026-01-{1 + n // 24:02}", f"{n % 24:02}") for n in range(partitions)]
    locations: dict[PartitionValues, str] = {one: f"{state.location}/dt={one[0]}/hr={one[1]}" for one in values}
    for location in locations.values():
        Path(location.removeprefix("file://")).mkdir(parents=True)
    return locations


def add_as_a_load(executor: SparkExecutor, state: TableState, locations: dict[PartitionValues, str]) -> float:
    executor.table(state.database, state.name)  # a load does this first, even without new partitions
    began = time.perf_counter()
    for op in plan_partitions(state, {}, locations):
        executor.execute(op)
    return time.perf_counter() - began


def add_in_bulk(executor: SparkExecutor, state: TableState, locations: dict[PartitionValues, str]) -> float:
    descriptor = executor._descriptor(state.database, state.name)
    assert descriptor is not None
    made = executor._values.partitions(
        state.database, state.name, descriptor, list(locations.items()), int(time.time())
    )
    began = time.perf_counter()
    executor._client.add_partitions(made, True, False)
    return time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=24)
    add_keep_flag(parser, "hive")
    options = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="headrace-bench-hive-"))
    ensure_java(base)
    session = open_session(
        app_name="bench", master="local[1]", metastore_uri=None, data_dir=base / "data",
        warehouse_uri=local_location(base / "warehouse"),
    )  # fmt: skip
    try:
        ratio, lines = measure(SparkExecutor(session), base, options.tables, options.partitions)
    finally:
        close_session(session)
        shutil.rmtree(base, ignore_errors=True)
    print("\n".join(lines))
    if options.keep:
        append_result("hive", describe_run(f"files on {tempfile.gettempdir()}"), as_printed(lines))
    if ratio > RATIO_MAX:
        print(f"above {RATIO_MAX}", file=sys.stderr)
    return int(ratio > RATIO_MAX)


def measure(executor: SparkExecutor, base: Path, tables: int, partitions: int) -> tuple[float, list[str]]:
    """Measures pairs of tables. Returns how many times as long as in the bulk call a partition takes in a load, and the
    lines of the report."""
    executor.ensure_database(DATABASE)
    in_load, in_bulk, created = [], [], []
    for number in range(tables):
        pair = [table(base, f"{kind}_{number}") for kind in ("ours", "bulk")]
        for state in pair:
            began = time.perf_counter()
            executor.execute(CreateTable(state))
            created.append(time.perf_counter() - began)
        locations = [day(state, partitions) for state in pair]
        if number % 2:
            in_bulk.append(add_in_bulk(executor, pair[1], locations[1]))
        in_load.append(add_as_a_load(executor, pair[0], locations[0]))
        if not number % 2:
            in_bulk.append(add_in_bulk(executor, pair[1], locations[1]))
    in_ms = 1000 / partitions
    size = max(1, tables // ROUNDS)
    starts = range(0, tables - tables % size, size)
    ratios = [sum(in_load[start : start + size]) / sum(in_bulk[start : start + size]) for start in starts]
    ratio = statistics.median(ratios)
    lines = [f"{tables:,} tables x {partitions} partitions, ms for each partition (median, mean, 99 %):"]
    for name, seconds in (("as a load adds them", in_load), ("bulk call alone", in_bulk)):
        ordered = sorted(seconds)
        last = ordered[int(0.99 * (len(ordered) - 1))]
        lines.append(
            f"  {name:22} {statistics.median(ordered) * in_ms:6.2f} {statistics.fmean(ordered) * in_ms:6.2f}"
            f" {last * in_ms:6.2f}"
        )
    lines.append(f"  a table {statistics.median(created) * 1000:.1f} ms")
    lines.append(f"ratio: {ratio:.2f} median of {len(ratios)} rounds, {min(ratios):.2f} to {max(ratios):.2f}")
    return ratio, lines


if __name__ == "__main__":
    sys.exit(main())
