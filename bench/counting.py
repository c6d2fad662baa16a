"""Measures the cost of the audit's counting when producing, consuming and loading, with and without it in one run.

    python -m bench.counting [--messages 20000] [--rounds 41]

Producing and consuming go through a registry and a broker of this run, without start and end of the clients; the
messages belong to seven windows, and their counts are published. A task of a load reads a log in memory. The two
variants run alternately. Prints the CPU time of this process per message in the best round of each variant, and the
median and the quartiles of the overheads of all rounds. Without counting, the producer's counter ignores each message,
and the core of the task is built with `HR_UNCOUNTED`, which leaves out sizes, hashes and latencies. Both variants
determine the time of each message.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench import loader_task, producer
from headrace import Consumer, KafkaSettings, Producer, RegistrySettings, Settings
from headrace.audit.producer_counter import ProducerCounter
from headrace.audit.tally import REFERENCE
from headrace.avro_codec.core import build, library
from headrace.avro_schema import parse_schema
from headrace.clients import producer as producer_module
from headrace.loader import task
from headrace.loader.load_schema import EMPTY, fold

START_MS = 1_767_225_600_000
SPAN_MS = 3_600_000
"""One hour of message time, seven rows. With a row for every 100 messages, publishing the rows would cost more than
counting."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=41)
    args = parser.parse_args()
    print(
        f"{args.messages:,} messages, {args.rounds} rounds, {os.cpu_count()} cores, Python {platform.python_version()}"
    )
    print(f"{'':10}{'CPU us/message':>16}{'uncounted':>12}{'overhead':>10}{'middle half':>20}")
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
    sample = [(key, {**value, "timestamp": START_MS + SPAN_MS * n // messages}) for n, (key, value) in
              enumerate(producer.page_views(messages))]  # fmt: skip
    gc.freeze()  # otherwise collections would traverse the sample, which an application does not hold
    topic = f"counting-{time.time_ns()}"

    def produce() -> float:
        with Producer(settings, app="bench") as client:
            client.send(topic, sample[0][1], key=sample[0][0], schema=producer.SCHEMA)
            client.flush()
            began = time.process_time()
            for key, value in sample:
                client.send(topic, value, key=key, schema=producer.SCHEMA)
            client.flush()
            return time.process_time() - began

    def produce_uncounted() -> float:
        with uncounted_producers():
            return produce()

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

    def load(name: str) -> float:
        task.core_library = lambda: cores[name]  # replaces the installed core
        began = time.process_time()
        loader_task.load(log, messages, state.text, "snappy")
        return time.process_time() - began

    compare("load task", lambda: load("counted"), lambda: load("uncounted"), messages, rounds)


def consume(settings: Settings, topic: str, count: int, app: str | None) -> float:
    with Consumer(settings, topics=[topic], until_end=True, app=app) as consumer:
        next(consumer)
        began = time.process_time()
        assert sum(1 for _ in consumer) == count
        return time.process_time() - began


@contextmanager
def uncounted_producers() -> Iterator[None]:
    """Lets all producers of this process ignore their messages in the audit."""
    replaced: Any = producer_module
    count_row, core_tallies = ProducerCounter.count_row, producer_module.core_tallies
    ProducerCounter.count_row = lambda *_: None
    replaced.core_tallies = lambda _: REFERENCE._replace(hash=lambda *_: 0)
    try:
        yield
    finally:
        ProducerCounter.count_row = count_row
        replaced.core_tallies = core_tallies


def compare(
    name: str, counted: Callable[[], float], uncounted: Callable[[], float], messages: int, rounds: int
) -> None:
    """Runs both variants alternately and prints their costs. The variant that runs first changes with each round, and
    the overhead is that of neighbouring runs, so that changes of the machine's speed affect both alike."""
    costs: dict[Callable[[], float], list[float]] = {counted: [], uncounted: []}
    for number in range(rounds):
        for variant in (counted, uncounted) if number % 2 else (uncounted, counted):
            costs[variant].append(variant() / messages * 1e6)
    overheads = [(one / base - 1) * 100 for one, base in zip(costs[counted], costs[uncounted], strict=True)]
    low, median, high = statistics.quantiles(overheads, n=4)
    print(
        f"{name:10}{min(costs[counted]):>16.3f}{min(costs[uncounted]):>12.3f}{median:>9.1f}%"
        f"{f'{low:.1f} to {high:.1f}%':>20}",
        flush=True,
    )


if __name__ == "__main__":
    main()
