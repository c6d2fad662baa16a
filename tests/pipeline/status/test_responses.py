"""The share of error responses of servers, and replicas that are late."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from headrace.pipeline.status.context import StatusContext
from headrace.pipeline.status.finding import StatusFinding
from headrace.pipeline.status.parts import REPLICATION_LAG_S_MAX, parts, probed_parts
from headrace.pipeline.status.probe import Health, ProbeResult, ResponseCounts, probe_pages
from headrace.pipeline.status.responses import (
    AGE_MS_MAX,
    AGE_MS_MIN,
    ERRORS_MIN,
    SAMPLE_MS,
    SAMPLES_NAME,
    error_shares,
    record_responses,
)
from headrace.pipeline.status.samples import read_samples
from headrace.settings import RegistrySettings, Settings
from support.console import console_world
from support.registry.scripted_http import ReceivedRequest, scripted_server

URL = "http://registry:8081"
START_MS = 1_795_000_200_000


def probed(responses: int, errors: int) -> dict[str, ProbeResult]:
    counts = {URL: ResponseCounts(responses, errors)}
    return {"registry": ProbeResult(URL, Health.UP, responses=counts), "broker": ProbeResult("b", Health.UP)}


@pytest.mark.parametrize(
    ("before", "now", "age_ms", "share"),
    [
        ((1_000, 0), (1_500, ERRORS_MIN), AGE_MS_MIN, 0.01),
        ((1_000, 0), (1_600, ERRORS_MIN + 1), AGE_MS_MIN, 0.01),  # not more than 1 %
        ((1_000, 0), (1_599, ERRORS_MIN + 1), AGE_MS_MIN, (ERRORS_MIN + 1) / 599),
        ((1_000, 0), (1_006, ERRORS_MIN + 1), AGE_MS_MAX, 1.0),
        ((1_000, 900), (2_000, 900), AGE_MS_MIN, 0.0),  # old errors
        ((1_000, 900), (100, 50), AGE_MS_MIN, 0.5),  # restarted
        ((1_000, 0), (1_100, 100), AGE_MS_MIN - 1, None),
        ((1_000, 0), (1_100, 100), AGE_MS_MAX + 1, None),
        ((1_000, 0), (1_000, 0), AGE_MS_MIN, None),
    ],
)
def test_more_than_1_percent_of_errors_in_the_last_minutes_is_a_finding(
    tmp_path: Path, before: tuple[int, int], now: tuple[int, int], age_ms: int, share: float | None
) -> None:
    settings = Settings(data_dir=tmp_path)
    record_responses(StatusContext(settings, START_MS), probed(*before))
    context = StatusContext(settings, START_MS + age_ms)
    record_responses(context, probed(*now))
    metrics, findings = error_shares(context, probed(*now))
    assert [(one.labels, one.value) for one in metrics] == ([] if share is None else [((("part", "registry"),), share)])
    is_found = share is not None and share > 0.01
    assert [(one.kind, one.subject) for one in findings] == ([("server-errors", "registry")] if is_found else [])


def test_samples_are_recorded_once_a_minute_and_only_of_servers_that_count(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    record_responses(StatusContext(settings, START_MS), {"broker": ProbeResult("b", Health.UP)})
    for time_ms in (START_MS, START_MS + SAMPLE_MS - 1, START_MS + SAMPLE_MS):
        record_responses(StatusContext(settings, time_ms), probed(7, 2))
    samples = read_samples(tmp_path / "logs" / SAMPLES_NAME)
    assert [one.time_ms for one in samples] == [START_MS, START_MS + SAMPLE_MS]
    assert samples[0].values == {f"{URL} all": 7, f"{URL} errors": 2}


METRICS = """# TYPE headrace_registry_requests counter
headrace_registry_requests_total{method="GET",route="/subjects",status="200",cached="false"} 90.0
headrace_registry_requests_total{method="GET",route="/x/{name}, 5",status="503",cached="false"} 10.0
# TYPE headrace_registry_replication_lag_seconds gauge
headrace_registry_replication_lag_seconds LAG
"""


def registry_findings(tmp_path: Path, page: tuple[Any, ...]) -> tuple[list[StatusFinding], ProbeResult]:
    def script(request: ReceivedRequest) -> tuple[Any, ...]:
        return page if "/metrics" in request.line else (200, {"status": "ok"})

    with scripted_server(script) as server:
        settings = Settings(data_dir=tmp_path, registry=RegistrySettings(url=server.url))
        context = StatusContext(settings, expects_servers=False)
        found = [one for one in parts(context).findings if one.kind in ("replica-late", "server-errors")]
        return found, probed_parts(context)["registry"]


@pytest.mark.parametrize(
    ("lag_s", "start"),
    [(REPLICATION_LAG_S_MAX, None), (420.0, "7 minutes behind"), (None, "it has never been copied")],
)
def test_a_replica_that_is_five_minutes_behind_is_a_finding(
    tmp_path: Path, lag_s: float | None, start: str | None
) -> None:
    found, result = registry_findings(tmp_path, (200, METRICS.replace("LAG", str(lag_s or time.time()))))
    assert [one.problem.startswith(start or "?") for one in found] == ([] if start is None else [True])
    assert list(result.responses.values()) == [(100, 10)]
    assert all(one.kind == "replica-late" and one.severity == 2 for one in found)


@pytest.mark.parametrize("page", [(403, {"error_code": 40301}), (404, {}), (200, "<html>"), (200, "a 1\n")])
def test_a_page_of_metrics_that_cannot_be_read_is_no_finding(tmp_path: Path, page: tuple[Any, ...]) -> None:
    found, result = registry_findings(tmp_path, page)
    assert (found, result.health, result.responses, result.replication_lags_s) == ([], Health.UP, {}, {})


def test_the_console_counts_its_responses(tmp_path: Path) -> None:
    client = console_world(tmp_path).client()
    client.get("/nope")
    document = client.get("/healthz").json
    assert document == {"status": "ok", "responses": 1, "server_errors": 0}
    with scripted_server(lambda request: (200, {"status": "ok", "responses": 9, "server_errors": 4})) as server:
        assert probe_pages(server.url).responses == {server.url: (9, 4)}
    with scripted_server(lambda request: (200, {"status": "ok"})) as server:
        assert probe_pages(server.url) == ProbeResult(server.url, Health.UP)
