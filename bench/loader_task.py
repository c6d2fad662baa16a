"""Measures the messages per second of one task of a load, and of plain fastavro doing a part of its work.

    python bench/loader_task.py [--messages N] [--codec snappy]

The messages come from memory, in record batches as in a broker, so that only this process is measured: batch parsing,
checksum, decompression, projection, audit counting, container files, fsync; on one core. The baseline decodes and
encodes the same bodies with fastavro.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import statistics
import tempfile
import time
from typing import Any

import fastavro
from kafka.record.default_records import DefaultRecordBatchBuilder

from headrace.avro_schema import frame, parse_schema
from headrace.kafka_wire.cluster import FetchSlice
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader import task as task_module
from headrace.loader.build import current_build
from headrace.loader.load_schema import EMPTY, fold
from headrace.loader.policy import TopicPolicy
from headrace.loader.work_unit import OffsetRange, TaskSettings, TopicPlan, WorkUnit

HEADER = {
    "type": "record",
    "name": "Header",
    "fields": [
        {"name": "time", "type": "long"},
        {"name": "server", "type": "string"},
        {"name": "service", "type": "string"},
    ],
}
FIELDS: list[dict[str, Any]] = [
    {"name": "header", "type": HEADER},
    {"name": "page", "type": "string"},
    {"name": "referrer", "type": "string"},
    {"name": "user_agent", "type": "string"},
    {"name": "session", "type": "string"},
    {"name": "member", "type": "long"},
    {"name": "duration_ms", "type": "long"},
    {"name": "bytes", "type": "long"},
    {"name": "status", "type": "int"},
    {"name": "method", "type": {"type": "enum", "name": "Method", "symbols": ["GET", "POST", "PUT"]}},
    {"name": "retries", "type": ["null", "int"], "default": None},
    {"name": "campaign", "type": ["null", "string"], "default": None},
    {"name": "is_bot", "type": "boolean"},
]
V1 = json.dumps({"type": "record", "name": "PageView", "fields": FIELDS})
V2 = json.dumps(
    {
        "type": "record",
        "name": "PageView",
        "fields": [
            *({**field, "type": "long"} if field["name"] == "status" else field for field in FIELDS),
            {"name": "region", "type": "string", "default": "eu"},
            {"name": "score", "type": ["null", "double"], "default": None},
        ],
    }
)
START_MS = 1_357_000_000_000
BATCH_RECORDS = 500
KAFKA_CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--codec", default="snappy", choices=("null", "deflate", "snappy"))
    parser.add_argument("--kafka-codec", default="none", choices=sorted(KAFKA_CODECS))
    parser.add_argument("--days", type=int, default=1, help="number of days of message time")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    bodies = make_bodies(args.messages, args.days)
    size = statistics.fmean(len(body) for body in bodies)
    print(
        f"messages={args.messages} body_bytes={size:.0f} file_codec={args.codec} kafka_codec={args.kafka_codec} "
        f"days={args.days} cores=1 rounds={args.rounds} (best of)"
    )
    baseline(bodies, args.rounds)
    log = make_log(bodies, KAFKA_CODECS[args.kafka_codec])
    for name, versions in (("copied (writer is load schema)", [V1]), ("rewritten (v1 to v2)", [V1, V2])):
        state = EMPTY
        for number, text in enumerate(versions, 1):
            state = fold(state, number, parse_schema(text))
        rate = max(load(log, args.messages, state.text, args.codec) for _ in range(args.rounds))
        print(f"task, {name:32s} {rate:10,.0f} messages/s")


def make_bodies(count: int, days: int) -> list[bytes]:
    rng = random.Random(7)
    schema = fastavro.parse_schema(json.loads(V1))
    bodies = []
    for i in range(count):
        out = io.BytesIO()
        fastavro.schemaless_writer(
            out,
            schema,
            {
                "header": {
                    "time": START_MS + i * days * 86_400_000 // count,
                    "server": f"web-{rng.randrange(40)}",
                    "service": "shop",
                },
                "page": f"/product/{rng.randrange(100_000)}",
                "referrer": "https://example.org/search",
                "user_agent": "Mozilla/5.0 (X11)",
                "session": f"{rng.getrandbits(64):016x}",
                "member": rng.randrange(10_000_000),
                "duration_ms": rng.randrange(3_000),
                "bytes": rng.randrange(200_000),
                "status": rng.choice((200, 200, 304, 404)),
                "method": "GET",
                "retries": None if i % 3 else 1,
                "campaign": None if i % 5 else "spring",
                "is_bot": False,
            },
        )
        bodies.append(out.getvalue())
    return bodies


def make_log(bodies: list[bytes], codec: int) -> list[tuple[int, bytes]]:
    """Returns a log in memory: record batches with these message bodies, each with its base offset.

    Args:
        codec: number of the compression codec in Kafka's protocol.
    """
    log = []
    for base in range(0, len(bodies), BATCH_RECORDS):
        builder = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 1 << 24)
        for i, body in enumerate(bodies[base : base + BATCH_RECORDS]):
            builder.append(i, START_MS + base + i, b"key-%d" % (base + i), frame(1, body), [])
        batch = bytearray(builder.build())
        batch[:8] = base.to_bytes(8, "big")
        log.append((base, bytes(batch)))
    return log


class MemoryCluster:
    """A stand-in for the Kafka client of a task. It serves a log from memory, a few batches per fetch."""

    log: tuple[tuple[int, bytes], ...] = ()
    batches_per_fetch = 40

    def __init__(self, bootstrap_servers: str, timeout_s: float, **options: object) -> None:
        pass

    def prefetch(self, *where: object, **options: object) -> None:
        pass

    def expect_topics(self, topics: object) -> None:
        pass

    def fetch(self, topic_partition: TopicPartition, offset: int, max_bytes: int, **options: object) -> FetchSlice:
        first = offset // BATCH_RECORDS
        records = b"".join(batch for _, batch in self.log[first : first + self.batches_per_fetch])
        return FetchSlice(records, 1 << 40, 1 << 40, 0, (), "memory")

    def close(self) -> None:
        pass


def load(log: list[tuple[int, bytes]], messages: int, load_schema: str, codec: str) -> float:
    task_module.KafkaCluster = MemoryCluster  # type: ignore[assignment] # replaces the real cluster
    MemoryCluster.log = tuple(log)
    policy = TopicPolicy(
        partition_by="hour",
        kafka_column="position",
        codec=codec,
        time_fields=("header.time",),
        on_data_loss="fail",
        quarantine_ratio_max=0.1,
        record_bytes_max=64 * 1024 * 1024,
        corrupt_batches="fail",
        future_ms_max=None,
    )
    with tempfile.TemporaryDirectory() as directory:
        unit = WorkUnit(
            run_id="bench",
            task=0,
            ranges=(OffsetRange(TopicPartition("page-views", 0), 0, messages),),
            topics={"page-views": TopicPlan("page-views", load_schema, {1: V1}, policy)},
            settings=TaskSettings(
                bootstrap_servers="memory:1",
                staging=directory,
                file_bytes_target=256 * 1024 * 1024,
            ),
            build=current_build(),
        )
        started = time.perf_counter()
        result = task_module.run_work_unit(unit)
        elapsed = time.perf_counter() - started
    assert not result.error, result.error
    assert result.ranges[0].counts.records == messages, result.ranges[0]
    return messages / elapsed


def baseline(bodies: list[bytes], rounds: int) -> None:
    v1, v2 = (fastavro.parse_schema(json.loads(text)) for text in (V1, V2))
    best = {"decode": 0.0, "decode + encode": 0.0, "decode as v2 + encode": 0.0}
    for _ in range(rounds):
        started = time.perf_counter()
        for body in bodies:
            fastavro.schemaless_reader(io.BytesIO(body), v1, None)
        decoded = time.perf_counter()
        for body in bodies:
            fastavro.schemaless_writer(io.BytesIO(), v1, fastavro.schemaless_reader(io.BytesIO(body), v1, None))
        encoded = time.perf_counter()
        for body in bodies:
            fastavro.schemaless_writer(io.BytesIO(), v2, fastavro.schemaless_reader(io.BytesIO(body), v1, v2))
        resolved = time.perf_counter()
        spans = (decoded - started, encoded - decoded, resolved - encoded)
        for name, span in zip(best, spans, strict=True):
            best[name] = max(best[name], len(bodies) / span)
    for name, rate in best.items():
        print(f"fastavro, {name:28s} {rate:10,.0f} messages/s")


if __name__ == "__main__":
    main()
