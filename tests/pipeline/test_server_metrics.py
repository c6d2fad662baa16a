"""The metrics of servers with a JVM: what a status reads, and counts of queries."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.pipeline.server_metrics import (
    AGE_MS_MAX,
    JvmMetrics,
    QueryCounts,
    QueryTotals,
    metrics_path,
    publish_metrics,
    read_metrics,
)
from headrace.pipeline.status.context import StatusContext
from headrace.pipeline.status.parts import parts
from headrace.pipeline.up.up_file import UpFile
from headrace.settings import Settings
from headrace.settings.addresses import LiveAddresses


def jvm(used: int, most: int) -> Any:
    """A JVM with the numbers of `Runtime`."""
    runtime = SimpleNamespace(totalMemory=lambda: 2 * used, freeMemory=lambda: used, maxMemory=lambda: most)
    java = SimpleNamespace(lang=SimpleNamespace(Runtime=SimpleNamespace(getRuntime=lambda: runtime)))
    return SimpleNamespace(java=java)


def published(path: Path, counts: QueryCounts | None = None) -> JvmMetrics:
    stop = threading.Event()
    stop.set()  # written once
    publish_metrics(path, jvm(300, 1_000), stop, counts)
    for thread in threading.enumerate():
        if thread.name == "metrics":
            thread.join(60)
    time_ms = StatusContext(Settings()).now_ms
    found = read_metrics(path, os.getpid(), time_ms)
    assert found is not None
    return found


def test_queries_are_counted_by_outcome() -> None:
    counts = QueryCounts()
    with counts.counting(), counts.counting():
        assert counts.totals() == QueryTotals(2, 0, 0)
    with pytest.raises(KeyError), counts.counting():
        raise KeyError
    assert counts.totals() == QueryTotals(0, 2, 1)


def test_metrics_of_an_earlier_process_and_old_or_damaged_ones_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "sql.metrics.json"
    found = published(path)
    assert read_metrics(path, os.getpid(), found.time_ms + AGE_MS_MAX) == found
    assert read_metrics(path, os.getpid(), found.time_ms + AGE_MS_MAX + 1) is None
    assert read_metrics(path, os.getpid() + 1, found.time_ms) is None
    for content in ("", "[]", "{}", '{"queries": null}', '{"queries": 1, "pid": 1}'):
        path.write_text(content)
        assert read_metrics(path, os.getpid(), found.time_ms) is None
    assert read_metrics(tmp_path / "none", os.getpid(), found.time_ms) is None


def test_status_has_heap_and_queries_of_running_servers(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    counts = QueryCounts()
    counts.begin()
    published(metrics_path(tmp_path / "logs", "sql"), counts)
    published(metrics_path(tmp_path / "logs", "metastore"))
    with UpFile(tmp_path / "up.json") as up_file:
        pids = {"sql": os.getpid(), "metastore": os.getpid()}
        up_file.publish(LiveAddresses(os.getpid(), "now", "", "", "", "", "", "/w", pids))
        facts = parts(StatusContext(Settings(data_dir=tmp_path))).facts
    (heap,) = (fact for fact in facts if fact.name == "heap")
    metrics = {(one.name, *(value for _, value in one.labels)): one.value for one in heap.metrics}
    assert metrics == {
        ("headrace_up_part_heap_used_bytes", "sql"): 300,
        ("headrace_up_part_heap_max_bytes", "sql"): 1_000,
        ("headrace_up_part_heap_used_bytes", "metastore"): 300,
        ("headrace_up_part_heap_max_bytes", "metastore"): 1_000,
        ("headrace_sql_queries_running",): 1,
        ("headrace_sql_queries_total", "succeeded"): 0,
        ("headrace_sql_queries_total", "failed"): 0,
    }
