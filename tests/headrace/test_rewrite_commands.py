"""`headrace compact`, `expire` and `accept-missing` on a warehouse of real files, with printed statements."""

from __future__ import annotations

import json
import re
from pathlib import Path

import fastavro
import pytest

from headrace.cli import main
from headrace.loader.run_log import newest_lines
from headrace.loader.work_unit import FileKind, FileRange
from headrace.pipeline.storage import STATE_NAME
from support.loader.shelf import Shelf

SIX, SEVEN = "dt=2026-01-31/hr=06", "dt=2026-01-31/hr=07"


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    """A warehouse with two loads, each with a file in both of two hours."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE__KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("HEADRACE__HIVE__EXECUTOR", "print")
    made = Shelf(tmp_path)
    made.load({SIX: [(0, 0), (0, 1)], SEVEN: [(0, 2)]}, (0, None, 0, 3))
    made.load({SIX: [(0, 3)], SEVEN: [(0, 4)]}, (0, 3, 3, 5))
    return made


def run(shelf: Shelf, *words: str) -> int:
    return main([*words, "--data-dir", str(shelf.warehouse.parent)])


def test_expire_as_json_and_text(shelf: Shelf, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(shelf, "expire", "orders", "--days", "30", "--dry-run", "--format", "json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["dry_run"]
    assert [(one["time_partition"], one["files"], one["rows"]) for one in report["time_partitions"]] == [
        (SIX, 2, 3),
        (SEVEN, 2, 2),
    ]
    head = shelf.log.head()
    assert run(shelf, "expire", "orders", "--days", "30") == 0
    printed = capsys.readouterr().out
    assert "DROP IF EXISTS" in printed
    assert numbers(printed) == [4, 2, head + 1]
    assert run(shelf, "expire", "orders", "--days", "30") == 0
    assert numbers(capsys.readouterr().out) == []
    assert shelf.log.head() == head + 1


def numbers(printed: str) -> list[int]:
    """Returns the numbers in the totals of a report: files, partitions and the commit; of one topic."""
    (totals,) = re.findall(r"^(?:nothing|no) .*|^.* of 1 topic .*", printed, re.MULTILINE)
    return [int(number) for number in re.findall(r"\b\d+\b", totals.replace(" of 1 topic", ""))]


def test_expire_uses_the_retention_of_the_settings(
    shelf: Shelf, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(shelf, "expire") == 2
    assert "loader.retention_days" in capsys.readouterr().err
    (tmp_path / "headrace.toml").write_text('[[loader.topic]]\npattern = "ord.*"\nretention_days = 7\n')
    assert run(shelf, "expire", "--dry-run") == 0
    assert numbers(capsys.readouterr().out) == [4, 2]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("expire", "--days", "3"), "--days: "),
        (("expire", "orders", "--days", "0"), "--days: "),
        (("expire", "payments", "--days", "1"), r".*\bpayments\b.*\borders\b"),
        (("accept-missing", "payments"), r".*\bpayments\b.*\borders\b"),
        (("accept-missing", "orders", "--time-partition", "dt=1"), "--time-partition: .*dt=1.*`headrace files orders`"),
    ],
)
def test_error_is_one_line_that_names_the_flag_topic_or_setting(
    shelf: Shelf, words: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(shelf, *words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(f"headrace: {named}", line)


def test_compact_without_topics_needs_a_topic_that_the_settings_include(
    shelf: Shelf, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(shelf, "compact", "--dry-run") == 0
    assert numbers(capsys.readouterr().out) == [4, 2]
    (tmp_path / "headrace.toml").write_text("[loader]\ncompact = false\n")
    assert run(shelf, "compact", "--dry-run") == 2
    assert "loader.compact" in capsys.readouterr().err


def test_commit_log_of_another_location_is_an_error_of_one_line(
    shelf: Shelf, capsys: pytest.CaptureFixture[str]
) -> None:
    (shelf.warehouse / STATE_NAME).write_text('"file:/elsewhere"')
    assert run(shelf, "compact", "orders", "--dry-run") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(r"headrace: warehouse .*file:/elsewhere\b.*\bloader\.state\b", line)


def test_accept_missing_removes_missing_files_from_the_record(shelf: Shelf, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(shelf, "accept-missing", "orders") == 0
    assert numbers(capsys.readouterr().out) == []
    (lost,) = (shelf.warehouse / "orders" / SIX).glob("0-2-*")
    lost.unlink()
    assert run(shelf, "verify", "orders") == 1
    assert f"headrace accept-missing orders --time-partition {SIX}" in capsys.readouterr().out
    assert run(shelf, "accept-missing", "orders", "--time-partition", SEVEN) == 0
    assert numbers(capsys.readouterr().out) == []
    assert run(shelf, "accept-missing", "orders", "--quarantine") == 0
    assert numbers(capsys.readouterr().out) == []
    assert run(shelf, "accept-missing", "orders") == 0
    assert numbers(capsys.readouterr().out) == [1, 1, 3]
    assert run(shelf, "verify", "orders") == 0


def test_compact_merges_real_files(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from headrace.loader.rewrite.merge import run_merge_unit
    from headrace.pipeline.load import SparkConnection

    monkeypatch.setattr(SparkConnection, "run_merges", lambda edge, units: [run_merge_unit(unit) for unit in units])
    assert run(shelf, "compact", "orders") == 0
    assert numbers(capsys.readouterr().out) == [4, 2, 3]
    (merged,) = (shelf.warehouse / "orders" / "_g1" / SIX).iterdir()
    with merged.open("rb") as file:
        assert [(row["kafka"]["partition"], row["kafka"]["offset"]) for row in fastavro.reader(file)] == [
            (0, 0),
            (0, 1),
            (0, 3),
        ]
    (file_of_six,) = [
        file for commit in [shelf.log.commit(3)] for file in commit.topics["orders"].files if file.time_partition == SIX
    ]
    assert (file_of_six.kind, file_of_six.ranges) == (FileKind.DATA, (FileRange(0, 0, 3, 3),))
    assert run(shelf, "verify", "orders", "--checksums") == 0
    assert run(shelf, "locate", "orders", "0", "3") == 0
    assert merged.name in capsys.readouterr().out
    head = shelf.log.head()
    assert run(shelf, "compact", "orders") == 0
    assert run(shelf, "compact") == 0
    assert shelf.log.head() == head
    first, *_ = newest_lines(shelf.warehouse.parent / "logs" / "runs.jsonl", 10, "compact")
    assert (first.outcome, first.files, first.rows, first.exit_code) == ("committed", 4, 5, 0)


def test_repartition_by_day_as_text_and_json(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from headrace.loader.rewrite.merge import run_merge_unit
    from headrace.pipeline.load import SparkConnection

    monkeypatch.setattr(SparkConnection, "run_merges", lambda edge, units: [run_merge_unit(unit) for unit in units])
    head = shelf.log.head()
    assert run(shelf, "hive", "repartition", "orders", "--by", "day", "--dry-run") == 0
    layouts = [[*map(int, re.findall(r" (\d+)(?= )", line))] for line in capsys.readouterr().out.splitlines()[-2:]]
    assert layouts == [[2, 4, 5], [1, 1, 5]], "partitions, files and rows, before and after"
    assert shelf.log.head() == head
    assert run(shelf, "hive", "repartition", "orders", "--by", "day", "--format", "json") == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert (report["after"]["files"], report["after"]["time_partitions"], report["problems"]) == (1, 1, [])
    assert re.search(r"DROP TABLE .*\n.*RENAME TO `headrace`.`orders`;", printed.err)
    assert run(shelf, "locate", "orders", "0", "3") == 0
    assert "/_g1/dt=2026-01-31/1-3-" in capsys.readouterr().out
    assert run(shelf, "verify", "orders", "--checksums") == 0
    assert run(shelf, "hive", "repartition", "orders", "--by", "day") == 0
    assert shelf.log.head() == head + 1


def test_repartition_of_an_unknown_topic_is_an_error_of_one_line(
    shelf: Shelf, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(shelf, "hive", "repartition", "payments", "--by", "day") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(r"headrace: .*\bpayments\b.*\borders\b", line)
