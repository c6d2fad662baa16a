"""The report of a load as people and cron's mail see it."""

from __future__ import annotations

import pytest

from headrace.cli.load import print_report
from headrace.loader.report import RunReport

DOWN = "the Hive metastore thrift://hive:9083 cannot be used: Connection refused; start it there or set hive.metastore"


def test_what_is_wrong_with_many_topics_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    problems = {f"topic{n}": (DOWN,) for n in range(5)}
    print_report(RunReport(problems={**problems, "other": ("the Hive table is not its own",)}))
    assert capsys.readouterr().out.splitlines()[:2] == [
        f"PROBLEM: 5 topics (topic0, topic1, topic2, …): {DOWN}",
        "PROBLEM: other: the Hive table is not its own",
    ]


def test_a_topic_that_is_held_has_not_caught_up(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(RunReport(problems={"a": (DOWN,)}, followed=("a", "b")))
    assert "nothing new; caught up: 1 topic; in need of attention: 1 topic" in capsys.readouterr().out
    print_report(RunReport(problems={"a": (DOWN,)}, followed=("a",)))
    assert "caught up" not in capsys.readouterr().out
