"""Measures the time of a plan for 10,000 partitions, and how evenly it distributes them: `python -m bench.plan`.

For each distribution of bytes over the partitions (1,000 topics with 10 each, fixed seed) and each amount of data,
packs the same ranges in four ways for a pool of 100 tasks. Prints for each the imbalance (the largest task or worker
relative to the mean of the pool), the number of tasks, and the number of topics summed over the tasks, since a task
writes at least one file per topic.

    headrace   `loader.plan.packing`: splits large ranges, and combines small ones by topic
    camus      `BaseAllocator`: largest range first, each into the smallest of a fixed number of splits; none is cut
    spark      one task per partition; workers take them in order as they become free
    spark min  `KafkaOffsetRangeCalculator` with `minPartitions` of twice the partitions: cuts each into
               round(its share of all offsets x minPartitions), then as above

Camus and Spark are reimplemented here from their descriptions. No range is cut below `loader.file_bytes_target`. Where
a worker's share is smaller than such a file, the least possible imbalance is printed too, and ours is compared with it.
The last line is the time of a whole plan, without the time of registry and brokers.
"""

from __future__ import annotations

import argparse
import dataclasses
import heapq
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.commit.commit import LoadSchema
from headrace.loader.commit.state import FileTotals, LoaderState, PartitionState, TopicState
from headrace.loader.plan.discover import DiscoveredTopic, Discovery, PartitionOffsets
from headrace.loader.plan.load_plan import PlanSettings, make_plan
from headrace.loader.plan.packing import pack, weight
from headrace.loader.plan.schemas import SchemaProblem, TopicSchemas
from headrace.loader.work_unit import OffsetRange, TaskSettings
from headrace.pipeline.load import topic_policy
from headrace.settings import Settings

TOPICS, PARTITIONS, TASKS = 1_000, 10, 100
MESSAGE_BYTES = 200
AMOUNTS = {"10 GB": 10_000_000_000, "100 GB": 100_000_000_000, "1 TB": 1_000_000_000_000}
SECONDS_MAX, IMBALANCE_MAX = 2.0, 1.2
SCHEMA = LoadSchema(1, "", 1, "{}", '{"type":"record","name":"R","fields":[]}', frozenset({1}), "")

Tasks = Sequence[Sequence[OffsetRange]]


def uniform(draw: random.Random) -> list[float]:
    return [1.0] * (TOPICS * PARTITIONS)


def lognormal(draw: random.Random) -> list[float]:
    """Returns the relative sizes of all partitions, equal within a topic to 20 %. A few topics have a thousand times
    the usual size."""
    topics = [draw.lognormvariate(0, 2) for _ in range(TOPICS)]
    return [topic * draw.uniform(0.8, 1.2) for topic in topics for _ in range(PARTITIONS)]


def zipf(exponent: float) -> Callable[[random.Random], list[float]]:
    """Returns a distribution of sizes as produced by skewed keys: the partition of rank n has the size 1/n^exponent.
    The ranks are drawn across all topics."""

    def weights(draw: random.Random) -> list[float]:
        ranks = list(range(1, TOPICS * PARTITIONS + 1))
        draw.shuffle(ranks)
        return [rank**-exponent for rank in ranks]

    return weights


def one_half(draw: random.Random) -> list[float]:
    """Returns the relative sizes of all partitions, of which one has half of all bytes."""
    return [float(TOPICS * PARTITIONS - 1), *[1.0] * (TOPICS * PARTITIONS - 1)]


DISTRIBUTIONS: dict[str, Callable[[random.Random], list[float]]] = {
    "uniform": uniform,
    "lognormal by topic": lognormal,
    "zipf 1.0": zipf(1.0),
    "zipf 1.5": zipf(1.5),
    "half in one partition": one_half,
}


def ranges_of(weights: Sequence[float], total_bytes: int) -> list[OffsetRange]:
    scale = total_bytes / sum(weights)
    found = []
    for number, one in enumerate(weights):
        messages = max(1, round(one * scale / MESSAGE_BYTES))
        partition = TopicPartition(f"topic-{number // PARTITIONS:04d}", number % PARTITIONS)
        found.append(OffsetRange(partition, 0, messages, "id", 0, messages * MESSAGE_BYTES))
    return found


def camus(ranges: Sequence[OffsetRange]) -> Tasks:
    splits: list[list[OffsetRange]] = [[] for _ in range(TASKS)]
    heap = [(0, 0, number) for number in range(TASKS)]
    for one in sorted(ranges, key=lambda one: -one.bytes_estimate):
        load, requests, number = heapq.heappop(heap)
        splits[number].append(one)
        heapq.heappush(heap, (load + one.bytes_estimate, requests + 1, number))
    return splits


def spark(ranges: Sequence[OffsetRange], min_partitions: int = 0) -> Tasks:
    total = sum(one.end - one.start for one in ranges)
    pieces: list[OffsetRange] = []
    for one in ranges:
        size = one.end - one.start
        parts = max(1, round(size / total * min_partitions)) if min_partitions > len(ranges) else 1
        for part in range(parts):
            start, end = one.start + size * part // parts, one.start + size * (part + 1) // parts
            bytes_estimate = one.bytes_estimate * (end - start) // size
            pieces.append(dataclasses.replace(one, start=start, end=end, bytes_estimate=bytes_estimate))
    return [[piece] for piece in pieces]


def in_order(tasks: Tasks) -> list[int]:
    """Returns the bytes read by each worker, if each worker takes the next task as soon as it has finished one."""
    heap = [0] * TASKS
    for task in tasks:
        heapq.heapreplace(heap, heap[0] + sum(map(weight, task)))
    return heap


def imbalance(loads: Sequence[int]) -> float:
    return max(loads) * len(loads) / sum(loads)


@dataclass(frozen=True, slots=True)
class Row:
    packer: str
    imbalance: float
    tasks: int
    topics_in_tasks: int


def rows_of(ranges: Sequence[OffsetRange], file_bytes_target: int) -> list[Row]:
    packed: dict[str, Tasks] = {
        "headrace": pack(ranges, tasks=TASKS, file_bytes_target=file_bytes_target).tasks,
        "camus": camus(ranges),
        "spark": spark(ranges),
        "spark min": spark(ranges, 2 * len(ranges)),
    }
    rows = []
    for name, tasks in packed.items():
        loads = in_order(tasks) if "spark" in name else [sum(map(weight, task)) for task in tasks]
        topics = sum(len({one.topic_partition.topic for one in task}) for task in tasks)
        rows.append(Row(name, imbalance(loads), len(tasks), topics))
    return rows


def least_imbalance(ranges: Sequence[OffsetRange], file_bytes_target: int) -> float:
    """Returns the least imbalance that any packing can reach without cutting ranges below the target file size."""
    mean = sum(map(weight, ranges)) / TASKS
    return max(1.0, min(file_bytes_target, max(map(weight, ranges))) / mean)


class CachedRegistry:
    """A stand-in for the registry client of a plan, which has all responses in memory."""

    outage = ""

    def prefetch(self, topics: Mapping[str, TopicState | None]) -> None:
        pass

    def replaced(self, ids: Mapping[str, Collection[int]], run_hash: int) -> Mapping[str, SchemaProblem]:
        return {}

    def of_topic(self, topic: str, known: TopicState | None) -> TopicSchemas:
        return TopicSchemas(SCHEMA, False, {1: SCHEMA.text}, frozenset(), {})


def plan_seconds(ranges: Sequence[OffsetRange], file_bytes_target: int) -> float:
    """Returns the seconds that a whole plan of these ranges takes, as in a load that has loaded every partition
    before."""
    topics: dict[str, list[OffsetRange]] = {}
    for one in ranges:
        topics.setdefault(one.topic_partition.topic, []).append(one)
    known = {
        topic: TopicState(
            "id", topic, topic, "hour", SCHEMA,
            {one.topic_partition.partition: PartitionState(0, 0, MESSAGE_BYTES * 1000) for one in members},
            frozenset(), FileTotals(), FileTotals(), 1,
        )
        for topic, members in topics.items()
    }  # fmt: skip
    found = {
        topic: DiscoveredTopic(
            topic,
            "id",
            tuple(PartitionOffsets(one.topic_partition.partition, 0, 0, one.end, one.end) for one in members),
            {},
        )
        for topic, members in topics.items()
    }
    policy = topic_policy(Settings().loader)
    settings = PlanSettings(TASKS, 2**40, file_bytes_target, lambda topic: policy, "bench")
    task = TaskSettings("", "", file_bytes_target)
    state, discovery = LoaderState(commit_number=1, topics=known), Discovery("", found, {})
    started = time.perf_counter()
    make_plan(
        state,
        discovery,
        cast(Any, CachedRegistry()),
        run_id="w",
        discovery_start_ms=0,
        settings=settings,
        task_settings=task,
    )
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    target = Settings().loader.file_bytes_target
    slowest = imbalance_max = 0.0
    print(f"{TOPICS * PARTITIONS:,} partitions of {TOPICS:,} topics, {TASKS} tasks, files of {target / 1e6:,.0f} MB\n")
    print(
        f"{'to read':8} {'distribution':22} {'packer':10} {'imbalance':>9} {'least':>6} {'tasks':>7} "
        f"{'topics in tasks':>16}"
    )
    for amount, total_bytes in AMOUNTS.items():
        for name, weights in DISTRIBUTIONS.items():
            ranges = ranges_of(weights(random.Random(args.seed)), total_bytes)
            slowest = max(slowest, plan_seconds(ranges, target))
            least = least_imbalance(ranges, target)
            for row in rows_of(ranges, target):
                is_ours = row.packer == "headrace"
                imbalance_max = max(imbalance_max, row.imbalance / least) if is_ours else imbalance_max
                shown = f"{least:6.2f}" if is_ours else " " * 6
                print(
                    f"{amount:8} {name:22} {row.packer:10} {row.imbalance:9.2f} {shown} {row.tasks:7,} "
                    f"{row.topics_in_tasks:16,}"
                )
    print(f"\nslowest plan: {slowest:.2f} s (goal: under {SECONDS_MAX:.0f} s)")
    print(f"headrace relative to the least imbalance, worst case: {imbalance_max:.2f} (goal: under {IMBALANCE_MAX})")


if __name__ == "__main__":
    main()
