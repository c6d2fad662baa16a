"""The units of examples/schedule/systemd are valid, sandboxed, and run existing commands."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli import _parser
from support.checkout import ROOT
from support.pages import page
from support.systemd_unit import parse_sections

UNITS = ROOT / "examples" / "schedule" / "systemd"
REGISTRY_UNIT = ROOT / "examples" / "cluster" / "systemd" / "headrace-registry.service"
SERVICES = (*sorted(UNITS.glob("*.service")), REGISTRY_UNIT)
TIMERS = sorted(UNITS.glob("*.timer"))
PROGRAM = "/opt/headrace/.venv/bin/headrace"
SETTINGS_FILE = Path("/etc/headrace/headrace.toml")
EXPOSURE_MAX = 1.6
"""systemd's rating from 0 to 10: below 2 is its best class."""
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def service(path: Path) -> dict[str, tuple[str, ...]]:
    return dict(parse_sections(path.read_text(encoding="utf-8"))["Service"])


def commands(path: Path) -> list[list[str]]:
    """Returns the words of each command that a service starts."""
    return [shlex.split(line.removeprefix("-")) for line in service(path)["ExecStart"]]


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("path", [*SERVICES, *TIMERS], ids=lambda path: path.name)
def test_first_line_names_where_the_unit_belongs(path: Path) -> None:
    assert path.read_text(encoding="utf-8").startswith(f"# /etc/systemd/system/{path.name}\n[Unit]\n")


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_commands_of_units_exist(path: Path) -> None:
    for program, *words in commands(path):
        assert program == PROGRAM
        assert _parser(words).parse_args(words).config == SETTINGS_FILE


def test_daily_unit_runs_every_command_and_fails_for_findings() -> None:
    lines = service(UNITS / "headrace-daily.service")["ExecStart"]
    verbs = [" ".join(words[1:-2]) for words in commands(UNITS / "headrace-daily.service")]
    assert verbs == ["expire", "compact", "audit report", "status"]
    assert [line.startswith("-") for line in lines] == [True, True, True, False]


def test_load_timer_starts_a_load_every_ten_minutes() -> None:
    timer = parse_sections((UNITS / "headrace-load.timer").read_text(encoding="utf-8"))["Timer"]
    assert timer["OnCalendar"] == ("*:0/10",)
    assert [words[1] for words in commands(UNITS / "headrace-load.service")] == ["load"]


@pytest.mark.parametrize("path", TIMERS, ids=lambda path: path.name)
def test_timers_start_one_run_after_a_downtime(path: Path) -> None:
    started = path.with_suffix(".service")
    assert service(started)["Type"] == ("oneshot",), "with another type a timer would start concurrent runs"
    assert parse_sections(path.read_text(encoding="utf-8"))["Timer"]["Persistent"] == ("true",)


def test_page_names_every_unit() -> None:
    section = page("docs/operations.md").partition("## Under systemd\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"^\| `([a-z-]+)", section, re.MULTILINE))
    assert named == {path.stem for path in UNITS.iterdir()}


def test_services_of_one_machine_have_one_sandbox() -> None:
    sandboxes = {
        path.read_text(encoding="utf-8").partition("# The sandbox.")[2].partition("\n[")[0].strip()
        for path in UNITS.glob("*.service")
    }
    assert len(sandboxes) == 1
    assert "MemoryDenyWriteExecute=no" in sandboxes.pop(), "Java does not start with it"


@needs_systemd
@pytest.mark.parametrize("path", [*SERVICES, *TIMERS], ids=lambda path: path.name)
def test_systemd_accepts_the_units(path: Path, tmp_path: Path) -> None:
    for each in (path, path.with_suffix(".service")):
        (tmp_path / each.name).write_text(each.read_text().replace(PROGRAM, sys.executable))
    checked = analyze("verify", "--man=no", str(tmp_path / path.name))
    assert checked.returncode == 0, checked.stderr
    assert "headrace" not in checked.stderr


@needs_systemd
@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_systemd_rates_the_sandbox_as_good(path: Path) -> None:
    rated = analyze("security", "--offline=true", "--no-pager", f"--threshold={EXPOSURE_MAX * 10:.0f}", str(path))
    if "unrecognized option" in rated.stderr:
        pytest.skip("this systemd-analyze has no option --offline")
    assert rated.returncode == 0, rated.stdout + rated.stderr
