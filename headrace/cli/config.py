"""`headrace config`: shows every setting, its value and its source."""

from __future__ import annotations

import argparse

from headrace.cli.command import (
    EXIT_OK,
    FLAGS,
    CommandError,
    add_format_flag,
    add_settings_flags,
    configured_settings,
    examples,
    origins_from,
    print_json,
    print_table,
)
from headrace.settings import ENVIRONMENT
from headrace.settings.log_format import LOG_DEFAULTS, log_variables

DEFAULT = "default"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Shows every setting with its value for this command line and the source of the value: a file, the "
        "environment, the command line, or the default. Includes the environment variables HEADRACE_LOG_LEVEL and "
        "HEADRACE_LOG_FORMAT. Secrets are masked. docs/settings.md describes the settings."
    )
    parser.epilog = examples("config", "config loader kafka", "config --changed --format json")
    parser.add_argument("sections", metavar="SECTION", nargs="*", help="sections or keys to show (default: all)")
    parser.add_argument("--changed", action="store_true", help="only settings that differ from their defaults")
    parser.set_defaults(pages=True)
    add_format_flag(parser)
    add_settings_flags(parser, tuple(key for key in FLAGS if key != "data_dir"))


def run(args: argparse.Namespace) -> int:
    settings, from_environment = configured_settings(args), log_variables()
    origins = {**origins_from(args), **dict.fromkeys(from_environment, ENVIRONMENT)}
    values = {**settings.shown(), **LOG_DEFAULTS, **from_environment}
    rows = [
        (key, value, origins.get(key, DEFAULT))
        for key, value in values.items()
        if (not args.changed or key in origins) and _is_selected(key, args.sections)
    ]
    for selector in args.sections:
        if not any(_is_selected(key, [selector]) for key in values):
            known = ", ".join((*settings.masked(), *LOG_DEFAULTS))
            raise CommandError(f"the settings have no section or key {selector!r}; keys: {known}")
    if args.format == "json":
        print_json({key: {"value": value, "from": origin} for key, value, origin in rows})
    else:
        print_table(("setting", "value", "from"), rows)
    return EXIT_OK


def _is_selected(key: str, selectors: list[str]) -> bool:
    return not selectors or any(key == selector or key.startswith(f"{selector}.") for selector in selectors)
