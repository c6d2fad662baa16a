"""The text report of a load."""

from __future__ import annotations

import dataclasses
import re

import pytest

from headrace.cli.load import print_run
from headrace.loader.report import LoadedTopic, RunReport
from support.golden import case_lines, golden

DOWN = (
    "the Hive metastore thrift://hive:9083 cannot be used: Connection refused; start the metastore service or correct "
    "hive.metastore"
)


def test_problem_of_many_topics_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    problems = {f"topic{n}": (DOWN,) for n in range(5)}
    print_run(RunReport(problems={**problems, "other": ("the Hive table is not its own",)}))
    _, many, one = capsys.readouterr().out.splitlines()
    assert re.match(rf"PROBLEM: 5 .*\(topic0, topic1, topic2, …\): {re.escape(DOWN)}", many)
    assert one == "PROBLEM: other: the Hive table is not its own"


def test_dead_broker_is_one_line_for_all_its_partitions(capsys: pytest.CaptureFixture[str]) -> None:
    reason = "cannot connect to broker kafka-2:9092: [Errno 111] Connection refused; see that its brokers are up"
    problems = {
        topic: tuple(f"partition {number}: {reason}" for number in range(10)) for topic in ("clicks", "orders", "views")
    }
    print_run(RunReport(problems=problems))
    (_, line) = capsys.readouterr().out.splitlines()
    assert re.match(rf"PROBLEM: 30 .*\b3 .*\(clicks, orders, views\): {re.escape(reason)}", line)
    print_run(RunReport(problems={"clicks": (f"partition 7: {reason}",), "orders": ("another",)}))
    assert capsys.readouterr().out.splitlines()[1:] == [
        f"PROBLEM: clicks: partition 7: {reason}",
        "PROBLEM: orders: another",
    ]


def test_reports_equal_the_golden_file(capsys: pytest.CaptureFixture[str]) -> None:
    loaded = LoadedTopic("orders", "orders", 1, 1, 1, 0, 0, 0, 1, 1, 1, new=False, schema_changed=True)
    changed = dataclasses.replace(loaded, changes=("+ qty double", "item → product"))
    reports = {
        "nothing new": RunReport(),
        "messages held back": RunReport(held_back=1200, waiting={"a": "no schema"}),
        "one task and a message held back": RunReport(commit_number=3, tasks=1, held_back=1),
        "an imbalance": RunReport(commit_number=3, tasks=4, imbalance_measured=1.26),
        "changes of columns": RunReport(commit_number=1, tasks=1, loaded=(changed, loaded)),
        "a problem of one topic of two": RunReport(problems={"a": (DOWN,)}, applied=("a", "b")),
        "a problem of the only topic": RunReport(problems={"a": (DOWN,)}, applied=("a",)),
    }
    printed = []
    for name, report in reports.items():
        print_run(report)
        printed.append((name, capsys.readouterr().out))
    lines = case_lines(printed)
    assert lines == golden("headrace/load_reports.txt", lines)
