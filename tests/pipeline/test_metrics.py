"""Metrics for Prometheus: names, types, labels and limits."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.loader.commit.state import LoadTotals
from headrace.loader.run import run_load
from headrace.loader.run_log import RunLine, append_line
from headrace.pipeline.metrics import render, status_metrics
from headrace.pipeline.status.collect import platform_status
from headrace.pipeline.status.commits import quarantined
from headrace.pipeline.status.metric import OTHER, TOPICS_MAX, StatusMetric, largest_topics
from headrace.settings import Settings
from support.loader.loader_fakes import ORDER_V1, World

NOW_MS = 1_767_225_600_000
LAG = "headrace_load_lag_messages"


def samples(page: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def page_of(directory: Path) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    status = platform_status(Settings(data_dir=directory), NOW_MS, expects_servers=False)
    return samples(render(status_metrics(status))[0])


def test_counters_of_loads_are_the_sums_of_all_commits_and_runs(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.registry.register("orders-value", 1, ORDER_V1)
    world.topic("orders", [1])
    read = 0
    for number in range(3):
        world.cluster.topics["orders"].logs[0] += [1, 1]
        report = run_load(world.ports(), world.settings)
        read += sum(one.bytes_read for one in report.loaded)
        append_line(tmp_path / "logs" / "runs.jsonl", RunLine(NOW_MS - 1_000, 40_000, "committed", number))
    found = page_of(tmp_path)
    assert found["headrace_load_rows_total", ()] == 7
    assert found["headrace_load_read_bytes_total", ()] == read > 0
    assert found["headrace_load_runs_total", (("outcome", "committed"),)] == 3
    assert found["headrace_load_duration_seconds_bucket", (("le", "30"),)] == 0
    assert found["headrace_load_duration_seconds_bucket", (("le", "60"),)] == 3
    assert found["headrace_load_duration_seconds_count", ()] == 3
    assert found["headrace_load_duration_seconds_sum", ()] == 120
    assert found["headrace_load_last_success_timestamp_seconds", ()] == NOW_MS / 1000 + 39
    assert found["headrace_load_interval_seconds", ()] == 600


def test_last_success_is_known_after_any_number_of_failed_loads(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "runs.jsonl"
    append_line(path, RunLine(1_000, 500, "committed", 0))
    for number in range(300):
        append_line(path, RunLine(2_000 + number, 1, "failed", 2, error="no broker"))
    assert page_of(tmp_path)["headrace_load_last_success_timestamp_seconds", ()] == 1.5


def test_topics_beyond_the_limit_are_one_series_with_the_smallest_values() -> None:
    metrics = largest_topics(LAG, {f"t{number}": number for number in range(TOPICS_MAX + 3)})
    assert len(metrics) == TOPICS_MAX + 1
    assert metrics[0] == StatusMetric(LAG, TOPICS_MAX + 2, (("topic", f"t{TOPICS_MAX + 2}"),))
    assert metrics[-1] == StatusMetric(LAG, 0 + 1 + 2, (("topic", OTHER),))


def test_counter_of_the_other_topics_never_decreases_when_further_topics_quarantine(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.registry.register("orders-value", 1, ORDER_V1)
    world.topic("orders", [1])
    run_load(world.ports(), world.settings)
    known = world.ports().log.read_state().topics["orders"]
    topics = {}
    other = 0.0
    for number in reversed(range(TOPICS_MAX + 20)):  # the first commits quarantine messages of the last topics by name
        commit_number = TOPICS_MAX + 20 - number
        totals = LoadTotals(quarantined={"framing": commit_number}, quarantined_since=commit_number)
        topics[f"t{number:04d}"] = dataclasses.replace(known, loads=totals)
        found = {metric.labels[0][1]: metric.value for metric in quarantined(topics)}
        assert found.get(OTHER, 0.0) >= other
        other = found.get(OTHER, 0.0)
    assert len(found) == TOPICS_MAX + 1
    assert other == sum(range(TOPICS_MAX + 1, TOPICS_MAX + 21))


def test_labels_with_any_character_are_read_back(tmp_path: Path) -> None:
    label = 'a"b\\c\nd<script>\u202e'
    page, content_type = render([StatusMetric(LAG, 1, (("topic", label),))])
    assert content_type.startswith("text/plain; version=0.0.4")
    assert samples(page) == {(LAG, (("topic", label),)): 1}


def test_unknown_names_and_suffixes_are_errors() -> None:
    for name in ("headrace_other", f"{LAG}_sum"):
        with pytest.raises(KeyError):
            render([StatusMetric(name, 1)])
