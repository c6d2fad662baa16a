"""The front door: help, exit codes, and one line for what goes wrong."""

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

from headrace.cli import GROUPS, SUBCOMMANDS, _parser, main


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and those of its verbs."""
    yield parser
    for action in parser._actions:
        if action.nargs == argparse.PARSER:
            for verb in (action.choices or {}).values():
                yield from parsers(verb)


BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
"""An environment in which output stays in the process until its end, as it does for users."""

COMMANDS = {
    parser.prog: parser
    for name in SUBCOMMANDS
    for parser in parsers(_parser([name]))
    if parser.prog == "headrace" or parser.prog.startswith(f"headrace {name}")
}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_what_a_command_does_and_shows_examples_that_parse(command: str) -> None:
    parser = COMMANDS[command]
    assert (parser.description or "").endswith(".")
    assert all(action.help for action in parser._actions if not action.choices or action.nargs != argparse.PARSER)
    examples = re.findall(r"^  headrace (.*?)(?:  .*)?$", parser.epilog or "", re.MULTILINE)
    needs_verb = any(action.nargs == argparse.PARSER and action.required for action in parser._actions)
    assert examples or (needs_verb and command != "headrace")
    for example in examples:
        assert f"headrace {example} ".startswith(f"{command} ")
        words = shlex.split(example.partition(" >>")[0])
        assert callable(_parser(words).parse_args(words).run)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("lod", "headrace: there is no command 'lod' (did you mean load?); see: headrace --help"),
        ("xyzzy", "expected one of compat, schema, registry"),
        ("registry srve --workers 2", "headrace registry: there is no verb 'srve' (did you mean serve?)"),
        ("load orders", "headrace load: there is no verb 'orders'; expected one of plan, status"),
        ("load --task 3 --no-leese", "there is no option --no-leese (did you mean --no-lease?)"),
        ("load --taskz 3", "there is no option --taskz (did you mean --tasks?)"),
        ("load --taskz=3 plan", "there is no option --taskz (did you mean --tasks?)"),
        ("load plan --formt json", "headrace load plan: there is no option --formt (did you mean --format?)"),
        ("sql --format xml SHOW", "there is no --format 'xml'; expected one of table, json, csv"),
        ("sql SHOW TABLES", "headrace sql: 'TABLES' is not expected here; see: headrace sql --help"),
        ("up -x", "headrace up: '-x' is not expected here"),
        ("registry", "headrace registry: the following arguments are required: VERB; see: headrace registry --help"),
        ("help lod", "headrace: there is no command 'lod' (did you mean load?)"),
    ],
)
def test_a_mistake_in_a_command_line_is_one_line_with_what_was_probably_meant(
    line: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    assert ended.value.code == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    assert said in shown.err


def test_the_command_alone_and_help_list_commands_by_what_one_wants(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    alone = capsys.readouterr().out
    assert [line for line in alone.splitlines() if line.endswith(":") and not line.startswith(" ")] == [
        "options:",
        *(f"{group}:" for group in GROUPS),
        "examples:",
        "exit codes:",
    ]
    for name, summary in SUBCOMMANDS.items():
        assert len(re.findall(rf"^  {name} +{re.escape(summary)}$", alone, re.MULTILINE)) == 1
    for line, title in (("help", "usage: headrace [-h]"), ("help load plan", "usage: headrace load plan")):
        with pytest.raises(SystemExit) as ended:
            main(line.split())
        assert ended.value.code == 0
        assert capsys.readouterr().out.startswith(title)


@pytest.mark.parametrize("statement", ["-- a comment", "--- SELECT 1"])
def test_a_statement_may_begin_with_a_comment(statement: str) -> None:
    assert _parser(["sql"]).parse_args(["sql", statement]).query == statement


def test_a_bad_setting_is_one_line_and_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["broker", "serve", "--broker-listen", "everywhere"]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert said[0].startswith("headrace: broker.listen in the command line: expected host:port")


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    shell = f"{sys.executable} -m headrace --help | head -1"
    run = subprocess.run(
        ["bash", "-o", "pipefail", "-c", shell], capture_output=True, text=True, env=BUFFERED, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""


@pytest.mark.parametrize(
    "command", ["load", "load plan", "load status", "quarantine list", "audit report", "registry serve", "broker serve"]
)
def test_a_data_folder_that_is_a_file_is_one_line_and_code_2(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for server in ("REGISTRY", "BROKER"):
        monkeypatch.setenv(f"HEADRACE__{server}__LISTEN", "127.0.0.1:0")
    (tmp_path / "file").write_text("not a folder")
    assert main([*command.split(), "--data-dir", str(tmp_path / "file")]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert str(tmp_path / "file") in said[0]


def test_a_load_without_a_broker_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        before = gc.get_threshold()
        assert main(["load", "--data-dir", str(tmp_path), "--bootstrap-servers", address]) == 2
        assert gc.get_threshold() == before, "whoever runs a load in a process of its own making keeps it"
    assert capsys.readouterr().err.strip().splitlines() == [
        f"headrace: cannot connect to broker {address}: [Errno 111] Connection refused; start it, with `headrace up` "
        "here, or set kafka.bootstrap_servers"
    ]


def test_a_closed_output_is_no_error() -> None:
    shell = f"{sys.executable} -m headrace compat explain >&-"
    run = subprocess.run(["bash", "-c", shell], stderr=subprocess.PIPE, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line_and_code_2(tmp_path: Path) -> None:
    listing = [sys.executable, "-m", "headrace", "quarantine", "list", "--data-dir", str(tmp_path)]
    with Path("/dev/full").open("w") as full:
        run = subprocess.run(listing, stdout=full, stderr=subprocess.PIPE, text=True, env=BUFFERED, check=False)
    assert run.returncode == 2
    assert run.stderr == "headrace: No space left on device\n"


@pytest.mark.parametrize(
    ("library", "command", "extra"),
    [("py4j", "sql X", "loader"), ("marshmallow", "registry serve", "registry"), ("kafka", "broker serve", "broker")],
)
def test_a_missing_library_names_the_extra_that_brings_it(
    library: str, command: str, extra: str, tmp_path: Path
) -> None:
    code = (
        f"import sys; sys.modules[{library!r}] = None; from headrace.cli import main; "
        f"sys.exit(main([*{command.split()!r}, '--data-dir', {str(tmp_path)!r}]))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 2, run.stderr
    assert "Traceback" not in run.stderr
    assert f"which the extra {extra!r} brings" in run.stderr
    assert f"as docs/install.md says; in its checkout: pip install '.[{extra}]'" in run.stderr
