"""Measures the cost of the audit's counting when producing, consuming and loading, with and without it in one run.

    python -m bench.counting [--messages 20000] [--rounds 41]

Producing and consuming go through a registry and a broker of this run, without start and end of the clients. A task of
a load reads a log in memory; a whole load reads from the broker and writes files, tables and counts. The two variants
run alternately. Prints the CPU time per message, of this process or of all processes of a load: the tenth percentile of
the rounds of each variant, their ratio, and the quartiles of the overheads of all rounds. Without counting,
`Producer._send` lacks the lines that count, and the core of tasks is built with `HR_UNCOUNTED`, which leaves out sizes,
hashes and latencies. Both variants determine the time of each message.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import inspect
import itertools
import os
import platform
import shutil
import statistics
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from bench import loader_task, producer
from bench.support.load_shapes import SHAPES, Shape
from headrace import Consumer, KafkaSettings, Producer, RegistrySettings, Settings
from headrace.avro_codec.core import build, library
from headrace.avro_schema import frame, parse_schema
from headrace.clients import producer as producer_module
from headrace.hive_ddl.executors.session import SparkSession
from headrace.loader import task
from headrace.loader.job import run_on_pool
from headrace.loader.load_schema import EMPTY, fold
from headrace.loader.run import run_load
from headrace.pipeline.load import commit_log, open_load
from headrace.pipeline.load_session import LoadSession
from headrace.registry.client import RegistryClient

START_MS = 1_767_225_600_000
BLOCK = 2_000
PRODUCERS = 4
PARTS = ("task", "produce", "consume", "load")
SPAN_MS = 3_600_000
"""One hour of message time, seven rows. With a row for every 100 messages, publishing the rows would cost more than
counting."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--load-messages", type=int, default=2_000_000)
    parser.add_argument("--load-rounds", type=int, default=20)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    args = parser.parse_args()
    print(
        f"{args.messages:,} messages, {args.rounds} rounds, {os.cpu_count()} cores, Python {platform.python_version()}"
    )
    print(f"{'':10}{'CPU us/message':>16}{'uncounted':>12}{'overhead':>10}{'middle half':>20}")
    with TemporaryDirectory() as directory:
        path = Path(directory)
        if "task" in args.parts:
            measure_task(path, args.messages, args.rounds)
        with producer.servers(path) as (registry, broker):
            settings = Settings(
                data_dir=path,
                registry=RegistrySettings(url=registry),
                kafka=KafkaSettings(bootstrap_servers=broker),
            )
            if "produce" in args.parts:
                measure_producer(settings, args.messages, args.rounds)
            if "consume" in args.parts:
                measure_consumer(settings, args.messages, args.rounds)
            if "load" in args.parts:
                measure_loads(settings, args.load_messages, args.load_rounds)


def sample_of(messages: int, start_ms: int = START_MS, span_ms: int = SPAN_MS) -> producer.Sample:
    sample = [
        (key, {**value, "timestamp": start_ms + span_ms * n // messages})
        for n, (key, value) in enumerate(producer.page_views(messages))
    ]
    gc.freeze()  # otherwise collections would traverse the sample, which an application does not hold
    return sample


def produce(settings: Settings, topic: str, sample: producer.Sample) -> float:
    with Producer(settings, app="bench") as client:
        client.send(topic, sample[0][1], key=sample[0][0], schema=producer.SCHEMA)
        client.flush()
        began = time.process_time()
        for key, value in sample:
            client.send(topic, value, key=key, schema=producer.SCHEMA)
        client.flush()
        return time.process_time() - began


def measure_producer(settings: Settings, messages: int, rounds: int) -> None:
    """Sends blocks of messages with the current time, alternately with and without counting. A block is short, so that
    the machine's speed hardly changes between neighbouring ones. Each variant has several producers that take turns,
    because equal producers of one process differ by up to 0.1 us per message."""
    sample, topic = sample_of(BLOCK, time.time_ns() // 1_000_000, 1_000), f"counting-{time.time_ns()}"

    def send(clients: Iterator[Producer]) -> float:
        client = next(clients)
        began = time.process_time()
        for key, value in sample:
            client.send(topic, value, key=key, schema=producer.SCHEMA)
        client.flush()
        return time.process_time() - began

    with ExitStack() as stack:
        counted, uncounted = (
            itertools.cycle([stack.enter_context(kind(settings, app="bench")) for _ in range(PRODUCERS)])
            for kind in (Producer, uncounted_producer())
        )
        for _ in range(PRODUCERS):
            send(counted)
            send(uncounted)
        compare("produce", lambda: send(counted), lambda: send(uncounted), BLOCK, rounds * messages // BLOCK)


def measure_consumer(settings: Settings, messages: int, rounds: int) -> None:
    topic = f"counting-read-{time.time_ns()}"
    produce(settings, topic, sample_of(messages))
    compare(
        "consume",
        lambda: consume(settings, topic, messages, "bench"),
        lambda: consume(settings, topic, messages, None),
        messages,
        rounds,
    )


def measure_task(directory: Path, messages: int, rounds: int) -> None:
    log = loader_task.make_log(loader_task.make_bodies(messages, 1), 0)
    state = fold(EMPTY, 1, parse_schema(loader_task.V1))
    cores = {name: library.Library(path) for name, path in build_cores(directory).items()}

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


def build_cores(directory: Path) -> dict[str, Path]:
    """Builds the core with and without counting. Returns the libraries by name."""
    paths = {}
    for name, flags in (("counted", ()), ("uncounted", ("-DHR_UNCOUNTED",))):
        paths[name] = directory / f"{name}.so"
        build.build(paths[name], build.compiler(), *flags)
    return paths


def measure_loads(settings: Settings, messages: int, rounds: int) -> None:
    """Measures whole loads, from the broker to files, tables and counts in the audit, each into another data directory:
    the CPU time of all processes of the load. They share a Spark session, whose start is measured apart."""
    shape, topic = SHAPES["page"], "counting-load"
    fill(settings, topic, shape, messages)
    cores, servers, session = build_cores(settings.data_dir), descendants(os.getpid()), LoadSession(outlives_load=True)
    numbers = itertools.count()

    def load(name: str) -> float:
        number, path = next(numbers), str(cores[name])

        def run_with_core(unit: Any) -> Any:
            from headrace.avro_codec.core.library import Library
            from headrace.loader import task

            core = Library(Path(path))
            task.core_library = lambda: core
            return task.run_work_unit(unit)

        def run_units(units: Any) -> Any:
            return run_on_pool(SparkSession.getActiveSession().sparkContext, run_with_core, units, "bench")

        directory = settings.data_dir / f"load-{number}"
        own = dataclasses.replace(
            settings, data_dir=directory, hive=dataclasses.replace(settings.hive, database=f"load{number}")
        )
        began = cpu_s_of_descendants(servers)
        log = commit_log(own)
        log.open()
        with open_load(own, log, sys.stderr, session=session) as opened:
            report = run_load(
                dataclasses.replace(opened.ports, run_units=run_units),
                dataclasses.replace(opened.settings, topics_include=(topic,)),
            )
        assert sum(one.rows for one in report.loaded) == messages, report.problems
        used = cpu_s_of_descendants(servers) - began
        shutil.rmtree(directory / "warehouse")  # the first one also has the metastore of the session
        return used

    try:
        first = load("counted")
        for name in ("uncounted", "counted", "uncounted"):  # until the JVM has compiled its code
            load(name)
        cost, base = compare("load", lambda: load("counted"), lambda: load("uncounted"), messages, rounds)
    finally:
        session.close()
    started = first / messages * 1e6 - cost
    print(
        f"{'':10}with the start of Spark ({started * messages / 1e6:.1f} s) {(cost - base) / (base + started):.1%}",
        flush=True,
    )


def fill(settings: Settings, topic: str, shape: Shape, messages: int) -> None:
    brokers = settings.kafka.bootstrap_servers
    with RegistryClient(settings.registry.url) as client:
        schema_id = client.register(f"{topic}-value", shape.text()).schema_id
    admin = AdminClient({"bootstrap.servers": brokers})
    admin.create_topics([NewTopic(topic, 8, 1, config={"retention.ms": "-1"})])[topic].result(30)
    kafka = confluent_kafka.Producer(
        {
            "bootstrap.servers": brokers,
            "linger.ms": 50,
            "batch.num.messages": 10_000,
            "queue.buffering.max.kbytes": 400_000,
        }
    )
    for number, body in enumerate(shape.bodies(messages)):
        kafka.produce(topic, frame(schema_id, body), b"user-%d" % (number % 10_000), partition=number // 1_000 % 8)
        if number % 50_000 == 0:
            kafka.flush()
    assert not kafka.flush(300)


def processes() -> Iterator[tuple[int, int, float]]:
    """Yields id, parent and CPU seconds of each process, with those of its ended children."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        yield int(path.parent.name), int(fields[1]), sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> set[int]:
    parents = {pid: parent for pid, parent, _ in processes()}
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def cpu_s_of_descendants(excluded: set[int]) -> float:
    """Returns the CPU seconds of this process and of its descendants, except for `excluded`."""
    counted = {os.getpid(), *descendants(os.getpid())} - excluded
    return sum(cpu_s for pid, _, cpu_s in processes() if pid in counted)


def uncounted_producer() -> type[Producer]:
    """Returns a class of producers whose `_send` lacks the lines that count."""
    lines = textwrap.dedent(inspect.getsource(Producer._send)).splitlines()
    first = next(n for n, line in enumerate(lines) if line.strip() == "row = encoding.row")
    last = next(n for n, line in enumerate(lines) if line.strip() == "encoding.row = row")
    source = "from __future__ import annotations\n" + "\n".join(lines[:first] + lines[last + 1 :])
    methods: dict[str, Any] = {}
    exec(compile(source, "uncounted", "exec"), vars(producer_module), methods)
    return type("UncountedProducer", (Producer,), methods)


def compare(
    name: str, counted: Callable[[], float], uncounted: Callable[[], float], messages: int, rounds: int
) -> tuple[float, float]:
    """Runs both variants alternately. Prints and returns their costs. The variant that runs first changes with each
    round, and the quartiles are those of the overheads of neighbouring runs, so that changes of the machine's speed
    affect both alike."""
    costs: dict[Callable[[], float], list[float]] = {counted: [], uncounted: []}
    for number in range(rounds):
        for variant in (counted, uncounted) if number % 2 else (uncounted, counted):
            costs[variant].append(variant() / messages * 1e6)
    overheads = [(one / base - 1) * 100 for one, base in zip(costs[counted], costs[uncounted], strict=True)]
    low, _, high = statistics.quantiles(overheads, n=4)
    one, base = (statistics.quantiles(costs[variant], n=10)[0] for variant in (counted, uncounted))
    print(
        f"{name:10}{one:>16.3f}{base:>12.3f}{(one / base - 1) * 100:>9.1f}%{f'{low:.1f} to {high:.1f}%':>20}",
        flush=True,
    )
    return one, base


if __name__ == "__main__":
    main()
