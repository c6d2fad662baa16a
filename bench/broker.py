"""How fast the broker takes and gives messages, beside baselines of the same run on the same machine.

    python bench/broker.py [--messages N] [--bytes 100 1000] [--codecs none lz4] [--fsync interval]

The client is confluent-kafka (librdkafka), so what is measured is client and broker together, on the cores that are
named. Baselines: for producing, the same client against librdkafka's own in-memory mock broker (C, keeps next to
nothing); for consuming, the same log files sent over a loopback socket without any protocol.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import confluent_kafka

TOPIC = "bench"


@dataclass(frozen=True, slots=True)
class Rate:
    """What happened to `messages` messages of `record_bytes` each in `seconds`."""

    what: str
    record_bytes: int
    codec: str
    messages: int
    seconds: float

    def row(self) -> str:
        per_second = self.messages / self.seconds
        return (
            f"{self.what:<34}{self.record_bytes:>8}{self.codec:>8}{per_second:>14,.0f}"
            f"{per_second * self.record_bytes / 1e6:>12,.0f}"
        )


@contextmanager
def running_broker(data_dir: Path, fsync: str) -> Iterator[str]:
    command = [sys.executable, "-m", "headrace", "broker", "serve", "--broker-listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, "--data-dir", str(data_dir)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=Path(__file__).resolve().parent.parent,
        env={**os.environ, "HEADRACE__BROKER__FSYNC": fsync, "HEADRACE__BROKER__PARTITIONS": "1"},
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip().removeprefix("ready broker=")
    finally:
        process.terminate()
        process.wait()


def payload(record_bytes: int) -> bytes:
    """Text that compresses about as well as JSON events do."""
    return (b'{"flight": %d, "carrier": "UA", "origin": "EWR"} ' * (record_bytes // 20 + 1))[:record_bytes]


def produce(settings: dict[str, object], value: bytes, messages: int) -> float:
    producer = confluent_kafka.Producer(
        {"linger.ms": 5, "batch.size": 1_000_000, "queue.buffering.max.messages": 1_000_000, **settings}
    )
    began = time.perf_counter()
    for number in range(messages):
        while True:
            try:
                producer.produce(TOPIC, value, partition=0)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 1024 == 0:
            producer.poll(0)
    assert producer.flush(120) == 0
    return time.perf_counter() - began


def consume(address: str, messages: int) -> float:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 4_000_000,
            "queued.min.messages": 1_000_000,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
    began = time.perf_counter()
    seen = 0
    while seen < messages:
        seen += sum(message.error() is None for message in consumer.consume(10_000, 1.0))
    seconds = time.perf_counter() - began
    consumer.close()
    return seconds


def send_files(folder: Path) -> float:
    """Sends the log files over a loopback socket, in chunks of 1 MiB."""
    listener = socket.create_server(("127.0.0.1", 0))

    def give() -> None:
        connection, _ = listener.accept()
        with connection:
            for path in sorted(folder.glob("*.log")):
                with path.open("rb") as file:
                    while chunk := file.read(1 << 20):
                        connection.sendall(chunk)

    threading.Thread(target=give, daemon=True).start()
    began = time.perf_counter()
    buffer = bytearray(1 << 20)
    with socket.create_connection(listener.getsockname()) as connection:
        while connection.recv_into(buffer):
            pass
    return time.perf_counter() - began


def measure(record_bytes: int, codec: str, messages: int, fsync: str, show: Callable[[Rate], None]) -> None:
    value = payload(record_bytes)
    mock = produce({"test.mock.num.brokers": 1, "compression.type": codec, "log_level": 0}, value, messages)
    show(Rate("baseline: produce to a mock", record_bytes, codec, messages, mock))
    with tempfile.TemporaryDirectory() as folder, running_broker(Path(folder), fsync) as address:
        settings: dict[str, object] = {"bootstrap.servers": address, "compression.type": codec}
        seconds = produce({**settings, "enable.idempotence": False}, value, messages)
        show(Rate("produce", record_bytes, codec, messages, seconds))
        seconds = produce({**settings, "enable.idempotence": True}, value, messages)
        show(Rate("produce, idempotent", record_bytes, codec, messages, seconds))
        show(Rate("consume", record_bytes, codec, 2 * messages, consume(address, 2 * messages)))
        bare = send_files(Path(folder) / "broker" / f"{TOPIC}-0")
        show(Rate("baseline: send the log files", record_bytes, codec, 2 * messages, bare))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=500_000, help="of each measurement")
    parser.add_argument("--bytes", type=int, nargs="+", default=[100, 1000], help="sizes of a record's value")
    parser.add_argument("--codecs", nargs="+", default=["none", "lz4"])
    parser.add_argument("--fsync", choices=("none", "interval", "always"), default="interval")
    args = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    print(
        f"cores={cores} load={os.getloadavg()[0]:.1f} fsync={args.fsync} client=confluent-kafka "
        f"{confluent_kafka.__version__} python={sys.version.split()[0]}"
    )
    print(f"{'':<34}{'bytes':>8}{'codec':>8}{'messages/s':>14}{'MB/s':>12}")
    for record_bytes in args.bytes:
        for codec in args.codecs:
            measure(record_bytes, codec, args.messages, args.fsync, lambda rate: print(rate.row(), flush=True))


if __name__ == "__main__":
    main()
