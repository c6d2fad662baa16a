"""The examples for cron, systemd, Airflow and Oozie in the pages are valid, and run existing commands."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

from headrace.audit.storage import tables as audit_tables
from headrace.broker import topics as broker_topics
from headrace.cli import _parser
from headrace.loader.commit import document as commit_document
from headrace.pipeline.status.finding import KINDS
from headrace.settings import load_settings
from support.checkout import ROOT
from support.pages import block, page

PAGE = page("docs/operations.md")
SCHEDULE = ROOT / "examples" / "schedule"
CRON = (SCHEDULE / "cron" / "headrace").read_text(encoding="utf-8")
OOZIE = SCHEDULE / "oozie"
CLUSTER = ROOT / "examples" / "cluster"
SETTINGS_FILE = "/etc/headrace/headrace.toml"
PROGRAM = "/opt/headrace/.venv/bin/headrace"


def test_settings_of_the_page_load(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text(block(PAGE, f"# {SETTINGS_FILE}"), encoding="utf-8")
    assert load_settings(config=file).data_dir == Path("/var/lib/headrace")


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("commit log", commit_document.FORMAT),
        ("`topics.json` of the broker", broker_topics.FORMAT),
        ("`audit.db`", audit_tables.FORMAT),
    ],
)
def test_formats_of_the_changelog_equal_the_formats_of_the_code(name: str, known: int) -> None:
    section = page("CHANGELOG.md").partition("### Formats on disk")[2].partition("\n### ")[0]
    assert dict(re.findall(r"^\| (.+?) \| (\d+) \|$", section, re.MULTILINE))[name] == str(known)


def test_page_lists_every_kind_of_finding_of_a_status() -> None:
    section = PAGE.partition("## Is everything well?")[2].partition("\n## ")[0]
    first_cells = re.findall(r"^\| (`[^|]+`) \|", section, re.MULTILINE)
    assert {*re.findall(r"`([a-z-]+)`", " ".join(first_cells))} == {*KINDS}


@pytest.mark.parametrize("verb", ["load", "expire", "compact", "audit report", "verify"])
def test_cron_lines_print_only_failed_commands(tmp_path: Path, verb: str) -> None:
    (line,) = [line for line in CRON.splitlines() if f"/headrace {verb} " in line]
    assert "%" not in line  # cron ends the command at a %
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


def test_cron_example_sets_the_environment_of_a_cluster() -> None:
    """The example has it in a commented line."""
    (line,) = [line for line in CRON.splitlines() if "HADOOP_CONF_DIR" in line]
    assert re.search(r"^# .*: (HADOOP_CONF_DIR=/\S+)$", line)


def runs_the_load(words: Sequence[str]) -> bool:
    """Returns whether the words run the installed program with `load` and the settings file of the page."""
    parsed = _parser(words[1:]).parse_args(words[1:])
    return words[0] == PROGRAM and words[1] == "load" and parsed.config == Path(SETTINGS_FILE)


def test_airflow_runs_one_load_at_a_time_without_catchup(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses stubs of the two Airflow classes that the example imports."""
    made: dict[str, dict[str, Any]] = {}

    class Stub:
        def __init__(self, **options: Any) -> None:
            made[type(self).__name__] = options

        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

    for module, name in (("airflow.sdk", "DAG"), ("airflow.providers.standard.operators.bash", "BashOperator")):
        stub = ModuleType(module)
        setattr(stub, name, type(name, (Stub,), {}))
        monkeypatch.setitem(sys.modules, module, stub)
    runpy.run_path(str(SCHEDULE / "airflow" / "headrace_load.py"))
    dag, task = made["DAG"], made["BashOperator"]
    assert (dag["schedule"], dag["catchup"], dag["max_active_runs"]) == ("*/10 * * * *", False, 1)
    assert dag["start_date"].tzinfo is not None
    assert (task["task_id"], task["retries"]) == ("load", 0)
    assert runs_the_load(shlex.split(task["bash_command"]))


def test_oozie_workflow_runs_the_load() -> None:
    workflow = ElementTree.parse(OOZIE / "workflow.xml").getroot()
    words = [node.text or "" for node in workflow.iterfind(".//{*}ssh/{*}args")]
    assert workflow.findtext(".//{*}ssh/{*}command") == PROGRAM
    assert _parser(words).parse_args(words).config == Path(SETTINGS_FILE)
    controls = ElementTree.parse(OOZIE / "coordinator.xml").getroot().find("{*}controls")
    assert controls is not None
    assert (controls.findtext("{*}concurrency"), controls.findtext("{*}execution")) == ("1", "LAST_ONLY")
    for directory in (OOZIE, CLUSTER / "oozie"):
        given = set(re.findall(r"^([\w.]+)=", (directory / "job.properties").read_text(), re.MULTILINE))
        for file in (*directory.iterdir(), OOZIE / "coordinator.xml"):
            assert set(re.findall(r"\$\{(\w+)\}", file.read_text())) <= given, file


def test_oozie_workflow_of_a_cluster_runs_the_load() -> None:
    words = shlex.split((CLUSTER / "oozie" / "load.sh").read_text().splitlines()[-1])
    assert words[:2] == ["exec", PROGRAM]
    assert _parser(words[2:-1]).parse_args(words[2:-1]).config == Path(SETTINGS_FILE)
    assert words[-1] == "$@"


def test_cluster_settings_equal_those_of_the_page() -> None:
    text = (CLUSTER / "headrace.toml").read_text(encoding="utf-8")
    assert block(page("docs/cluster.md"), f"# {SETTINGS_FILE} on the edge node") == text
    settings = load_settings(config=CLUSTER / "headrace.toml")
    assert settings.spark["master"] == "yarn"
    assert settings.kafka.sasl_mechanism == "SCRAM-SHA-512"
