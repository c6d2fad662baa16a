"""`headrace completion`: a script for the shell that completes commands, verbs, options and their choices.

It is made from the parsers, and holds what they know: completing asks no Python, which would take a quarter of a second
for each key.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headrace.cli.command import EXIT_OK, examples

SHELLS = ("bash", "zsh")

BASH = """\
# Completes headrace. Made by `headrace completion {shell}`, for this version.
_headrace() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" path="" words="" index
  for ((index = 1; index < COMP_CWORD; index++)); do
    case "$path ${{COMP_WORDS[index]}}" in
      {paths}) path="$path ${{COMP_WORDS[index]}}" ;;
    esac
  done
  case "$path $before" in
{choices}
    *)
      case "$path" in
{words}
      esac
      ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _headrace headrace
"""
ZSH = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Prints a script that makes a shell complete commands, verbs, options and their values. Where it completes "
        "nothing, names of files are offered."
    )
    parser.epilog = (
        examples("completion bash >> ~/.bashrc", "completion zsh >> ~/.zshrc") + "\n\nPrint it anew after an upgrade."
    )
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=f"one of {', '.join(SHELLS)}")


def run(args: argparse.Namespace) -> int:
    from headrace.cli import HELP_WORD, SUBCOMMANDS, command_parser

    points = {"": CompletionPoint((*SUBCOMMANDS, HELP_WORD, "--help", "--version"), {})}
    for name in SUBCOMMANDS:
        points |= dict(_completion_points(f" {name}", command_parser(name)))
    script = BASH.format(
        shell=args.shell,
        paths="|".join(f'"{path}"' for path in points if path),
        choices="\n".join(
            f'    "{path} {option}") words="{" ".join(values)}" ;;'
            for path, point in points.items()
            for option, values in point.choices.items()
        ),
        words="\n".join(f'        "{path}") words="{" ".join(point.words)}" ;;' for path, point in points.items()),
    )
    print((ZSH if args.shell == "zsh" else "") + script, end="")
    return EXIT_OK


@dataclass(frozen=True, slots=True)
class CompletionPoint:
    """What may come after the words of a command: `choices` are the values of an option that has a few."""

    words: tuple[str, ...]
    choices: Mapping[str, tuple[str, ...]]


def _completion_points(path: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, CompletionPoint]]:
    verbs = {
        name: verb
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for name, verb in action.choices.items()
    }
    values = [
        str(choice)
        for action in parser._actions
        if not action.option_strings and action.choices is not None and action.nargs != argparse.PARSER
        for choice in action.choices
    ]
    options = [option for option in parser._option_string_actions if option.startswith("--")]
    choices = {
        option: tuple(map(str, action.choices))
        for option, action in parser._option_string_actions.items()
        if action.choices is not None
    }
    yield path, CompletionPoint((*verbs, *values, *options), choices)
    for name, verb in verbs.items():
        yield from _completion_points(f"{path} {name}", verb)
