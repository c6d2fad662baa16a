"""The positions of the audit applier are stored in the audit's database, so that both are lost together and rebuilt
from the log."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from headrace.audit.errors import StoreUnavailable
from headrace.audit.reconcile import reconcile_topics
from headrace.audit.row import AuditRow, Tier
from headrace.audit.storage.store import AuditStore
from headrace.audit.stored import CountedCommit
from headrace.audit.verdict import AuditVerdict
from headrace.loader.apply.audit import AuditApplier
from headrace.loader.apply.base import Step
from headrace.loader.report import RunReport
from headrace.loader.run import run_load
from headrace.loader.work_unit import AuditCount, UnitResult, WorkUnit
from support.loader.loader_fakes import ORDER_V1, FakePool, World

HOUR_MS = 3_600_000


class CountingPool(FakePool):
    """A pool whose tasks also count the messages of the brokers' log, as real tasks do."""

    def __call__(self, units: Sequence[WorkUnit]) -> list[UnitResult]:
        results = super().__call__(units)
        return [
            dataclasses.replace(
                result,
                ranges=tuple(
                    dataclasses.replace(one, audit=(*one.audit, *(_stored(count) for count in one.audit)))
                    for one in result.ranges
                ),
            )
            for result in results
        ]


def _stored(written: AuditCount) -> AuditCount:
    return dataclasses.replace(written, tier=Tier.BROKER.value, outcome="")


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.pool = CountingPool(world.cluster)
    world.registry.register("orders-value", 1, ORDER_V1)
    world.registry.register("clicks-value", 2, ORDER_V1)
    world.topic("orders", [1] * 10, [1] * 5)
    world.topic("clicks", [2] * 3)
    return world


def load(world: World) -> RunReport:
    return run_load(world.ports(), world.settings)


def more(world: World, *topics: str) -> None:
    for topic in topics:
        log = world.cluster.topics[topic].logs[0]
        log += log[:1] * 2


def rows(world: World) -> dict[str, AuditRow]:
    return {row.id: row for topic in ("orders", "clicks") for row in world.audit(topic)}


def unexplained(world: World) -> int:
    """The number of messages that the brokers hold and the report does not find in the tables."""
    with AuditStore(world.audit_path) as store:
        results = reconcile_topics(
            (facts for topic in store.topics() for facts in store.facts(topic)),
            {topic: store.offset_check(topic) for topic in store.topics()},
            now_ms=HOUR_MS,
            grace_ms=0,
        )
    assert {result.topic for result in results} == {"orders", "clicks"}
    assert {result.verdict for result in results} <= {AuditVerdict.COMPLETE, AuditVerdict.UNKNOWN}
    return sum(result.totals["stored"] - result.totals["written"] for result in results)


def produced(world: World) -> int:
    return sum(len(log) for topic in world.cluster.topics.values() for log in topic.logs)


def stored(world: World) -> int:
    return sum(row.count for row in rows(world).values() if row.tier is Tier.BROKER)


def remove(path: Path) -> None:
    for part in path.parent.glob(path.name + "*"):
        part.unlink()


def test_a_lost_audit_database_is_rebuilt_by_a_run_without_new_messages(world: World) -> None:
    load(world)
    more(world, "orders")
    load(world)
    before = rows(world)
    remove(world.audit_path)
    report = load(world)
    assert (report.commit_number, report.problems) == (0, {})
    assert rows(world) == before
    assert stored(world) == produced(world)
    assert unexplained(world) == 0


def test_a_restored_older_audit_database_gets_the_later_commits(world: World, tmp_path: Path) -> None:
    load(world)
    shutil.copy(world.audit_path, tmp_path / "copy.db")
    more(world, "orders", "clicks")
    load(world)
    more(world, "clicks")
    load(world)
    before = rows(world)
    remove(world.audit_path)
    shutil.copy(tmp_path / "copy.db", world.audit_path)
    load(world)
    assert rows(world) == before
    assert unexplained(world) == 0


def test_a_run_killed_between_two_topics_counts_each_topic_fully_or_not_at_all(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_committed = AuditStore.add_committed

    def dying(store: AuditStore, topic: str, *arguments: Any) -> int:
        if topic == "orders":
            raise KeyboardInterrupt
        return add_committed(store, topic, *arguments)

    monkeypatch.setattr(AuditStore, "add_committed", dying)
    with pytest.raises(KeyboardInterrupt):
        load(world)
    with AuditStore(world.audit_path) as store:
        assert list(store.counted_commits()) == ["clicks"]
    monkeypatch.undo()
    load(world)
    assert stored(world) == produced(world)


def test_a_topic_that_cannot_be_counted_holds_back_no_other_topic(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_committed = AuditStore.add_committed

    def full(store: AuditStore, topic: str, *arguments: Any) -> int:
        if topic == "clicks":
            raise StoreUnavailable("audit.db", "database or disk is full")
        return add_committed(store, topic, *arguments)

    monkeypatch.setattr(AuditStore, "add_committed", full)
    assert set(load(world).problems) == {"clicks"}
    with AuditStore(world.audit_path) as store:
        assert list(store.counted_commits()) == ["orders"]
    monkeypatch.undo()
    assert load(world).problems == {}
    assert stored(world) == produced(world)


def test_audit_rows_and_position_are_written_in_one_transaction(world: World) -> None:
    """A process killed between the two writes leaves neither in the database."""
    load(world)
    rows_before = rows(world)
    with AuditStore(world.audit_path) as store:
        counted_before = store.counted_commits()
    more(world, "orders")

    def dying(connection: Connection, cursor: object, statement: str, *others: object) -> None:
        if "UPDATE counted" in statement:
            assert connection.exec_driver_sql("SELECT count(*) FROM audit_row").scalar_one() > len(rows_before)
            raise KeyboardInterrupt

    sa.event.listen(Engine, "before_cursor_execute", dying)
    with pytest.raises(KeyboardInterrupt):
        load(world)
    sa.event.remove(Engine, "before_cursor_execute", dying)
    assert rows(world) == rows_before
    with AuditStore(world.audit_path) as store:
        assert store.counted_commits() == counted_before
    load(world)
    assert stored(world) == produced(world)


def test_an_audit_database_of_another_log_is_detected(world: World, tmp_path: Path) -> None:
    """With the positions of another log, commits would be skipped that were never counted, also for topics that fail in
    this run."""
    other = World(tmp_path / "other")
    other.pool = CountingPool(other.cluster)
    for topic, schema_id in (("orders", 1), ("clicks", 2)):
        other.registry.register(f"{topic}-value", schema_id, ORDER_V1)
        other.topic(topic, [schema_id] * 4)
    for _ in range(3):
        run_load(other.ports(), other.settings)
        more(other, "orders", "clicks")
    load(world)
    before = rows(world)
    remove(world.audit_path)
    shutil.copy(other.audit_path, world.audit_path)
    load(world)
    assert before.keys() <= rows(world).keys()
    with AuditStore(world.audit_path) as store:
        log = world.log()
        assert store.counted_commits() == {topic: CountedCommit(1, log.sha256(1)) for topic in ("orders", "clicks")}


def test_positions_of_another_log_are_reset_before_commits_are_applied(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(world)
    with AuditStore(world.audit_path) as store:
        store.reset_counted_commits()
        store.add_committed("orders", 0, CountedCommit(1, "of another log"), [])
        store.add_committed("clicks", 0, CountedCommit(1, "of another log"), [])

    def dying(applier: AuditApplier, steps: Sequence[Step]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(AuditApplier, "apply_topics", dying)
    with pytest.raises(KeyboardInterrupt):
        load(world)
    with AuditStore(world.audit_path) as store:
        assert store.counted_commits() == {}


def test_an_unreadable_audit_database_is_reported_and_files_are_published(world: World) -> None:
    load(world)
    remove(world.audit_path)
    world.audit_path.write_bytes(b"this is no database" * 100)
    more(world, "orders")
    report = load(world)
    assert report.commit_number == 2
    assert world.rows("orders") == world.produced("orders")
    for topic in ("orders", "clicks"):
        (problem,) = report.problems[topic]
        assert str(world.audit_path) in problem
    remove(world.audit_path)
    assert load(world).problems == {}
    assert stored(world) == produced(world)


def test_a_slower_process_does_not_move_a_position_back(tmp_path: Path) -> None:
    with AuditStore(tmp_path / "audit.db") as store:
        store.add_committed("t", 0, CountedCommit(3, "c"), [])
        store.add_committed("t", 0, CountedCommit(1, "a"), [])
        assert store.counted_commits() == {"t": CountedCommit(3, "c")}
        store.add_committed("t", 3, CountedCommit(5, "e"), [])
        store.add_committed("t", 3, CountedCommit(4, "d"), [])
        assert store.counted_commits() == {"t": CountedCommit(5, "e")}
        store.reset_counted_commits()
        store.add_committed("t", 5, CountedCommit(6, "f"), [])
        assert store.counted_commits() == {}, "after a reset, counting starts at the first commit"


def test_the_audits_own_topic_has_a_position_and_no_rows(world: World) -> None:
    world.registry.register("headrace.audit-value", 3, ORDER_V1)
    world.topic("headrace.audit", [3] * 2)
    load(world)
    assert world.audit("headrace.audit") == []
    assert load(world).applied == ()
