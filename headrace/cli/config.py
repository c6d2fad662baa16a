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
from headrace.settings import Settings

DEFAULT = "default"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Shows every setting with its value, as this command line has it, and where that comes from: a file, the "
        "environment, the command line, or the default. Passwords are masked. docs/settings.md says what each means."
    )
    parser.epilog = examples("config", "config loader kafka", "config --changed --format json")
    parser.add_argument("sections", metavar="SECTION", nargs="*", help="sections or keys to show (default: all)")
    parser.add_argument("--changed", action="store_true", help="only what is not at its default")
    add_format_flag(parser)
    add_settings_flags(parser, tuple(key for key in FLAGS if key != "data_dir"))


def run(args: argparse.Namespace) -> int:
    settings, origins = settings_from(args), origins_from(args)
    rows = [
        (key, value, origins.get(key, DEFAULT))
        for key, value in _values(settings)
        if (not args.changed or key in origins) and _is_asked_for(key, args.sections)
    ]
    for asked in args.sections:
        if not any(_is_asked_for(key, [asked]) for key, _ in _values(settings)):
            raise CommandError(
                f"there is no section or key {asked!r}; expected some of {', '.join(_sections(settings))}"
            )
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


def _sections(settings: Settings) -> list[str]:
    return list(settings.masked())
