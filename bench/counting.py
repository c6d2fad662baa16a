"""Measures the cost of the audit's counting when producing, consuming and loading, with and without it in one run.

    python -m bench.counting [--messages 100000] [--rounds 7]

Producing and consuming go through a registry and a broker of this run; a task of a load reads a log in memory. The two
variants run alternately. Prints the CPU time of this process per message in the best round of each variant, and the
difference in percent. Without counting, the producer's counter ignores each message, and the core of the task is built
with `HR_UNCOUNTED`, which leaves out sizes, hashes and latencies.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench import loader_task, producer
from headrace import Consumer, KafkaSettings, RegistrySettings, Settings
from headrace.audit.producer_counter import ProducerCounter
from headrace.avro_codec.core import build, library
from headrace.avro_schema import parse_schema
from headrace.loader import task
from headrace.loader.load_schema import EMPTY, fold


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    print(
        f"{args.messages:,} messages, best of {args.rounds} rounds, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}"
    )
    print(f"{'':10}{'CPU us/message':>16}{'uncounted':>12}{'overhead':>10}")
    with TemporaryDirectory() as directory:
        path = Path(directory)
        measure_load(path, args.messages, args.rounds)
        with producer.servers(path) as (registry, broker):
            settings = Settings(
                data_dir=path,
                registry=RegistrySettings(url=registry),
                kafka=KafkaSettings(bootstrap_servers=broker),
            )
            measure_clients(settings, args.messages, args.rounds)


def measure_clients(settings: Settings, messages: int, rounds: int) -> None:
    sample = producer.page_views(messages)
    gc.freeze()  # otherwise collections would traverse the sample, which an application does not hold
    topic = f"counting-{time.time_ns()}"

    def produce() -> None:
        producer.produce_headrace(settings, topic, sample, "")

    def produce_uncounted() -> None:
        with uncounted_producers():
            produce()

    compare("produce", produce, produce_uncounted, messages, rounds)
    topic = f"counting-read-{time.time_ns()}"
    produce()
    compare(
        "consume",
        lambda: consume(settings, topic, messages, "bench"),
        lambda: consume(settings, topic, messages, None),
        messages,
        rounds,
    )


def measure_load(directory: Path, messages: int, rounds: int) -> None:
    log = loader_task.make_log(loader_task.make_bodies(messages, 1), 0)
    state = fold(EMPTY, 1, parse_schema(loader_task.V1))
    cores = {}
    for name, flags in (("counted", ()), ("uncounted", ("-DHR_UNCOUNTED",))):
        build.build(directory / f"{name}.so", build.compiler(), *flags)
        cores[name] = library.Library(directory / f"{name}.so")

    def load(name: str) -> None:
        task.core_library = lambda: cores[name]  # replaces the installed core
        loader_task.load(log, messages, state.text, "snappy")

    compare("load task", lambda: load("counted"), lambda: load("uncounted"), messages, rounds)


def consume(settings: Settings, topic: str, count: int, app: str | None) -> None:
    with Consumer(settings, topics=[topic], until_end=True, app=app) as consumer:
        assert sum(1 for _ in consumer) == count


@contextmanager
def uncounted_producers() -> Iterator[None]:
    """Lets all producers of this process ignore their messages in the audit."""
    count_sent: Any = ProducerCounter.count_sent
    ProducerCounter.count_sent = lambda *_: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        ProducerCounter.count_sent = count_sent  # type: ignore[method-assign]


def compare(name: str, counted: Callable[[], None], uncounted: Callable[[], None], messages: int, rounds: int) -> None:
    costs: dict[Callable[[], None], list[float]] = {counted: [], uncounted: []}
    for _ in range(rounds):
        for variant, found in costs.items():
            began = time.process_time()
            variant()
            found.append((time.process_time() - began) / messages * 1e6)
    best, base = min(costs[counted]), min(costs[uncounted])
    print(f"{name:10}{best:>16.3f}{base:>12.3f}{(best / base - 1) * 100:>9.1f}%", flush=True)


if __name__ == "__main__":
    main()
