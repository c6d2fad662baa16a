"""Compares whole loads, from a broker to committed files and Hive partitions, with programs that do a part of the work:
`python -m bench.load`.

Each row is a load of a topic with eight partitions and two hours of messages. The contenders run in their own
processes, pinned to the given cores; the broker has the other cores, if there are any:

    core       `headrace load` as installed, with compiled core, audit and hourly partitions
    reference  the same with the Python reference, on fewer messages
    naive      kafka-python and fastavro in a loop, on fewer messages and one core
    spark      Spark's Kafka source, `from_avro` and Avro sink, without times, partitions, audit and tables

The start of Spark is not measured: each contender with a JVM first loads another topic. With an `evolved` schema, the
registry has a later version than the messages: a field added, one widened, one renamed, a record grown. Apache Kafka
and Spark's Kafka source come from Maven Central. `--keep` appends the table to `bench/results/load.md`. All rows with
10 M messages take hours; arguments select a part.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from confluent_kafka import Producer  # noqa: E402
from confluent_kafka.admin import AdminClient, NewTopic  # noqa: E402

from bench.support.load_contenders import Job, Timing  # noqa: E402
from bench.support.load_shapes import SHAPES, Shape  # noqa: E402
from bench.support.results import add_keep_flag, append_result, describe_run  # noqa: E402
from headrace.avro_schema import frame  # noqa: E402
from headrace.registry.client import RegistryClient  # noqa: E402
from support.running_service import Service  # noqa: E402
from support.servers.apache_kafka import ApacheKafka  # noqa: E402
from support.servers.maven_jars import classpath_of  # noqa: E402

PARTITIONS = 8
WARM_MESSAGES = 20_000
PART = {"naive": 20, "reference": 10}
"""By slow contender: the divisor of its number of messages."""
SPARK_JARS = ("spark-sql-kafka", "spark-token-provider", "spark-avro", "kafka-clients", "commons-pool2")
HEADER = (
    "| broker | shape | bytes | fields | schema | cores | contender | messages | seconds | in tasks "
    "| messages/s | MB/s | core is |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n"
)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of the benchmark, and smaller copies of it for slow contenders and for warming up.

    Attributes:
        shape: schema and content of the messages.
        is_later: whether the registry also has a later version of the schema.
        messages: number of messages.
    """

    shape: Shape
    is_later: bool
    messages: int

    @property
    def name(self) -> str:
        return f"{self.shape.name}-{'evolved' if self.is_later else 'same'}"

    def of(self, contender: str) -> tuple[str, int]:
        """Returns the name of the topic that a contender loads, and its number of messages."""
        part = PART.get(contender, 1)
        return (self.name, self.messages) if part == 1 else (f"{self.name}-{contender}", self.messages // part)

    @property
    def sizes(self) -> dict[str, int]:
        return dict(self.of(contender) for contender in ("core", *PART)) | {f"{self.name}-warm": WARM_MESSAGES}


@contextmanager
def bundled_broker(directory: Path) -> Iterator[str]:
    broker = Service(["headrace", "broker", "serve", "--broker-listen", "127.0.0.1:0", "--data-dir", str(directory)])
    try:
        yield broker.addresses["broker"]
    finally:
        broker.stop()


@contextmanager
def apache_kafka(directory: Path) -> Iterator[str]:
    broker = ApacheKafka(directory)
    try:
        yield broker.address
    finally:
        broker.stop()


BROKERS = {"bundled": bundled_broker, "kafka": apache_kafka}


def fill(brokers: str, registry: str, topic: Topic) -> float:
    """Creates and fills a topic and its smaller copies. Returns the mean size of a message body in bytes."""
    with RegistryClient(registry) as client:
        for name in topic.sizes:
            schema_id = client.register(f"{name}-value", topic.shape.text()).schema_id
            if topic.is_later:
                client.register(f"{name}-value", topic.shape.text(is_later=True))
    admin = AdminClient({"bootstrap.servers": brokers})
    new_topics = [NewTopic(name, PARTITIONS, 1, config={"retention.ms": "-1"}) for name in topic.sizes]
    for future in admin.create_topics(new_topics).values():
        future.result(30)
    producer = Producer(
        {"bootstrap.servers": brokers, "linger.ms": 50, "batch.num.messages": 10_000, "batch.size": 1_000_000,
         "queue.buffering.max.messages": 500_000, "queue.buffering.max.kbytes": 400_000}
    )  # fmt: skip
    size = 0
    for name, count in topic.sizes.items():
        for number, body in enumerate(topic.shape.bodies(count)):
            while True:
                try:
                    producer.produce(name, frame(schema_id, body), partition=number // 1_000 % PARTITIONS)
                except BufferError:
                    producer.poll(0.1)
                else:
                    break
            if number % 1_000 == 0:
                producer.poll(0)
            size += len(body)
    if producer.flush(300):
        raise RuntimeError(f"{brokers} did not acknowledge all messages of {topic.name}")
    return size / sum(topic.sizes.values())


def run(job: Job, pinned: set[int]) -> Timing:
    command = [sys.executable, "-m", "bench.support.load_contenders", json.dumps(dataclasses.asdict(job))]
    done = subprocess.run(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        preexec_fn=lambda: os.sched_setaffinity(0, pinned),
    )
    if done.returncode:
        raise RuntimeError(f"{job.contender} of {job.topic} ended with {done.returncode}")
    return Timing(**json.loads(done.stdout.splitlines()[-1]))


def rows_of(
    args: argparse.Namespace, broker: str, brokers: str, registry: str, topic: Topic, jars: str
) -> Iterator[str]:
    """Measures all contenders on a topic. Yields the rows of the table, each as soon as it is measured.

    Args:
        broker: name of the broker in the table.
        brokers: its bootstrap servers.
        registry: URL of the registry.
        jars: Spark's Kafka source and Avro format, for the contender `spark`.
    """
    body_bytes = fill(brokers, registry, topic)
    versions = topic.shape.text(), topic.shape.text(is_later=topic.is_later)
    cpus = sorted(os.sched_getaffinity(0))
    for cores in args.cores:
        rates: dict[str, float] = {}
        for contender in args.contenders:
            if contender == "naive" and cores > 1:
                continue
            name, messages = topic.of(contender)
            with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
                job = Job(
                    contender,
                    brokers,
                    registry,
                    name,
                    f"{topic.name}-warm",
                    messages,
                    *versions,
                    cores,
                    directory,
                    jars,
                )
                timing = run(job, set(cpus[:cores]))
            rates[contender] = messages / timing.seconds
            ratio = rates.get("core", 0) / rates[contender]
            tasks = f"{timing.task_seconds:.1f}" if timing.task_seconds else ""
            yield (
                f"| {broker} | {topic.shape.name} | {body_bytes:.0f} | {topic.shape.fields} "
                f"| {'evolved' if topic.is_later else 'same'} | {cores} | {contender} | {messages:,} "
                f"| {timing.seconds:.1f} | {tasks} | {rates[contender]:,.0f} "
                f"| {rates[contender] * body_bytes / 1e6:,.0f} | {ratio:.1f} × |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--brokers", nargs="+", default=list(BROKERS), choices=BROKERS)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--schemas", nargs="+", default=["same", "evolved"], choices=("same", "evolved"))
    parser.add_argument("--cores", nargs="+", type=int, default=[1, 2])
    # The core runs first: the ratios of the others refer to it.
    parser.add_argument("--contenders", nargs="+", default=["core", "spark", "reference", "naive"])
    add_keep_flag(parser, "load")
    args = parser.parse_args()
    jars = (
        ""
        if "spark" not in args.contenders
        else ",".join(jar for jar in classpath_of("spark-kafka").split(":") if Path(jar).name.startswith(SPARK_JARS))
    )
    about = describe_run("snappy", f"{PARTITIONS} partitions", "two hours of message time")
    lines = []
    print(f"{about}\n\n{HEADER}", end="", flush=True)
    for broker in args.brokers:
        with ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-bench-")))
            registry = Service(
                ["headrace", "registry", "serve", "--registry-listen", "127.0.0.1:0", "--data-dir", str(directory)]
            )
            stack.callback(registry.stop)
            brokers = stack.enter_context(BROKERS[broker](directory / "broker"))
            for name, schema in itertools.product(args.shapes, args.schemas):
                if schema == "evolved" and SHAPES[name].later is None:
                    continue
                topic = Topic(SHAPES[name], schema == "evolved", args.messages)
                for line in rows_of(args, broker, brokers, registry.addresses["registry"], topic, jars):
                    print(line, flush=True)
                    lines.append(line)
    if args.keep:
        append_result("load", about, HEADER + "\n".join(lines))


if __name__ == "__main__":
    main()
