"""The report of a load as people and cron's mail see it."""

from __future__ import annotations

import dataclasses

import pytest

from headrace.cli.load import print_report
from headrace.loader.report import RunReport, TopicLoaded

DOWN = "the Hive metastore thrift://hive:9083 cannot be used: Connection refused; start it there or set hive.metastore"


def test_what_is_wrong_with_many_topics_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    problems = {f"topic{n}": (DOWN,) for n in range(5)}
    print_report(RunReport(problems={**problems, "other": ("the Hive table is not its own",)}))
    assert capsys.readouterr().out.splitlines()[:2] == [
        f"PROBLEM: 5 topics (topic0, topic1, topic2, …): {DOWN}",
        "PROBLEM: other: the Hive table is not its own",
    ]


def test_a_dead_broker_is_one_line_however_many_partitions_it_led(capsys: pytest.CaptureFixture[str]) -> None:
    gone = "cannot connect to broker kafka-2:9092: [Errno 111] Connection refused; see that its brokers are up"
    problems = {
        topic: tuple(f"partition {number}: {gone}" for number in range(10)) for topic in ("clicks", "orders", "views")
    }
    print_report(RunReport(problems=problems))
    (line, _) = capsys.readouterr().out.splitlines()
    assert line == f"PROBLEM: 30 partitions of 3 topics (clicks, orders, views): {gone}"
    print_report(RunReport(problems={"clicks": (f"partition 7: {gone}",), "orders": ("another",)}))
    assert capsys.readouterr().out.splitlines()[:2] == [
        f"PROBLEM: clicks: partition 7: {gone}",
        "PROBLEM: orders: another",
    ]


def test_nothing_new_is_not_said_while_messages_are_held_back(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(RunReport(held_back=1200, waiting={"a": "no schema"}))
    assert capsys.readouterr().out.splitlines()[-1].startswith("nothing loaded, 1,200 messages held back (")
    print_report(RunReport())
    assert capsys.readouterr().out.startswith("nothing new (")
    print_report(RunReport(slot=3, tasks=1, held_back=1))
    assert capsys.readouterr().out.rstrip().endswith("by 1 task; 1 message held back")
    print_report(RunReport(slot=3, tasks=4, imbalance_measured=1.26))
    assert capsys.readouterr().out.rstrip().endswith("by 4 tasks, the slowest of which took 1.3 times the mean")


def test_what_became_of_columns_is_said_for_each_table(capsys: pytest.CaptureFixture[str]) -> None:
    loaded = TopicLoaded("orders", "orders", 1, 1, 1, 0, 0, 0, 1, 1, 1, new=False, schema_changed=True)
    changed = dataclasses.replace(loaded, changes=("+ qty double", "item → product"))
    print_report(RunReport(slot=1, tasks=1, loaded=(changed, loaded)))
    lines = capsys.readouterr().out.splitlines()
    assert lines[4:6] == [
        "schema changed: orders: + qty double, item → product",
        "schema changed: orders: no column is another",
    ]


def test_a_topic_that_is_held_has_not_caught_up(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(RunReport(problems={"a": (DOWN,)}, followed=("a", "b")))
    assert "nothing new; caught up: 1 topic; in need of attention: 1 topic" in capsys.readouterr().out
    print_report(RunReport(problems={"a": (DOWN,)}, followed=("a",)))
    assert "caught up" not in capsys.readouterr().out
