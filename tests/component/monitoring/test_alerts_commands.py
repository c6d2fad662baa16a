"""`headrace alerts` as processes: killed while it sends, run as a loop, and run by `headrace up`."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.pipeline.alerts.delivery import LEASE_MS
from headrace.pipeline.alerts.evaluate import evaluate_alerts
from headrace.settings import load_settings
from support.running_service import StartService
from support.webhook_receiver import WebhookReceiver, webhook_receiver

pytestmark = pytest.mark.servers

NOW_MS = 1_769_843_604_120
EVALUATION = """
import sys
from pathlib import Path
from headrace.pipeline.alerts.evaluate import evaluate_alerts
from headrace.settings import load_settings

evaluate_alerts(load_settings(config=Path(sys.argv[1])), int(sys.argv[2]))
"""
WAIT_S = 60


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with webhook_receiver() as receiver:
        yield receiver


@pytest.fixture
def config(tmp_path: Path, receiver: WebhookReceiver) -> Path:
    """A settings file with a rule that fires at once because nothing runs here."""
    path = tmp_path / "headrace.toml"
    path.write_text(
        f"alerts.webhook_urls = ['{receiver.url}/hook']\n"
        "[[alerts.rules]]\nkind = 'up-down'\nhold = '0s'\n[[alerts.rules]]\nkind = 'alerts-*'\nseverity = 'none'\n"
    )
    return path


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.05)


def test_an_evaluation_that_is_killed_between_sending_and_marking_is_repeated(
    config: Path, receiver: WebhookReceiver
) -> None:
    receiver.responses = [0]  # accepts the request, and does not respond
    process = subprocess.Popen([sys.executable, "-P", "-c", EVALUATION, str(config), str(NOW_MS)])
    wait_until(lambda: receiver.requests)
    process.kill()
    process.wait()
    settings = load_settings(config=config)
    assert evaluate_alerts(settings, NOW_MS + LEASE_MS - 1).delivered == 0
    assert evaluate_alerts(settings, NOW_MS + LEASE_MS).delivered == 1
    assert evaluate_alerts(settings, NOW_MS + 2 * LEASE_MS).delivered == 0
    assert receiver.events() == [("headrace up", "firing")] * 2


def test_two_loops_deliver_once_and_end_at_sigterm(
    config: Path, receiver: WebhookReceiver, start_service: StartService
) -> None:
    services = [start_service("headrace", "alerts", "run", "--config", str(config)) for _ in range(2)]
    assert [service.addresses for service in services] == [{"alerts": "1"}] * 2
    wait_until(lambda: receiver.requests)
    for service in services:
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(WAIT_S) == 0
    assert receiver.events() == [("headrace up", "firing")]


def test_up_runs_alerts_if_the_settings_name_a_target(
    config: Path, receiver: WebhookReceiver, start_service: StartService
) -> None:
    ports = ("--registry-listen", "127.0.0.1:0", "--broker-listen", "127.0.0.1:0")
    up = start_service("headrace", "up", "--config", str(config), "--only", "registry,broker,alerts", *ports)
    log = config.parent / "headrace-data" / "logs" / "up.log"
    wait_until(lambda: "part_ready" in log.read_text() and "part=alerts" in log.read_text())
    listed = subprocess.run(
        [sys.executable, "-P", "-m", "headrace", "alerts", "list", "--config", str(config)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "evaluated" in listed.stdout
    up.process.send_signal(signal.SIGTERM)
    assert up.process.wait(WAIT_S) == 0
    assert receiver.events() == []
