"""`headrace broker topics` and `groups`, compared with the operations of clients."""

from __future__ import annotations

import pytest

from headrace.cli import main
from support.broker.broker_commands import check_topics_and_groups, run_json


def test_topics_and_groups_of_the_bundled_broker(broker_address: str, capsys: pytest.CaptureFixture[str]) -> None:
    check_topics_and_groups(broker_address, capsys)
    for words, is_there in (((), False), (("--internal",), True)):
        topics = run_json(capsys, broker_address, "topics", *words)["topics"]
        assert ("__consumer_offsets" in {one["topic"] for one in topics}) == is_there


def test_unreachable_broker_gives_one_line_error(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("topics", "groups"):
        assert main(["broker", verb, "--bootstrap-servers", "127.0.0.1:1"]) == 2
        error = capsys.readouterr().err
        assert "127.0.0.1:1" in error and error.count("\n") == 1
