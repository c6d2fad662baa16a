"""What docs/cluster.md has people write is what the command understands; tests/component/yarn runs it."""

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
from support.systemd_unit import UnitError, sections_of, service_of

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
        *("TimeoutStopSec", "LimitNOFILE", "StateDirectory", "LogsDirectory", "WorkingDirectory"),
        *("NoNewPrivileges", "PrivateTmp", "ProtectSystem", "ProtectHome"),
    },
    "Timer": {"OnCalendar", "AccuracySec", "Persistent"},
    "Install": {"WantedBy"},
}
"""What systemd has, of which the units use some; for machines without `systemd-analyze`."""
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def unit(name: str) -> str:
    return (UNITS / name).read_text(encoding="utf-8")


def test_the_units_are_those_that_are_tested() -> None:
    assert {path.name for path in UNITS.iterdir()} == set(NAMES)
    for name in NAMES:
        assert unit(name).startswith(f"# /etc/systemd/system/{name}\n")


@pytest.mark.parametrize("name", NAMES)
def test_every_directive_is_one_of_its_section(name: str) -> None:
    for section, given in sections_of(unit(name)).items():
        assert set(given) <= KNOWN[section]


@needs_systemd
@pytest.mark.parametrize("name", NAMES)
def test_systemd_understands_the_units(name: str, tmp_path: Path) -> None:
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
def test_the_timer_comes_every_ten_minutes() -> None:
    (when,) = sections_of(unit("headrace-load.timer"))["Timer"]["OnCalendar"]
    told = subprocess.run(
        ["systemd-analyze", "calendar", "--iterations=4", when], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    found = re.findall(r"(?:elapse|#\d+): \w+ (\d+-\d+-\d+ \d+:\d+:\d+)", told)
    times = [datetime.strptime(each, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC) for each in found]
    assert len(times) == 4
    assert {later - earlier for earlier, later in itertools.pairwise(times)} == {timedelta(minutes=10)}


def test_the_page_shows_the_unit_of_the_load_and_the_settings_of_the_registry() -> None:
    assert block(PAGE, "# /etc/systemd/system/headrace-load.service") == unit("headrace-load.service")
    shown = block(PAGE, "# /etc/headrace/headrace.toml on the registry's machine")
    assert shown == (CLUSTER / "registry.toml").read_text(encoding="utf-8")
    settings = load_settings(config=CLUSTER / "registry.toml").registry
    assert (settings.listen.port, settings.allow_unauthenticated_from) == (8081, "network")
    assert f":{settings.listen.port}" in load_settings(config=CLUSTER / "headrace.toml").registry.url


def test_the_units_are_those_of_one_machine_and_what_a_cluster_needs() -> None:
    name = "headrace-registry.service"
    assert unit(name) == block(page("docs/registry.md"), f"# /etc/systemd/system/{name}")
    assert unit("headrace-load.timer") == (SCHEDULE / "headrace-load.timer").read_text(encoding="utf-8")
    of_one = sections_of((SCHEDULE / "headrace-load.service").read_text(encoding="utf-8"))
    of_cluster = sections_of(unit("headrace-load.service"))
    assert of_cluster == {
        **of_one,
        "Service": {**of_one["Service"], "Environment": ("HADOOP_CONF_DIR=/etc/hadoop/conf",)},
    }


def test_the_load_is_started_with_where_yarn_and_hdfs_are() -> None:
    service = service_of(unit("headrace-load.service"), Path("/var/lib/headrace"))
    assert _parser(service.start[1:]).parse_args(service.start[1:]).config == Path("/etc/headrace/headrace.toml")
    assert (service.start[:2], service.before, service.directory) == ((PROGRAM, "load"), (), Path("/"))
    assert set(service.environment) == {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "HADOOP_CONF_DIR"}
    workflow = (CLUSTER / "oozie" / "workflow.xml").read_text(encoding="utf-8")
    assert f"HADOOP_CONF_DIR={service.environment['HADOOP_CONF_DIR']}<" in workflow


def test_the_registry_is_started_after_its_database_was_brought_on() -> None:
    service = service_of(unit("headrace-registry.service"), Path("/var/lib/headrace"))
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
def test_a_unit_that_would_be_run_otherwise_than_by_systemd_is_refused(line: str) -> None:
    with pytest.raises(UnitError):
        service_of(f"[Service]\nExecStart=/bin/true\n{line}\n", Path("/home"))


def test_the_settings_are_known(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text(block(PAGE, "# /etc/headrace/headrace.toml on the edge node"), encoding="utf-8")
    settings = load_settings(config=file)
    assert settings.loader.warehouse == "hdfs://nameservice/data/headrace"
    assert (settings.spark["master"], settings.spark["pyspark.python"]) == ("yarn", "./env/bin/python")
    assert settings.spark["yarn.dist.archives"].endswith("#env")


def test_the_script_for_cluster_mode_runs_a_load_with_the_words_of_the_page() -> None:
    script = (ROOT / "examples" / "cluster" / "load.py").read_text(encoding="utf-8")
    assert 'main(["load", *sys.argv[1:]])' in script
    line = block(PAGE, "spark-submit").replace("\\\n", " ")
    words = line.split("load.py", 1)[1].split()
    assert _parser(["load", *words]).parse_args(["load", *words]).config == Path("headrace.toml")
