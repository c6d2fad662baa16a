"""Finding a message, on the commit log and files of a warehouse; the brokers are replaced or missing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from headrace.console.broker_reader import BrokerReader, TopicTimes
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.inspect.offsets import BrokerOffsets, TopicOffsets
from headrace.loader.storage.local.commit_storage import LocalCommitStorage
from headrace.settings import KafkaSettings, LoaderSettings, Settings
from support.console import NOW_MS, ConsoleWorld, console_world, user_line
from support.console_quarantine import quarantine_of
from support.loader.loader_samples import committed_file, committed_range, load, topic_commit

NO_BROKERS = Settings(kafka=KafkaSettings(bootstrap_servers="127.0.0.1:1"))
EVIL = "<script>alert(1)</script>\u202e'; DROP"
ORDERS = TopicPartition("orders", 0)


def text_of(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", page))


@pytest.fixture
def world(tmp_path: Path) -> ConsoleWorld:
    """A console on a commit that loaded the offsets 0 to 40 of a partition into one file."""
    log = CommitLog(LocalCommitStorage(tmp_path / "warehouse" / "_headrace"))
    log.open()
    change = topic_commit(committed_range(0, None, 0, 40), files=[committed_file("a.avro", 0, 0, 40)], new=True)
    assert log.try_commit(load("run-1", {"orders": change})).commit
    return console_world(tmp_path, settings=NO_BROKERS)


def with_log(monkeypatch: pytest.MonkeyPatch, offsets: BrokerOffsets) -> None:
    monkeypatch.setattr(BrokerReader, "topic", lambda self, topic, _: TopicOffsets({ORDERS: offsets}))


def test_form_without_a_message_opens(world: ConsoleWorld) -> None:
    page = world.client().get("/find").text
    assert "<h1>Find a message</h1>" in page
    assert 'href="/find"' in world.client().get("/topics").text


def test_loaded_offset_names_file_commit_and_load(
    world: ConsoleWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with_log(monkeypatch, BrokerOffsets(1, 5, 50, 60))
    (tmp_path / "warehouse" / "orders" / "dt=2026-01-31").mkdir(parents=True)
    for path in (tmp_path / "warehouse" / "orders").rglob("dt=*"):
        (path / "a.avro").write_bytes(b"")
    page = world.client().get("/find?topic=orders&partition=0&offset=7").text
    assert "headrace locate orders 0 7" in page
    assert "run-1" in page
    assert 'href="/messages?topic=orders&amp;partition=0&amp;offset=7&amp;count=50"' in page


@pytest.mark.parametrize(
    ("offset", "place"),
    [
        (4, "The brokers have deleted it"),
        (5, "The offset is in the log"),
        (49, "The offset is in the log"),
        (50, "open transaction"),
        (60, "The log ends before this offset"),
    ],
)
def test_offset_is_compared_with_the_log(
    world: ConsoleWorld, monkeypatch: pytest.MonkeyPatch, offset: int, place: str
) -> None:
    with_log(monkeypatch, BrokerOffsets(1, 5, 50, 60))
    assert place in text_of(world.client().get(f"/find?topic=orders&offset={offset}").text)


def test_offset_after_the_next_one_is_not_loaded_yet(world: ConsoleWorld) -> None:
    page = text_of(world.client().get("/find?topic=orders&offset=40").text)
    assert "The message has not been loaded." in page
    assert "The next offset to load is 40." in page
    assert "Not known: the offsets on the brokers." in page
    page = text_of(world.client().get("/find?topic=new&offset=1").text)
    assert "The topic has not been loaded." in page


def test_reason_of_a_quarantined_message_needs_payload(tmp_path: Path) -> None:
    quarantine_of(tmp_path)
    users = user_line("lea") + user_line("kim") + "grant lea read *\ngrant lea payload orders\ngrant kim read *\n"
    world = console_world(tmp_path, users, NO_BROKERS)
    address = "/find?topic=orders&partition=0&offset=0"
    page = world.signed_in("lea").get(address).text
    assert "The message is in the quarantine." in page
    assert "top secret" in page
    assert "<b>Avro" not in page
    page = world.signed_in("kim").get(address).text
    assert "The message is in the quarantine." in page
    assert "top secret" not in page
    assert "Malformed." in page
    assert 'href="/quarantine?topic=orders"' in page
    assert world.client().get(address).status_code == 302


def test_row_has_the_command_that_shows_it(tmp_path: Path) -> None:
    from headrace.console.message_fate import MessageFate
    from headrace.loader.inspect.locate import LocatedMessage, OffsetStatus

    located = LocatedMessage("orders", 3, 17, OffsetStatus.ROW, "")
    fate = MessageFate(located, ("/w/orders/dt=2026-01-31/hr=07/a.avro",), "headrace.orders", "position")
    assert fate.row_command == (
        "headrace sql 'SELECT * FROM headrace.orders WHERE dt = '\"'\"'2026-01-31'\"'\"' AND kafka.partition = 3 AND "
        "kafka.offset = 17'"
    )
    assert MessageFate(located, ("a",), "headrace.orders", "none").row_command == ""
    assert MessageFate(located, (), "headrace.orders", "position").row_command == ""


def test_time_has_an_offset_of_each_partition(world: ConsoleWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def times(self: BrokerReader, topic: str, time_ms: int) -> TopicTimes:
        asked.append((topic, time_ms))
        return TopicTimes((0, 1, 2), {0: 17}, {2: f"no leader {EVIL}"})

    monkeypatch.setattr(BrokerReader, "times", times)
    rows = json.loads(world.client().get("/find?topic=orders&at=2026-11-18 10:30&as=json").text)["rows"]
    assert [(one["partition"], one["offset"]) for one in rows] == [("0", 17), ("1", None), ("2", None)]
    assert asked == [("orders", NOW_MS - 2_400_000)]
    page = world.client().get("/find?topic=orders&at=2026-11-18 10:30").text
    assert 'href="/find?topic=orders&amp;partition=0&amp;offset=17"' in page
    assert "<script>alert" not in page
    assert "\u202e" not in page


def test_key_has_the_cost_and_the_query_and_is_not_searched(
    world: ConsoleWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def between(self: BrokerReader, topic: str, since_ms: int, until_ms: int) -> TopicTimes:
        asked.append((topic, since_ms, until_ms))
        return TopicTimes((0, 1), {0: 1, 1: 1}, {}, 2_500_000)

    monkeypatch.setattr(BrokerReader, "between", between)
    page = (
        world.client().get(f"/find?topic=orders&key={quote(EVIL)}&since=2026-11-17 10:00&until=2026-11-18 11:00").text
    )
    assert "A search would read 2,500,000 messages of 2 partitions" in text_of(page)
    assert "dt BETWEEN" in page
    assert "2026-11-17" in page
    assert "COLUMN = " in page
    assert "<script>alert" not in page
    assert "\u202e" not in page
    assert asked == [("orders", NOW_MS - 90_600_000, NOW_MS - 600_000)]
    assert world.client().get("/find?topic=orders&key=a&since=2026-11-18&until=2026-11-17").status_code == 400
    assert "has no table" in world.client().get("/find?topic=new&key=a").text


def test_key_in_a_query_cannot_end_its_literal() -> None:
    import shlex

    from headrace.console.message_fate import key_command
    from headrace.loader.commit.state import EMPTY, fold

    change = topic_commit(committed_range(0, None, 0, 40), new=True)
    state = fold(EMPTY, load("w", {"orders": change}).with_number(1))
    command = key_command(Settings(), state, "orders", "a\\' OR 1=1 --", 0, 10**17)
    (query,) = shlex.split(command)[2:]
    assert query.endswith("'a\\\\\\' OR 1=1 --'")
    assert key_command(Settings(), EMPTY, "orders", "a", 0, 1) == ""


@pytest.mark.parametrize("query", ["offset=x", "offset=5&partition=-1", "at=soon", "key=a&since=x", "key=a&until=9e9"])
def test_bad_parameters_are_refused(world: ConsoleWorld, query: str) -> None:
    assert world.client().get(f"/find?topic=orders&{query}").status_code == 400


def test_brokers_and_warehouse_that_are_away_leave_pages(tmp_path: Path) -> None:
    remote = Settings(loader=LoaderSettings(warehouse="hdfs://names:8020/warehouse"), kafka=NO_BROKERS.kafka)
    client = console_world(tmp_path, settings=remote).client()
    page = client.get(f"/find?topic={quote(EVIL)}&partition=3&offset=7")
    assert page.status_code == 200
    assert "It is not known where the message is." in page.text
    assert "headrace locate &#39;&lt;script&gt;" in page.text
    for query in ("at=2026-11-18", "key=a"):
        page = client.get(f"/find?topic=orders&{query}")
        assert page.status_code == 200
        assert "Not known:" in page.text
    assert client.get("/find?topic=orders&at=2026-11-18&as=csv").status_code == 503
