"""Renders the help of all commands as man pages, and as a page of the documentation. The argument parsers are the only
source of both.

`python -m headrace.cli.manual DIRECTORY` writes the man pages `headrace.1`, `headrace-load.1` and so on. A build of a
wheel runs it without any library, and the wheel installs the pages in `share/man/man1`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.cli import SUBCOMMANDS, _parser, command_parser
from headrace.cli.command import HelpFormatter
from headrace.version import VERSION

WIDTH = 72  # of the usage, which man pages indent


@dataclass(frozen=True, slots=True)
class Option:
    """An option or argument: how it is written, such as `--config FILE`, and its help text."""

    invocation: str
    help: str


@dataclass(frozen=True, slots=True)
class CommandHelp:
    """The help of a command or verb.

    Attributes:
        name: its words, such as `headrace load plan`.
        usage: the lines of its usage.
        description: its description.
        options: options and arguments, by the title of their group.
        epilog: examples and remarks.
    """

    name: str
    usage: str
    description: str
    options: tuple[tuple[str, tuple[Option, ...]], ...]
    epilog: str


def main() -> int:
    """Writes the man pages to the directory that the command line names."""
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in man_pages():
        (directory / name).write_text(text, encoding="utf-8")
    return 0


def command_helps(name: str) -> Iterator[CommandHelp]:
    """Yields the help of a command, such as `load`, then of its verbs, in the order of its help text."""
    parser = command_parser(name)
    parser.description = parser.description or f"{SUBCOMMANDS[name].capitalize()}."
    yield from _helps(parser)


def _helps(parser: argparse.ArgumentParser) -> Iterator[CommandHelp]:
    formatter = HelpFormatter(prog=parser.prog, width=WIDTH)
    formatter.add_usage(parser.usage, parser._actions, parser._mutually_exclusive_groups, prefix="")
    groups = (
        (
            group.title or "",
            tuple(
                Option(
                    formatter._format_action_invocation(action), formatter._expand_help(action) if action.help else ""
                )
                for action in group._group_actions
                if action.help != argparse.SUPPRESS and not isinstance(action, argparse._HelpAction)
                if action.nargs != argparse.PARSER
            ),
        )
        for group in parser._action_groups
    )
    options = tuple((title, found) for title, found in groups if found)
    yield CommandHelp(
        parser.prog, formatter.format_help().strip(), parser.description or "", options, parser.epilog or ""
    )
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb in dict.fromkeys(action.choices.values()):
                yield from _helps(verb)


def man_pages() -> Iterator[tuple[str, str]]:
    """Yields the file name and text of each man page, in the macros of man(7)."""
    (top, *_), pages = _helps(_parser(())), [f"headrace-{name}" for name in SUBCOMMANDS]
    yield "headrace.1", _man_page("headrace", "Avro schema registry with an automatic Hadoop/Hive loader", [top], pages)
    for page, (name, summary) in zip(pages, SUBCOMMANDS.items(), strict=True):
        yield f"{page}.1", _man_page(page, summary, list(command_helps(name)), ["headrace"])


def _man_page(page: str, summary: str, helps: list[CommandHelp], see_also: list[str]) -> str:
    command, *verbs = helps
    lines = [f'.TH {page.upper()} 1 "" "Headrace {VERSION}" "Headrace"', ".nh", ".ad l"]
    lines += [".SH NAME", rf"{_roff(page)} \- {_roff(summary)}", ".SH SYNOPSIS", *_preformatted(command.usage)]
    lines += [".SH DESCRIPTION", *_paragraphs(command.description), *_man_options(command, ".SH")]
    for verb in verbs:
        lines += [f".SH {_roff(verb.name.upper())}", *_preformatted(verb.usage), *_paragraphs(verb.description)]
        lines += [*_man_options(verb, ".SS"), *_paragraphs(verb.epilog)]
    lines += [".SH NOTES", *_paragraphs(command.epilog)] if command.epilog else []
    lines += [".SH SEE ALSO", ", ".join(rf"\fB{_roff(each)}\fR(1)" for each in see_also)]
    return "\n".join(lines) + "\n"


def _man_options(command: CommandHelp, heading: str) -> Iterator[str]:
    for title, options in command.options:
        yield f"{heading} {_roff(title.upper() if heading == '.SH' else title)}"
        for option in options:
            yield from (".TP", rf"\fB{_roff(option.invocation)}\fR", _roff_text(option.help))


def _paragraphs(text: str) -> Iterator[str]:
    """Yields the lines of a text in which a blank line ends a paragraph, and lines with indentation stay lines."""
    for paragraph in filter(None, re.split(r"\n\s*\n", text.strip("\n"))):
        yield ".PP"
        yield from _preformatted(paragraph) if "\n" in paragraph else [_roff_text(paragraph)]


def _preformatted(text: str) -> Iterator[str]:
    yield from (".nf", *map(_roff, text.splitlines()), ".fi")


def _roff(text: str) -> str:
    r"""Returns a line with the characters escaped that roff interprets. `\-` is a hyphen that can be copied."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq").replace("`", r"\(ga")
    return rf"\&{escaped}" if escaped[:1] == "." else escaped


def _roff_text(text: str) -> str:
    """Returns a line of text with the words in backticks in bold."""
    words = re.split(r"`([^`]+)`", text)
    return "".join(rf"\fB{_roff(word)}\fR" if number % 2 else _roff(word) for number, word in enumerate(words))


def reference_page() -> str:
    """Returns the page of the documentation with all commands, in Markdown."""
    lines = ["# Commands", "", "The texts of `--help`. `man headrace` shows them in a terminal.", ""]
    lines += ["| command | purpose |", "|---|---|"]
    lines += [f"| [`headrace {name}`](#headrace-{name}) | {_markdown(text)} |" for name, text in SUBCOMMANDS.items()]
    for name in SUBCOMMANDS:
        for command in command_helps(name):
            lines += ["", f"{'##' if command.name == f'headrace {name}' else '###'} {command.name}", ""]
            lines += [_markdown(command.description), "", "```", command.usage, "```", *_markdown_options(command)]
            lines += ["", "```", command.epilog, "```"] if command.epilog else []
    return "\n".join(lines) + "\n"


def _markdown_options(command: CommandHelp) -> Iterator[str]:
    for title, options in command.options:
        yield from ("", f"| {title} | |", "|---|---|")
        yield from (f"| `{option.invocation}` | {_markdown(option.help)} |" for option in options)


def _markdown(text: str) -> str:
    """Returns a text with the characters escaped that Markdown interprets, outside of backticks."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(
        part if number % 2 else re.sub(r"([*_<|\[\]\\])", r"\\\1", part) for number, part in enumerate(parts)
    )


if __name__ == "__main__":
    sys.exit(main())
