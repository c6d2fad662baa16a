"""The page of the installation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.console.pages import system
from headrace.pipeline.status.finding import SourceReport, StatusFact, finding
from headrace.settings import KafkaSettings, RegistrySettings, Settings
from support.console import console_world, user_line

SECRET = "hunter2"
SETTINGS = Settings(
    registry=RegistrySettings(client_user="lea", client_password=SECRET, url=f"http://lea:{SECRET}@registry:8081"),
    kafka=KafkaSettings(bootstrap_servers="broker:9092", password=SECRET),
)
ORIGINS = {"kafka.bootstrap_servers": "/etc/headrace/<b>.toml", "registry.url": "the environment"}
REPORT = SourceReport(
    (StatusFact("registry", "up at http://registry:8081, process 7"), StatusFact("memory", "")),
    (finding("part-down", "broker", "<b>broker:9092</b> refuses connections"),),
)


@pytest.fixture(autouse=True)
def _parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "parts", lambda context: REPORT)


def test_settings_have_their_sources_and_masked_secrets(tmp_path: Path) -> None:
    client = console_world(tmp_path, settings=SETTINGS, origins=ORIGINS).client()
    found = {row["key"]: row for row in json.loads(client.get("/system?as=json").text)["rows"]}
    assert found["kafka.bootstrap_servers"]["value"] == "broker:9092"
    assert found["kafka.bootstrap_servers"]["from"] == ORIGINS["kafka.bootstrap_servers"]
    assert found["registry.url"]["from"] == "the environment"
    assert found["loader.interval"]["from"] == "default"
    assert found["registry.client_password"]["value"] == found["kafka.password"]["value"] == "***"
    assert {"HEADRACE_LOG_LEVEL", "data_dir"} <= found.keys()
    for path in ("/system", "/system?page=2", "/system?page=3", "/system?as=csv", "/system?as=json"):
        assert SECRET not in client.get(path).text
    assert "/etc/headrace/&lt;b&gt;.toml" in client.get("/system").text


def test_settings_need_the_permission_admin_on_everything(tmp_path: Path) -> None:
    users = user_line("lea") + user_line("kim") + "grant lea admin *\ngrant kim admin orders*\n"
    world = console_world(tmp_path, users, settings=SETTINGS)
    assert "kafka.bootstrap_servers" in world.signed_in("lea").get("/system?q=kafka").text
    kim = world.signed_in("kim")
    page = kim.get("/system?q=kafka").text
    assert "up at http://registry:8081" in page
    assert "broker:9092</td>" not in page
    assert "kafka.bootstrap_servers" not in page
    for form in ("csv", "json"):
        assert kim.get(f"/system?as={form}").status_code == 403


def test_parts_and_their_findings_are_shown(tmp_path: Path) -> None:
    page = console_world(tmp_path).client().get("/system").text
    assert "1.2.3" in page
    assert "up at http://registry:8081, process 7" in page
    assert "&lt;b&gt;broker:9092&lt;/b&gt; refuses connections." in page
    assert "<b>broker" not in page


def test_page_opens_without_an_answer_of_the_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(context: object) -> SourceReport:
        raise OSError(13, "Permission denied", "up.json")

    monkeypatch.setattr(system, "parts", fail)
    page = console_world(tmp_path).client().get("/system")
    assert page.status_code == 200
    assert "Permission denied: up.json" in page.text
    assert "loader.interval" in console_world(tmp_path).client().get("/system?q=loader.interval").text
