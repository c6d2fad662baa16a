"""Alarms stay open over later loads, until they are accepted or repaired."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli import main
from headrace.loader.build import current_build
from headrace.loader.commit.alarms import DAY_MS, DAYS_MAX, NEWEST_MAX, Alarm, AlarmKind, with_alarm
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.commit.findings import alarms_of
from headrace.loader.commit.reconcile import ReconciledTopic
from headrace.loader.inspect.alarms import ACCEPTED_PATH, OpenAlarm, accept, open_alarms, withdraw
from headrace.loader.project.quarantine import BadMessage, QuarantineCode
from headrace.loader.rewrite.discard import discard
from headrace.loader.rewrite.driver_files import FileShape
from headrace.loader.rewrite.merge import merge
from headrace.loader.rewrite.run import CompactSettings, RewritePorts, compact
from headrace.loader.run import plan_load, run_load
from headrace.loader.work_unit import ImplausibleTimeCount, ImplausibleTimeKind, RangeCounts, SkippedOffsets
from support.loader.loader_fakes import ORDER_V1, World
from support.loader.loader_samples import committed_range
from support.loader.shelf import TIME_MS, Shelf

NOW_MS = TIME_MS + 10 * DAY_MS
SHAPE = FileShape("", "deflate", block_bytes=1_000, file_bytes_target=1_000_000)
HOUR = "dt=2026-01-01/hr=05"
CODES = (QuarantineCode.SCHEMA_NOT_FOUND, QuarantineCode.MALFORMED)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.registry.register("orders-value", 1, ORDER_V1)
    world.topic("orders", [1] * 10)
    return world


def alarms(world: World) -> dict[str, OpenAlarm]:
    log = world.log()
    log.read_state()
    return {one.kind: one for one in open_alarms(log, FileIndex(log), world.clock_ms)}


def counts(world: World) -> dict[str, int]:
    return {kind: one.count for kind, one in alarms(world).items()}


def accept_all(world: World) -> None:
    log = world.log()
    log.read_state()
    accept(log, FileIndex(log), ["orders"], (), "ticket", "me@here", world.clock_ms)


def load(world: World, *appended: int) -> None:
    world.cluster.topics["orders"].logs[0] += appended
    run_load(world.ports(), world.settings)


def test_quarantined_messages_stay_an_alarm_until_accepted(world: World) -> None:
    world.pool.bad = {2}
    load(world)
    assert counts(world) == {}
    load(world, *[2] * 60)
    first_ms = world.clock_ms
    for _ in range(3):
        world.clock_ms += DAY_MS
        load(world, *[1] * 20)
    assert counts(world) == {"quarantined": 60}
    assert alarms(world)["quarantined"].since_ms == first_ms
    accept_all(world)
    assert counts(world) == {}
    load(world, 1, 2, 2, 1)
    assert counts(world) == {"quarantined": 2}
    assert alarms(world)["quarantined"].since_ms == world.clock_ms
    accept_all(world)
    assert counts(world) == {}


def test_alarm_after_an_acceptance_of_the_same_day_has_its_own_time(world: World) -> None:
    world.pool.bad = {2}
    load(world, 2)
    accept_all(world)
    for wait_ms in (600_000, 1_200_000):
        world.clock_ms += wait_ms
        load(world, 1, 2)
    assert alarms(world)["quarantined"].since_ms == world.clock_ms - 1_200_000


def test_offsets_that_expired_unread_stay_an_alarm(world: World) -> None:
    world.policy = dataclasses.replace(world.policy, on_data_loss="skip")
    load(world)
    topic = world.cluster.topics["orders"]
    topic.logs[0], topic.first = [1] * 5, 40
    load(world)
    load(world, 1)
    (alarm,) = alarms(world).values()
    assert (alarm.kind, alarm.count) == ("lost", 30)
    assert "offsets 10 to 39 were removed" in alarm.text
    accept_all(world)
    assert counts(world) == {}


def test_a_truncated_log_and_a_new_topic_stay_alarms(world: World) -> None:
    world.policy = dataclasses.replace(world.policy, on_data_loss="skip")
    load(world)
    world.cluster.topics["orders"].cut_back(0, 7, 1, 1)
    load(world)
    assert counts(world) == {"replaced": 3}
    world.topic("orders", [1] * 3, topic_id="id-2")
    load(world)
    load(world, 1)
    assert counts(world) == {"replaced": 3, "recreated": 1}


def test_messages_of_a_new_topic_are_not_covered_by_an_acceptance(world: World) -> None:
    """Their offsets are below those of the accepted messages."""
    world.policy = dataclasses.replace(world.policy, on_data_loss="skip")
    world.pool.bad = {2}
    load(world, *[2] * 60)
    accept_all(world)
    world.topic("orders", [2, 1, 2], topic_id="id-2")
    load(world)
    assert counts(world) == {"quarantined": 2, "recreated": 1}


def test_messages_of_a_truncated_log_are_not_covered_by_an_acceptance(world: World) -> None:
    world.policy = dataclasses.replace(world.policy, on_data_loss="skip")
    world.pool.bad = {2}
    load(world, *[2] * 60)
    accept_all(world)
    world.cluster.topics["orders"].cut_back(0, 20, 2, 2, 1)
    load(world)
    assert counts(world)["quarantined"] == 2


def test_skipped_batches_and_implausible_times_are_alarms(world: World) -> None:
    planned = plan_load(world.ports(), world.settings).planned_topics["orders"]
    ranges = dataclasses.replace(
        committed_range(0, None, 0, 30),
        counts=RangeCounts(records=10, corrupt=20),
        skipped=(SkippedOffsets(0, 8, "bad checksum"), SkippedOffsets(9, 21, "bad checksum")),
    )
    wrong_unit = ImplausibleTimeCount(ImplausibleTimeKind.WRONG_UNIT, "at", "millis", 9, 1_357_002_000)
    few = dataclasses.replace(wrong_unit, messages=1)
    noted = ImplausibleTimeCount(ImplausibleTimeKind.NO_TIME, "at", "", 10, 0)
    found = alarms_of(planned, ReconciledTopic((ranges,), implausible_times=(wrong_unit, few, noted)))
    assert [(one.kind, one.count) for one in found] == [(AlarmKind.CORRUPT, 20), (AlarmKind.TIMES, 9)]


def test_totals_have_a_bounded_number_of_days() -> None:
    total = None
    for day in range(3 * DAYS_MAX):
        for hour in (5, 7):
            total = with_alarm(total, Alarm("lost", 2, "x" * 10_000), TIME_MS + day * DAY_MS + hour * 3_600_000)
    assert total is not None
    assert (total.total, len(total.days)) == (12 * DAYS_MAX, DAYS_MAX)
    assert len(json.dumps(total.text)) < 1_000
    assert total.since_ms(total.total - 1) == total.newest[-1].first_ms == total.days[-1].first_ms + 2 * 3_600_000
    assert len(total.newest) == NEWEST_MAX
    assert total.since_ms(total.total - 2 * NEWEST_MAX) == total.days[-NEWEST_MAX // 2].first_ms
    assert total.total_before(total.days[-2].first_ms) == total.days[-3].total


def test_acceptances_of_another_commit_log_are_void(world: World, tmp_path: Path) -> None:
    world.pool.bad = {2}
    load(world, *[2] * 60)
    accept_all(world)
    other = World(tmp_path / "other")
    other.registry, other.cluster, other.clock_ms = world.registry, world.cluster, world.clock_ms + 1
    other.pool.cluster, other.pool.bad = world.cluster, {2}
    run_load(other.ports(), other.settings)
    content = world.log().storage.read(ACCEPTED_PATH)
    assert content is not None
    other.log().storage.replace(ACCEPTED_PATH, content)
    assert counts(other) == {"quarantined": 60}
    world.log().storage.replace(ACCEPTED_PATH, content[:-20])
    assert counts(world) == {"quarantined": 60}


def rewrites(shelf: Shelf) -> RewritePorts:
    index = FileIndex(shelf.log)
    return RewritePorts(
        log=shelf.log,
        staging=shelf.storage.staging,
        files=shelf.storage.files,
        index=index,
        engine=shelf.engine(index),
        run_merges=lambda units: [
            merge(one, shelf.storage.files, shelf.storage.staging.sink(one.run_id)) for one in units
        ],
        now_ms=lambda: NOW_MS,
        new_run_id=lambda: f"rewrite-{shelf.log.head() + 1}",
        build=current_build(),
    )


def open_of(shelf: Shelf) -> int:
    shelf.log.read_state()
    return sum(one.count for one in open_alarms(shelf.log, FileIndex(shelf.log), NOW_MS))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("load"), st.sampled_from(CODES), st.integers(1, 3)),
        st.tuples(st.just("discard"), st.sampled_from(CODES), st.just(0)),
        st.tuples(st.sampled_from(["accept", "compact", "withdraw"]), st.just(CODES[0]), st.just(0)),
    ),
    min_size=1,
    max_size=7,
)


@given(STEPS)
def test_open_messages_equal_those_of_a_set_model(steps: list[tuple[str, QuarantineCode, int]]) -> None:
    """The model knows each message. The count is exact until a rewrite puts accepted and open messages into one file;
    then it may be too high, but it is 0 only if no message is open."""
    with tempfile.TemporaryDirectory() as directory:
        shelf = Shelf(Path(directory))
        next_offset = 0
        quarantined: dict[int, QuarantineCode] = {}
        accepted: set[int] = set()
        has_mixed_files = False
        for verb, code, count in steps:
            if verb == "load":
                offsets = range(next_offset, next_offset + count)
                quarantined |= dict.fromkeys(offsets, code)
                shelf.load(
                    {},
                    (0, next_offset or None, next_offset, next_offset + count),
                    quarantined={HOUR: [(0, offset) for offset in offsets]},
                    bad=BadMessage(code, "bad", 7),
                )
                next_offset += count
            elif not next_offset:
                continue
            elif verb == "discard":
                is_mixed = accepted & quarantined.keys() and quarantined.keys() - accepted
                has_mixed_files |= bool(is_mixed)
                discard(rewrites(shelf), "orders", SHAPE, [code], "r", is_dry=False)
                quarantined = {offset: one for offset, one in quarantined.items() if one != code}
            elif verb == "compact":
                has_mixed_files |= bool(accepted & quarantined.keys() and quarantined.keys() - accepted)
                settings = CompactSettings(lambda topic: 0, 1_000_000, 1_000, lambda topic: "deflate")
                compact(rewrites(shelf), ["orders"], settings, is_dry=False)
            elif verb == "withdraw":
                withdraw(shelf.log, ["orders"], ())
                accepted = set()
            else:
                accept(shelf.log, FileIndex(shelf.log), ["orders"], (), "r", "me", NOW_MS)
                accepted = set(range(next_offset))
            expected = len(quarantined.keys() - accepted)
            found = open_of(shelf)
            if has_mixed_files:
                assert found >= expected
                assert found <= len(quarantined)
            else:
                assert found == expected


def test_accept_lists_alarms_and_needs_a_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shelf = Shelf(tmp_path)
    shelf.load({}, (0, None, 0, 3), quarantined={HOUR: [(0, n) for n in range(3)]})

    def run(*words: str) -> int:
        return main(["accept", *words, "--data-dir", str(tmp_path)])

    assert run() == 1
    assert "orders: quarantined: 3 " in capsys.readouterr().out
    assert run("orders") == 2
    assert "--reason" in capsys.readouterr().err
    assert run("clicks", "--reason", "r") == 2
    assert run("--reason", "r") == 2
    capsys.readouterr()
    assert run("orders", "--reason", "tests, ticket 4711", "--format", "json") == 0
    (accepted,) = json.loads(capsys.readouterr().out)["accepted"]
    assert (accepted["kind"], accepted["count"]) == ("quarantined", 3)
    assert run() == 0
    assert run("orders", "--withdraw") == 0
    assert run("--kind", "quarantined") == 1
    assert run("--kind", "lost") == 0
