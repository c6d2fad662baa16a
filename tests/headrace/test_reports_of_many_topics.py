"""Reports of a platform with two thousand topics of five partitions: what needs care first, and one screen of text."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import pytest

from headrace.audit.ingest import IngestResult
from headrace.cli import main
from headrace.cli.load import print_plan, print_run
from headrace.loader.report import LoadedTopic, RunReport
from headrace.loader.run import plan_load
from support.loader.loader_fakes import ORDER_V1, World
from support.loader.many_topics import (
    LONG_TOPIC,
    LOST_TOPIC,
    OFFSETS,
    PARTITIONS,
    PENDING_TOPIC,
    QUARANTINED_TOPIC,
    TOPICS,
    ManyTopics,
)
from support.terminals import Terminal

LINES_MAX = 60


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> ManyTopics:
    return ManyTopics(tmp_path_factory.mktemp("many"))


@pytest.fixture
def report(many: ManyTopics, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Returns a function that runs a command and returns its exit code and standard output."""
    monkeypatch.setenv("HEADRACE__DATA_DIR", str(many.root))
    monkeypatch.setattr("headrace.pipeline.load.kafka_cluster", lambda settings: many.cluster)

    def run(line: str) -> tuple[int, str]:
        code = main(line.split())
        printed = capsys.readouterr()
        assert code < 2, printed.err
        return code, printed.out

    return run


def test_load_status_shows_what_needs_care(report: Any, many: ManyTopics) -> None:
    code, text = report("load status")
    totals, _, _, *lines = text.splitlines()
    assert code == 1, "a table change is pending"
    assert f" of {TOPICS:,} topics, lag 0, 1 quarantined, " in totals
    assert [line.split()[0] for line in lines] == [PENDING_TOPIC, QUARANTINED_TOPIC, f"{TOPICS - 2:,}"]
    assert lines[-1] == "1,999 topics are well; --all shows them"


def test_load_status_shows_all_topics_and_selected_ones(report: Any, many: ManyTopics) -> None:
    _, text = report("load status --all")
    assert {line.split()[0] for line in text.splitlines()} >= set(many.names)
    code, text = report("load status --topic shop.eu-000?.* --topic shop.eu-1_*")
    assert code == 1
    topics = [line.split()[0] for line in text.splitlines()[3:]]
    assert (topics[:2], len(topics)) == ([PENDING_TOPIC, QUARANTINED_TOPIC], 10)
    assert LONG_TOPIC in topics
    assert report("load status --topic shop.eu-001?.*")[0] == 0
    status = json.loads(report("load status --format json")[1])
    assert [one["topic"] for one in status["topics"]] == sorted(many.names)
    assert status["topics"][0]["next_offsets"] == {str(n): OFFSETS for n in range(PARTITIONS)}


def test_unknown_topic_names_the_most_similar_one(report: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["load", "status", "--topic", "shop.eu-0012.page_view"]) == 2
    assert capsys.readouterr().err.endswith("; did you mean shop.eu-0012.page_views?\n")
    assert main(["load", "status", "--topic", "clicks*"]) == 2
    assert "no topic matches 'clicks*'; none of 2,001 topics is similar" in capsys.readouterr().err


def test_offsets_show_counts_partitions_that_are_well(report: Any) -> None:
    totals, rest = report("offsets show")[1].splitlines()
    assert totals == f"{TOPICS * PARTITIONS:,} partitions of {TOPICS:,} topics, lag 0"
    assert rest == f"{TOPICS * PARTITIONS:,} partitions are well; --all shows them"
    assert len(report("offsets show --all")[1].splitlines()) == 3 + TOPICS * PARTITIONS
    assert len(report(f"offsets show {LOST_TOPIC}")[1].splitlines()) == 3 + PARTITIONS


def test_offsets_show_partition_whose_log_lost_offsets(
    report: Any, many: ManyTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = dataclasses.replace(many.cluster.topics[LOST_TOPIC], first=OFFSETS + 4)
    monkeypatch.setitem(many.cluster.topics, LOST_TOPIC, lost)
    _, _, _, *lines = report("offsets show")[1].splitlines()
    assert [line.split()[:2] for line in lines[:-1]] == [[LOST_TOPIC, str(n)] for n in range(PARTITIONS)]
    assert lines[-1].startswith(f"{(TOPICS - 1) * PARTITIONS:,} partitions are well")


def test_verify_shows_topics_with_findings(report: Any) -> None:
    code, text = report("verify")
    totals, _, _, row, rest, finding = text.splitlines()
    assert (code, totals) == (1, f"{TOPICS:,} topics, 3 files: 1 finding")
    assert row.split()[0] == LOST_TOPIC
    assert rest == f"{TOPICS - 1:,} topics are well; --all shows them"
    assert finding.startswith(f"FINDING: {LOST_TOPIC}: ")


def test_quarantine_list_counts_by_topic(report: Any) -> None:
    _, text = report("quarantine list")
    assert text.splitlines()[0] == "1 quarantined message of 1 topic"
    assert report("quarantine list shop.eu-001?.*")[1] == "0 quarantined messages of 0 topics\n"


def test_audit_report_counts_topics_by_verdict(many: ManyTopics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE__DATA_DIR", str(many.root))
    monkeypatch.setattr("headrace.cli.audit.ingest_counts", lambda store, settings: (IngestResult(), ""))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["audit", "report"]) == 0
    assert out.getvalue().splitlines()[0].startswith(f"{TOPICS:,} topics: ")
    assert len(out.getvalue().splitlines()) <= LINES_MAX


def test_load_plan_shows_the_topics_with_most_offsets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    topics = 60
    world = World(tmp_path)
    for number in range(topics):
        world.registry.register(f"t{number}-value", number, ORDER_V1)
        world.topic(f"t{number}", *[[number]] * PARTITIONS)
    world.cluster.topics["t17"].logs[4] = [17] * 9
    plan = plan_load(world.ports(), world.settings)
    print_plan(plan)
    totals, _, _, first, *lines = capsys.readouterr().out.splitlines()
    assert totals.startswith(f"after commit 0: {topics * PARTITIONS + 8:,} offsets of {topics} topics in 2 tasks")
    assert first.split() == ["t17", "t17", "5", "13", "0.01", "new"]
    assert (len(lines), lines[-1]) == (20, f"{topics - 20} more topics; --all shows them")
    print_plan(plan, shows_all=True)
    assert len(capsys.readouterr().out.splitlines()) == 3 + topics


def test_rows_with_long_names_fit_the_terminal(many: ManyTopics, report: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"COLUMNS": "100", "PAGER": "cat", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    command = ["load", "status", "--topic", LONG_TOPIC, "--topic", PENDING_TOPIC]
    with contextlib.redirect_stdout(Terminal()) as screen:
        assert main(command) == 1
    _, header, _, pending, long = screen.getvalue().splitlines()
    assert max(map(len, (header, pending, long))) <= 100
    begin, ellipsis, end = long.split()[0].partition("…")
    assert ellipsis and LONG_TOPIC.startswith(begin) and LONG_TOPIC.endswith(end)
    assert pending.index(" 0 ") == long.index(" 0 "), "columns are aligned"
    assert LONG_TOPIC in report(" ".join(command))[1], "a pipe gets the whole name"


def test_offsets_import_of_many_partitions_is_reported_on_one_screen(report: Any, tmp_path: Path) -> None:
    names = [
        f"new-{n}+{partition}+0000000000+0000000009.avro" for n in range(TOPICS) for partition in range(PARTITIONS)
    ]
    (tmp_path / "files").write_text("\n".join(names))
    command = f"offsets import --connect {tmp_path / 'files'} --dry-run"
    lines = report(command)[1].splitlines()
    assert lines[0] == "dry run: nothing was committed"
    assert len(lines) == 1 + 20 + 1
    assert lines[-1] == f"start: and {TOPICS * PARTITIONS - 20:,} more; --all shows them"
    assert len(report(f"{command} --all")[1].splitlines()) == 1 + TOPICS * PARTITIONS


def test_load_of_all_topics_is_reported_on_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    loaded = [
        LoadedTopic(f"t{n}", f"t{n}", n, 1, 1, 0, 0, 0, n, n, n, new=False, schema_changed=True) for n in range(TOPICS)
    ]
    loaded[5] = dataclasses.replace(loaded[5], quarantined=7)
    problems = {f"p{n}": (f"problem {n}",) for n in range(TOPICS)}
    report = RunReport(1, loaded=tuple(loaded), problems=problems, waiting={"w": "no schema"}, notes=("a",) * TOPICS)
    print_run(report)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= LINES_MAX
    assert f" of {TOPICS:,} topics " in lines[0]
    assert [line.split()[0] for line in lines[3:6]] == ["t5", "t2000", "t1999"]
    assert f"{TOPICS - 20:,} more topics; --all shows them" in lines
    assert f"PROBLEM: and {TOPICS - 10:,} more; --all shows them" in lines
    print_run(report, shows_all=True)
    assert len(capsys.readouterr().out.splitlines()) == 3 + 4 * TOPICS + 1
