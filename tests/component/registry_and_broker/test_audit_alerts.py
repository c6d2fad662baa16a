"""From deleted messages to a notification: `headrace audit run` and evaluations of the alerts as processes, with kills
and a receiver that fails."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace import Producer
from headrace.audit.storage.store import AuditStore
from headrace.pipeline.alerts.delivery import BACK_OFF_MS, LEASE_MS
from headrace.settings import Settings
from support.running_service import StartService
from support.webhook_receiver import WebhookReceiver, webhook_receiver

pytestmark = pytest.mark.servers

T0 = 1_356_998_400_000
SCHEMA = '{"type": "record", "name": "R", "fields": [{"name": "timestamp", "type": "long"}]}'
TOPIC = "lost"
WAIT_S = 60
EVALUATION = """
import sys
from pathlib import Path
from headrace.pipeline.alerts.evaluate import evaluate_alerts
from headrace.settings import load_settings

result = evaluate_alerts(load_settings(config=Path(sys.argv[1])), int(sys.argv[2]))
print(result.delivered)
"""


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with webhook_receiver() as receiver:
        yield receiver


@pytest.fixture
def config(settings: Settings, receiver: WebhookReceiver) -> Path:
    """A settings file whose only rule is that of missing messages, without a hold."""
    path = settings.data_dir / "headrace.toml"
    path.write_text(
        f"data_dir = '{settings.data_dir}'\n"
        f"registry.url = '{settings.registry.url}'\n"
        f"kafka.bootstrap_servers = '{settings.kafka.bootstrap_servers}'\n"
        "audit.grace = '0s'\n"
        f"alerts.webhook_urls = ['{receiver.url}/hook']\n"
        "[[alerts.rules]]\nkind = 'audit-missing'\nseverity = 'page'\nhold = '0s'\n"
        "[[alerts.rules]]\nkind = '*'\nseverity = 'none'\n"
    )
    return path


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.05)


def evaluation(config: Path, now_ms: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-c", EVALUATION, str(config), str(now_ms)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def lose_messages(settings: Settings) -> None:
    """Sends 40 messages of one window, and deletes the first five before anything has counted the log."""
    admin = AdminClient({"bootstrap.servers": settings.kafka.bootstrap_servers})
    admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(WAIT_S)
    with Producer(settings, app="shop") as producer:
        for number in range(40):
            producer.send(TOPIC, {"timestamp": T0 + number}, schema=SCHEMA)
    for future in admin.delete_records([TopicPartition(TOPIC, 0, 5)]).values():
        future.result(WAIT_S)


def test_missing_messages_are_delivered_although_auditor_sender_and_receiver_fail(
    settings: Settings, config: Path, receiver: WebhookReceiver, start_service: StartService
) -> None:
    lose_messages(settings)
    auditor = start_service("headrace", "audit", "run", "--config", str(config))
    with AuditStore(settings.data_dir / "audit.db") as store:
        wait_until(lambda: store.incidents(0, only_open=True))
        auditor.process.kill()
        (incident,) = store.incidents(0)
        assert (incident.topics, incident.missing) == ((TOPIC,), 5)
    receiver.responses = [500, 0]
    now_ms = time.time_ns() // 1_000_000
    assert evaluation(config, now_ms).communicate() == ("0\n", None)
    killed = evaluation(config, now_ms + BACK_OFF_MS)
    wait_until(lambda: len(receiver.requests) == 2)
    killed.kill()
    killed.communicate()
    start_service("headrace", "audit", "run", "--config", str(config))
    sent = [
        evaluation(config, now_ms + BACK_OFF_MS + after_ms).communicate()[0]
        for after_ms in (LEASE_MS - 1, LEASE_MS, 2 * LEASE_MS)
    ]
    assert sent == ["0\n", "1\n", "0\n"]
    assert receiver.events() == [(TOPIC, "firing")] * 3  # refused, killed, accepted
    fingerprints = {one["fingerprint"] for body in receiver.bodies for one in body["alerts"]}
    assert len(fingerprints) == 1
    description = receiver.bodies[-1]["alerts"][0]["annotations"]["description"]
    assert re.search(r"\b5 of 40 messages\b.*\bsent by shop on ", description)
