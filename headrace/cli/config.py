"""`headrace config`: every setting, its value and where it comes from."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping

from headrace.cli.command import (
    EXIT_OK,
    FLAGS,
    CommandError,
    add_format_flag,
    add_settings_flags,
    examples,
    origins_from,
    print_json,
    print_table,
    settings_from,
)
from headrace.settings import ENVIRONMENT, Settings
from headrace.settings.log_format import LOG_DEFAULTS, log_variables

DEFAULT = "default"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Shows every setting with its value, as this command line has it, and where that comes from: a file, the "
        "environment, the command line, or the default; the two variables of the log too. Secrets are masked. "
        "docs/settings.md says what each means."
    )
    parser.epilog = examples("config", "config loader kafka", "config --changed --format json")
    parser.add_argument("sections", metavar="SECTION", nargs="*", help="sections or keys to show (default: all)")
    parser.add_argument("--changed", action="store_true", help="only what is not at its default")
    add_format_flag(parser)
    add_settings_flags(parser, tuple(key for key in FLAGS if key != "data_dir"))


def run(args: argparse.Namespace) -> int:
    settings, said = settings_from(args), log_variables()
    origins = {**origins_from(args), **dict.fromkeys(said, ENVIRONMENT)}
    values = [*_values(settings), *{**LOG_DEFAULTS, **said}.items()]
    rows = [
        (key, value, origins.get(key, DEFAULT))
        for key, value in values
        if (not args.changed or key in origins) and _is_asked_for(key, args.sections)
    ]
    for asked in args.sections:
        if not any(_is_asked_for(key, [asked]) for key, _ in values):
            known = ", ".join((*settings.masked(), *LOG_DEFAULTS))
            raise CommandError(f"there is no section or key {asked!r}; expected some of {known}")
    if args.format == "json":
        print_json({key: {"value": value, "from": origin} for key, value, origin in rows})
    else:
        print_table(("setting", "value", "from"), rows)
    return EXIT_OK


def _values(settings: Settings) -> Iterator[tuple[str, str]]:
    for section, value in settings.masked().items():
        if isinstance(value, Mapping):
            yield from ((f"{section}.{name}", text) for name, text in value.items())
        else:
            yield section, value


def _is_asked_for(key: str, asked: list[str]) -> bool:
    return not asked or any(key == each or key.startswith(f"{each}.") for each in asked)
