"""Measures how time and memory of a task grow: `python -m bench.scale`. The goal is linear time and constant memory.

Varies one dimension at a time, each case in a process on one core: the messages, the bytes of a body, its fields, the
partitions with messages, the topics. Batches come from memory as in a broker, with repeated bodies, so that the process
holds no log; the largest cases therefore measure reading and writing only. Each case is a whole task: checksums,
projection, audit counts, snappy files, fsync.

    python -m bench.scale [--dimensions messages bytes fields partitions topics] [--messages 1000000] [--rounds 3]
                          [--keep]

CPU is the user and system time of the process in the best round; memory is its peak above the memory before the task.
`ratio` is the time per message (per MB for bytes and fields) relative to the first case. `--keep` appends the table to
`bench/results/scale.md`.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace

import fastavro
from kafka.record.default_records import DefaultRecordBatchBuilder

from bench.support.own_process import run_in_new_process
from bench.support.results import add_keep_flag, append_result, describe_run
from headrace.avro_schema import frame
from headrace.kafka_wire.cluster import FetchSlice
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader import task as task_module
from headrace.loader.build import current_build
from headrace.loader.policy import TopicPolicy
from headrace.loader.work_unit import OffsetRange, TaskSettings, TopicPlan, WorkUnit

HEADER = (
    "| dimension | value | messages | MB | CPU µs/message | MB/s of CPU | seconds | peak MB | ratio |\n"
    "|---|---|---|---|---|---|---|---|---|\n"
)
START_MS = 1_357_000_000_000
BATCH_RECORDS = 500
FETCH_BYTES = 1_000_000
POLICY = TopicPolicy(
    partition_by="hour",
    kafka_column="position",
    codec="snappy",
    time_fields=("time",),
    on_data_loss="fail",
    quarantine_ratio_max=0.1,
    record_bytes_max=64 * 1024 * 1024,
    corrupt_batches="fail",
    future_ms_max=None,
)


@dataclass(frozen=True, slots=True)
class Case:
    """A task to measure, which loads topics with equal partitions. A message body is a record of a time and `fields`
    strings.

    Attributes:
        messages: number of messages of all topics together.
        partitions: number of partitions of each topic.
    """

    messages: int
    body_bytes: int = 150
    fields: int = 10
    partitions: int = 1
    topics: int = 1

    def schema(self) -> str:
        names = ({"name": f"field_{number}", "type": "string"} for number in range(self.fields))
        return json.dumps(
            {"type": "record", "name": "Row", "fields": [{"name": "time", "type": "long"}, *names]}
        )  # fmt: skip

    @property
    def in_partition(self) -> int:
        return self.messages // (self.partitions * self.topics)


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a task.

    Attributes:
        body_bytes: size of all message bodies together.
        peak_bytes: peak memory above the memory before the task.
    """

    body_bytes: int
    cpu_s: float
    seconds: float
    peak_bytes: int


def cases_of(messages: int) -> dict[str, tuple[str, tuple[Case, ...]]]:
    """Returns by dimension: the attribute of the case that its rows show, and the cases. Cases with larger bodies have
    fewer messages, but each partition has at least one.

    Args:
        messages: number of messages of the usual case, at least 1.
    """
    default = Case(messages)
    megabytes = messages * default.body_bytes
    return {
        "messages": (
            "messages",
            tuple(replace(default, messages=max(1, messages * step // 10)) for step in (1, 3, 10, 30, 100)),
        ),
        "bytes": (
            "body_bytes",
            tuple(
                replace(default, body_bytes=size, messages=max(1, min(3 * messages, megabytes // size)))
                for size in (40, 150, 1_000, 10_000, 100_000, 1_000_000)
            ),
        ),
        "fields": (
            "fields",
            tuple(
                replace(default, fields=fields, body_bytes=15 * fields, messages=max(1, megabytes // (15 * fields)))
                for fields in (1, 10, 100, 1_000, 10_000)
            ),
        ),
        "partitions": (
            "partitions",
            tuple(
                replace(default, partitions=count, messages=max(messages, count))
                for count in (1, 10, 100, 1_000, 10_000)
            ),
        ),
        "topics": (
            "topics",
            tuple(replace(default, topics=count, messages=max(messages, count)) for count in (1, 10, 100, 1_000)),
        ),
    }


def bodies(case: Case, count: int) -> list[bytes]:
    rng = random.Random(7)
    schema = fastavro.parse_schema(json.loads(case.schema()))
    characters = max(1, case.body_bytes // case.fields - 1)
    made = []
    for number in range(count):
        values = {f"field_{index}": f"{rng.getrandbits(4 * characters):0{characters}x}" for index in range(case.fields)}
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, {"time": START_MS + number, **values})
        made.append(out.getvalue())
    return made


class RepeatedBatch:
    """A stand-in for the Kafka client of a task. It serves the same batch repeatedly, each time with the next
    offsets."""

    batch = b""
    records = 0
    in_partition = 0

    def __init__(self, bootstrap_servers: str, timeout_s: float, **options: object) -> None:
        pass

    def prefetch(self, *where: object, **options: object) -> None:
        pass

    def expect_topics(self, topics: object) -> None:
        pass

    def fetch(self, topic_partition: TopicPartition, offset: int, max_bytes: int, **options: object) -> FetchSlice:
        first = offset - offset % self.records
        count = max(1, FETCH_BYTES // len(self.batch))
        bases = range(first, min(first + count * self.records, self.in_partition), self.records)
        # The base offset precedes the bytes that the checksum covers.
        batches = b"".join(base.to_bytes(8, "big") + self.batch[8:] for base in bases)
        return FetchSlice(batches, self.in_partition, self.in_partition, 0, (), "memory")

    def close(self) -> None:
        pass


def make_batch(case: Case) -> tuple[bytes, int, int]:
    """Returns a record batch with messages of a case, its number of records, and the size of their bodies in bytes."""
    records_max = max(1, FETCH_BYTES // case.body_bytes)
    records = max(1, min(BATCH_RECORDS, case.in_partition, records_max))
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 26)
    made = bodies(case, records)
    for number, body in enumerate(made):
        builder.append(number, START_MS + number, b"key-%d" % number, frame(1, body), [])
    return bytes(builder.build()), records, sum(map(len, made))


def measure(case: Case) -> Cost:
    batch, records, batch_bytes = make_batch(case)
    in_partition = case.in_partition - case.in_partition % records
    RepeatedBatch.batch, RepeatedBatch.records, RepeatedBatch.in_partition = batch, records, in_partition
    task_module.KafkaCluster = RepeatedBatch  # type: ignore[assignment]  # replaces the real cluster
    topics = [f"topic-{number}" for number in range(case.topics)]
    schema = case.schema()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
        unit = WorkUnit(
            run_id="bench",
            task=0,
            ranges=tuple(
                OffsetRange(TopicPartition(topic, partition), 0, in_partition)
                for topic in topics
                for partition in range(case.partitions)
            ),
            topics={topic: TopicPlan(topic, schema, {1: schema}, POLICY) for topic in topics},
            settings=TaskSettings(
                bootstrap_servers="memory:1", staging=directory, file_bytes_target=256 * 1024 * 1024
            ),
            build=current_build(),
        )  # fmt: skip
        before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        result = task_module.run_work_unit(unit)
        seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    assert not result.error, result.error
    loaded = sum(one.counts.records for one in result.ranges)
    assert loaded == in_partition * case.partitions * case.topics, result.ranges[0]
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    body_bytes = batch_bytes * loaded // records
    return Cost(body_bytes, cpu_s, seconds, (after.ru_maxrss - before.ru_maxrss) * 1024)


def measure_in_new_process(case: Case, rounds: int) -> Cost:
    """Returns the cost of a case. Each round runs in a new process, and the one with the least CPU time counts."""
    costs = (Cost(**run_in_new_process("bench.scale", case)) for _ in range(rounds))
    return min(costs, key=lambda cost: cost.cpu_s)


def rows_of(dimension: str, messages: int, rounds: int) -> Iterator[str]:
    attribute, cases = cases_of(messages)[dimension]
    per: Callable[[Case, Cost], float] = (
        (lambda case, cost: cost.cpu_s / cost.body_bytes)
        if dimension in ("bytes", "fields")
        else (lambda case, cost: cost.cpu_s / case.messages)
    )
    first = 0.0
    for case in cases:
        cost = measure_in_new_process(case, rounds)
        first = first or per(case, cost)
        yield (
            f"| {dimension} | {getattr(case, attribute):,} | {case.messages:,} | {cost.body_bytes / 1e6:,.0f} "
            f"| {cost.cpu_s / case.messages * 1e6:.2f} | {cost.body_bytes / cost.cpu_s / 1e6:,.0f} "
            f"| {cost.seconds:.2f} | {cost.peak_bytes / 1e6:,.0f} | {per(case, cost) / first:.2f} × |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dimensions", nargs="+", default=list(cases_of(1)), choices=list(cases_of(1)))
    parser.add_argument(
        "--messages", type=int, default=1_000_000, help="messages per case, unless the case has its own number"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    add_keep_flag(parser, "scale")
    args = parser.parse_args()
    if min(args.messages, args.rounds) < 1:
        parser.error("--messages and --rounds need a number of at least 1")
    if args.case:
        print(json.dumps(asdict(measure(Case(**json.loads(args.case))))))
        return
    about = describe_run("one core", "snappy", "kafka column `position`", f"best of {args.rounds}")
    print(f"{about}\n\n{HEADER}", end="", flush=True)
    lines = []
    for dimension in args.dimensions:
        for row in rows_of(dimension, args.messages, args.rounds):
            print(row, flush=True)
            lines.append(row)
    if args.keep:
        append_result("scale", about, HEADER + "\n".join(lines))


if __name__ == "__main__":
    main()
