"""Measures loads of a platform with many topics: `python -m bench.topics --topics 2000 --partitions 5`.

Starts the bundled registry, broker and metastore as `headrace up` does, creates the topics, registers a schema for each
and sends a few messages. Then it runs these commands and prints the seconds of each phase of their log:

    first load   every topic is new: its table, a time partition and the view are created
    idle load    no new messages, in a new process
    served load  the same in the process that serves the loads of `headrace up`; the second of two
    one topic    a load of one topic with new messages, in a new process and served
    hive plan    compares every table with the commits

The times before the first phase of a process (start of Python, connections) and after the last one (end of the JVM) are
phases of their own. The baselines are measured in the same run: the bare metastore calls that create as many tables,
add a partition to each and read them all in batches, by one client, and as many files written and fsynced.

`--keep` appends the output to `bench/results/topics.md`.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import fastavro  # noqa: E402
from confluent_kafka import Producer  # noqa: E402
from confluent_kafka.admin import AdminClient, NewTopic  # noqa: E402

from bench.support.results import add_keep_flag, append_result, as_printed, describe_run  # noqa: E402
from headrace.avro_schema import frame  # noqa: E402
from headrace.hive_ddl.executors.metastore import avro_descriptor  # noqa: E402
from headrace.hive_ddl.executors.session import close_session, open_session  # noqa: E402
from headrace.hive_ddl.executors.spark import SparkExecutor  # noqa: E402
from headrace.hive_ddl.table import TableState, desired_table, local_location  # noqa: E402
from headrace.registry.client import RegistryClient  # noqa: E402
from support.running_service import Service  # noqa: E402

DATABASE = "bench_calls"
FIELD_TYPES = ("string", "long", "double", "boolean", '["null","string"]')
PHASE = re.compile(r"phase_started phase=(\S+)")
REGISTRATION_THREADS = 8
TABLES_PER_CALL = 200
TIMEOUT_S = 3_600


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of the benchmark, each with a schema of its own."""

    count: int
    partitions: int
    messages: int

    @property
    def names(self) -> list[str]:
        return [f"team-{number % 40:02}.events-{number:05}" for number in range(self.count)]

    def schema(self, number: int) -> str:
        """Returns the schema of a topic: a time and 5 to 24 fields."""
        fields = [
            {
                "name": f"field_{number}_{index}",
                "type": json.loads(type_text if type_text[0] == "[" else f'"{type_text}"'),
            }
            for index in range(5 + number % 20)
            for type_text in [FIELD_TYPES[index % len(FIELD_TYPES)]]
        ]
        return json.dumps(
            {"type": "record", "name": f"Event{number}", "fields": [{"name": "time", "type": "long"}, *fields]}
        )

    def body(self, number: int, index: int, now_ms: int) -> bytes:
        values: dict[str, object] = {"string": f"text {index}", "long": index, "double": index / 7, "boolean": True}
        schema = fastavro.parse_schema(json.loads(self.schema(number)))
        record = {
            field["name"]: values.get(field["type"]) if isinstance(field["type"], str) else None
            for field in schema["fields"]
        } | {"time": now_ms + index}
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, record)
        return out.getvalue()


class Timer:
    """Prints the seconds of steps as soon as they are known, and collects the lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, line: str) -> None:
        print(line, flush=True)
        self.lines.append(line)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.add(f"{name:34} {time.perf_counter() - began:8.2f} s")

    def phases(self, name: str, seconds: float, phases: Sequence[tuple[str, float]]) -> None:
        self.add(f"{name:34} {seconds:8.2f} s")
        for phase, duration in phases:
            if duration >= 0.005:
                self.add(f"    {phase:30} {duration:8.2f} s")


class Phases:
    """The phases of a command, from the lines of its log as they arrive."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._marks: list[tuple[str, float]] = [("start", self._began)]

    def add_line(self, line: str) -> None:
        found = PHASE.search(line)
        if found:
            self._marks.append((found[1], time.perf_counter()))

    def end(self) -> tuple[float, list[tuple[str, float]]]:
        """Returns the seconds of the command and of each phase, in the order of their first start."""
        now = time.perf_counter()
        sums: dict[str, float] = {}
        for (name, start), (_, end) in zip(self._marks, [*self._marks[1:], ("", now)], strict=True):
            sums[name] = sums.get(name, 0.0) + end - start
        return now - self._began, list(sums.items())


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "headrace", *arguments]


def run_command(timer: Timer, name: str, environment: dict[str, str], *arguments: str) -> None:
    """Runs a command of Headrace in a new process, and prints its seconds and phases."""
    phases = Phases()
    tail: list[str] = []
    with subprocess.Popen(
        command(*arguments), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                phases.add_line(line)
                tail = [*tail[-20:], line]
        except BaseException:
            process.terminate()
            raise
    if process.returncode not in (0, 1):
        raise RuntimeError(f"{' '.join(arguments)} ended with {process.returncode}: {''.join(tail)}")
    timer.phases(name, *phases.end())


class ServedLoads:
    """The process that serves the loads of `headrace up`."""

    def __init__(self, environment: dict[str, str], data_dir: str) -> None:
        self._process = subprocess.Popen(
            command("load", "serve", "--data-dir", data_dir),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
            bufsize=1,
        )  # fmt: skip
        self._wait("ready ", Phases())

    def _wait(self, prefix: str, phases: Phases) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            phases.add_line(line)
            if line.startswith(prefix):
                return line
        raise RuntimeError(f"headrace load serve ended with {self._process.wait()}")

    def load(self, timer: Timer, name: str) -> None:
        phases = Phases()
        assert self._process.stdin is not None
        self._process.stdin.write("load\n")
        ended = self._wait("ended code=", phases)
        timer.phases(f"{name} ({ended.strip()})" if "code=0" not in ended else name, *phases.end())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def fill(timer: Timer, topics: Topics, brokers: str, registry: str) -> list[int]:
    """Creates the topics, registers their schemas and sends the messages. Returns the schema ids."""
    with timer.step("registering schemas"), RegistryClient(registry) as client:

        def register(number: int) -> int:
            return client.register(f"{topics.names[number]}-value", topics.schema(number)).schema_id

        with ThreadPoolExecutor(REGISTRATION_THREADS) as pool:
            ids = list(pool.map(register, range(topics.count)))
    with timer.step("creating topics"):
        new_topics = [NewTopic(name, topics.partitions, 1) for name in topics.names]
        admin = AdminClient({"bootstrap.servers": brokers})
        for future in admin.create_topics(new_topics, operation_timeout=300, request_timeout=300).values():
            future.result(300)
    with timer.step("sending messages"):
        send(topics, brokers, ids, range(topics.count))
    return ids


def send(topics: Topics, brokers: str, ids: Sequence[int], numbers: Sequence[int]) -> None:
    producer = Producer({"bootstrap.servers": brokers, "linger.ms": 50, "queue.buffering.max.messages": 500_000})
    now_ms = int(time.time() * 1000)
    for number in numbers:
        name, body = topics.names[number], topics.body(number, 0, now_ms)
        for index in range(topics.messages):
            producer.produce(name, frame(ids[number], body), partition=index % topics.partitions)
        producer.poll(0)
    if producer.flush(300):
        raise RuntimeError("the broker did not acknowledge all messages")


def measure_commands(timer: Timer, topics: Topics, ids: Sequence[int], brokers: str, base: Path) -> None:
    data_dir = str(base / "data")
    environment = {**os.environ, "HEADRACE_LOG_LEVEL": "INFO"}
    run_command(timer, "first load", environment, "load", "--data-dir", data_dir)
    run_command(timer, "idle load, new process", environment, "load", "--data-dir", data_dir)
    send(topics, brokers, ids, [0])
    run_command(timer, "one topic, new process", environment, "load", "--data-dir", data_dir)
    served = ServedLoads(environment, data_dir)
    try:
        send(topics, brokers, ids, [0])
        served.load(timer, "one topic, first served load")
        served.load(timer, "idle load, served")
        send(topics, brokers, ids, [1])
        served.load(timer, "one topic, served")
    finally:
        served.close()
    run_command(timer, "hive plan", environment, "hive", "plan", "--data-dir", data_dir)


def baseline_table(base: Path, number: int, schema: str) -> TableState:
    name = f"bare_{number}"
    return desired_table(
        database=DATABASE, name=name, location=local_location(base / "bare" / name), topic=name, subject=name,
        version=1, schema_text=schema, revision="1-bench",
    )  # fmt: skip


def measure_baselines(timer: Timer, topics: Topics, metastore: str, base: Path) -> None:
    """Measures bare metastore calls, one after another, and fsynced files."""
    session = open_session(
        app_name="bench", master="local[1]", metastore_uri=metastore, data_dir=base / "bare-data",
        warehouse_uri=local_location(base / "bare"),
    )  # fmt: skip
    try:
        executor = SparkExecutor(session)
        executor.ensure_database(DATABASE)
        client, lists = executor._client, session._jvm.java.util.ArrayList
        states = [baseline_table(base, number, topics.schema(number)) for number in range(topics.count)]
        descriptors = [avro_descriptor(state) for state in states]
        java_tables = [executor._java_table(state, text) for state, text in zip(states, descriptors, strict=True)]
        with timer.step("baseline: createTable calls"):
            for table in java_tables:
                client.createTable(table)
        parts = []
        for state, text in zip(states, descriptors, strict=True):
            location = f"{state.location}/dt=2026-01-01/hr=00"
            parts.append(
                executor._values.partitions(state.database, state.name, text, [(("2026-01-01", "00"), location)], 0)
            )
        with timer.step("baseline: add_partitions calls"):
            for part in parts:
                client.add_partitions(part, True, False)
        with timer.step("baseline: tables in batches"):
            for start in range(0, len(states), TABLES_PER_CALL):
                names = lists()
                for state in states[start : start + TABLES_PER_CALL]:
                    names.add(state.name)
                client.getTableObjectsByName(DATABASE, names)
    finally:
        close_session(session)
    directory = base / "files"
    directory.mkdir()
    with timer.step("baseline: fsynced files"):
        for number in range(topics.count):
            with (directory / str(number)).open("wb") as file:
                file.write(b"x" * 1_000)
                os.fsync(file.fileno())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=2_000)
    parser.add_argument("--partitions", type=int, default=5)
    parser.add_argument("--messages", type=int, default=5, help="messages of each topic")
    parser.add_argument("--no-baselines", action="store_true")
    parser.add_argument("--keep-data", type=Path, metavar="DIRECTORY", help="an empty directory, which is not deleted")
    add_keep_flag(parser, "topics")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # stops the servers, too
    topics = Topics(args.topics, args.partitions, args.messages)
    base = args.keep_data or Path(tempfile.mkdtemp(prefix="headrace-bench-topics-"))
    timer = Timer()
    about = describe_run(
        f"{topics.count:,} topics x {topics.partitions} partitions", f"{topics.messages} messages each"
    )
    print(about, flush=True)
    listen = [argument for part in ("registry", "broker", "hive") for argument in (f"--{part}-listen", "127.0.0.1:0")]
    with timer.step("starting the servers"):
        servers = Service(
            ["headrace", "up", "--only", "registry,broker,metastore", "--data-dir", str(base / "data"), *listen]
        )
    try:
        addresses = servers.addresses
        ids = fill(timer, topics, addresses["broker"], addresses["registry"])
        measure_commands(timer, topics, ids, addresses["broker"], base)
        if not args.no_baselines:
            measure_baselines(timer, topics, addresses["metastore"], base)
    finally:
        servers.stop()
        if args.keep_data is None:
            shutil.rmtree(base, ignore_errors=True)
    if args.keep:
        append_result("topics", about, as_printed(timer.lines))


if __name__ == "__main__":
    main()
