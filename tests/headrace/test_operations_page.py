"""What the pages tell cron, systemd and Oozie to do is what these and the command understand."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from checkout import ROOT
from headrace.cli import _parser
from headrace.settings import load_settings
from pages import block, page

PAGE = page("docs/operations.md")
OOZIE = ROOT / "examples" / "oozie"
SETTINGS_FILE = "/etc/headrace/headrace.toml"
PROGRAM = "/opt/headrace/.venv/bin/headrace"


def test_the_settings_are_known(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text(block(PAGE, f"# {SETTINGS_FILE}"), encoding="utf-8")
    assert load_settings(config=file).data_dir == Path("/var/lib/headrace")


def test_cron_mails_a_load_that_did_not_end_well_and_nothing_else(tmp_path: Path) -> None:
    line = block(PAGE, "# /etc/cron.d/headrace").splitlines()[1]
    assert "%" not in line  # which cron takes for the end of the line
    user, command = re.split(r"\s+", line, maxsplit=6)[5:]
    assert user == "headrace"
    words = shlex.split(re.search(r"\$\((.*) 2>&1\)", command)[1])  # type: ignore[index]
    assert words[0] == PROGRAM
    assert _parser(words[1:]).parse_args(words[1:]).config == Path(SETTINGS_FILE)

    program = tmp_path / "headrace"
    for code, mailed in ((0, ""), (1, "table\nlog\n")):
        program.write_text(f"#!/bin/sh\necho table; echo log >&2; exit {code}\n")
        program.chmod(0o755)
        run = subprocess.run(
            ["/bin/sh", "-c", command.replace(PROGRAM, str(program))], capture_output=True, text=True, check=False
        )
        assert (run.stdout, run.stderr) == (mailed, "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize(
    ("path", "name"), [("docs/operations.md", "headrace.service"), ("docs/registry.md", "headrace-registry.service")]
)
def test_systemd_understands_the_units(path: str, name: str, tmp_path: Path) -> None:
    unit = tmp_path / name
    unit.write_text(block(page(path), f"# /etc/systemd/system/{name}").replace(PROGRAM, sys.executable))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False, timeout=60
    )
    assert checked.returncode == 0, checked.stderr
    assert name not in checked.stderr


def test_oozie_runs_the_load() -> None:
    workflow = ElementTree.parse(OOZIE / "workflow.xml").getroot()
    words = [node.text or "" for node in workflow.iterfind(".//{*}ssh/{*}args")]
    assert workflow.findtext(".//{*}ssh/{*}command") == PROGRAM
    assert _parser(words).parse_args(words).config == Path(SETTINGS_FILE)
    ElementTree.parse(OOZIE / "coordinator.xml")
    given = set(re.findall(r"^([\w.]+)=", (OOZIE / "job.properties").read_text(), re.MULTILINE))
    for file in OOZIE.iterdir():
        assert set(re.findall(r"\$\{(\w+)\}", file.read_text())) <= given, file
