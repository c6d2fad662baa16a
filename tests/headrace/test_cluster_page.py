"""The units, settings and scripts of docs/cluster.md are valid; tests/component/yarn runs them."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from headrace.cli import _parser
from headrace.settings import load_settings
from support.checkout import ROOT
from support.pages import block, page
from support.systemd_unit import UnitError, parse_sections, parse_service

PAGE = page("docs/cluster.md")
CLUSTER = ROOT / "examples" / "cluster"
UNITS = CLUSTER / "systemd"
SCHEDULE = ROOT / "examples" / "schedule" / "systemd"
PROGRAM = "/opt/headrace/.venv/bin/headrace"
NAMES = ("headrace-registry.service", "headrace-load.service", "headrace-load.timer")
KNOWN = {
    "Unit": {"Description", "After", "Wants"},
    "Service": {
        *("Type", "User", "Group", "Environment", "ExecStartPre", "ExecStart", "ExecReload", "Restart", "RestartSec"),
        *("TimeoutStopSec", "LimitNOFILE", "StateDirectory", "StateDirectoryMode", "LogsDirectory", "WorkingDirectory"),
        *(
            "CapabilityBoundingSet",
            "LockPersonality",
            "MemoryDenyWriteExecute",
            "NoNewPrivileges",
            "RemoveIPC",
            "UMask",
        ),
        *("PrivateDevices", "PrivateTmp", "ProtectClock", "ProtectControlGroups", "ProtectHome", "ProtectHostname"),
        *("ProtectKernelLogs", "ProtectKernelModules", "ProtectKernelTunables", "ProtectProc", "ProtectSystem"),
        *("RestrictAddressFamilies", "RestrictNamespaces", "RestrictRealtime", "RestrictSUIDSGID"),
        *("SystemCallArchitectures", "SystemCallErrorNumber", "SystemCallFilter"),
    },
    "Timer": {"OnCalendar", "AccuracySec", "Persistent"},
    "Install": {"WantedBy"},
}
"""Directives of systemd, by section; for machines without `systemd-analyze`."""
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def unit(name: str) -> str:
    return (UNITS / name).read_text(encoding="utf-8")


def test_all_units_are_tested() -> None:
    assert {path.name for path in UNITS.iterdir()} == set(NAMES)
    for name in NAMES:
        assert unit(name).startswith(f"# /etc/systemd/system/{name}\n")


@pytest.mark.parametrize("name", NAMES)
def test_every_directive_belongs_to_its_section(name: str) -> None:
    for section, given in parse_sections(unit(name)).items():
        assert set(given) <= KNOWN[section]


@needs_systemd
@pytest.mark.parametrize("name", NAMES)
def test_systemd_accepts_the_units(name: str, tmp_path: Path) -> None:
    for each in NAMES:
        (tmp_path / each).write_text(unit(each).replace(PROGRAM, sys.executable), encoding="utf-8")
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / name)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert checked.returncode == 0, checked.stderr
    assert "headrace-" not in checked.stderr


@needs_systemd
def test_timer_fires_every_ten_minutes() -> None:
    (on_calendar,) = parse_sections(unit("headrace-load.timer"))["Timer"]["OnCalendar"]
    found = subprocess.run(
        ["systemd-analyze", "calendar", "--iterations=4", on_calendar],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    found = re.findall(r"(?:elapse|#\d+): \w+ (\d+-\d+-\d+ \d+:\d+:\d+)", found)
    times = [datetime.strptime(each, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC) for each in found]
    assert len(times) == 4
    assert {later - earlier for earlier, later in itertools.pairwise(times)} == {timedelta(minutes=10)}


def test_page_contains_the_load_unit_and_the_registry_settings() -> None:
    assert block(PAGE, "# /etc/systemd/system/headrace-load.service") == unit("headrace-load.service")
    shown = block(PAGE, "# /etc/headrace/headrace.toml on the registry's machine")
    assert shown == (CLUSTER / "registry.toml").read_text(encoding="utf-8")
    settings = load_settings(config=CLUSTER / "registry.toml").registry
    assert (settings.listen.port, settings.allow_unauthenticated_from) == (8081, "network")
    assert f":{settings.listen.port}" in load_settings(config=CLUSTER / "headrace.toml").registry.url


def test_units_extend_those_of_one_machine() -> None:
    assert unit("headrace-load.timer") == (SCHEDULE / "headrace-load.timer").read_text(encoding="utf-8")
    of_one = parse_sections((SCHEDULE / "headrace-load.service").read_text(encoding="utf-8"))
    of_cluster = parse_sections(unit("headrace-load.service"))
    started = {name: of_one["Service"][name] for name in ("Type", "User", "ExecStart")}
    assert of_cluster == {
        "Unit": of_one["Unit"],
        "Service": {**started, "Environment": ("HADOOP_CONF_DIR=/etc/hadoop/conf",)},
    }


def test_load_unit_sets_the_hadoop_directories() -> None:
    service = parse_service(unit("headrace-load.service"), Path("/var/lib/headrace"))
    assert _parser(service.start[1:]).parse_args(service.start[1:]).config == Path("/etc/headrace/headrace.toml")
    assert (service.start[:2], service.before, service.directory) == ((PROGRAM, "load"), (), Path("/"))
    assert set(service.environment) == {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "HADOOP_CONF_DIR"}
    workflow = (CLUSTER / "oozie" / "workflow.xml").read_text(encoding="utf-8")
    assert f"HADOOP_CONF_DIR={service.environment['HADOOP_CONF_DIR']}<" in workflow


def test_registry_unit_migrates_the_database_first() -> None:
    service = parse_service(unit("headrace-registry.service"), Path("/var/lib/headrace"))
    for words in (*service.before, service.start):
        assert _parser(words[1:]).parse_args(words[1:]).config == Path("/etc/headrace/headrace.toml")
    assert [words[1:3] for words in service.before] == [("registry", "db")]
    assert service.start[1:3] == ("registry", "serve")
    assert service.directory == Path("/var/lib/headrace")
    assert "HADOOP_CONF_DIR" not in service.environment


@pytest.mark.parametrize(
    "line",
    [
        "ExecStart=/bin/true $HOME",
        "ExecStart=-/bin/true",
        "ExecStart=/bin/true %h",
        "ExecStart=/bin/true \\",
        "ExecStart=",
        "EnvironmentFile=/etc/x",
        "ExecStart=/bin/false",
        "not a directive",
    ],
)
def test_unit_parser_rejects_unsupported_syntax(line: str) -> None:
    with pytest.raises(UnitError):
        parse_service(f"[Service]\nExecStart=/bin/true\n{line}\n", Path("/home"))


def test_settings_of_the_page_load(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text(block(PAGE, "# /etc/headrace/headrace.toml on the edge node"), encoding="utf-8")
    settings = load_settings(config=file)
    assert settings.loader.warehouse == "hdfs://nameservice/data/headrace"
    assert (settings.spark["master"], settings.spark["pyspark.python"]) == ("yarn", "./env/bin/python")
    assert settings.spark["yarn.dist.archives"].endswith("#env")


def test_cluster_mode_script_runs_a_load_with_the_documented_arguments() -> None:
    script = (ROOT / "examples" / "cluster" / "load.py").read_text(encoding="utf-8")
    assert 'main(["load", *sys.argv[1:]])' in script
    line = block(PAGE, "spark-submit").replace("\\\n", " ")
    words = line.split("load.py", 1)[1].split()
    assert _parser(["load", *words]).parse_args(["load", *words]).config == Path("headrace.toml")
