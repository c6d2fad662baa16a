"""Appliers that are far behind read commits in portions, so a history of any length needs the memory of one portion
only."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from headrace.audit.row import AuditRow
from headrace.audit.storage.store import AuditStore
from headrace.hive_ddl.errors import MetastoreUnavailable
from headrace.loader.apply import pending
from headrace.loader.apply.pending import PendingCommits
from headrace.loader.commit.commit import Commit
from headrace.loader.report import RunReport
from headrace.loader.rewrite.choose import DAY_MS
from headrace.loader.rewrite.run import CompactSettings, compact
from headrace.loader.run import run_load
from support.loader.loader_fakes import ORDER_V1, World

SETTINGS = CompactSettings(
    closed_ms_of=lambda topic: 0, bytes_target=1_000_000, block_bytes=1_000, codec_of=lambda topic: "null"
)


@pytest.fixture(params=[1, 5_000], ids=["one by one", "a few together"])
def portions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[Sequence[Commit]]:
    """The portions that were read."""
    monkeypatch.setattr(pending, "PORTION_BYTES_MAX", request.param)
    read: list[Sequence[Commit]] = []
    after = PendingCommits.after

    def noted(self: PendingCommits, commit_number: int) -> Iterator[Sequence[Commit]]:
        for portion in after(self, commit_number):
            read.append(portion)
            yield portion

    monkeypatch.setattr(PendingCommits, "after", noted)
    return read


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.registry.register("orders-value", 1, ORDER_V1)
    made.registry.register("clicks-value", 2, ORDER_V1)
    made.topic("orders", [1, 1], [1])
    made.topic("clicks", [2], topic_id="id-2")
    return made


def load(world: World) -> RunReport:
    """Loads after adding one message to both topics."""
    world.cluster.topics["orders"].logs[0].append(1)
    world.cluster.topics["clicks"].logs[0].append(2)
    return run_load(world.ports(), world.settings)


def history(world: World) -> None:
    """Loads, a compaction, and loads into the compacted time partitions."""
    for _ in range(4):
        load(world)
    world.clock_ms += 3 * DAY_MS
    compact(world.rewrites(), ["orders"], SETTINGS, is_dry=False)
    for _ in range(4):
        load(world)


def check_complete(world: World) -> None:
    """Every message is found once by a query of the metastore's partitions, and is counted once."""
    for topic in ("orders", "clicks"):
        found = []
        for location in world.hive.parts["headrace", topic].values():
            for path in sorted(Path(location.removeprefix("file://")).iterdir()):
                found += [tuple(map(int, line.strip("[]").split(","))) for line in path.read_text().splitlines()]
        assert sorted(found) == world.produced(topic)
    with AuditStore(world.audit_path) as store:
        counted = store.counted_commits()
        state = world.log().read_state()
        assert {topic: at.commit_number for topic, at in counted.items()} == {
            topic: known.commit_number for topic, known in state.topics.items()
        }


def test_a_lost_audit_is_rebuilt_in_portions(world: World, portions: list[Sequence[Commit]]) -> None:
    history(world)
    before = audited(world)
    world.audit_path.unlink()
    portions.clear()
    assert not run_load(world.ports(), world.settings).has_findings
    assert [one.commit_number for portion in portions for one in portion] == list(range(1, 10))
    assert len(portions) > 1
    assert audited(world) == before
    check_complete(world)


def audited(world: World) -> dict[str, AuditRow]:
    return {row.id: row for topic in ("orders", "clicks") for row in world.audit(topic)}


def test_after_lost_cursors_commits_are_applied_in_portions_and_no_partition_moves_back(
    world: World, portions: list[Sequence[Commit]]
) -> None:
    history(world)
    wanted = {key: dict(parts) for key, parts in world.hive.parts.items()}
    shutil.rmtree(world.warehouse / "_headrace" / "cursor")
    world.hive.executed.clear()
    portions.clear()
    assert not run_load(world.ports(), world.settings).has_findings
    assert len(portions) > 4
    assert world.hive.parts == wanted
    check_complete(world)


def test_commits_pending_for_the_metastore_are_applied_in_portions(
    world: World, portions: list[Sequence[Commit]]
) -> None:
    """If a time partition was rewritten in between, files of later portions must not be reported as removed by
    users."""
    load(world)
    load(world)
    world.clock_ms += 3 * DAY_MS
    compact(world.rewrites(), ["orders"], SETTINGS, is_dry=False)
    shutil.rmtree(world.warehouse / "_headrace" / "cursor")
    world.hive.failure = MetastoreUnavailable("thrift://x", "connection refused")
    for _ in range(4):
        assert load(world).has_findings
    world.hive.failure = None
    portions.clear()
    report = run_load(world.ports(), world.settings)
    assert (report.problems, report.notes) == ({}, ())
    assert len(portions) > 4
    check_complete(world)
    assert world.log().storage.children("staging") == ()
