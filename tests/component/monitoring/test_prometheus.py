"""The examples for Prometheus, checked by its own programs, and a Prometheus that scrapes a running `headrace up`."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.loader.run_log import RunLine, append_line
from headrace.pipeline.metrics import render
from headrace.pipeline.status.metric import HISTOGRAM, METRICS, StatusMetric, histogram
from support.checkout import ROOT
from support.free_ports import free_port
from support.monitoring import dashboard_expressions, program, scrape_config, with_values
from support.running_service import StartService

EXAMPLES = ROOT / "examples" / "monitoring"
PROGRAMS = ("promtool", "amtool", "prometheus")
WAIT_S = 60

pytestmark = [
    pytest.mark.prometheus,
    pytest.mark.skipif(
        any(program(name) is None for name in PROGRAMS),
        reason="promtool, amtool and prometheus are not on the PATH; run make test-prometheus, or install Debian's "
        "packages prometheus and prometheus-alertmanager",
    ),
]


def run(name: str, *arguments: str, content: str = "") -> str:
    path = program(name)
    assert path is not None
    done = subprocess.run([path, *arguments], input=content, capture_output=True, text=True, cwd=EXAMPLES, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("promtool", "check", "rules", "headrace.rules.yml"),
        ("promtool", "test", "rules", "headrace.rules.test.yml"),
        ("promtool", "check", "config", "prometheus.yml"),
        ("amtool", "check-config", "alertmanager.yml"),
    ],
)
def test_examples_are_valid(command: tuple[str, ...]) -> None:
    run(*command)


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [(("alertname=HeadracePartDown", "severity=page"), "on-call"), (("alertname=X", "severity=ticket"), "tickets")],
)
def test_alerts_reach_the_receiver_of_their_severity(labels: tuple[str, ...], receiver: str) -> None:
    found = run("amtool", "config", "routes", "test", "--config.file=alertmanager.yml", *labels)
    assert found.split()[0] == receiver


def test_expressions_of_the_dashboard_are_valid(tmp_path: Path) -> None:
    dashboard = json.loads((EXAMPLES / "grafana-dashboard.json").read_text(encoding="utf-8"))
    expressions = map(with_values, dashboard_expressions(dashboard))
    recorded = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(expressions)]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}))
    run("promtool", "check", "rules", str(path))


def test_names_and_help_texts_follow_the_conventions() -> None:
    metrics: list[StatusMetric] = []
    for family in METRICS.values():
        if family.kind is HISTOGRAM:
            metrics += histogram(family.name, (1, 2), (1, 2, 3), 4)
        else:
            metrics.append(StatusMetric(family.name, 1, (("topic", 'a"\\\n'),)))
    run("promtool", "check", "metrics", content=render(metrics)[0].decode())


def query(port: int, expression: str) -> list[dict[str, Any]]:
    text = urllib.parse.urlencode({"query": expression})
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?{text}", timeout=5) as response:
            result: list[dict[str, Any]] = json.load(response)["data"]["result"]
            return result
    except OSError:
        return []


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Callable[[dict[str, str]], int]]:
    """Returns a function that starts a Prometheus with targets by job, and returns its port."""
    processes = []

    def start(targets: dict[str, str]) -> int:
        port = free_port()
        config = scrape_config(targets, tmp_path, EXAMPLES / "headrace.rules.yml")
        storage = (f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'tsdb'}")
        command = [program("prometheus") or "", *storage, f"--web.listen-address=127.0.0.1:{port}"]
        with (tmp_path / "prometheus.log").open("wb") as log:
            processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        return port

    yield start
    for process in processes:
        process.terminate()
        process.wait(WAIT_S)


def test_prometheus_scrapes_a_running_up_and_evaluates_the_rules(
    tmp_path: Path,
    start_service: StartService,
    prometheus: Callable[[dict[str, str]], int],
) -> None:
    data_dir = tmp_path / "data"
    append_line(data_dir / "logs" / "runs.jsonl", RunLine(1_000, 500, "committed", 0))
    broker_metrics = free_port()
    listen = ("--registry-listen", "--broker-listen", "--console-listen")
    free_ports = [word for flag in listen for word in (flag, "127.0.0.1:0")]
    environment = {"HEADRACE__BROKER__METRICS_LISTEN": f"127.0.0.1:{broker_metrics}"}
    arguments = ["headrace", "up", "--data-dir", str(data_dir), *free_ports, "--only", "registry,broker,console"]
    service = start_service(*arguments, environment=environment)
    targets = {
        "headrace": urllib.parse.urlsplit(service.addresses["console"]).netloc,
        "headrace-registry": urllib.parse.urlsplit(service.addresses["registry"]).netloc,
        "headrace-broker": f"127.0.0.1:{broker_metrics}",
    }
    port = prometheus(targets)
    alert = 'ALERTS{alertname="HeadraceLoadsNotSucceeding"}'  # the load of the run log is of 1970
    deadline = time.monotonic() + WAIT_S
    while not (len(query(port, "up == 1")) == 3 and query(port, alert)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert {one["metric"]["job"] for one in query(port, "up == 1")} == targets.keys()
    assert len(query(port, alert)) == 1
    parts = {one["metric"]["part"]: one["value"][1] for one in query(port, "headrace_up_part")}
    assert parts == {"up": "1", "registry": "1", "broker": "1", "console": "1"}
    assert query(port, "headrace_registry_database_up")[0]["value"][1] == "1"
    assert query(port, "headrace_broker_topics")[0]["value"][1] == "1"
    memory = {one["metric"]["part"] for one in query(port, "headrace_up_part_resident_memory_bytes > 1e7")}
    assert memory == {"registry", "broker", "console"}
