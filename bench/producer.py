"""Producer rate beside plain kafka-python's, in one run against one broker.

    python -m bench.producer --registry-url http://127.0.0.1:8081 --bootstrap-servers 127.0.0.1:9092

Prints per row: messages per second from the first send to the last acknowledgement, bytes per message and the CPU
seconds of this process per wall second. Plain kafka-python sends bytes that were encoded beforehand; the second plain
row encodes with fastavro inside the loop, which is what any Avro producer must do.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fastavro
from kafka import KafkaProducer

from headrace.pipeline.clients.producer import BATCH_BYTES, Producer
from headrace.settings import KafkaSettings, RegistrySettings, Settings

SCHEMA = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {
            "name": "header",
            "type": {
                "type": "record",
                "name": "Header",
                "fields": [
                    {"name": "time", "type": {"type": "long", "logicalType": "timestamp-millis"}},
                    {"name": "server", "type": "string"},
                    {"name": "service", "type": "string"},
                ],
            },
        },
        *({"name": f"number{n}", "type": "int"} for n in range(4)),
        *({"name": f"delay{n}", "type": ["null", "int"]} for n in range(6)),
        *({"name": f"text{n}", "type": "string"} for n in range(5)),
    ],
}
START_MS = 1_356_998_400_000
SPAN_MS = 7 * 86_400_000


def events(count: int) -> list[tuple[str, dict[str, Any]]]:
    """`count` events spread over a week of message time in order, with their keys."""
    return [
        (
            f"UA-{n % 5000}",
            {
                "header": {"time": START_MS + SPAN_MS * n // count, "server": "ewr-1", "service": "bench"},
                **{f"number{i}": n + i for i in range(4)},
                **{f"delay{i}": None if n % 50 == 0 else n % 300 for i in range(6)},
                **{f"text{i}": f"N{n % 3000 + i}" for i in range(5)},
            },
        )
        for n in range(count)
    ]


def plain(servers: str) -> KafkaProducer:
    return KafkaProducer(
        bootstrap_servers=servers, acks="all", linger_ms=5, batch_size=BATCH_BYTES, metrics_enabled=False
    )


def run_bytes(servers: str, sample: list[tuple[str, dict[str, Any]]]) -> Callable[[], int]:
    compiled = fastavro.parse_schema(SCHEMA)
    encoded = [(key.encode(), encode(compiled, value)) for key, value in sample]

    def send() -> int:
        producer = plain(servers)
        for key, value in encoded:
            producer.send("bench-plain", value, key)
        producer.flush()
        producer.close()
        return sum(len(key) + len(value) for key, value in encoded)

    return send


def run_avro(servers: str, sample: list[tuple[str, dict[str, Any]]]) -> Callable[[], int]:
    compiled = fastavro.parse_schema(SCHEMA)

    def send() -> int:
        producer = plain(servers)
        size = 0
        for key, value in sample:
            body = encode(compiled, value)
            size += len(key) + len(body)
            producer.send("bench-avro", body, key.encode())
        producer.flush()
        producer.close()
        return size

    return send


def run_headrace(settings: Settings, sample: list[tuple[str, dict[str, Any]]]) -> Callable[[], int]:
    schema = json.dumps(SCHEMA)

    def send() -> int:
        size = 0
        with Producer(settings, app="bench") as producer:
            for key, value in sample:
                size += producer.send("bench-headrace", value, key=key, schema=schema).size_bytes
        return size

    return send


def encode(compiled: Any, value: dict[str, Any]) -> bytes:
    body = BytesIO()
    body.write(b"\0\0\0\0\1")
    fastavro.schemaless_writer(body, compiled, value)
    return body.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--registry-url", required=True)
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    sample = events(args.messages)
    with TemporaryDirectory() as folder:
        settings = Settings(
            data_dir=Path(folder),
            registry=RegistrySettings(url=args.registry_url),
            kafka=KafkaSettings(bootstrap_servers=args.bootstrap_servers),
        )
        print(f"{args.messages} messages, {os.cpu_count()} cores, broker {args.bootstrap_servers}")
        for _ in range(args.rounds):
            for name, send in (
                ("kafka-python, ready bytes", run_bytes(args.bootstrap_servers, sample)),
                ("kafka-python + fastavro", run_avro(args.bootstrap_servers, sample)),
                ("headrace Producer, audited", run_headrace(settings, sample)),
            ):
                began, cpu = time.perf_counter(), time.process_time()
                size = send()
                took, cpu_s = time.perf_counter() - began, time.process_time() - cpu
                print(
                    f"{name:28} {args.messages / took:9,.0f} msg/s  {size / args.messages:5.0f} B/msg  "
                    f"{cpu_s / took:4.2f} cores  {took:6.2f} s"
                )


if __name__ == "__main__":
    main()
