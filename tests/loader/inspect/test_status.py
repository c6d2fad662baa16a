"""The status of the loader, as values and as printed text."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from headrace.audit.storage.store import AuditStore
from headrace.cli.load import print_status
from headrace.hive_ddl.errors import MetastoreUnavailable
from headrace.loader.apply.audit import positions_in
from headrace.loader.inspect import status as status_module
from headrace.loader.inspect.status import LoadStatus, load_status
from headrace.loader.plan.discover import discover
from headrace.loader.run import run_load
from headrace.loader.run_log import RunLine
from support.golden import golden
from support.loader.loader_fakes import ORDER_V1, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.registry.register("orders-value", 1, ORDER_V1)
    world.topic("orders", [1] * 10, [1] * 5)
    return world


def load(world: World) -> None:
    run_load(world.ports(), world.settings)


def status_of(world: World, *runs: RunLine) -> LoadStatus:
    with AuditStore(world.audit_path) as store:
        counted = positions_in(store)
    return load_status(world.log(), discover(world.cluster, (".*",), ()), counted, "", runs)


def test_status_of_a_completely_loaded_topic(world: World) -> None:
    load(world)
    (topic,) = status_of(world).topics
    published = [path.stat().st_size for path in (world.warehouse / "orders").rglob("*.avro")]
    assert (topic.lag, topic.rows, topic.files, topic.pending) == (0, 15, 2, ())
    assert topic.file_bytes_mean == sum(published) // 2
    assert topic.complete_until == "2026-01-01T00:00:00Z"


def test_status_has_lag_and_waiting_topics(world: World) -> None:
    load(world)
    world.cluster.topics["orders"].logs[1] += [1] * 7
    world.topic("raw", [9])
    status = status_of(world)
    assert (status.topics[0].lag, status.waiting) == (7, ("raw",))
    assert load_status(world.log(), None, {}, "no lag: down").topics[0].lag is None


def test_status_has_appliers_that_are_behind(world: World) -> None:
    load(world)
    world.hive.failure = MetastoreUnavailable("thrift://hive:9083", "refused")
    world.cluster.topics["orders"].logs[0] += [1]
    load(world)
    status = status_of(world)
    assert status.has_pending
    assert status.topics[0].pending == ("schema", "files", "partitions", "audit", "group_offsets")
    assert status.cursors == {name: 2 if name == "index" else 1 for name in status.cursors}, (
        "only the index is applied without a metastore"
    )
    world.hive.failure = None
    load(world)
    done = status_of(world)
    assert not done.has_pending
    assert set(done.cursors.values()) == {2}


@pytest.mark.parametrize(
    ("hourly_bytes_min", "policy", "is_advised"), [(1, "auto", True), (1, "day", False), (10_000, "auto", False)]
)
def test_topic_by_day_that_became_busy_has_the_command_for_hours(
    world: World, monkeypatch: pytest.MonkeyPatch, hourly_bytes_min: int, policy: str, is_advised: bool
) -> None:
    world.policy = dataclasses.replace(world.policy, partition_by="auto")
    load(world)
    assert world.log().read_state().topics["orders"].partition_by == "day"
    monkeypatch.setattr(status_module, "HOURLY_BYTES_MIN", hourly_bytes_min)
    settings = dataclasses.replace(world.policy, partition_by=policy)
    note = load_status(world.log(), None, {}, policy_of=lambda topic: settings).topics[0].partition_note
    assert note.endswith("headrace hive repartition orders --by hour") is is_advised


def test_a_lost_audit_is_behind_for_every_topic(world: World) -> None:
    load(world)
    status = load_status(world.log(), None, {})
    assert (status.topics[0].pending, status.cursors["audit"]) == (("audit",), 0)


def test_status_text_has_all_topics(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    load(world)
    runs = (
        RunLine(1_767_225_600_000, 2_500, "committed", 0, commit_number=1, topics=1, rows=15, tasks=2, imbalance=1.25),
        RunLine(1_767_226_200_000, 100, "nothing", 1, problems=2),
        RunLine(1_767_226_800_000, 100, "failed", 2, error="no broker answers"),
    )
    print_status(dataclasses.replace(status_of(world, *runs), notes=("the core is not built",)))
    printed = capsys.readouterr().out
    assert printed == golden("loader/status.txt", printed)


def test_status_text_has_topics_that_are_behind(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    load(world)
    status = status_of(world)
    print_status(dataclasses.replace(status, cursors={**status.cursors, "schema": 0, "audit": 0}))
    assert re.search(r": schema .*\b0, audit .*\b0$", capsys.readouterr().out.splitlines()[0])


def test_topic_that_the_newest_loads_left_is_behind(world: World) -> None:
    world.registry.register("clicks-value", 2, ORDER_V1)
    world.topic("clicks", [2])
    load(world)
    for _ in range(3):
        world.cluster.topics["orders"].logs[0] += [1]
        load(world)
    world.cluster.topics["clicks"].logs[0] += [2]
    world.cluster.topics["orders"].logs[0] += [1]
    loads = [RunLine(0, 0, "committed", 0, commit_number=number) for number in (2, 3, 4)]
    status = status_of(world, *loads)
    assert {one.topic: one.lag for one in status.topics} == {"clicks": 1, "orders": 1}
    assert [one.topic for one in status.topics if status.is_left_behind(one)] == ["clicks"]
    assert not any(status_of(world, *loads[1:]).is_left_behind(one) for one in status.topics)
