"""Compares the audited producer and consumer with confluent-kafka's Avro clients without an audit, in one run.

    python -m bench.producer [--messages 100000] [--rounds 3] [--compression snappy]

Starts a registry and a broker, unless `--registry-url` and `--bootstrap-servers` are given. The clients run
alternately. Prints for each the best round: messages per second from the first send to the last acknowledgement (or
from the first to the last received message), CPU time of this process per message, and the ratios to the baseline. All
encode the same values with the same schema. Broker and registry share the cores; with few cores the CPU time says more
about the clients than the rate.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import confluent_kafka
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from headrace import Consumer, KafkaSettings, Producer, RegistrySettings, Settings

START_MS = 1_767_225_600_000
SPAN_MS = 7 * 86_400_000
SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "PageView",
        "fields": [
            {"name": "timestamp", "type": "long"},
            {"name": "id", "type": "long"},
            {"name": "user", "type": "string"},
            {"name": "url", "type": "string"},
            {"name": "referrer", "type": ["null", "string"]},
            {"name": "agent", "type": {"type": "enum", "name": "Agent", "symbols": ["WEB", "IOS", "ANDROID"]}},
            {"name": "tags", "type": {"type": "map", "values": "string"}},
            {"name": "items", "type": {"type": "array", "items": "int"}},
            {"name": "latitude", "type": "double"},
            {"name": "longitude", "type": "double"},
            {"name": "is_member", "type": "boolean"},
            {
                "name": "device",
                "type": {
                    "type": "record",
                    "name": "Device",
                    "fields": [{"name": "kind", "type": "string"}, {"name": "width", "type": "int"}],
                },
            },
        ],
    }
)

Sample = list[tuple[str, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Rate:
    """The result of one round of a client."""

    messages_per_s: float
    cpu_us: float  # CPU time of this process per message


def page_views(count: int) -> Sample:
    """Returns `count` events of 12 fields over a week of message time, in order, with their keys."""
    return [
        (
            f"user-{n % 5000}",
            {
                "timestamp": START_MS + SPAN_MS * n // count,
                "id": n,
                "user": f"user-{n % 5000}",
                "url": f"https://shop.example/products/{n % 9973}",
                "referrer": None if n % 3 else "https://search.example/",
                "agent": ("WEB", "IOS", "ANDROID")[n % 3],
                "tags": {"campaign": f"c{n % 40}"},
                "items": [n % 100, n % 7],
                "latitude": 48.1 + n % 100 / 100,
                "longitude": 11.5 + n % 100 / 100,
                "is_member": n % 2 == 0,
                "device": {"kind": "phone", "width": 390},
            },
        )
        for n in range(count)
    ]


def produce_headrace(settings: Settings, topic: str, sample: Sample, compression: str) -> None:
    with Producer(settings, app="bench", compression=compression) as producer:
        for key, value in sample:
            producer.send(topic, value, key=key, schema=SCHEMA)


def produce_baseline(settings: Settings, topic: str, sample: Sample, compression: str) -> None:
    """Produces a sample with confluent-kafka's Avro serializer, as its documentation shows. Durability and the counting
    of failures are the same as in the audited producer.

    Args:
        sample: pairs of key and value.
        compression: compression codec; "" means none.
    """
    registry = SchemaRegistryClient({"url": settings.registry.url})
    serializer = AvroSerializer(registry, SCHEMA)
    context = SerializationContext(topic, MessageField.VALUE)
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": settings.kafka.bootstrap_servers,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            "compression.type": compression or "none",
            "partitioner": "murmur2_random",
        }
    )
    failed = 0

    def on_delivery(error: Any, message: Any) -> None:
        nonlocal failed
        failed += error is not None

    for key, value in sample:
        while True:
            try:
                producer.produce(topic, serializer(value, context), key, on_delivery=on_delivery)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(120) == 0
    assert not failed


def consume_headrace(settings: Settings, topic: str, count: int) -> None:
    with Consumer(settings, topics=[topic], until_end=True, app="bench") as consumer:
        assert sum(1 for _ in consumer) == count


def consume_baseline(settings: Settings, topic: str, count: int) -> None:
    registry = SchemaRegistryClient({"url": settings.registry.url})
    deserializer = AvroDeserializer(registry)
    context = SerializationContext(topic, MessageField.VALUE)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": settings.kafka.bootstrap_servers,
            "group.id": f"bench-{time.time_ns()}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    known = consumer.list_topics(topic, 30).topics[topic].partitions
    consumer.assign(
        [confluent_kafka.TopicPartition(topic, number, confluent_kafka.OFFSET_BEGINNING) for number in known]
    )
    left = count
    while left:
        for message in consumer.consume(500, 0.1):
            assert message.error() is None
            deserializer(message.value(), context)
            left -= 1
    consumer.close()


def timed(run: Callable[[], None], messages: int) -> Rate:
    began, cpu = time.perf_counter(), time.process_time()
    run()
    return Rate(messages / (time.perf_counter() - began), (time.process_time() - cpu) / messages * 1e6)


@contextmanager
def servers(directory: Path) -> Iterator[tuple[str, str]]:
    """Starts a registry and a broker for this run, and yields their addresses."""
    started = []
    try:
        for name in ("registry", "broker"):
            command = [sys.executable, "-m", "headrace", name, "serve", "--data-dir", str(directory)]
            process = subprocess.Popen(
                [*command, f"--{name}-listen", "127.0.0.1:0"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            started.append((name, process))
        found = []
        for name, process in started:
            assert process.stdout is not None
            ready = re.search(rf"{name}=(\S+)", process.stdout.readline())
            assert ready is not None, f"the {name} did not start"
            found.append(ready[1])
        yield found[0], found[1]
    finally:
        for _, process in started:
            process.terminate()
            process.wait()


def measure(settings: Settings, args: argparse.Namespace) -> None:
    sample = page_views(args.messages)
    gc.freeze()  # otherwise collections would traverse the sample, which an application does not hold
    run = time.time_ns()
    topics = {name: f"bench-{name}-{run}" for name in ("headrace", "baseline")}
    pairs: dict[str, dict[str, Callable[[], None]]] = {
        "produce": {
            "AvroSerializer + Producer": lambda: produce_baseline(
                settings, topics["baseline"], sample, args.compression
            ),
            "headrace.Producer, audited": lambda: produce_headrace(
                settings, topics["headrace"], sample, args.compression
            ),
        },
        "consume": {
            "AvroDeserializer + Consumer": lambda: consume_baseline(settings, topics["read"], args.messages),
            "headrace.Consumer, audited": lambda: consume_headrace(settings, topics["read"], args.messages),
        },
    }
    print(f"{'':8}{'client':30}{'messages/s':>12}{'ratio':>8}{'CPU us/message':>16}{'ratio':>8}")
    for direction, clients in pairs.items():
        if direction == "consume":
            topics["read"] = f"bench-read-{run}"
            produce_headrace(settings, topics["read"], sample, args.compression)
        rates: dict[str, list[Rate]] = {name: [] for name in clients}
        for _ in range(args.rounds):
            for name, client in clients.items():
                rates[name].append(timed(client, args.messages))
        baseline: Rate | None = None
        for name, found in rates.items():
            best = Rate(max(each.messages_per_s for each in found), min(each.cpu_us for each in found))
            baseline = baseline or best
            ratio, cpu_ratio = best.messages_per_s / baseline.messages_per_s, baseline.cpu_us / best.cpu_us
            rate = f"{best.messages_per_s:>12,.0f}{ratio:>7.2f}x"
            print(f"{direction:8}{name:30}{rate}{best.cpu_us:>16.2f}{cpu_ratio:>7.2f}x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--registry-url", default="", help="URL of a registry (default: start one)")
    parser.add_argument("--bootstrap-servers", default="", help="address of a broker (default: start one)")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compression", default="", help="gzip, snappy, lz4 or zstd; none")
    args = parser.parse_args()
    with TemporaryDirectory() as directory, servers(Path(directory)) as (own_registry, own_broker):
        settings = Settings(
            data_dir=Path(directory),
            registry=RegistrySettings(url=args.registry_url or own_registry),
            kafka=KafkaSettings(bootstrap_servers=args.bootstrap_servers or own_broker),
        )
        _, first = page_views(1)[0]
        print(
            f"{args.messages:,} messages of {len(first)} fields, {encoded_bytes(settings):,} bytes, "
            f"compression {args.compression or 'none'}, {os.cpu_count()} cores, Python {platform.python_version()}, "
            f"confluent-kafka {confluent_kafka.version()}, broker {args.bootstrap_servers or 'bundled'}"
        )
        measure(settings, args)


def encoded_bytes(settings: Settings) -> int:
    """Returns the size in bytes of a typical encoded value, by sending the 500th value of the sample."""
    with Producer(settings, app="bench") as producer:
        _, value = page_views(1000)[500]
        return producer.send(f"bench-size-{time.time_ns()}", value, schema=SCHEMA).size_bytes


if __name__ == "__main__":
    main()
