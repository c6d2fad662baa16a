"""examples/registry: the image and the Kubernetes resources, without Docker and Kubernetes."""

from __future__ import annotations

import base64
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.registry.access.passwords import Cost, PasswordHash
from headrace.registry.access.required_permissions import PUBLIC, REQUIRED_PERMISSIONS
from headrace.registry.access.users import user_line
from headrace.settings import RegistrySettings
from support.checkout import ROOT
from support.registry.registry_calls import STRING, Registry
from support.running_service import StartService

DIRECTORY = ROOT / "examples" / "registry"
DOCUMENTS: list[dict[str, Any]] = list(yaml.safe_load_all((DIRECTORY / "kubernetes.yaml").read_text()))
BY_KIND = {document["kind"]: document for document in DOCUMENTS}
DEPLOYMENT = BY_KIND["Deployment"]["spec"]
CONTAINER = DEPLOYMENT["template"]["spec"]["containers"][0]
PREFIX = "HEADRACE__REGISTRY__"


def environment_of(container: dict[str, Any]) -> dict[str, str | None]:
    """Environment variables by name. Values from secrets are None."""
    return {item["name"]: item.get("value") for item in container["env"]}


def dockerfile() -> list[tuple[str, str]]:
    lines = (DIRECTORY / "Dockerfile").read_text().splitlines()
    return [(line.split()[0], line.partition(" ")[2]) for line in lines if line and not line.startswith("#")]


def test_ports_users_and_paths_of_the_files_match() -> None:
    labels = {"app": "headrace-registry"}
    assert DEPLOYMENT["selector"]["matchLabels"] == labels
    assert DEPLOYMENT["template"]["metadata"]["labels"] == labels
    assert BY_KIND["Service"]["spec"]["selector"] == labels
    assert BY_KIND["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    port = CONTAINER["ports"][0]
    assert BY_KIND["Service"]["spec"]["ports"][0]["targetPort"] == port["name"]
    assert environment_of(CONTAINER)[f"{PREFIX}LISTEN"] == f"0.0.0.0:{port['containerPort']}"
    assert dict(dockerfile())["EXPOSE"] == str(port["containerPort"])
    for container in (CONTAINER, BY_KIND["Job"]["spec"]["template"]["spec"]["containers"][0]):
        assert {item["valueFrom"]["secretKeyRef"]["key"] for item in container["env"] if "valueFrom" in item} <= set(
            BY_KIND["Secret"]["stringData"]
        )
        for name in environment_of(container):
            assert name.removeprefix(PREFIX).lower() in RegistrySettings.__slots__
    mounts = {item["mountPath"]: item["name"] for item in CONTAINER["volumeMounts"]}
    assert set(mounts.values()) == {item["name"] for item in DEPLOYMENT["template"]["spec"]["volumes"]}
    assert str(Path(str(environment_of(CONTAINER)[f"{PREFIX}USERS"])).parent) in mounts


@pytest.mark.parametrize("probe", ["startupProbe", "readinessProbe", "livenessProbe"])
def test_probes_use_public_routes(probe: str) -> None:
    request = CONTAINER[probe]["httpGet"]
    assert REQUIRED_PERMISSIONS["GET", request["path"]] is PUBLIC
    assert request["port"] == CONTAINER["ports"][0]["name"]
    assert (request["path"] == "/healthz") == (probe == "livenessProbe")


@pytest.mark.servers
def test_command_of_the_image_serves_a_registry(start_service: StartService, tmp_path: Path) -> None:
    """With the environment of image and pod, a separate database, and write access to two directories only."""
    steps = dockerfile()
    assert [name for name, _ in steps].count("FROM") == 2
    variables = dict(item.split("=", 1) for item in shlex.split(dict(steps)["ENV"]))
    command = json.loads(dict(steps)["ENTRYPOINT"]) + CONTAINER["args"]
    assert json.loads(dict(steps)["CMD"]) == CONTAINER["args"]
    data, users = tmp_path / "data", tmp_path / "users"
    data.mkdir()
    users.write_text(
        BY_KIND["Secret"]["stringData"]["users"].replace(
            "user  ops  CHANGE-ME", user_line("ops", PasswordHash.of("ops", b"salt", Cost(log2_n=4, r=1, p=1)))
        )
    )
    given = {name: value for name, value in environment_of(CONTAINER).items() if value is not None}
    environment = {
        **{name: value for name, value in variables.items() if name.startswith("HEADRACE")},
        **given,
        "HEADRACE__DATA_DIR": str(data),
        f"{PREFIX}USERS": str(users),
        f"{PREFIX}LISTEN": given[f"{PREFIX}LISTEN"].replace("0.0.0.0:8081", "127.0.0.1:0"),
        f"{PREFIX}DATABASE_URL": f"sqlite:///{data / 'registry.db'}",
    }
    upgrade = BY_KIND["Job"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert upgrade == ["registry", "db", "upgrade"]
    service = start_service(*command, environment=environment)
    registry = Registry(str(service.addresses["registry"]))
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert registry.get(CONTAINER[probe]["httpGet"]["path"]).status == 200
    assert registry.get("/subjects").status == 401
    ops = {"Authorization": "Basic " + base64.b64encode(b"ops:ops").decode()}
    assert registry.call("POST", "/subjects/a/versions", {"schema": STRING}, ops).status == 200
    # Both logs go to standard error, where the cluster collects them.
    assert service.stop() == 0
    lines = [json.loads(line) for line in service.errors if line.startswith("{")]
    assert [line["action"] for line in lines if "action" in line] == ["version_registered"]
    assert "/subjects/a/versions" in [line.get("path") for line in lines]


def test_image_is_built_from_the_checkout() -> None:
    """It installs no package with the name of this project."""
    runs = [text for name, text in dockerfile() if name == "RUN"]
    assert re.findall(r"pip install \S+ (\S+)", " ".join(runs)) == ["'.[registry]'"]
    account = dict(dockerfile())["USER"]
    assert account == str(DEPLOYMENT["template"]["spec"]["securityContext"]["runAsUser"])
    assert f"--uid {account}" in " ".join(runs)
