"""Reports of a platform with two thousand topics of five partitions: what needs care first, and one screen of text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.cli import main
from support.loader.many_topics import (
    LONG_TOPIC,
    OFFSETS,
    PARTITIONS,
    PENDING_TOPIC,
    QUARANTINED_TOPIC,
    TOPICS,
    ManyTopics,
)

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
