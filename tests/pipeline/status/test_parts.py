"""Findings about the parts of `headrace up`, from its log and the results of probes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.pipeline.status import parts as parts_module
from headrace.pipeline.status.context import StatusContext
from headrace.pipeline.status.finding import StatusFinding
from headrace.pipeline.status.parts import DEATHS_SHOWN_MS, parts
from headrace.pipeline.status.probe import Health, ProbeResult
from headrace.pipeline.up.up_file import UpFile
from headrace.pipeline.up.up_log import READ_LOG, STOPPED_BY_SIGNAL, UpEvent
from headrace.settings import KafkaSettings, Settings
from headrace.settings.addresses import LiveAddresses

NOW_MS = 1_767_225_600_000
BROKER = "127.0.0.1:9"


def event(name: str, age_ms: int = 1_000, reason: str = "", **values: str) -> UpEvent:
    return UpEvent(NOW_MS - age_ms, name, values, reason)


STARTED = event("up_started", 50_000_000, pid="1")


def findings(
    directory: Path, broker: ProbeResult, *events: UpEvent, runs: bool = True, own: bool = True, named: bool = False
) -> list[StatusFinding]:
    """Returns the findings of the source with an `up` that runs only a broker.

    Args:
        runs: whether this `up` runs now.
        own: whether the broker is one of its parts.
        named: whether the settings name the broker.
    """
    kafka = KafkaSettings(bootstrap_servers=BROKER) if named else KafkaSettings()
    context = StatusContext(Settings(data_dir=directory, kafka=kafka), NOW_MS, expects_servers=False)
    context.once("brokers", lambda: broker)
    context.once("up_events", lambda: (STARTED, *events))
    if not runs:
        return list(parts(context).findings)
    pids = {"broker": 2**22 + 1} if own else {}  # no process has this id
    with UpFile(directory / "up.json") as up_file:
        up_file.publish(LiveAddresses(os.getpid(), "now", "", BROKER, "", "", "", "/w", pids))
        return list(parts(context).findings)


DOWN = ProbeResult(BROKER, Health.DOWN, "refuses connections")
SILENT = ProbeResult(BROKER, Health.SILENT, "is silent")
GOOD = ProbeResult(BROKER, Health.UP)
DIED = event("part_died", 2_000, "killed by SIGKILL", part="broker")
RESTARTED = event("part_started", 1_000, part="broker")
READY = event("part_ready", 500, part="broker")


@pytest.mark.parametrize(
    ("broker", "events", "kind", "words"),
    [
        (DOWN, (READY,), "part-down", "refuses connections"),
        (DOWN, (DIED, RESTARTED), "part-starting", "it died before: killed by SIGKILL"),
        (SILENT, (READY,), "part-silent", "is silent"),
        (ProbeResult(BROKER, Health.FAILING, "login"), (READY,), "part-failing", "login"),
        (ProbeResult(BROKER, Health.FAILING, "x", lacks_database=True), (), "database-down", "its database does not"),
        (ProbeResult(BROKER, Health.DEGRADED, "one is down"), (READY,), "server-down", "one is down"),
        (GOOD, (DIED, RESTARTED, READY), "part-restarted", "died 1 time in the last hour"),
        (GOOD, (DIED, DIED, RESTARTED, READY), "part-restarted", "died 2 times in the last hour"),
    ],
)
def test_finding_about_a_part_of_a_running_up(
    broker: ProbeResult, events: tuple[UpEvent, ...], kind: str, words: str, tmp_path: Path
) -> None:
    (found,) = findings(tmp_path, broker, *events)
    assert (found.kind, found.subject) == (kind, "broker")
    assert words in found.problem


def test_restart_of_more_than_an_hour_ago_is_no_finding(tmp_path: Path) -> None:
    old = event("part_died", DEATHS_SHOWN_MS, "killed", part="broker")
    assert findings(tmp_path, GOOD, old, RESTARTED, READY) == []


def test_silent_server_of_others_is_not_repaired_by_a_restart_of_up(tmp_path: Path) -> None:
    (foreign,) = findings(tmp_path, SILENT, own=False, named=True)
    (own,) = findings(tmp_path, SILENT)
    assert "kill -CONT" in foreign.repair
    assert own.repair == "restart headrace up"


@pytest.mark.parametrize(
    ("last", "kinds", "words"),
    [
        (event("up_ended", reason=STOPPED_BY_SIGNAL), [], ""),
        (event("up_ended", reason="the broker died: no space"), ["up-down"], "it ended: the broker died: no space"),
        (READY, ["up-down"], "it was killed"),
    ],
)
def test_finding_about_an_up_that_does_not_run(last: UpEvent, kinds: list[str], words: str, tmp_path: Path) -> None:
    found = findings(tmp_path, GOOD, last, runs=False, named=True)
    assert [one.kind for one in found] == kinds
    assert all(words in one.problem for one in found)


@pytest.mark.parametrize(
    ("last", "repair"),
    [
        (
            event("up_ended", reason="the broker died: no space; free space"),
            "free space; then systemctl start up.service",
        ),
        (event("up_ended", reason="the broker died: no space"), "systemctl start up.service"),
        (event("up_ended", reason=f"the broker died: x; {READ_LOG}"), "read its log; then systemctl start up.service"),
        (READY, "systemctl start up.service"),
    ],
)
def test_up_of_systemd_is_started_by_systemd(last: UpEvent, repair: str, tmp_path: Path) -> None:
    of_systemd = event("up_started", pid="1", unit="up.service")
    (found,) = findings(tmp_path, GOOD, of_systemd, last, runs=False, named=True)
    assert found.repair == repair
    (found,) = findings(tmp_path, SILENT, of_systemd)
    assert found.repair == "systemctl restart up.service"


def test_named_broker_that_is_down_is_reported_beside_the_end_of_up(tmp_path: Path) -> None:
    found = findings(tmp_path, DOWN, event("up_ended", reason=STOPPED_BY_SIGNAL), runs=False, named=True)
    assert [(one.kind, one.subject) for one in found] == [("part-down", "broker")]


def test_up_file_of_a_killed_up_is_a_finding(tmp_path: Path) -> None:
    file = UpFile(tmp_path / "up.json")
    with file:
        file.publish(LiveAddresses(4711, "now", "", BROKER, "", "", "", "/w"))
    (found,) = findings(tmp_path, GOOD, READY, runs=False, named=True)
    assert (found.kind, "process 4711 was killed" in found.problem) == ("up-down", True)


@pytest.mark.parametrize(
    ("served", "found"),
    [
        ((), {"headrace up": "headrace up"}),
        (("registry.db",), {"registry": "headrace registry serve, or headrace up"}),
        (("broker",), {"broker": "headrace broker serve, or headrace up"}),
        (
            ("broker", "registry.db"),
            {
                "registry": "headrace registry serve, or headrace up",
                "broker": "headrace broker serve, or headrace up",
            },
        ),
    ],
)
def test_server_that_never_ran_beside_the_other_is_not_missing(
    served: tuple[str, ...], found: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in served:
        (tmp_path / name).mkdir()
    monkeypatch.setattr(parts_module, "probe_registry", lambda _: DOWN)
    context = StatusContext(Settings(data_dir=tmp_path), NOW_MS)
    context.once("brokers", lambda: DOWN)
    assert {one.subject: one.repair for one in parts(context).findings} == found
