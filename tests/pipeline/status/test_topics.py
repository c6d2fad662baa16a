"""Alarms and messages that loads hold back, in the first lines of the status."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from headrace.cli import _parser, main
from headrace.cli.accept import KINDS
from headrace.cli.status import print_status
from headrace.loader.commit.alarms import DAY_MS, AlarmKind
from headrace.loader.open_problems import read_problems
from headrace.loader.run import run_load
from headrace.loader.run_log import RunLine, TopicOutcome, append_line
from headrace.pipeline.status import collect, finding, topics
from headrace.pipeline.status.finding import PlatformStatus
from headrace.pipeline.status.topics import ALARM_KINDS, OTHER_ALARM, alarms, held_back
from headrace.registry.errors import CredentialsRefused
from headrace.settings import Settings
from support.loader.loader_fakes import ORDER_V1, ORDER_V2, World
from support.loader.value_world import ValueWorld


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(tmp_path)
    world.registry.register("orders-value", 1, ORDER_V1)
    world.topic("orders", [1] * 40)
    world.pool.bad = {2}
    monkeypatch.setattr(collect, "SOURCES", {"held back": held_back, "quarantine": alarms})
    return world


def load(world: World, *appended: int, topics_only: tuple[str, ...] = ()) -> None:
    world.cluster.topics["orders"].logs[0] += appended
    run_load(world.ports(), dataclasses.replace(world.settings, topics_only=topics_only))


def status(world: World) -> PlatformStatus:
    return collect.platform_status(Settings(data_dir=world.warehouse.parent), world.clock_ms)


def first_lines(world: World, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    print_status(status(world))
    return "\n".join(capsys.readouterr().out.splitlines()[:10])


def test_garbage_in_quarantine_is_a_finding_until_it_is_accepted(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    load(world, *[2] * 60)
    load(world, 1)
    lines = first_lines(world, capsys)
    assert "orders with messages in quarantine: 60 messages, 60 of them since yesterday" in lines
    assert "headrace quarantine list orders" in lines
    assert "headrace accept orders --kind quarantined --reason TEXT" in lines
    arguments = ("--reason", "tests", "--data-dir", str(world.warehouse.parent))
    assert main(["accept", "orders", "--kind", "quarantined", *arguments]) == 0
    assert status(world).severity == 0


def test_finding_about_the_quarantine_gives_a_reason_and_commands_that_run(tmp_path: Path) -> None:
    world = ValueWorld(tmp_path)
    world.registry.register("orders-value", 1, ORDER_V1)
    world.produce("orders", [b"garbage"] * 3)
    run_load(world.ports(), world.settings)
    settings = Settings(data_dir=world.warehouse.parent)
    (found,) = collect.platform_status(settings, world.clock_ms, expects_servers=False).findings
    assert found.problem == "3 messages, 3 of them since yesterday"
    # Apart from the problem, which alerts and pages show: a reason may quote a message.
    assert found.example == "; one of them: framing: the value begins with byte 103, expected the magic byte 0"
    commands = found.repair.replace("or headrace", "headrace").split("; ")
    assert [command.split()[1:4] for command in commands] == [
        ["quarantine", "replay", "orders"],
        ["quarantine", "discard", "orders"],
        ["accept", "orders", "--kind"],
    ]
    for command in commands:
        _parser(command.split()[1:]).parse_args(command.split()[1:])
    next(world.warehouse.glob("_quarantine/orders/**/*.avro")).write_bytes(b"")
    (found,) = collect.platform_status(settings, world.clock_ms, expects_servers=False).findings
    assert found.example == ""


def test_a_topic_held_back_is_a_finding_with_the_ways_out(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.cluster.topics["orders"].logs[0].clear()
    load(world, *[2] * 500)
    lines = first_lines(world, capsys)
    assert "500 of 500 messages cannot be loaded" in lines
    assert "headrace quarantine preview orders" in lines
    assert "headrace load --topic orders --quarantine-all" in lines
    (found,) = status(world).findings
    assert (found.kind, found.subject, found.since_ms) == ("topic-held-back", "orders", world.clock_ms)
    world.clock_ms += 600_000
    load(world)
    assert status(world).findings[0].since_ms == found.since_ms
    world.policy = dataclasses.replace(world.policy, quarantine_ratio_max=1.0)
    load(world)
    assert [one.kind for one in status(world).findings] == ["alarm-quarantined"]


@pytest.mark.parametrize("on_data_loss", ["fail", "skip"])
def test_messages_that_expired_unread_are_a_finding(
    world: World, capsys: pytest.CaptureFixture[str], on_data_loss: str
) -> None:
    world.policy = dataclasses.replace(world.policy, on_data_loss=on_data_loss)
    load(world)
    topic = world.cluster.topics["orders"]
    topic.logs[0], topic.first = [1] * 5, 50
    load(world)
    load(world)
    lines = first_lines(world, capsys)
    assert "offsets 40 to 49 were removed before they were read" in lines
    assert ("loader.on_data_loss=skip" if on_data_loss == "fail" else "headrace accept orders --kind lost") in lines


def test_problems_are_left_out_if_the_lag_reports_all_of_them(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    load(world)
    topic = world.cluster.topics["orders"]
    topic.logs[0], topic.first = [1] * 5, 50
    load(world)
    (sentence,) = read_problems(world.log().storage).topics["orders"].sentences
    for losses, kinds in (
        ({}, ["topic-held-back"]),
        ({"orders": ("partition 1: others; x",), "clicks": (sentence,)}, ["topic-held-back"]),
        ({"orders": ("partition 1: others; x", sentence)}, []),
    ):
        monkeypatch.setattr(topics, "reported_losses", lambda context, losses=losses: losses)
        assert [one.kind for one in status(world).findings] == kinds


def test_a_registry_that_rejects_the_loads_is_a_finding(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    load(world)
    world.registry.failure = CredentialsRefused("the registry requires credentials or rejected them: no", status=401)
    world.topic("clicks", [7] * 3)
    load(world)
    lines = first_lines(world, capsys)
    assert "registry rejecting the credentials of loads" in lines
    assert "registry.client_user" in lines
    assert "clicks" in lines
    world.registry.failure = None
    world.registry.register("clicks-value", 7, ORDER_V1)
    load(world)
    assert status(world).severity == 0


def test_a_load_of_one_topic_leaves_the_problems_of_others(world: World) -> None:
    world.topic("clicks", [2] * 500)
    world.registry.register("clicks-value", 1, ORDER_V1)
    load(world)
    load(world, 1, topics_only=("orders",))
    assert [one.subject for one in status(world).findings] == ["clicks"]
    del world.cluster.topics["clicks"]
    load(world, 1)
    assert status(world).severity == 0


def test_equal_problems_of_many_topics_are_one_finding(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(30):
        world.topic(f"new-{number:02}", [2])
    load(world)
    (found,) = status(world).findings
    assert (found.kind, found.count) == ("topic-waiting", 30)
    assert "<topic>-value" in found.problem


def test_a_topic_that_waits_alone_is_named_in_the_problem(world: World) -> None:
    world.topic("clicks", [2])
    load(world)
    (found,) = status(world).findings
    assert "clicks-value" in found.problem


@pytest.mark.parametrize("other_type", ['"string"', '{"type":"array","items":"int"}'])
def test_an_incompatible_version_is_a_finding(
    world: World, capsys: pytest.CaptureFixture[str], other_type: str
) -> None:
    load(world)
    world.registry.register("orders-value", 3, ORDER_V1.replace('"long"', other_type))
    load(world, 3, 3)
    load(world, 3)
    lines = first_lines(world, capsys)
    assert "version 2 of subject orders-value changes types so that the columns cannot hold its values" in lines
    assert "id__" in lines
    assert "headrace accept orders --kind incompatible" in lines


def test_compatible_versions_are_no_finding(world: World) -> None:
    load(world)
    world.registry.register("orders-value", 3, ORDER_V2)
    load(world, 3, 3)
    world.registry.register("orders-value", 4, ORDER_V2.replace('"long"', '"int"'))
    load(world, 4)
    assert status(world).severity == 0


def test_every_kind_of_alarm_has_a_finding_and_a_help_text() -> None:
    assert {*KINDS} == {kind.value for kind in AlarmKind}
    assert {*ALARM_KINDS.values(), OTHER_ALARM} <= {*finding.KINDS}


@pytest.mark.parametrize(
    ("rows", "quarantined", "age_ms", "is_found"),
    [
        (5_989, 11, 0, True),
        (10_989, 11, 0, False),  # 0.1 %
        (90, 10, 0, False),
        (5_989, 11, DAY_MS, True),
        (5_989, 11, DAY_MS + 1, False),
    ],
)
def test_a_share_of_quarantined_messages_in_a_day_is_a_finding(
    world: World, rows: int, quarantined: int, age_ms: int, is_found: bool
) -> None:
    """Until the messages are accepted. The share is that of all loads of the day."""
    load(world, 2)
    logs = world.warehouse.parent / "logs"
    line = RunLine(world.clock_ms - age_ms, 1, "committed", 0)
    outcomes = [TopicOutcome("orders", "loaded", rows, quarantined - 1, 1, ""), TopicOutcome("clicks", "", 9, 0, 1, "")]
    append_line(logs / "runs.jsonl", dataclasses.replace(line, topic_outcomes=tuple(outcomes)))
    append_line(
        logs / "runs.jsonl", dataclasses.replace(line, topic_outcomes=(outcomes[0]._replace(rows=0, quarantined=1),))
    )
    found = status(world)
    kinds = ["alarm-quarantined", *(["quarantine-share"] if is_found else [])]
    assert [(one.kind, one.subject) for one in found.findings] == [(kind, "orders") for kind in kinds]
    ratios = [one for fact in found.facts for one in fact.metrics if one.name == "headrace_load_quarantine_ratio"]
    is_recent = age_ms <= DAY_MS
    ratio = quarantined / (rows + quarantined)
    assert [(one.labels, one.value) for one in ratios] == ([((("topic", "orders"),), ratio)] if is_recent else [])
    arguments = ["--reason", "seen", "--data-dir", str(world.warehouse.parent)]
    assert main(["accept", "orders", "--kind", "quarantined", *arguments]) == 0
    assert not status(world).findings
