"""Compares the broker with Apache Kafka and other baselines: same run, same machine, same clients.

    python -m bench.broker [--brokers headrace kafka] [--measure rates latency connections idle metadata recovery]
                           [--fsync none] [--tls]

Measurements:
  rates        messages per second that confluent-kafka (librdkafka) produces and consumes, and the broker's CPU time
               per message; the brokers run alternately, and the best round counts
  latency      milliseconds from a message to its acknowledgement and to its consumer, at a steady rate
  connections  time and memory of a thousand connections, and the latency while they are open
  idle         CPU of the broker while a consumer waits on 5,000 partitions without new messages
  metadata     CPU of the broker per metadata response for all topics, with 5,000 partitions
  recovery     seconds until it serves again after `kill -9`, by megabytes in its logs

Client and broker share the given cores, so that rates depend on both; the CPU time is the broker's alone. Baselines of
the rates: the same client producing to librdkafka's in-memory mock broker (C, stores almost nothing); batches of the
sizes in the bundled broker's log, received from a loopback socket, checked, and written to as many files; and its log
files sent over a loopback socket. The last two use no protocol. The first start of an Apache Kafka includes formatting
its directory. `--brokers kafka` needs Java and Maven.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from crc32c import crc32c
from kafka import KafkaConsumer, TopicPartition

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from bench.support.brokers import BROKERS, Broker, Bundled  # noqa: E402
from headrace.broker.log.segment import walk_file  # noqa: E402
from headrace.kafka_wire.connection import BrokerConnection, ReceiveBuffers  # noqa: E402
from headrace.kafka_wire.security import UNSECURED  # noqa: E402

TIMEOUT_S = 120
CONNECTIONS = 1000
IDLE_PARTITIONS = 5000
IDLE_S = 8
METADATA_REQUESTS = 50
WARMUP_RATIO = 2
_SENT_AT = struct.Struct(">d")


def make_topic(broker: Broker, name: str, partitions: int) -> str:
    admin = AdminClient(broker.client)
    topic = NewTopic(name, partitions, 1, config=dict(broker.topic_config()))
    admin.create_topics([topic])[name].result(TIMEOUT_S)
    # A cluster acknowledges a new topic before its partitions can be used.
    partition_specs = {confluent_kafka.TopicPartition(name, index): OffsetSpec.latest() for index in range(partitions)}
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            for future in admin.list_offsets(partition_specs).values():
                future.result(TIMEOUT_S)
            return name
        except confluent_kafka.KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def payload(record_bytes: int) -> bytes:
    """Returns text that compresses about as well as JSON events."""
    return (b'{"flight": %d, "carrier": "UA", "origin": "EWR"} ' * (record_bytes // 20 + 1))[:record_bytes]


# Rates


def produce(settings: dict[str, object], topic: str, partitions: int, value: bytes, messages: int) -> float:
    """Produces a value as many times as `messages` says, evenly to the partitions. Returns the seconds until all are
    acknowledged.

    Args:
        settings: settings of librdkafka that override the benchmark's.
    """
    producer = confluent_kafka.Producer(
        {"linger.ms": 5, "batch.size": 1_000_000, "queue.buffering.max.messages": 1_000_000, **settings}
    )
    began = time.perf_counter()
    for number in range(messages):
        while True:
            try:
                producer.produce(topic, value, partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 1024 == 0:
            producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0
    return time.perf_counter() - began


def consume(broker: Broker, topic: str, partitions: int, messages: int) -> float:
    consumer = confluent_kafka.Consumer(
        {
            **broker.client,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 4_000_000,
            "fetch.queue.backoff.ms": 0,
            "queued.min.messages": 1_000_000,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, index, 0) for index in range(partitions)])
    began = time.perf_counter()
    seen = 0
    while seen < messages:
        seen += sum(message.error() is None for message in consumer.consume(10_000, 1.0))
    seconds = time.perf_counter() - began
    consumer.close()
    return seconds


def send_files(directory: Path) -> tuple[float, float]:
    """Sends the log files from the page cache over a loopback socket with sendfile, as both brokers do, without a
    protocol. Returns the seconds, and the sender's CPU seconds."""
    listener = socket.create_server(("127.0.0.1", 0))
    cpu_s = []

    def send_all() -> None:
        connection, _ = listener.accept()
        began = time.thread_time()
        with connection:
            for path in sorted(directory.glob("*.log")):
                with path.open("rb") as file:
                    while os.sendfile(connection.fileno(), file.fileno(), None, 1 << 20):
                        pass
        cpu_s.append(time.thread_time() - began)

    sender = threading.Thread(target=send_all, daemon=True)
    sender.start()
    began = time.perf_counter()
    buffer = bytearray(1 << 20)
    with socket.create_connection(listener.getsockname()) as connection:
        while connection.recv_into(buffer):
            pass
    seconds = time.perf_counter() - began
    sender.join()
    return seconds, cpu_s[0]


def receive_and_write(
    batches: Sequence[int], partitions: int, byte_count: int, directory: Path, *, with_fsync: bool
) -> tuple[float, float]:
    """Receives bytes from a loopback socket, checks the checksum of each batch and writes it to the file of its
    partition: the minimum work of any broker.

    Args:
        batches: sizes in bytes, repeated, for the partitions in turn.
        with_fsync: whether to fsync the files at the end.

    Returns:
        The seconds and the CPU seconds.
    """
    listener = socket.create_server(("127.0.0.1", 0))

    def send_all() -> None:
        with socket.create_connection(listener.getsockname()) as connection:
            chunk = memoryview(os.urandom(1 << 18))
            for start in range(0, byte_count, len(chunk)):
                connection.sendall(chunk[: byte_count - start])

    sender = threading.Thread(target=send_all, daemon=True)
    sender.start()
    buffer = memoryview(bytearray(max(1 << 18, 2 * max(batches))))
    sizes, partition_cycle, ends = itertools.cycle(batches), itertools.cycle(range(partitions)), [0] * partitions
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context((directory / str(index)).open("wb", buffering=0)) for index in range(partitions)]
        connection = stack.enter_context(listener.accept()[0])
        began, began_cpu = time.perf_counter(), time.thread_time()
        size, end = next(sizes), 0
        while received := connection.recv_into(buffer[end:]):
            at, end = 0, end + received
            while end - at >= size:
                batch, index = buffer[at : at + size], next(partition_cycle)
                crc32c(batch)
                ends[index] += os.pwrite(files[index].fileno(), batch, ends[index])
                at, size = at + size, next(sizes)
            buffer[: end - at] = buffer[at:end]
            end -= at
        for file in files if with_fsync else ():
            os.fdatasync(file.fileno())
        result = time.perf_counter() - began, time.thread_time() - began_cpu
    sender.join()
    return result


def batch_sizes(directory: Path) -> list[int]:
    """Returns the sizes of the batches of a log, in bytes, in order."""
    sizes: list[int] = []
    for path in sorted(directory.glob("*.log")):
        with path.open("rb") as file:
            sizes += [located.header.size for located in walk_file(file.fileno(), 0, path.stat().st_size)]
    return sizes


def show_rate(
    label: str, name: str, record_bytes: int, messages: int, seconds: float, cpu_s: float | None = None
) -> None:
    per_second = messages / seconds
    cpu = "" if cpu_s is None else f"{cpu_s / messages * 1e6:>12.2f}"
    megabytes = per_second * record_bytes / 1e6
    print(f"{label:<37}{name:<10}{record_bytes:>6}{per_second:>14,.0f}{megabytes:>8,.0f}{cpu}", flush=True)


def rates(brokers: Sequence[Broker], args: argparse.Namespace) -> None:
    print(f"{'':<37}{'':<10}{'bytes':>6}{'messages/s':>14}{'MB/s':>8}{'CPU us/msg':>12}")
    for record_bytes in args.bytes:
        mock: dict[str, object] = {"test.mock.num.brokers": 1, "compression.type": args.codec, "log_level": 0}
        seconds = produce(mock, "mock", 1, payload(record_bytes), args.messages)
        show_rate("baseline: produce to a mock", "-", record_bytes, args.messages, seconds)
        for partitions in args.partitions:
            rates_of(brokers, args, record_bytes, partitions)
    for broker in brokers:
        print(f"{broker.name}: started in {broker.start_s:.2f} s, has {broker.memory_mb():,.0f} MB in memory")


def rates_of(brokers: Sequence[Broker], args: argparse.Namespace, record_bytes: int, partitions: int) -> None:
    topic, value = f"rates-{record_bytes}-{partitions}", payload(record_bytes)
    for broker in brokers:
        make_topic(broker, topic, partitions)
    for is_idempotent in (False, True):
        settings: dict[str, object] = {"compression.type": args.codec, "enable.idempotence": is_idempotent}

        def take(broker: Broker, settings: dict[str, object] = settings) -> float:
            return produce({**broker.client, **settings}, topic, partitions, value, args.messages)

        directories = [broker.log_directory(topic) for broker in brokers if isinstance(broker, Bundled)]
        counts_before = [len(batch_sizes(directory)) for directory in directories]
        label = f"produce{', idempotent' if is_idempotent else ''}, {partitions} partitions"
        for broker, best in _rounds(brokers, args.rounds, take, args.messages * record_bytes):
            show_rate(label, broker.name, record_bytes, args.messages, *best)
        for directory, count in zip(directories, counts_before, strict=True):
            show_write(batch_sizes(directory)[count:], args, record_bytes, partitions, directory.parent)
    stored = 2 * args.rounds * args.messages
    for broker, best in _rounds(brokers, args.rounds, lambda broker: consume(broker, topic, partitions, stored)):
        show_rate(f"consume, {partitions} partitions", broker.name, record_bytes, stored, *best)
    for broker in brokers:
        if isinstance(broker, Bundled) and partitions == 1:
            show_rate(
                "baseline: send the log files", "-", record_bytes, stored, *send_files(broker.log_directory(topic))
            )


def show_write(
    batches: Sequence[int], args: argparse.Namespace, record_bytes: int, partitions: int, directory: Path
) -> None:
    """Prints the rate of receiving batches and writing them to the disk of the brokers, as a baseline. The best of as
    many rounds counts as for the brokers.

    Args:
        batches: sizes in bytes, as in the bundled broker's log.
        directory: a directory on the brokers' disk.
    """
    byte_count = sum(batches) * partitions // args.rounds
    result = []
    for _ in range(args.rounds):
        _make_ready(byte_count)
        with tempfile.TemporaryDirectory(dir=directory.parent) as scratch:
            with_fsync = args.fsync != "none"
            result.append(receive_and_write(batches, partitions, byte_count, Path(scratch), with_fsync=with_fsync))
    label = f"baseline: write {sum(batches) / len(batches) / 1000:,.1f} KB batches"
    show_rate(label, "-", record_bytes, args.messages, *min(result))


def _make_ready(byte_count: int) -> None:
    """Flushes the disk, and touches enough memory for the files of a round.

    A virtual machine's host allocates a page at its first use, which takes ten times as long as writing it. Without
    this, the first broker would bear that cost.
    """
    os.sync()  # otherwise the round waits for writes of the previous one
    chunk = bytes(1 << 20)
    with tempfile.TemporaryFile() as file:
        for _ in range(WARMUP_RATIO * byte_count // len(chunk) + 1):
            file.write(chunk)


def _rounds(
    brokers: Sequence[Broker], rounds: int, work: Callable[[Broker], float], byte_count: int = 0
) -> list[tuple[Broker, tuple[float, float]]]:
    """Runs the rounds of all brokers alternately. Returns for each broker the seconds of its fastest round, and the
    broker's CPU seconds in that round.

    Args:
        work: runs one round and returns its seconds.
        byte_count: bytes that a round writes.
    """
    result: dict[str, tuple[float, float]] = {}
    for _ in range(rounds):
        for broker in brokers:
            _make_ready(byte_count)
            before = broker.cpu_s()
            seconds = work(broker)
            result[broker.name] = min(result.get(broker.name, (float("inf"), 0.0)), (seconds, broker.cpu_s() - before))
    return [(broker, result[broker.name]) for broker in brokers]


# Latency


def latency(brokers: Sequence[Broker], args: argparse.Namespace) -> None:
    print(
        f"{'milliseconds at a steady rate':<34}{'':<10}{'msg/s':>8}{'p50':>9}{'p99':>9}{'p99.9':>9}{'CPU us/msg':>12}"
    )
    for rate in args.latency_rates:
        for broker in brokers:
            show_latency(broker, rate, args.seconds)


def show_latency(broker: Broker, rate: int, seconds: float, label: str = "") -> None:
    topic = make_topic(broker, f"latency-{rate}-{time.time_ns()}", 1)
    send_steadily(broker, topic, rate, 2.0)  # warms up client and broker
    before = broker.cpu_s()
    acknowledged, arrived = send_steadily(broker, topic, rate, seconds)
    cpu = (broker.cpu_s() - before) / len(acknowledged) * 1e6
    for name, seconds_each in ((f"{label}acknowledged", acknowledged), (f"{label}consumed", arrived)):
        seconds_each.sort()
        percentiles = "".join(
            f"{seconds_each[int(len(seconds_each) * fraction)] * 1000:>9.2f}" for fraction in (0.5, 0.99, 0.999)
        )
        print(f"{name:<34}{broker.name:<10}{rate:>8,}{percentiles}{cpu:>12.1f}", flush=True)


def send_steadily(broker: Broker, topic: str, rate: int, seconds: float) -> tuple[list[float], list[float]]:
    """Sends 100-byte messages at a steady rate and consumes them. Returns two lists, with an item per message: the
    seconds from sending it to its acknowledgement, and to its arrival at the consumer.

    Args:
        rate: messages per second.
        seconds: duration of sending.
    """
    count, acknowledged, arrived = int(rate * seconds), list[float](), list[float]()
    producer = confluent_kafka.Producer({**broker.client, "linger.ms": 0, "acks": "all"})
    consumer = confluent_kafka.Consumer(
        {
            **broker.client,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 500,
        }
    )
    (partition,) = [confluent_kafka.TopicPartition(topic, 0)]
    partition.offset = consumer.get_watermark_offsets(partition, timeout=TIMEOUT_S)[1]
    consumer.assign([partition])

    def receive() -> None:
        while len(arrived) < count:
            # One at a time: `consume` would wait until it has the requested number.
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                arrived.append(time.perf_counter() - _SENT_AT.unpack_from(message.value() or b"")[0])

    listener = threading.Thread(target=receive)
    listener.start()
    time.sleep(1.0)
    filler = b"x" * 92

    def send() -> None:
        sent_at = time.perf_counter()
        producer.produce(
            topic,
            _SENT_AT.pack(sent_at) + filler,
            partition=0,
            on_delivery=lambda error, message: acknowledged.append(time.perf_counter() - sent_at),
        )

    began = time.perf_counter()
    for number in range(count):
        while (early := began + number / rate - time.perf_counter()) > 0:
            producer.poll(min(early, 0.001))
        send()
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0
    listener.join()
    consumer.close()
    return acknowledged, arrived


# Large numbers of connections and partitions


def connections(brokers: Sequence[Broker], args: argparse.Namespace) -> None:
    for broker in brokers:
        host, _, port = broker.address.rpartition(":")
        before, began = broker.memory_mb(), time.perf_counter()
        buffers = ReceiveBuffers()
        stack = [BrokerConnection(host, int(port), TIMEOUT_S, UNSECURED, buffers) for _ in range(CONNECTIONS)]
        seconds, added_mb = time.perf_counter() - began, broker.memory_mb() - before
        print(f"{broker.name}: {CONNECTIONS} connections in {seconds:.2f} s, {added_mb:,.1f} MB more in memory")
        show_latency(broker, 1000, args.seconds, "with them open: ")
        for connection in stack:
            connection.close()


def idle(brokers: Sequence[Broker], args: argparse.Namespace) -> None:
    for broker in brokers:
        topic = make_topic(broker, "idle", IDLE_PARTITIONS)
        for has_session in (False, True):
            consumer = KafkaConsumer(
                bootstrap_servers=broker.address,
                enable_auto_commit=False,
                enable_incremental_fetch_sessions=has_session,
            )
            consumer.assign([TopicPartition(topic, index) for index in range(IDLE_PARTITIONS)])
            consumer.seek_to_beginning()
            _poll(consumer, IDLE_S / 2)
            before = broker.cpu_s()
            _poll(consumer, IDLE_S)
            cpu_ratio = (broker.cpu_s() - before) / IDLE_S
            kind = "with a session" if has_session else "by full fetches"
            print(
                f"{broker.name}: a consumer waits for {IDLE_PARTITIONS:,} partitions {kind}: {cpu_ratio:.1%} of a core"
            )
            consumer.close()


def _poll(consumer: KafkaConsumer, seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        consumer.poll(timeout_ms=500)


def metadata(brokers: Sequence[Broker], args: argparse.Namespace) -> None:
    for broker in brokers:
        make_topic(broker, "metadata", IDLE_PARTITIONS)
        admin = AdminClient(broker.client)
        partitions = sum(len(topic.partitions) for topic in admin.list_topics(timeout=TIMEOUT_S).topics.values())
        before = broker.cpu_s()
        for _ in range(METADATA_REQUESTS):
            admin.list_topics(timeout=TIMEOUT_S)
        each_ms = (broker.cpu_s() - before) / METADATA_REQUESTS * 1000
        print(f"{broker.name}: metadata of {partitions:,} partitions takes {each_ms:.1f} ms of CPU")


def recovery(brokers: Sequence[Broker], args: argparse.Namespace) -> None:
    value = payload(1000)
    for broker in brokers:
        topic = make_topic(broker, "recovery", 4)
        produce(broker.client, topic, 4, value, args.recovery_mb * 1000)
        broker.kill()
        broker.start()
        print(f"{broker.name}: killed with {args.recovery_mb:,} MB, served again after {broker.start_s:.2f} s")


MEASUREMENTS = {
    "rates": rates,
    "latency": latency,
    "connections": connections,
    "idle": idle,
    "metadata": metadata,
    "recovery": recovery,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brokers", nargs="+", choices=tuple(BROKERS), default=["headrace"])
    parser.add_argument("--measure", nargs="+", choices=tuple(MEASUREMENTS), default=["rates", "latency"])
    parser.add_argument("--fsync", choices=("none", "interval", "always"), default="interval")
    parser.add_argument("--messages", type=int, default=500_000, help="messages per round of the rates")
    parser.add_argument("--bytes", type=int, nargs="+", default=[100, 1000], help="sizes of a record's value")
    parser.add_argument("--partitions", type=int, nargs="+", default=[1])
    parser.add_argument("--codec", default="none", help="none, gzip, snappy, lz4 or zstd")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--latency-rates", type=int, nargs="+", default=[1000, 20_000], help="messages a second")
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of each latency measurement")
    parser.add_argument("--recovery-mb", type=int, default=500)
    parser.add_argument("--tls", action="store_true", help="all clients over TLS; rates, latency and recovery only")
    args = parser.parse_args()
    if args.tls and not {"rates", "latency", "recovery"}.issuperset(args.measure):
        parser.error("--tls requires --measure rates latency recovery")
    print(
        f"cores={len(os.sched_getaffinity(0))} load={os.getloadavg()[0]:.1f} fsync={args.fsync} codec={args.codec} "
        f"tls={args.tls} client=confluent-kafka {confluent_kafka.__version__} python={sys.version.split()[0]}"
    )
    with tempfile.TemporaryDirectory() as directory:
        brokers: list[Broker] = []
        try:
            for name in args.brokers:
                brokers.append(BROKERS[name](Path(directory) / name, args.fsync, args.tls))
            for label in args.measure:
                MEASUREMENTS[label](brokers, args)
        finally:
            for broker in brokers:
                broker.stop()


if __name__ == "__main__":
    main()
