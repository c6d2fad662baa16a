"""Man pages and the reference of commands contain every command, verb and option."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli import SUBCOMMANDS, command_parser
from headrace.cli.manual import man_pages, reference_page

PAGES = dict(man_pages())


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yields a parser and those of its verbs."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                yield from parsers(verb)


def plain(page: str) -> str:
    """Returns the text of a man page without the escapes that it uses, on one line."""
    text = page.replace("\\fB", "").replace("\\fR", "").replace("\\&", "")
    for escape, character in ((r"\-", "-"), (r"\(aq", "'"), (r"\(ga", "`"), (r"\e", "\\")):
        text = text.replace(escape, character)
    return " ".join(text.split())


def expected(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yields the texts of a parser that a page must contain: options, help texts, and the lines around them."""
    formatter = argparse.HelpFormatter(parser.prog)
    for action in parser._actions:
        if action.help != argparse.SUPPRESS and not isinstance(
            action, (argparse._HelpAction, argparse._SubParsersAction)
        ):
            yield from action.option_strings
            yield formatter._expand_help(action).replace("`", "") if action.help else ""
    yield (parser.description or "").replace("`", "")
    yield (parser.epilog or "").replace("`", "")


def section(text: str, heading: str) -> str:
    """Returns the part of a man page with the heading, or its beginning before all verbs."""
    return text.partition(heading)[2] if heading else text


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_man_page_contains_every_verb_and_option(name: str) -> None:
    page = PAGES[f"headrace-{name}.1"]
    text = plain(page).replace("`", "")
    for parser in parsers(command_parser(name)):
        is_verb = parser.prog != f"headrace {name}"
        found = section(text, f".SH {parser.prog.upper()} ") if is_verb else text
        assert found, parser.prog
        assert [each for each in expected(parser) if " ".join(each.split()) not in without_macros(found)] == []


def without_macros(text: str) -> str:
    return re.sub(r" \.(?:PP|nf|fi|TP)(?= )", "", text)


def test_page_of_the_program_names_every_command() -> None:
    assert sorted(PAGES) == sorted(["headrace.1", *(f"headrace-{name}.1" for name in SUBCOMMANDS)])
    named = re.findall(r"headrace-[a-z-]+(?=\(1\))", plain(PAGES["headrace.1"]))
    assert named == [f"headrace-{name}" for name in SUBCOMMANDS]
    assert "exit codes:" in PAGES["headrace.1"]


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_man_pages_are_valid(tmp_path: Path) -> None:
    for name, page in PAGES.items():
        (tmp_path / name).write_text(page, encoding="utf-8")
    shown = subprocess.run(
        ["groff", "-man", "-Tutf8", "-Kutf8", "-ww", "-P-cbou", *sorted(tmp_path.iterdir())],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stderr == ""
    assert "--config FILE" in shown.stdout
    assert " plan [-h] [--config FILE]" in shown.stdout


def test_reference_contains_every_verb_and_option() -> None:
    sections = dict(re.findall(r"^##+ (headrace [^\n]*)\n(.*?)(?=^##|\Z)", reference_page(), re.DOTALL | re.MULTILINE))
    for name in SUBCOMMANDS:
        for parser in parsers(command_parser(name)):
            options = [option for action in parser._actions for option in action.option_strings]
            words = {"--help", *re.split(r"[^\w-]+", sections[parser.prog])}
            assert [each for each in options if each not in words] == []


def test_reference_escapes_the_characters_of_markdown() -> None:
    rows = [line for line in reference_page().splitlines() if line.startswith("| ")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {3}
    (row,) = {row for row in rows if row.startswith("| `--topic PATTERN` | only topics that match")}
    assert r"'shop.\*' (\* ? \[a-z\])" in row
