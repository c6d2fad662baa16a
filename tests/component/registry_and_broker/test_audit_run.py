"""`headrace audit run`: counting the brokers' log independently of loads."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest
from confluent_kafka import Producer as ConfluentProducer

from headrace import Producer
from headrace.audit.row import AUDITOR, AuditRow, Tier
from headrace.audit.storage.store import AuditStore
from headrace.cli import main
from headrace.kafka_wire.cluster import KafkaCluster
from headrace.pipeline import log_counter
from headrace.pipeline.log_counter import LogCounter
from headrace.registry.client import RegistryClient
from headrace.settings import Settings
from support.broker.audit_topic import audit_rows

pytestmark = pytest.mark.servers

T0 = 1_356_998_400_000
SCHEMA = (
    '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}, '
    '{"name": "timestamp", "type": ["null", "long"]}]}'
)


def send(settings: Settings, topic: str, ids: range) -> None:
    with Producer(settings, app="shop") as producer:
        for n in ids:
            producer.send(topic, {"id": n, "timestamp": T0 + n * 10_000}, key=f"k{n}", schema=SCHEMA)


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


def test_topic_without_a_schema_waits(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    kafka = ConfluentProducer({"bootstrap.servers": settings.kafka.bootstrap_servers})
    kafka.produce("audited-unknown", b"{}")
    assert kafka.flush(30) == 0
    assert run_once(settings) == 2
    assert "topic audited-unknown: subject audited-unknown-value" in capsys.readouterr().err
    assert audited(settings, "audited-unknown") == []
