"""Measures the cost of fetching in a task, with other sizes and orders of fetches: `python -m bench.fetch`.

One task, in a process on one core, reads page views from a real broker on the other cores: from a few large partitions,
from thousands of small ones, or from as many topics. The table shows:

- the rate by bytes per fetch: whether adaptive sizes could be faster than the fixed one;
- `ahead`: whether the next fetch, of this or the next partition, is sent while the last response is processed;
- `busy`: the task's CPU time in its wall-clock time. The rest is waiting for broker and disk, which is the most that
  compression or writing in further threads could gain on its core.

    python -m bench.fetch [--brokers bundled kafka] [--messages 1000000] [--rounds 3] [--keep]

The cases run alternately, and the best round counts. `--brokers kafka` needs Java and Maven. `--keep` appends the table
to `bench/results/fetch.md`.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from confluent_kafka import Producer  # noqa: E402
from confluent_kafka.admin import AdminClient, NewTopic  # noqa: E402

from bench.load import BROKERS  # noqa: E402
from bench.scale import POLICY  # noqa: E402
from bench.support.load_shapes import SHAPES  # noqa: E402
from bench.support.own_process import run_in_new_process  # noqa: E402
from bench.support.results import add_keep_flag, append_result, describe_run  # noqa: E402
from headrace.avro_schema import frame  # noqa: E402
from headrace.kafka_wire.cluster import KafkaCluster  # noqa: E402
from headrace.kafka_wire.topic_partition import TopicPartition  # noqa: E402
from headrace.loader.build import current_build  # noqa: E402
from headrace.loader.task import run_work_unit  # noqa: E402
from headrace.loader.work_unit import OffsetRange, TaskSettings, TopicPlan, WorkUnit  # noqa: E402

SHAPE = SHAPES["page"]
HEADER = (
    "| broker | topics | partitions | messages | fetch KB | ahead | messages/s | CPU µs/message | busy |\n"
    "|---|---|---|---|---|---|---|---|---|\n"
)


@dataclass(frozen=True, slots=True)
class Spread:
    """The topic partitions that have the messages of a case: `topics` topics with `partitions` partitions each."""

    topics: int
    partitions: int

    def names(self) -> list[str]:
        return [f"spread-{self.topics}-{self.partitions}-{number}" for number in range(self.topics)]

    def all(self) -> list[TopicPartition]:
        return [TopicPartition(name, number) for name in self.names() for number in range(self.partitions)]


@dataclass(frozen=True, slots=True)
class Case:
    brokers: str
    topics: int
    partitions: int
    in_partition: int
    fetch_bytes: int
    is_ahead: bool

    @property
    def spread(self) -> Spread:
        return Spread(self.topics, self.partitions)

    @property
    def messages(self) -> int:
        return self.topics * self.partitions * self.in_partition


@dataclass(frozen=True, slots=True)
class Cost:
    """Wall-clock seconds and CPU seconds that a task took in its process."""

    seconds: float
    cpu_s: float


LARGE, SMALL, TOPICS = Spread(1, 4), Spread(1, 5_000), Spread(1_000, 1)
DEFAULT_BYTES = TaskSettings("", "", 0).fetch_bytes
SIZES = tuple(step * 1024 for step in (64, 256, 1024, 4096, 8192, 32_768))


def cases_of(brokers: str, messages: int) -> Iterator[Case]:
    for spread in (LARGE, SMALL, TOPICS):
        default = Case(brokers, spread.topics, spread.partitions, messages // len(spread.all()), DEFAULT_BYTES, True)
        if spread is LARGE:
            yield from (replace(default, fetch_bytes=size) for size in SIZES)
        else:
            yield default
        yield replace(default, is_ahead=False)


def fill(brokers: str, spread: Spread, messages: int) -> None:
    """Creates the topics and produces the same number of messages into every partition."""
    admin = AdminClient({"bootstrap.servers": brokers})
    topics = [NewTopic(name, spread.partitions, 1, config={"retention.ms": "-1"}) for name in spread.names()]
    for future in admin.create_topics(topics).values():
        future.result(60)
    partitions = spread.all()
    in_partition = messages // len(partitions)
    bodies = [frame(1, body) for body in SHAPE.bodies(in_partition)]
    producer = Producer(
        {"bootstrap.servers": brokers, "linger.ms": 50, "batch.num.messages": 10_000, "batch.size": 1_000_000,
         "queue.buffering.max.messages": 500_000, "queue.buffering.max.kbytes": 400_000}
    )  # fmt: skip
    for at in partitions:
        for body in bodies:
            while True:
                try:
                    producer.produce(at.topic, body, partition=at.partition)
                except BufferError:
                    producer.poll(0.1)
                else:
                    break
        producer.poll(0)
    if producer.flush(300):
        raise RuntimeError(f"{brokers} did not acknowledge all messages")


def measure(case: Case) -> Cost:
    """Runs one task that reads all partitions of a case, and returns its cost."""
    if not case.is_ahead:
        KafkaCluster.prefetch = lambda *_, **__: None  # type: ignore[method-assign]
    schema = SHAPE.text()
    policy = replace(POLICY, time_fields=("header.time",))
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
        unit = WorkUnit(
            run_id="bench",
            task=0,
            ranges=tuple(OffsetRange(at, 0, case.in_partition) for at in case.spread.all()),
            topics={name: TopicPlan(name, schema, {1: schema}, policy) for name in case.spread.names()},
            settings=TaskSettings(case.brokers, directory, 256 * 1024 * 1024, fetch_bytes=case.fetch_bytes),
            build=current_build(),
        )
        before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        result = run_work_unit(unit)
        seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    assert not result.error, result.error
    loaded = sum(one.counts.records for one in result.ranges)
    assert loaded == case.messages, f"{loaded} of {case.messages}: {result.ranges[0]}"
    return Cost(seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def rows_of(broker: str, brokers: str, messages: int, rounds: int) -> Iterator[str]:
    for spread in (LARGE, SMALL, TOPICS):
        fill(brokers, spread, messages)
    cases = list(cases_of(brokers, messages))
    costs = [[Cost(**run_in_new_process("bench.fetch", case)) for case in cases] for _ in range(rounds)]
    for at, case in enumerate(cases):
        cost = min((costs_of_round[at] for costs_of_round in costs), key=lambda one: one.seconds)
        yield (
            f"| {broker} | {case.topics:,} | {case.partitions:,} | {case.messages:,} | {case.fetch_bytes // 1024:,} "
            f"| {'yes' if case.is_ahead else 'no'} | {case.messages / cost.seconds:,.0f} "
            f"| {cost.cpu_s / case.messages * 1e6:.2f} | {cost.cpu_s / cost.seconds:.0%} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brokers", nargs="+", default=list(BROKERS), choices=BROKERS)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    add_keep_flag(parser, "fetch")
    args = parser.parse_args()
    if args.case:
        print(json.dumps(asdict(measure(Case(**json.loads(args.case))))))
        return
    about = describe_run("snappy", "page views of 12 fields", "one core", f"best of {args.rounds}")
    lines = []
    print(f"{about}\n\n{HEADER}", end="", flush=True)
    for broker in args.brokers:
        with ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-bench-")))
            brokers = stack.enter_context(BROKERS[broker](directory / "broker"))
            for line in rows_of(broker, brokers, args.messages, args.rounds):
                print(line, flush=True)
                lines.append(line)
    if args.keep:
        append_result("fetch", about, HEADER + "\n".join(lines))


if __name__ == "__main__":
    main()
