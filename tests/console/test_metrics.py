"""The console's page for Prometheus."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.console.pages import now
from headrace.loader.run_log import RunLine, append_line
from headrace.pipeline.status.finding import PlatformStatus
from headrace.settings import Settings
from support.console import PASSWORD, console_world, user_line


def samples(page: str) -> dict[tuple[str, tuple[str, ...]], float]:
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_page_has_the_platform_and_the_requests_of_the_console(tmp_path: Path) -> None:
    append_line(tmp_path / "logs" / "runs.jsonl", RunLine(1_000, 500, "failed", 2))
    client = console_world(tmp_path).client()
    client.get("/nope")
    client.get("/healthz")
    response = client.get("/metrics")
    assert response.content_type.startswith("text/plain; version=0.0.4")
    found = samples(response.text)
    assert found["headrace_load_runs_total", ("failed",)] == 1
    assert found["headrace_status_findings", ("load-failed", "failure")] == 1
    assert found["headrace_console_requests_total", ("", "404")] == 1
    assert found["headrace_console_requests_total", ("health.healthz", "200")] == 1
    assert found["headrace_console_request_seconds_count", ()] == 2


def test_programs_without_credentials_get_401_and_not_the_page_that_signs_in(tmp_path: Path) -> None:
    client = console_world(tmp_path, user_line("lea") + "grant lea read *\n").client()
    assert client.get("/metrics").status_code == 401
    token = base64.b64encode(f"lea:{PASSWORD}".encode()).decode()
    assert client.get("/metrics", headers={"Authorization": f"Basic {token}"}).status_code == 200


def test_status_that_cannot_be_read_fails_the_scrape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(settings: Settings, **_: object) -> PlatformStatus:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(now, "platform_status", broken)
    response = console_world(tmp_path).client().get("/metrics")
    assert response.status_code == 503
    assert "Input/output error" in response.text
