"""The alerts of Headrace in a real Alertmanager: `amtool` shows them, and its webhooks have the form of ours."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.pipeline.alerts.alert import Alert, AlertState
from headrace.pipeline.alerts.delivery import AlertEvent
from headrace.pipeline.alerts.message import Notice
from headrace.pipeline.alerts.rule import AlertSeverity
from headrace.pipeline.alerts.target import targets_of
from headrace.settings import AlertsSettings, Settings
from support.free_ports import free_port
from support.monitoring import UNPACKED, program
from support.webhook_receiver import WebhookReceiver, webhook_receiver

WAIT_S = 30
TEMPLATES = Path("/usr/share/prometheus/alertmanager/default.tmpl")
CONFIGURATION = """
route: {{receiver: hook, group_by: [alertname], group_wait: 1s, group_interval: 1s}}
receivers: [{{name: hook, webhook_configs: [{{url: '{url}/alertmanager'}}]}}]
"""

pytestmark = [
    pytest.mark.prometheus,
    pytest.mark.skipif(
        program("prometheus-alertmanager") is None or program("amtool") is None,
        reason="prometheus-alertmanager is not on the PATH; run make test-prometheus",
    ),
]


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with webhook_receiver() as receiver:
        yield receiver


@pytest.fixture
def alertmanager(tmp_path: Path, receiver: WebhookReceiver) -> Iterator[str]:
    """The URL of an Alertmanager that posts to the receiver."""
    config = tmp_path / "alertmanager.yml"
    config.write_text(CONFIGURATION.format(url=receiver.url))
    address = f"127.0.0.1:{free_port()}"
    options = [f"--config.file={config}", f"--storage.path={tmp_path}", f"--web.listen-address={address}"]
    log = (tmp_path / "alertmanager.log").open("w+b")
    process = subprocess.Popen([*command(), *options, "--cluster.listen-address="], stderr=log)
    try:
        wait_until(lambda: process.poll() is not None or is_ready(f"http://{address}/-/ready"))
        assert process.poll() is None, (tmp_path / "alertmanager.log").read_text()
        yield f"http://{address}"
    finally:
        process.kill()
        process.wait()
        log.close()


def command() -> tuple[str, ...]:
    """The command that starts an Alertmanager. Debian's reads its templates from /usr/share, so an unpacked one runs
    with its own /usr/share, in a mount namespace."""
    path = str(program("prometheus-alertmanager"))
    if TEMPLATES.exists():
        return (path,)
    script = 'mount --bind "$1" /usr/share && shift && exec "$@"'
    return ("unshare", "--mount", "--map-root-user", "sh", "-c", script, "sh", str(UNPACKED.parent / "share"), path)


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except (OSError, urllib.error.URLError):
        return False


def wait_until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.1)
    raise AssertionError("the condition did not become true")


def firing_in(alertmanager: str) -> dict[str, Any]:
    """The alerts that `amtool` shows, by subject."""
    query = [str(program("amtool")), "alert", "query", "--output=json", f"--alertmanager.url={alertmanager}"]
    done = subprocess.run(query, capture_output=True, check=True)
    return {one["labels"]["subject"]: one for one in json.loads(done.stdout)}


def types_of(value: Any) -> Any:
    """The types of a JSON document, with the keys of objects whose keys are part of the form."""
    if isinstance(value, dict):
        return {key: types_of(one) for key, one in value.items() if key not in ("labels", "annotations")}
    return [types_of(one) for one in value[:1]] if isinstance(value, list) else type(value).__name__


def test_alertmanager_shows_our_alerts_and_its_webhooks_have_our_form(
    alertmanager: str, receiver: WebhookReceiver
) -> None:
    now_ms = time.time_ns() // 1_000_000_000 * 1000 + 123  # Alertmanager omits zeros at the end of times
    alert = Alert(
        id="abcdef012345",
        fingerprint="0123456789abcdef",
        kind="audit-missing",
        subject='orders <b>"é\u202e',
        source="audit",
        problem="missing: 3 messages",
        show="headrace audit report",
        repair="send them again",
        severity=AlertSeverity.PAGE,
        state=AlertState.FIRING,
        opened_ms=now_ms,
        since_ms=now_ms - 60_000,
        seen_ms=now_ms,
    )
    other = dataclasses.replace(alert, subject="clicks")
    labels = {"environment": "test"}
    (ours,) = targets_of(Settings(alerts=AlertsSettings(alertmanager_url=alertmanager, labels=labels)))
    (hook,) = targets_of(Settings(alerts=AlertsSettings(webhook_urls=(f"{receiver.url}/headrace",), labels=labels)))

    notices = [Notice(one, AlertEvent.FIRING, now_ms) for one in (alert, other)]
    ours.send(notices, now_ms)
    found = firing_in(alertmanager)
    assert found.keys() == {alert.subject, "clicks"}
    assert found["clicks"]["labels"] == {
        "alertname": "audit-missing",
        "environment": "test",
        "service": "headrace",
        "severity": "page",
        "subject": "clicks",
    }
    assert found["clicks"]["annotations"]["repair"] == "send them again"

    wait_until(lambda: receiver.requests)
    hook.send(notices, now_ms)
    theirs, same = receiver.bodies[0], receiver.bodies[-1]
    assert types_of(same) == types_of(theirs)
    for key in ("version", "status", "truncatedAlerts", "groupKey", "groupLabels", "commonLabels", "commonAnnotations"):
        assert same[key] == theirs[key], key
    by_subject = {one["labels"]["subject"]: one for one in theirs["alerts"]}
    for one in same["alerts"]:
        for key in ("status", "labels", "annotations", "startsAt", "endsAt"):
            assert one[key] == by_subject[one["labels"]["subject"]][key], key

    ours.send([Notice(other, AlertEvent.RESOLVED, now_ms)], now_ms)
    wait_until(lambda: firing_in(alertmanager).keys() == {alert.subject})
    wait_until(lambda: ("clicks", "resolved") in receiver.events())
