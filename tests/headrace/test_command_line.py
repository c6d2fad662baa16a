"""The whole command line: help, exit codes, and one-line errors."""

from __future__ import annotations

import argparse
import gc
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.audit.facts import WindowFacts
from headrace.audit.verdict import AuditVerdict, WindowResult
from headrace.cli import GROUPS, SUBCOMMANDS, _parser, main
from headrace.cli.audit import _acceptances
from support.golden import case_lines, golden


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yields a parser and the parsers of its verbs."""
    yield parser
    for action in parser._actions:
        if action.nargs == argparse.PARSER:
            for verb in (action.choices or {}).values():
                yield from parsers(verb)


INTERRUPTED_IMPORT = """\
import sys
import headrace.__main__

interrupted = sys.argv.pop(1)

class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == interrupted:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
sys.exit(headrace.__main__.main())
"""


BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
"""An environment with buffered output, as users have it."""

COMMANDS = {
    parser.prog: parser
    for name in SUBCOMMANDS
    for parser in parsers(_parser([name]))
    if parser.prog == "headrace" or parser.prog.startswith(f"headrace {name}")
}


def test_every_command_and_argument_has_help() -> None:
    lacking = [command for command, parser in COMMANDS.items() if not parser.description]
    lacking += [
        f"{command} {action.dest}"
        for command, parser in COMMANDS.items()
        for action in parser._actions
        if not action.help and action.nargs != argparse.PARSER
    ]
    assert lacking == []


def test_commands_have_examples_and_examples_parse() -> None:
    wrong = []
    for command, parser in COMMANDS.items():
        examples = re.findall(r"^  headrace (.*?)(?:  .*)?$", parser.epilog or "", re.MULTILINE)
        needs_verb = any(action.nargs == argparse.PARSER and action.required for action in parser._actions)
        if not examples and (command == "headrace" or not needs_verb):
            wrong.append(command)
        wrong += [example for example in examples if not is_example_of(command, example)]
    assert wrong == []


def is_example_of(command: str, example: str) -> bool:
    words = shlex.split(example.partition(" >>")[0])
    try:
        runs = callable(_parser(words).parse_args(words).run)
    except SystemExit:
        return False
    return runs and f"headrace {example} ".startswith(f"{command} ")


MISTAKES = [
    ("lod", "headrace: ", "'lod'", "load"),
    ("xyzzy", "headrace: ", "'xyzzy'", "compat, schema, registry"),
    ("registry srve --workers 2", "headrace registry: ", "'srve'", "serve"),
    ("load orders", "headrace load: ", "'orders'", "plan, status"),
    ("load --task 3 --no-leese", "headrace load: ", "--no-leese", "--no-lease"),
    ("load --taskz 3", "headrace load: ", "--taskz", "--tasks"),
    ("load --taskz=3 plan", "headrace load: ", "--taskz", "--tasks"),
    ("load plan --formt json", "headrace load plan: ", "--formt", "--format"),
    ("sql --format xml SHOW", "headrace sql: ", "'xml'", "table, json, csv"),
    ("sql SHOW TABLES", "headrace sql: ", "'TABLES'", "headrace sql --help"),
    ("up -x", "headrace up: ", "'-x'", "headrace up --help"),
    ("registry", "headrace registry: ", "VERB", "headrace registry --help"),
    ("help lod", "headrace: ", "'lod'", "load"),
]
"""Command lines, the command at the start of the error, the wrong or missing word, and the suggestion."""


def test_error_of_a_command_line_is_one_line_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    wrong, errors = [], []
    for line, command, word, suggestion in MISTAKES:
        with pytest.raises(SystemExit) as ended:
            main(line.split())
        out, error = capsys.readouterr()
        before, _, after = error.partition(word)
        is_one_line = (ended.value.code, out, error.count("\n")) == (2, "", 1)
        if not is_one_line or not before.startswith(command) or suggestion not in after:
            wrong.append((line, ended.value.code, out, error))
        errors.append((f"headrace {line}", error))
    assert wrong == []
    lines = case_lines(errors)
    assert lines == golden("headrace/mistakes.txt", lines)


def test_help_lists_the_commands_by_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    output = capsys.readouterr().out
    assert [line for line in output.splitlines() if line.endswith(":") and not line.startswith(" ")] == [
        "options:",
        *(f"{group}:" for group in GROUPS),
        "examples:",
        "exit codes:",
    ]
    for name, summary in SUBCOMMANDS.items():
        assert len(re.findall(rf"^  {name} +{re.escape(summary)}$", output, re.MULTILINE)) == 1
    for line, title in (("help", "usage: headrace [-h]"), ("help load plan", "usage: headrace load plan")):
        with pytest.raises(SystemExit) as ended:
            main(line.split())
        assert ended.value.code == 0
        assert capsys.readouterr().out.startswith(title)


@pytest.mark.parametrize("statement", ["-- a comment", "--- SELECT 1"])
def test_statement_may_begin_with_a_comment(statement: str) -> None:
    assert _parser(["sql"]).parse_args(["sql", statement]).query == statement


def test_error_of_an_invalid_setting_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["broker", "serve", "--broker-listen", "everywhere"]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("headrace: broker.listen ")
    assert "'everywhere'" in error


def test_closed_pipe_is_not_an_error(tmp_path: Path) -> None:
    shell = f"{sys.executable} -m headrace --help | head -1"
    run = subprocess.run(
        ["bash", "-o", "pipefail", "-c", shell], capture_output=True, text=True, env=BUFFERED, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""


@pytest.mark.parametrize(
    "command", ["load", "load plan", "load status", "quarantine list", "audit report", "registry serve", "broker serve"]
)
def test_error_of_a_file_as_data_directory_is_one_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for server in ("REGISTRY", "BROKER"):
        monkeypatch.setenv(f"HEADRACE__{server}__LISTEN", "127.0.0.1:0")
    (tmp_path / "file").write_text("not a directory")
    assert main([*command.split(), "--data-dir", str(tmp_path / "file")]) == 2
    message = capsys.readouterr().err.strip().splitlines()
    assert len(message) == 1
    assert str(tmp_path / "file") in message[0]


def test_error_of_a_load_without_broker_names_its_address_and_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        before = gc.get_threshold()
        assert main(["load", "--data-dir", str(tmp_path), "--bootstrap-servers", address]) == 2
        assert gc.get_threshold() == before, "a load restores the thresholds of the garbage collector"
    (error,) = capsys.readouterr().err.splitlines()
    assert re.match(rf"headrace: .*{address}: .*Connection refused.*kafka\.bootstrap_servers", error)


def test_a_user_id_without_a_name_can_accept_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    windows = [WindowResult(WindowFacts("orders", 0), AuditVerdict.MISSING, "")]
    assert [one.accepted_by for one in _acceptances("orders", windows, "why", "")] == ["headrace"]
    assert [one.accepted_by for one in _acceptances("orders", windows, "why", "lea")] == ["lea"]


def test_closed_standard_output_is_not_an_error() -> None:
    shell = f"{sys.executable} -m headrace compat explain >&-"
    run = subprocess.run(["bash", "-c", shell], stderr=subprocess.PIPE, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_error_of_a_full_disk_is_one_line(tmp_path: Path) -> None:
    listing = [sys.executable, "-m", "headrace", "quarantine", "list", "--data-dir", str(tmp_path)]
    with Path("/dev/full").open("w") as full:
        run = subprocess.run(listing, stdout=full, stderr=subprocess.PIPE, text=True, env=BUFFERED, check=False)
    assert run.returncode == 2
    assert run.stderr.count("\n") == 1
    assert "No space left on device" in run.stderr


@pytest.mark.parametrize(
    ("library", "command", "extra"),
    [
        ("py4j", "sql SELECT", "loader"),
        ("marshmallow", "registry serve", "registry"),
        ("kafka", "broker serve", "broker"),
        ("flask", "compat check - --against-db sqlite:///none.db", "registry"),
    ],
)
def test_error_of_a_missing_library_names_its_extra(library: str, command: str, extra: str, tmp_path: Path) -> None:
    code = (
        f"import sys; sys.modules[{library!r}] = None; from headrace.cli import main; "
        f"sys.exit(main([*{command.split()!r}, '--data-dir', {str(tmp_path)!r}]))"
    )
    run = subprocess.run([sys.executable, "-c", code], input='"int"', capture_output=True, text=True, check=False)
    assert run.returncode == 2, run.stderr
    assert "Traceback" not in run.stderr
    assert repr(extra) in run.stderr
    assert f"pip install '.[{extra}]'" in run.stderr


@pytest.mark.parametrize("module", ["headrace.cli", "headrace.settings", "headrace.cli.compat"])
def test_interrupt_during_an_import_is_one_line(module: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED_IMPORT, module]
    result = subprocess.run([*command, "compat"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "headrace: interrupted\n")
