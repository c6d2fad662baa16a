"""The run log: one line per load."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
from pathlib import Path

import pytest

from headrace.loader import run_log
from headrace.loader.report import LoadedTopic, RunReport, TaskTime
from headrace.loader.run_log import (
    DURATION_BOUNDS_S,
    RunLine,
    RunTotals,
    TopicOutcome,
    append_line,
    find_line,
    line_of,
    lines_between,
    newest_lines,
    newest_totals,
)


def line(number: int) -> RunLine:
    return RunLine(number, 5, "nothing", 0)


def test_newest_lines_are_returned_oldest_first(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "runs.jsonl"
    assert newest_lines(path, 3) == ()
    for number in range(5):
        append_line(path, line(number))
    assert newest_lines(path, 3) == (line(2), line(3), line(4))
    assert [json.loads(text)["started_at_ms"] for text in path.read_text().splitlines()] == list(range(5))


def test_lines_of_a_time_and_of_an_id_are_found(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    lines = [dataclasses.replace(line(number * 10), run_id=f"r{number}" if number % 2 else "") for number in range(6)]
    for one in lines:
        append_line(path, one)
    assert lines_between(path, 20, 50) == (lines[4], lines[3], lines[2])
    assert find_line(path, "r3") == lines[3]
    assert find_line(path, "40") == lines[4]
    assert find_line(tmp_path / "missing", "r3") is None


@pytest.mark.parametrize("change", [{"rows": "7"}, {"duration_ms": None}, {"task_times": [["a", 1, 2, 3, 4]]}])
def test_lines_with_other_types_are_ignored(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(json.dumps({**dataclasses.asdict(line(1)), **change}) + "\n")
    assert newest_lines(path, 1) == ()


def test_a_line_summarizes_the_report_of_a_load() -> None:
    loaded = LoadedTopic("orders", "orders", 10, 2, 1, 3, 0, 0, 13, 500, 400, False, False)
    report = RunReport(
        commit_number=7,
        run_id="w",
        loaded=(loaded, dataclasses.replace(loaded, topic="clicks")),
        waiting={"raw": "no subject"},
        problems={f"t{number:02d}": ("bad",) for number in range(30)},
        tasks=4,
        imbalance_planned=1.23456,
        imbalance_measured=2.0,
        read_ms=90,
        duration_ms=100,
        held_back=7,
    )
    found = line_of(report, 1_000, 1)
    assert (found.outcome, found.exit_code, found.commit_number, found.topics) == ("committed", 1, 7, 2)
    assert (found.rows, found.files, found.quarantined, found.bytes_read, found.bytes_written) == (20, 4, 6, 1000, 800)
    assert (found.imbalance_planned, found.imbalance, found.read_ms, found.duration_ms) == (1.235, 2.0, 90, 100)
    assert (found.waiting, found.problems, len(found.problem_topics), found.held_back) == (1, 30, 20, 7)
    assert found.topic_outcomes[0] == TopicOutcome("t00", "problems", 0, 0, 0, "bad")
    assert found.topic_outcomes[-2] == TopicOutcome("orders", "loaded", 10, 3, 500, "")
    assert found.topic_outcomes[-1] == TopicOutcome("raw", "waiting", 0, 0, 0, "no subject")
    assert line_of(RunReport(), 0, 0).outcome == "nothing"
    refused = line_of(RunReport(conflict="x" * 5_000), 0, 0)
    assert (refused.outcome, len(refused.conflict)) == ("refused", 1_000)


def test_tasks_and_topics_of_a_line_are_limited_and_read_back(tmp_path: Path) -> None:
    times = tuple(TaskTime(number, 1_000 + number, number % 300, 10, 2) for number in range(500))
    loaded = LoadedTopic("t", "t", 10, 2, 1, 3, 0, 0, 13, 500, 400, False, False)
    many = tuple(dataclasses.replace(loaded, topic=f"t{number:03d}", bytes_read=number) for number in range(150))
    report = RunReport(loaded=many, task_times=times, problems={"t000": ("x" * 999, "second")})
    append_line(tmp_path / "runs.jsonl", line_of(report, 1_000, 0))
    (found,) = newest_lines(tmp_path / "runs.jsonl", 1)
    assert len(found.task_times) == 200
    assert min(one.duration_ms for one in found.task_times) == 150
    assert list(found.task_times) == sorted(found.task_times, key=lambda one: one.started_at_ms)
    assert len(found.topic_outcomes) == 100
    assert found.topic_outcomes[0] == TopicOutcome("t000", "problems", 10, 3, 0, "x" * 200)
    assert [one.topic for one in found.topic_outcomes[1:3]] == ["t149", "t148"]
    assert found == line_of(report, 1_000, 0)


def test_a_full_log_is_rotated_and_one_old_file_remains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_log, "BYTES_MAX", 2_000)
    path = tmp_path / "runs.jsonl"
    for number in range(100):
        append_line(path, line(number))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["runs.jsonl", "runs.jsonl.1"]
    assert all(one.stat().st_size < 2_600 for one in tmp_path.iterdir())
    assert newest_lines(path, 6) == tuple(map(line, range(94, 100)))


def test_truncated_and_unknown_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    append_line(path, line(1))
    with path.open("ab") as file:
        file.write(b'[]\n{"started_at_ms":1}\nnot JSON\n{"started_at')
    append_line(path, line(2))
    later = {**dataclasses.asdict(line(3)), "of_a_later_release": 1}
    with path.open("ab") as file:
        file.write(json.dumps(later).encode() + b"\n")
    assert newest_lines(path, 10) == (line(1), line(2), line(3))


def _append(path: Path, first: int) -> None:
    run_log.BYTES_MAX = 20_000  # type: ignore[misc]
    for number in range(first, first + 200):
        append_line(path, line(number))


def test_concurrent_processes_lose_no_line(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_append, args=(path, first)) for first in (0, 1_000, 2_000)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    found = [one.started_at_ms for one in newest_lines(path, 1_000)]
    assert len(found) > 20
    totals = newest_totals(path)
    assert totals is not None and totals.runs == {"nothing": 600}, "older lines are deleted, and no run is lost"
    for first in (0, 1_000, 2_000):
        own = [number for number in found if first <= number < first + 1_000]
        assert own == list(range(own[0], first + 200)) if own else True, "each process's newest lines, in order"


def test_totals_count_loads_by_outcome_and_durations_without_those_that_yielded(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    assert newest_totals(path) is None
    for one in (
        RunLine(1_000, 5_000, "committed", 0),
        RunLine(2_000, 5_001, "committed", 1),
        RunLine(3_000, 9_999_000, "failed", 2),
        RunLine(4_000, 1, "yielded", 0),
        RunLine(5_000, 77_000, "committed", 0, kind="compact"),
    ):
        append_line(path, one)
    durations = (1, 1, *[0] * (len(DURATION_BOUNDS_S) - 2), 1)
    runs = {"committed": 2, "failed": 1, "yielded": 1}
    assert newest_totals(path) == RunTotals(runs, durations, 10_009_001, succeeded_at_ms=7_001)


@pytest.mark.parametrize("totals", ["[]", '{"runs":{"committed":"1"}}', '{"durations":[1]}', '{"runs":[]}'])
def test_totals_in_another_form_are_ignored(totals: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    append_line(path, line(1))
    with path.open("a") as file:
        file.write(f'{{"totals":{totals}}}\n')
    append_line(path, line(2))
    found = newest_totals(path)
    assert found is not None and found.runs == {"nothing": 2}


def test_an_unwritable_log_does_not_stop_a_load(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "logs").write_text("a file")
    append_line(tmp_path / "logs" / "runs.jsonl", line(1))
    assert "run_not_logged" in caplog.text
    append_line(None, line(1))
