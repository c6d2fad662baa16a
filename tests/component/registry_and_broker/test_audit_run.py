"""`headrace audit run`: counting the brokers' log independently of loads."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from confluent_kafka import Producer as ConfluentProducer
from kafka import KafkaAdminClient
from kafka import TopicPartition as KafkaPartition
from sqlalchemy.engine import Engine

from headrace import Producer
from headrace.audit.row import AUDITOR, AuditRow, Tier
from headrace.audit.storage import engine
from headrace.audit.storage.store import AuditStore
from headrace.cli import main
from headrace.cli.audit_run import Auditor
from headrace.kafka_wire.cluster import KafkaCluster
from headrace.kafka_wire.record_batch import split_batches
from headrace.pipeline import log_counter
from headrace.pipeline.log_counter import LogCounter
from headrace.pipeline.status.audit import audit
from headrace.pipeline.status.context import StatusContext
from headrace.pipeline.status.finding import StatusFinding
from headrace.registry.client import RegistryClient
from headrace.settings import KafkaSettings, Settings
from support.broker.audit_topic import audit_rows
from support.running_service import Service

pytestmark = pytest.mark.servers

T0 = 1_356_998_400_000
SCHEMA = (
    '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}, '
    '{"name": "timestamp", "type": ["null", "long"]}]}'
)

TWO_TIMES = (
    '{"type": "record", "name": "R", "fields": [{"name": "timestamp", "type": "long"}, '
    '{"name": "happened", "type": {"type": "long", "logicalType": "timestamp-millis"}}]}'
)


def send(settings: Settings, topic: str, ids: range, key: str = "") -> None:
    with Producer(settings, app="shop") as producer:
        for n in ids:
            producer.send(topic, {"id": n, "timestamp": T0 + n * 10_000}, key=key or f"k{n}", schema=SCHEMA)


def run_once(settings: Settings) -> int:
    return main(
        [
            *("audit", "run", "--once", "--data-dir", str(settings.data_dir)),
            *("--registry-url", settings.registry.url, "--bootstrap-servers", settings.kafka.bootstrap_servers),
        ]
    )


def totals(rows: list[AuditRow]) -> dict[int, tuple[int, int, int]]:
    """Returns messages, bytes and fingerprint by window."""
    found: dict[int, tuple[int, int, int]] = {}
    for row in rows:
        count, size, fingerprint = found.get(row.window_start_ms, (0, 0, 0))
        total = (fingerprint + row.fingerprint) % 2**64
        found[row.window_start_ms] = (count + row.count, size + row.bytes, total)
    return found


def audited(settings: Settings, topic: str) -> list[AuditRow]:
    return [row for row in audit_rows(settings, topic) if row.application == AUDITOR]


def test_auditor_counts_the_log_as_the_producer_does_and_only_once(settings: Settings) -> None:
    topic = "audited"
    send(settings, topic, range(200))
    run_once(settings)
    assert totals(audited(settings, topic)) == totals(
        [row for row in audit_rows(settings, topic) if row.tier is Tier.PRODUCER]
    )
    before = audited(settings, topic)
    run_once(settings)
    assert audited(settings, topic) == before
    send(settings, topic, range(200, 230))
    run_once(settings)
    rows = audited(settings, topic)
    assert totals(rows) == totals([row for row in audit_rows(settings, topic) if row.tier is Tier.PRODUCER])
    assert {(row.tier, row.outcome, row.late == row.count) for row in rows} == {("broker", "stored", True)}
    assert all(row.latency_p95_ms <= row.latency_p99_ms <= row.latency_max_ms for row in rows)
    assert all(row.latency_mean_ms > 0 for row in rows)


def test_garbage_is_counted_as_error_and_tombstones_are_not_counted(settings: Settings) -> None:
    topic = "audited-garbage"
    send(settings, topic, range(10))
    with Producer(settings, app="shop") as producer:
        producer.send(topic, {"id": 1, "timestamp": None}, schema=SCHEMA, timestamp_ms=T0)
    kafka = ConfluentProducer({"bootstrap.servers": settings.kafka.bootstrap_servers})
    for value in (b"{}", b"", b"\0\0\0\0\x63garbage", b"\0\xff\xff\xff\xff"):
        kafka.produce(topic, value, timestamp=T0)
    kafka.produce(topic, None, b"key", timestamp=T0)
    assert kafka.flush(30) == 0
    run_once(settings)
    rows = audited(settings, topic)
    assert sum(row.count for row in rows) == 15
    assert (sum(row.errors for row in rows), sum(row.no_time for row in rows)) == (4, 1)
    assert {row.window_start_ms for row in rows} == {T0}


def test_two_auditors_at_once_count_each_message_once(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = "audited-twice"
    send(settings, topic, range(300))
    monkeypatch.setattr(log_counter, "OFFSETS_MAX", 40)  # many transactions
    have_read = threading.Barrier(2, timeout=60)
    first_rounds = threading.local()

    class Meeting(AuditStore):
        """Both auditors have read the same messages when they store the first counts."""

        def add_log_counts(self, *arguments: object) -> bool:
            if not getattr(first_rounds, "is_over", False):
                first_rounds.is_over = True
                have_read.wait()
            return super().add_log_counts(*arguments)  # type: ignore[arg-type]

    counted = []

    def count_all() -> None:
        servers = settings.kafka.bootstrap_servers
        with (
            Meeting(settings.data_dir / "audit.db") as store,
            closing(KafkaCluster(servers, 30)) as cluster,
            closing(RegistryClient(settings.registry.url)) as registry,
        ):
            counter = LogCounter(settings, store, cluster, registry, sleep=lambda seconds: None)
            messages = 0
            while True:
                found = counter.count()
                messages += found.messages
                if not found.has_more:
                    counted.append(messages)
                    return

    threads = [threading.Thread(target=count_all) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(counted) == 2
    assert sum(row.count for row in audited(settings, topic)) == 300


@pytest.mark.parametrize("fault", ["locked", "full"])
def test_unwritable_database_delays_counting_and_nothing_is_counted_twice(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_S", 0.2)
    topic = f"audited-{fault}"
    send(settings, topic, range(0, 6_000, 60))  # a window for each message
    path = settings.data_dir / "audit.db"
    auditor = Auditor(settings, threading.Event())
    with AuditStore(path) as other, other.database.writing() if fault == "locked" else full_database(path):
        for _ in range(2):
            auditor.run_round()
            assert fault in auditor.problems["audit"]
    for _ in range(2):
        auditor.run_round()
        assert "audit" not in auditor.problems
    assert sum(row.count for row in audited(settings, topic)) == 100


@contextlib.contextmanager
def full_database(path: Path) -> Iterator[None]:
    """Lets no new connection to the database add pages to it."""

    def limit(connection: sqlite3.Connection, record: object) -> None:
        connection.execute("PRAGMA max_page_count = 1")  # the present number of pages

    with AuditStore(path):
        pass
    sa.event.listen(Engine, "connect", limit)
    try:
        yield
    finally:
        sa.event.remove(Engine, "connect", limit)


def test_corrupt_batch_is_a_finding_until_retention_deletes_it(
    settings: Settings, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    broker = Service(["headrace", "broker", "serve", "--data-dir", str(tmp_path), "--broker-listen", "127.0.0.1:0"])
    try:
        servers = KafkaSettings(bootstrap_servers=broker.addresses["broker"])
        settings = dataclasses.replace(settings, kafka=servers)
        topic = "audited-corrupt"
        for first in range(0, 30, 10):  # three batches
            send(settings, topic, range(first, first + 10), key="one")
        partition, start, end = flip_a_bit(tmp_path, topic)
        assert run_once(settings) == 1
        where = f"partition {partition}: offsets {start} to {end - 1}"
        printed = capsys.readouterr().out
        assert f"FINDING: topic {topic}: {where} cannot be counted: " in printed
        assert sum(row.count for row in audited(settings, topic)) == 30 - (end - start)
        assert run_once(settings) == 1, "the batch is still in the log"

        (one,) = findings(settings)
        assert (one.subject, one.count) == (topic, 1)
        assert where in one.problem
        later_ms = time.time_ns() // 1_000_000 + settings.audit.findings_ttl.ms
        assert findings(settings, later_ms) == []

        with KafkaAdminClient(bootstrap_servers=servers.bootstrap_servers) as admin:
            admin.delete_records({KafkaPartition(topic, partition): end})
        assert run_once(settings) == 0
        assert findings(settings) == []
    finally:
        broker.stop()


def findings(settings: Settings, now_ms: int | None = None) -> list[StatusFinding]:
    context = StatusContext(settings, time.time_ns() // 1_000_000 if now_ms is None else now_ms)
    return [one for one in audit(context).findings if one.kind == "audit-corrupt"]


def flip_a_bit(data_dir: Path, topic: str) -> tuple[int, int, int]:
    """Flips a bit in the second batch of the topic's only partition with messages. Returns the partition and the
    offsets of the batch."""
    (segment,) = [path for path in data_dir.rglob("*.log") if topic in str(path) and path.stat().st_size]
    second = list(split_batches(segment.read_bytes(), "here"))[1]
    with segment.open("r+b") as file:
        file.seek(second.end - 5)
        (byte,) = file.read(1)
        file.seek(second.end - 5)
        file.write(bytes([byte ^ 4]))
    assert second.next_base_offset is not None
    return int(segment.parent.name.rpartition("-")[2]), second.base_offset, second.next_base_offset


def test_window_is_that_of_the_field_that_the_subject_names(settings: Settings) -> None:
    topic = "audited-property"
    with RegistryClient(settings.registry.url) as registry:
        registry.register(f"{topic}-value", TWO_TIMES, metadata={"headrace.time": "happened"})
    with Producer(settings, app="shop") as producer:
        for n in range(20):
            event = {"happened": T0 + n * 60_000, "timestamp": T0 + 86_400_000}
            producer.send(topic, event, schema=TWO_TIMES, timestamp_ms=T0 + 2 * 86_400_000)
    run_once(settings)
    rows = audited(settings, topic)
    assert {start_ms: count for start_ms, (count, *_) in totals(rows).items()} == {T0: 10, T0 + 600_000: 10}
    produced = [row for row in audit_rows(settings, topic) if row.tier is Tier.PRODUCER]
    assert totals(rows) == totals(produced)


def test_topic_without_a_schema_waits(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    kafka = ConfluentProducer({"bootstrap.servers": settings.kafka.bootstrap_servers})
    kafka.produce("audited-unknown", b"{}")
    assert kafka.flush(30) == 0
    assert run_once(settings) == 2
    assert "topic audited-unknown: subject audited-unknown-value" in capsys.readouterr().err
    assert audited(settings, "audited-unknown") == []
