"""docs/compat.md documents all flags, formats, strategies and exit codes."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import pytest

from headrace.cli import compat, main, schema
from headrace.compat.check_result import EXIT_CODES, FailureKind
from headrace.compat.formats import FORMATS
from headrace.compat.subjects import STRATEGIES
from support.pages import block, blocks, page

PAGE = page("docs/compat.md")
OBVIOUS = {"--help", "--config", "--data-dir", "--registry-url"}
"""Flags of every command, documented in docs/settings.md."""


def flags(parser: argparse.ArgumentParser) -> set[str]:
    found = set()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= {flag for verb in action.choices.values() for flag in flags(verb)}
        found |= {option for option in action.option_strings if option.startswith("--")}
    return found


@pytest.mark.parametrize("module", [compat, schema], ids=["compat", "schema"])
def test_every_flag_is_documented(module: object) -> None:
    parser = argparse.ArgumentParser()
    module.configure(parser)  # type: ignore[attr-defined]
    assert not [flag for flag in sorted(flags(parser) - OBVIOUS) if f"{flag}" not in PAGE]


def test_every_format_strategy_and_failure_is_documented() -> None:
    for word in (*FORMATS, *STRATEGIES, *FailureKind):
        assert f"`{word}`" in PAGE, word
    for code in EXIT_CODES.values():
        assert f"| {code} | " in PAGE


def test_first_example_prints_the_documented_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The released schema is that of the tutorial, which the README and the page of clients also have."""
    example = blocks(PAGE, "console")[0]
    shown = re.fullmatch(r"\$ cat (\S+)\n(.*?)\$ headrace (.*?)\n(.*?)\$ echo \$\?\n(\d)\n", example, re.DOTALL)
    assert shown is not None
    path, changed, command, printed, code = shown.groups()
    released = block(page("docs/tutorial.md"), "mkdir -p schemas").partition("<<'END'\n")[2].partition("END")[0]
    for name, text in ((path, changed), ("released/orders.avsc", released)):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(command)) == int(code)
    assert capsys.readouterr().out == printed
