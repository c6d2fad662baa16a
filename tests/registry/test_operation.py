"""Shared counters, the Prometheus page and the access log."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.registry.access.permissions import ALL_PERMISSIONS
from headrace.registry.access.users import Principal
from headrace.registry.operation.access_log import AccessLog
from headrace.registry.operation.metrics import RegistryMetricsPage, RequestMetrics, RequestRecorder, new_counts
from headrace.registry.operation.shared_counts import OTHER, ROWS_MAX, SharedCounts

FORK = multiprocessing.get_context("fork")


def add(counts: SharedCounts, label: str, amount: int = 1) -> None:
    counts.numbers()[counts.row_offset(label)] += amount


def in_another_process(work: Any, *arguments: Any) -> None:
    process = FORK.Process(target=work, args=arguments)
    process.start()
    process.join(60)
    assert process.exitcode == 0


def claim_and_add(counts: SharedCounts, amount: int) -> None:
    assert counts.claim()
    add(counts, "a", amount)


@pytest.fixture
def counts() -> Iterator[SharedCounts]:
    made = SharedCounts(3, columns=2)
    yield made
    made.close()


def test_totals_include_ended_processes(counts: SharedCounts) -> None:
    counts.claim()
    add(counts, "a")
    for _ in range(5):
        # More processes than slots, one after another: each claims the slot of an ended one.
        in_another_process(claim_and_add, counts, 10)
    assert counts.totals() == {"a": (51, 0)}
    assert counts.process_count() == 1


def hold(counts: SharedCounts, ready: Any) -> None:
    counts.claim()
    add(counts, "a")
    ready.set()
    signal.pause()


def test_killed_process_frees_its_slot(counts: SharedCounts) -> None:
    ready = FORK.Event()
    process = FORK.Process(target=hold, args=(counts, ready))
    process.start()
    assert ready.wait(60)
    counts.claim()
    assert counts.process_count() == 2
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert counts.process_count() == 1
    assert counts.totals() == {"a": (1, 0)}


def fail_to_claim(counts: SharedCounts) -> None:
    assert not counts.claim()


def test_claim_fails_without_a_free_slot() -> None:
    counts = SharedCounts(1, columns=1)
    counts.claim()
    in_another_process(fail_to_claim, counts)


def test_labels_beyond_the_limits_share_a_row(counts: SharedCounts) -> None:
    counts.claim()
    for number in range(ROWS_MAX + 50):
        add(counts, f"label {number}")
    add(counts, "x" * 1000)
    totals = counts.totals()
    assert len(totals) == ROWS_MAX
    assert totals[OTHER] == (52, 0)
    assert sum(row[0] for row in totals.values()) == ROWS_MAX + 51


def samples(
    page: RegistryMetricsPage, accept: str = "text/plain"
) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = page.render(accept, {"subjects": 3, "deleted_versions": 2})[0].decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_prometheus_page_has_requests_durations_and_totals() -> None:
    counts = new_counts(1)
    counts.claim()
    metrics = RequestMetrics(counts)
    rule = "/schemas/ids/<number:schema_id>"
    metrics.count("GET", rule, 200, 0.0001, cached=True)
    metrics.count("GET", rule, 200, 0.003, cached=False)
    metrics.count("GET", rule, 404, 99.0, cached=False)
    metrics.count("BREW", "", 405, 0.001, cached=False)
    found = samples(RegistryMetricsPage(counts, "1.2"))

    def requests(**labels: str) -> float:
        return found["headrace_registry_requests_total", tuple(sorted(labels.items()))]

    route = "/schemas/ids/{id}"
    assert requests(method="GET", route=route, status="200", cached="true") == 1
    assert requests(method="GET", route=route, status="200", cached="false") == 1
    assert requests(method="GET", route=route, status="404", cached="false") == 1
    assert requests(method="other", route="other", status="405", cached="false") == 1
    one = (("method", "GET"), ("route", route))
    name = "headrace_registry_request_seconds"
    assert found[f"{name}_count", one] == 3
    assert found[f"{name}_sum", one] == pytest.approx(99.0031)
    assert found[f"{name}_bucket", (("le", "0.0005"), *one)] == 1
    assert found[f"{name}_bucket", (("le", "0.005"), *one)] == 2
    assert found[f"{name}_bucket", (("le", "10.0"), *one)] == 2
    assert found[f"{name}_bucket", (("le", "+Inf"), *one)] == 3
    assert found["headrace_registry_workers", ()] == 1
    assert found["headrace_registry_database_up", ()] == 1
    assert found["headrace_registry_subjects", ()] == 3
    assert found["headrace_registry_deleted_versions", ()] == 2
    assert found["headrace_registry_info", (("version", "1.2"),)] == 1


def test_page_in_openmetrics_format() -> None:
    counts = new_counts(1)
    body, content_type = RegistryMetricsPage(counts, "1").render("application/openmetrics-text; version=1.0.0", None)
    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
    assert b"headrace_registry_database_up 0.0" in body


def test_unknown_methods_do_not_become_labels() -> None:
    counts = new_counts(1)
    counts.claim()
    metrics = RequestMetrics(counts)
    for number in range(100):
        metrics.count(f"M{number}", "", 404, 0.1, cached=False)
    assert len(counts.totals()) == 1


def scope(**more: Any) -> dict[str, Any]:
    return {
        "method": "GET",
        "raw_path": b"/subjects/a%2Fb",
        "query_string": b"deleted=true",
        "client": ("10.0.0.1", 4711),
        "headers": [(b"authorization", b"Basic c2VjcmV0"), (b"user-agent", b"curl"), (b"x-request-id", b"r\n1")],
        **more,
    }


def test_access_log_line_has_all_keys_and_no_credentials(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    log = AccessLog(str(path), now_ms=lambda: 1_767_323_045_678)
    recorder = RequestRecorder(None, log)
    recorder.record(scope(), "/x", 200, 17, 0.0012345, Principal("alice", ALL_PERMISSIONS), cached=True)
    recorder.record(scope(client=None, raw_path=b"/\xff" * 9999), "/x", 401, 0, 0.1, None, cached=False)
    log.close()
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert first == {
        "time": "2026-01-02T03:04:05.678Z",
        "client": "10.0.0.1",
        "user": "alice",
        "method": "GET",
        "path": "/subjects/a%2Fb",
        "query": "deleted=true",
        "status": 200,
        "bytes": 17,
        "ms": 1.234,
        "cached": True,
        "agent": "curl",
        "request_id": "r\n1",
    }
    assert (second["client"], second["user"], len(second["path"])) == ("", "", 1000)


def test_access_log_line_has_unique_keys_and_truncated_texts(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    log = AccessLog(str(path))
    headers = [(name, value) for name in (b"user-agent", b"x-request-id") for value in (b"a", b'b","user":"root')]
    RequestRecorder(None, log).record(scope(method="M" * 9999, headers=headers), "", 405, 0, 0.1, None, cached=False)
    log.close()
    pairs = json.loads(path.read_text(), object_pairs_hook=list)
    assert len(dict(pairs)) == len(pairs)
    assert dict(pairs)["method"] == "M" * 1000
    assert (dict(pairs)["agent"], dict(pairs)["user"]) == ('b","user":"root', "")


def test_access_log_reopens_a_rotated_file(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    now = 0.0
    log = AccessLog(str(path), clock=lambda: now)
    log.write(scope(), 200, 1, 0.1, "", cached=False)
    path.rename(tmp_path / "access.log.1")
    now += 1.1
    log.write(scope(), 404, 1, 0.1, "", cached=False)
    log.close()
    assert json.loads(path.read_text())["status"] == 404
    assert json.loads((tmp_path / "access.log.1").read_text())["status"] == 200


def test_unwritable_access_log_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = tmp_path / "logs"
    directory.mkdir()
    now = 0.0
    log = AccessLog(str(directory / "access.log"), clock=lambda: now)
    (directory / "access.log").unlink()
    directory.rmdir()
    now += 1.1
    log.write(scope(), 200, 1, 0.1, "", cached=False)
    log.write(scope(), 200, 1, 0.1, "", cached=False)
    assert len(caplog.records) <= 1
