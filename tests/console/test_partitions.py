"""The pages about partitions, on a commit log and with brokers that are replaced or missing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from headrace.console import broker_reader
from headrace.console.broker_reader import BrokerReader
from headrace.console.pages.partitions import (
    BEHIND,
    LOST,
    NEW,
    NO_LEADER,
    READ,
    SHORT,
    UNKNOWN,
    ShownPartition,
    rows_of,
)
from headrace.kafka_wire.admin import GroupDescription
from headrace.kafka_wire.errors import AuthenticationFailed, KafkaUnavailable
from headrace.kafka_wire.group_lag import GroupLag, GroupLags, PartitionLag
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.commit.state import EMPTY, fold
from headrace.loader.inspect.offsets import BrokerOffsets, TopicOffsets
from headrace.loader.storage.local.commit_storage import LocalCommitStorage
from headrace.settings import KafkaSettings, LoaderSettings, Settings
from support.console import NOW_MS, ConsoleWorld, console_world
from support.loader.loader_samples import committed_range, load, topic_commit

HOUR_MS = 3_600_000
NO_BROKERS = Settings(kafka=KafkaSettings(bootstrap_servers="127.0.0.1:1"))
ORDERS = TopicPartition("orders", 0)
COMMIT = load("w", {"orders": topic_commit(committed_range(0, None, 0, 40), new=True)})
LOADED = fold(EMPTY, COMMIT.with_number(1))
SCRIPT = "<script>alert(1)</script>\u202e"


@pytest.fixture
def world(tmp_path: Path) -> ConsoleWorld:
    log = CommitLog(LocalCommitStorage(tmp_path / "warehouse" / "_headrace"))
    log.open()
    assert log.try_commit(COMMIT).commit
    return console_world(tmp_path, settings=NO_BROKERS)


def rows(world: ConsoleWorld, query: str) -> list[dict[str, Any]]:
    response = world.client().get(f"/partitions?as=json&{query}")
    assert response.status_code == 200, response.text
    found: list[dict[str, Any]] = json.loads(response.text)["rows"]
    return found


@pytest.mark.parametrize(
    ("offsets", "state"),
    [
        (BrokerOffsets(1, 0, 40), READ),
        (BrokerOffsets(1, 40, 40), READ),
        (BrokerOffsets(1, 0, 41), BEHIND),
        (BrokerOffsets(1, 41, 50), LOST),
        (BrokerOffsets(1, 0, 39), SHORT),
        (BrokerOffsets(-1, problem="no leader"), NO_LEADER),
        (BrokerOffsets(1, 0, problem="no response"), UNKNOWN),
    ],
)
def test_state_compares_the_next_offset_with_the_log(offsets: BrokerOffsets, state: str) -> None:
    assert [one.state for one in rows_of(LOADED, {ORDERS: offsets})] == [state]


def test_partition_that_was_never_loaded_is_new_even_after_its_oldest_messages_expired() -> None:
    (row,) = rows_of(EMPTY, {ORDERS: BrokerOffsets(1, 41, 50)})
    assert (row.state, row.status.lag) == (NEW, 9)
    assert [one.state for one in rows_of(LOADED, None)] == [UNKNOWN]


def test_topic_shows_lag_and_the_time_until_unread_messages_expire(
    world: ConsoleWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = {
        ORDERS: BrokerOffsets(1, 5, 50, 53, NOW_MS - 2 * HOUR_MS),
        TopicPartition("orders", 1): BrokerOffsets(2, 0, 9, 9, NOW_MS - 5 * HOUR_MS),
    }
    asked: list[Any] = []

    def topic(self: BrokerReader, name: str, next_offsets: object) -> TopicOffsets:
        asked.append((name, next_offsets))
        return TopicOffsets(partitions, 3 * HOUR_MS)

    monkeypatch.setattr(BrokerReader, "topic", topic)
    first, second = rows(world, "topic=orders")
    assert (first["state"], first["lag"], first["next_offset"]) == ("unread", 10, 40)
    assert (first["log_start"], first["log_end"], first["held_back"], first["leader"]) == (5, 50, 3, 1)
    assert (first["first_unread"], first["expires_in"]) == ("2026-11-18T09:10:00Z", HOUR_MS / 1000)
    assert (second["state"], second["expires_in"]) == ("not loaded", 0)
    page = world.client().get("/partitions?topic=orders").text
    assert '<span class="severity failure">now</span> <span class="quiet">partition 1</span>' in page
    assert "headrace offsets show orders" in page
    assert "<dt>unread</dt><dd>1</dd>" in page
    assert "log ends early" not in page
    assert asked == [("orders", {0: 40})]  # once within the cached time


@pytest.mark.parametrize("retention_ms", [-1, None])
def test_messages_without_a_known_retention_time_do_not_expire(
    world: ConsoleWorld, monkeypatch: pytest.MonkeyPatch, retention_ms: int | None
) -> None:
    found = TopicOffsets({ORDERS: BrokerOffsets(1, 5, 50, 50, NOW_MS)}, retention_ms)
    monkeypatch.setattr(BrokerReader, "topic", lambda self, name, offsets: found)
    assert rows(world, "topic=orders")[0]["expires_in"] is None
    assert ("messages do not expire" in world.client().get("/partitions?topic=orders").text) == (retention_ms == -1)


def test_all_partitions_are_listed_worst_first(world: ConsoleWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        TopicPartition("a", 0): BrokerOffsets(1, 0, 7),
        TopicPartition("b", 0): BrokerOffsets(1, 0, 900),
        ORDERS: BrokerOffsets(1, 41, 50),
    }
    monkeypatch.setattr(BrokerReader, "all_partitions", lambda self: found)
    assert [(one["topic"], one["lag"]) for one in rows(world, "")] == [("orders", 10), ("b", 900), ("a", 7)]
    assert [one["topic"] for one in rows(world, "q=lost")] == ["orders"]
    page = world.client().get("/partitions").text
    assert "<dt>unread messages</dt><dd>917</dd>" in page
    assert 'href="/partitions?topic=orders"' in page
    assert 'href="/partitions"' in world.client().get("/topics").text


def test_groups_are_shown_with_their_lag_and_names_are_escaped(
    world: ConsoleWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    lags = [PartitionLag("orders", 0, 3, 50, "")], [PartitionLag("orders", 0, 48, None, "")]
    groups = [GroupDescription(name, "Empty", "consumer", "", "b:1", (), {}) for name in ("small", SCRIPT)]
    found = GroupLags(
        tuple(GroupLag(group, tuple(lag)) for group, lag in zip(reversed(groups), lags, strict=True)), (SCRIPT,)
    )
    ends: list[Any] = []
    monkeypatch.setattr(
        BrokerReader, "topic", lambda self, name, _: TopicOffsets({ORDERS: BrokerOffsets(1, 0, 49, 50)})
    )
    monkeypatch.setattr(BrokerReader, "groups", lambda self, given: ends.append(given) or found)
    listed = rows(world, "topic=orders&show=groups")
    assert [(one["group"], one["lag"]) for one in listed] == [(SCRIPT, 47), ("small", None)]
    assert ends == [{ORDERS: 50}]
    page = world.client().get("/partitions?topic=orders&show=groups").text
    assert "<script>alert" not in page
    assert "\u202e" not in page
    assert re.search(r"<dt>small, empty</dt><dd>–</dd>", page)


def test_brokers_that_are_down_leave_the_next_offsets(world: ConsoleWorld) -> None:
    for query in ("", "?topic=orders", "?topic=orders&show=groups"):
        page = world.client().get(f"/partitions{query}")
        assert page.status_code == 200
        assert "Not known:" in page.text
        assert world.client().get(f"/partitions{query or '?'}&as=csv").status_code == 503
    assert ">40<" in world.client().get("/partitions?topic=orders").text
    assert world.client().get("/partitions?topic=none").status_code == 200  # nobody knows whether it exists


def test_commits_that_cannot_be_read_leave_the_offsets_of_the_brokers(
    world: ConsoleWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        BrokerReader, "topic", lambda self, name, _: TopicOffsets({ORDERS: BrokerOffsets(1, 5, 50, 50)})
    )
    remote = Settings(loader=LoaderSettings(warehouse="hdfs://names:8020/warehouse"), kafka=NO_BROKERS.kafka)
    page = console_world(tmp_path, settings=remote).client().get("/partitions?topic=orders").text
    assert "not in a local directory" in page
    assert ">50<" in page
    assert '<span class="severity attention">unknown</span>' in page  # not "not loaded"
    assert "<dt>unread messages</dt><dd>–</dd>" in page


def test_topic_that_does_not_exist_is_not_found(world: ConsoleWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BrokerReader, "topic", lambda self, name, _: TopicOffsets({}, problem="it <b>is not</b> there"))
    page = world.client().get("/partitions?topic=%3Cscript%3Ealert(1)")
    assert page.status_code == 404
    assert "&lt;b&gt;is not" in page.text
    assert "<script>alert" not in page.text
    assert "Not known:" in world.client().get("/partitions?topic=orders").text  # it was loaded


class Unreachable:
    """A client whose reads fail. `is_reached` states whether a broker responded before."""

    def __init__(self, *, is_reached: bool) -> None:
        self.is_reached = is_reached

    def __enter__(self) -> Unreachable:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("error", "is_reached", "wait_s"),
    [
        (AuthenticationFailed("wrong password"), True, 60),
        (KafkaUnavailable("no broker"), False, 5),
        (KafkaUnavailable("no leader of one partition"), True, 0),
    ],
)
def test_failing_brokers_are_not_contacted_again_at_once(
    monkeypatch: pytest.MonkeyPatch, error: Exception, is_reached: bool, wait_s: float
) -> None:
    clock, connections = [100.0], []

    def connect(settings: Settings, timeout_s: float) -> Unreachable:
        connections.append(1)
        return Unreachable(is_reached=is_reached)

    def read(cluster: object) -> None:
        raise error

    monkeypatch.setattr(broker_reader, "kafka_cluster", connect)
    monkeypatch.setattr(broker_reader.time, "monotonic", lambda: clock[0])
    reader = BrokerReader(NO_BROKERS)
    for later_s, expected in ((0.0, 1), (0.0, 1 if wait_s else 2), (wait_s - 0.1, 1 if wait_s else 3)):
        clock[0] += max(0.0, later_s)
        with pytest.raises(type(error)):
            reader.use(read)
        assert len(connections) == expected
    clock[0] += 0.2
    before = len(connections)
    with pytest.raises(type(error)):
        reader.use(read)
    assert len(connections) == before + 1


def test_row_without_broker_has_no_held_back_messages() -> None:
    assert [ShownPartition(one.status, None).held_back for one in rows_of(LOADED, None)] == [None]
