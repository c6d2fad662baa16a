"""The interceptors of `examples/java-audit` in Kafka's Java client: `tests/support/java/AuditedRound.java`."""

from __future__ import annotations

import json
import subprocess
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Consumer as ConfluentConsumer

from headrace.audit.count import MessageTally, WindowCounter
from headrace.audit.row import AuditOutcome, AuditRow, Tier, range_row_id
from headrace.audit.schema import AUDIT_SCHEMA
from headrace.audit.storage.store import AuditStore
from headrace.audit.window import WINDOW_MS
from headrace.cli import main
from headrace.settings import Settings
from support.broker.audit_topic import audit_rows
from support.checkout import ROOT
from support.java_oracle import compile_program
from support.servers.maven_jars import classpath_of

EXAMPLE = ROOT / "examples" / "java-audit" / "src" / "main"
RESOURCES = EXAMPLE / "resources"
MESSAGES = 1_500
T0 = 1_356_998_400_000
TIMEOUT_S = 120


@pytest.mark.java
def test_counts_of_a_java_producer_and_consumer_are_complete(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = f"java-audit-{uuid.uuid4().hex[:8]}"
    run_round(settings, topic, tmp_path)
    counted = count_log(settings, topic)
    rows = audit_rows(settings, topic)
    produced = [row for row in rows if row.tier is Tier.PRODUCER]
    assert sums(produced) == sums([row for row in rows if row.tier is Tier.CONSUMER]) == counted
    assert (sum(row.sent for row in produced), sum(row.errors for row in produced)) == (MESSAGES + 1, 1)
    assert {(row.application, row.datacenter) for row in rows} == {("shop", "fra"), ("billing", "fra")}
    assert all(row.late == row.count and row.latency_max_ms >= row.latency_p95_ms for row in rows)
    add_log_and_tables(settings, topic, counted)
    flags = ["--data-dir", str(settings.data_dir), "--registry-url", settings.registry.url]
    flags += ["--bootstrap-servers", settings.kafka.bootstrap_servers, "--topic", topic, "--format", "json"]
    main(["audit", "report", *flags])
    (found,) = json.loads(capsys.readouterr().out)["topics"]
    assert found["counts"] == {
        "sent": MESSAGES + 1,
        "acknowledged": MESSAGES,
        "stored": MESSAGES,
        "written": MESSAGES,
        "consumed by billing": MESSAGES,
    }
    assert (found["verdict"], found["incomplete_windows"]) == ("complete", [])


def test_schema_of_the_java_example_is_the_audit_schema() -> None:
    assert json.loads((RESOURCES / "headrace/audit/audit-row.avsc").read_text("utf-8")) == json.loads(AUDIT_SCHEMA)


def run_round(settings: Settings, topic: str, directory: Path) -> None:
    classpath, example, classes = classpath_of("kafka"), directory / "example", directory / "classes"
    sources = [str(path) for path in (EXAMPLE / "java").rglob("*.java")]
    command = ["javac", "--release", "17", "-proc:none", "-cp", classpath, "-d", str(example), *sources]
    subprocess.run(command, check=True, timeout=TIMEOUT_S)
    compile_program("AuditedRound", f"{example}:{classpath}", classes)
    where = f"{classes}:{example}:{RESOURCES}:{classpath}"
    arguments = [settings.kafka.bootstrap_servers, settings.registry.url, topic, str(MESSAGES), str(T0)]
    done = subprocess.run(
        ["java", "-Xmx256m", "-cp", where, "AuditedRound", *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"read {MESSAGES + 1}" in done.stdout  # with the tombstone
    assert "not published" not in done.stdout + done.stderr


def count_log(settings: Settings, topic: str) -> dict[int, MessageTally]:
    """Counts the messages in the log by window."""
    options = {"bootstrap.servers": settings.kafka.bootstrap_servers, "group.id": topic}
    consumer = ConfluentConsumer({**options, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    counter, read = WindowCounter(), 0
    while read < MESSAGES + 1:
        for message in consumer.consume(500, 1.0):
            assert message.error() is None
            read += 1
            if message.value() is not None:
                counter.add(topic, message.timestamp()[1], message.key(), message.value())
    consumer.close()
    return {start_ms: tally for _, start_ms, tally in counter}


def sums(rows: list[AuditRow]) -> dict[int, MessageTally]:
    found: dict[int, MessageTally] = {}
    for row in rows:
        found.setdefault(row.window_start_ms, MessageTally()).add(row.count, row.bytes, row.fingerprint)
    return {start_ms: tally for start_ms, tally in found.items() if tally.count}


def add_log_and_tables(settings: Settings, topic: str, counted: dict[int, MessageTally]) -> None:
    """Stands for a load: stores the counts of the log as those of broker and loader."""
    with AuditStore(settings.data_dir / "audit.db") as store:
        store.add_rows(
            [
                AuditRow(
                    id=range_row_id(tier, outcome, topic, 0, start_ms, start_ms + 1, start_ms),
                    tier=tier,
                    outcome=outcome,
                    topic=topic,
                    window_start_ms=start_ms,
                    count=tally.count,
                    bytes=tally.bytes,
                    fingerprint=tally.fingerprint,
                    application="load",
                    host="h",
                    instance="i",
                    emitted_at_ms=start_ms + WINDOW_MS,
                    partition=0,
                    start=start_ms,
                    end=start_ms + 1,
                )
                for tier, outcome in ((Tier.BROKER, AuditOutcome.STORED), (Tier.LOADER, AuditOutcome.WRITTEN))
                for start_ms, tally in counted.items()
            ]
        )
