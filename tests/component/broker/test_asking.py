"""`headrace broker topics` and `groups` beside what clients did."""

from __future__ import annotations

import pytest

from headrace.cli import main
from support.broker.broker_asked import asked, look_at_topics_and_groups


def test_topics_and_groups_of_the_bundled_broker(broker_address: str, capsys: pytest.CaptureFixture[str]) -> None:
    look_at_topics_and_groups(broker_address, capsys)
    for words, is_there in (((), False), (("--internal",), True)):
        topics = asked(capsys, broker_address, "topics", *words)["topics"]
        assert ("__consumer_offsets" in {one["topic"] for one in topics}) == is_there


def test_without_a_broker_it_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("topics", "groups"):
        assert main(["broker", verb, "--bootstrap-servers", "127.0.0.1:1"]) == 2
        error = capsys.readouterr().err
        assert "127.0.0.1:1" in error and error.count("\n") == 1
