"""The sources of a status that need no server: loads, commit log, disks."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest

from headrace.cli import command_parser
from headrace.kafka_wire.cluster import OffsetLookup
from headrace.kafka_wire.topic_partition import TopicPartition
from headrace.loader.run import run_load
from headrace.loader.run_log import RunLine, append_line
from headrace.loader.storage.local.lease import Lease
from headrace.pipeline.status.backlog import first_expiry, limits_of
from headrace.pipeline.status.commits import commits
from headrace.pipeline.status.context import StatusContext
from headrace.pipeline.status.finding import KINDS, StatusFinding, StatusKind
from headrace.pipeline.status.loads import loads
from headrace.settings import Duration, LoaderSettings, Settings
from support.loader.loader_fakes import ORDER_V1, World

NOW_MS = 1_767_225_600_000
MINUTE_MS = 60_000
HOUR_MS, DAY_MS = 60 * MINUTE_MS, 1440 * MINUTE_MS
COMPACTED = RunLine(0, 1_000, "committed", 0, commit_number=2, kind="compact")
GOOD = RunLine(NOW_MS - 5 * MINUTE_MS, 1_000, "committed", 0, commit_number=3, topics=1, rows=5)


def load_findings(directory: Path, *lines: RunLine, interval_ms: int = 10 * MINUTE_MS) -> list[StatusFinding]:
    for line in lines:
        append_line(directory / "logs" / "runs.jsonl", line)
    settings = Settings(data_dir=directory, loader=LoaderSettings(interval=Duration(interval_ms)))
    return list(loads(StatusContext(settings, NOW_MS)).findings)


def test_recent_good_load_is_no_finding(tmp_path: Path) -> None:
    assert load_findings(tmp_path, GOOD) == []


def test_failed_load_is_a_failure_with_its_reason_until_the_next_good_one(tmp_path: Path) -> None:
    failed = dataclasses.replace(GOOD, outcome="failed", exit_code=2, error="no broker answers")
    (found,) = load_findings(tmp_path, failed)
    assert (found.kind, found.problem, found.severity) == ("load-failed", "no broker answers", 2)
    assert load_findings(tmp_path, GOOD) == []


def test_load_that_ended_in_the_future_shows_that_the_clock_was_set_back(tmp_path: Path) -> None:
    (found,) = load_findings(tmp_path, dataclasses.replace(GOOD, started_at_ms=NOW_MS + 2 * HOUR_MS))
    assert (found.kind, found.problem.split(" later")[0]) == ("clock-differs", "the last load ended 2 hours")
    assert load_findings(tmp_path, GOOD) == []


def test_yielded_loads_do_not_hide_the_last_one(tmp_path: Path) -> None:
    failed = dataclasses.replace(GOOD, outcome="failed", exit_code=2, error="no broker answers")
    found = load_findings(tmp_path, failed, RunLine(NOW_MS - MINUTE_MS, 1, "yielded", 0))
    assert [one.kind for one in found] == ["load-failed"]


@pytest.mark.parametrize(("interval_ms", "kinds"), [(MINUTE_MS, ["load-late"]), (2 * MINUTE_MS, [])])
def test_load_is_late_after_three_intervals(tmp_path: Path, interval_ms: int, kinds: list[str]) -> None:
    assert [one.kind for one in load_findings(tmp_path, GOOD, interval_ms=interval_ms)] == kinds


@pytest.mark.parametrize(("age_ms", "kinds"), [(HOUR_MS, ["load-stuck"]), (5 * MINUTE_MS, [])])
def test_load_that_holds_the_lease_for_long_is_stuck(tmp_path: Path, age_ms: int, kinds: list[str]) -> None:
    lease = Lease(tmp_path / "warehouse" / "_headrace" / "lease.json")
    assert lease.acquire(NOW_MS - age_ms) is None
    assert [one.kind for one in load_findings(tmp_path, dataclasses.replace(GOOD, started_at_ms=0))] == kinds
    lease.release()


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A warehouse in which three loads of a topic have made commits."""
    world = World(tmp_path)
    world.registry.register("orders-value", 1, ORDER_V1)
    world.topic("orders", [1])
    for _ in range(3):
        world.cluster.topics["orders"].logs[0] += [1]
        run_load(world.ports(), world.settings)
    return world


def commit_kinds(directory: Path) -> list[str]:
    return [one.kind for one in commits(StatusContext(Settings(data_dir=directory), NOW_MS)).findings]


def test_applied_commits_are_no_finding(world: World, tmp_path: Path) -> None:
    assert commit_kinds(tmp_path) == []


def test_topics_behind_an_applier_are_not_applied(world: World, tmp_path: Path) -> None:
    (tmp_path / "warehouse" / "_headrace" / "cursor" / "files.json").unlink()
    assert commit_kinds(tmp_path) == ["not-applied"]
    lease = Lease(tmp_path / "warehouse" / "_headrace" / "lease.json")
    assert lease.acquire(NOW_MS) is None
    assert commit_kinds(tmp_path) == [], "the running load applies them"
    lease.release()


def test_damaged_older_commit_is_found_although_the_state_does_not_need_it(world: World, tmp_path: Path) -> None:
    context = StatusContext(Settings(data_dir=tmp_path), NOW_MS)
    assert context.state.commit_number == 3
    (tmp_path / "warehouse" / "_headrace" / "log" / "000000001.json").write_bytes(b"{}")
    (found,) = commits(context).findings
    assert (found.kind, found.subject) == ("commit-log-damaged", "commit 1")


def test_commit_of_another_log_is_damage(world: World, tmp_path: Path) -> None:
    other = World(tmp_path / "other")
    other.registry.register("orders-value", 1, ORDER_V1)
    other.topic("orders", [1] * 7)
    run_load(other.ports(), other.settings)
    context = StatusContext(Settings(data_dir=tmp_path), NOW_MS)
    assert context.state.commit_number == 3
    name = Path("warehouse", "_headrace", "log", "000000001.json")
    (tmp_path / name).write_bytes((tmp_path / "other" / name).read_bytes())
    (found,) = commits(context).findings
    assert (found.kind, found.subject) == ("commit-log-damaged", "commit 1")
    assert "not the commit that commit 2 names" in found.problem


@dataclasses.dataclass
class AgedCluster:
    """Answers requests for offsets at a time from the times of the messages of each partition."""

    times_ms: dict[TopicPartition, list[int]]

    def lookup_offsets_at(self, timestamps: Mapping[TopicPartition, int]) -> OffsetLookup:
        found = {
            tp: next((offset for offset, time in enumerate(self.times_ms[tp]) if time >= timestamp), -1)
            for tp, timestamp in timestamps.items()
        }
        return OffsetLookup(found, {})


@dataclasses.dataclass
class AgedContext:
    cluster: AgedCluster
    now_ms: int = NOW_MS


@pytest.mark.parametrize(
    ("left_ms", "when"), [(40 * MINUTE_MS, "in 3[89] minutes"), (20 * HOUR_MS, "in 19 hours"), (-1, "at any time")]
)
def test_status_says_when_the_first_unread_message_may_expire(left_ms: int, when: str) -> None:
    orders, clicks = TopicPartition("orders", 0), TopicPartition("clicks", 3)
    week_ms = 7 * DAY_MS
    times = {orders: [0, NOW_MS - week_ms + left_ms, NOW_MS], clicks: [NOW_MS - week_ms + 23 * HOUR_MS]}
    context = cast(StatusContext, AgedContext(AgedCluster(times)))
    limits = dict.fromkeys(("orders", "clicks"), limits_of(week_ms, 10 * MINUTE_MS))
    text = first_expiry(context, {orders: 1, clicks: 0}, dict.fromkeys(limits, week_ms), limits)
    assert re.fullmatch(f"the first one, of orders, may expire {when}", text), text


def test_limits_of_expiry_are_at_most_half_the_retention() -> None:
    week = limits_of(7 * DAY_MS, 10 * MINUTE_MS)
    assert (week.soon_ms, week.later_ms) == (2 * HOUR_MS, DAY_MS)
    hour = limits_of(HOUR_MS, 10 * MINUTE_MS)
    assert (hour.soon_ms, hour.later_ms) == (HOUR_MS // 2, HOUR_MS // 2)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_commands_of_each_kind_can_be_run_as_printed(kind: StatusKind) -> None:
    """A command ends at a punctuation mark."""
    for words in re.findall(r"\bheadrace ([a-z][^;:,()]*)", f"{kind.show}; {kind.repair}"):
        name, *arguments = words.replace("{subject}", "orders").replace("SUBJECT", "orders").split()
        command_parser(name).parse_args([one for one in arguments if one not in ("or", "then")])


def test_a_failed_compaction_is_reported_until_the_next_one(tmp_path: Path) -> None:
    failed = dataclasses.replace(COMPACTED, exit_code=1, problems=1, error="orders: f.avro is damaged")
    (found,) = load_findings(tmp_path / "a", failed, GOOD)
    assert (found.kind, found.problem, found.since_ms) == ("compaction-failed", "orders: f.avro is damaged", 0)
    assert load_findings(tmp_path / "b", failed, COMPACTED, GOOD) == []
