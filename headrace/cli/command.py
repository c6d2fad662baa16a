"""Shared parts of the subcommands: argument parser, exit codes, common flags, output of JSON and tables."""

from __future__ import annotations

import argparse
import difflib
import errno
import getpass
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from headrace.cli.colour import styled, styled_table
from headrace.pipeline.text_table import table_lines
from headrace.settings import Settings, home_directory, load_settings, setting_origins
from headrace.settings.addresses import with_live_warehouse

_HEADING = re.compile(r"^(?:usage:|[a-z][^:\n]*:$)", re.MULTILINE)  # headings in help texts
SETTING_PREFIX = "setting:"  # prefix of the argparse `dest` of flags that set a key of the settings
EXIT_OK = 0
EXIT_FINDINGS = 1  # findings that need action
EXIT_FAILED = 2  # failure: usage, settings, input or output
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class CommandError(Exception):
    """Ends a command with one line on standard error and `exit_code`."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def os_error_message(error: OSError) -> str:
    """Returns one line with the file of an error, if it has one, the problem, and the remedy if one is known."""
    reason = error.strerror or str(error)
    is_full = error.errno in DISK_FULL
    if error.filename:
        remedy = "free disk space" if is_full else "check the path and its permissions"
        return f"cannot access {error.filename}: {reason}; {remedy}"
    return f"cannot write: {reason}; free space on the disks of the output and of data_dir" if is_full else reason


class HelpFormatter(argparse.HelpFormatter):
    """Formats help texts: wraps a text of one paragraph, and leaves a text of several lines, such as examples, as it
    is."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text.rstrip() if "\n" in text else super()._fill_text(text, width, indent)


class CommandParser(argparse.ArgumentParser):
    """An argument parser that reports a usage error in one line, with a suggestion for a misspelt word."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": HelpFormatter, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses the arguments as argparse does, into `namespace` if that is given, but ends the command if some are
        unknown. argparse would return them to the parser of `headrace`, whose error message would not show the usage of
        the verb.

        Returns:
            The namespace, and an empty list of unknown arguments.
        """
        words = [str(word) for word in (sys.argv[1:] if args is None else args)]
        self._reject_unknown_options(words)
        known, unknown = super().parse_known_args(words, namespace)
        if unknown:
            self.error(f"unknown argument {' '.join(map(repr, unknown))}")
        return known, unknown

    def print_help(self, file: Any = None) -> None:
        out = file or sys.stdout
        self._print_message(_HEADING.sub(lambda found: styled(found[0], "head", out), self.format_help()), out)

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_FAILED, f"{self.prog}: {message}; see: {self.prog} --help\n")

    def _reject_unknown_options(self, words: Sequence[str]) -> None:
        """Ends the command if the words before a verb contain an unknown long option. argparse alone would take the
        value of this option for a verb, and its error would name that value instead of the option.

        Args:
            words: the words of the command line for this parser.
        """
        has_verbs = any(action.nargs == argparse.PARSER for action in self._actions)
        options = [option for option in self._option_string_actions if option.startswith("--")]
        for previous, word in zip(("", *words), words, strict=False):
            is_verb = has_verbs and word[:1] != "-" and (previous[:2] != "--" or "=" in previous)
            if word == "--" or is_verb:
                return
            name = word.partition("=")[0]
            if word.startswith("--") and " " not in name and not any(option.startswith(name) for option in options):
                self.error(f"there is no option {name}{_suggestion(name, options)}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        kind = action.option_strings[-1] if action.option_strings else str(action.metavar).lower()
        suggestion = _suggestion(str(value), choices) or f"; expected one of {', '.join(choices)}"
        self.error(f"there is no {kind} {value!r}{suggestion}")


def _suggestion(word: str, words: Sequence[str]) -> str:
    """Returns " (did you mean …?)" with the most similar of `words`, or "" if none is similar to `word`."""
    similar = difflib.get_close_matches(word, words, n=1)
    return f" (did you mean {similar[0]}?)" if similar else ""


@dataclass(frozen=True, slots=True)
class Flag:
    """A command-line flag that sets one key of the settings."""

    name: str
    metavar: str
    key: str
    help: str


FLAGS: Mapping[str, Flag] = {
    flag.key: flag
    for flag in (
        Flag("--data-dir", "DIRECTORY", "data_dir", "directory of all files of this installation"),
        Flag("--registry-listen", "HOST:PORT", "registry.listen", "address of the registry; port 0 takes a free one"),
        Flag("--database-url", "URL", "registry.database_url", "SQLAlchemy URL of the registry's database"),
        Flag("--workers", "N", "registry.workers", "number of processes that serve the registry"),
        Flag("--users", "FILE", "registry.users", "file of the registry's users and their permissions"),
        Flag("--registry-url", "URL", "registry.url", "URL of the schema registry; several joined by commas"),
        Flag("--broker-listen", "HOST:PORT", "broker.listen", "address of the bundled broker"),
        Flag("--bootstrap-servers", "HOST:PORT", "kafka.bootstrap_servers", "Kafka brokers; several joined by commas"),
        Flag(
            "--warehouse",
            "DIRECTORY",
            "loader.warehouse",
            "directory or file://, hdfs:// or s3a:// URI of the tables' files",
        ),
        Flag("--tasks", "N", "loader.tasks", "number of tasks that read in parallel; 0 is the number of cores"),
        Flag("--interval", "TIME", "loader.interval", "time between scheduled loads: 90s, 10m, 2h"),
        Flag(
            "--partition-by",
            "UNIT",
            "loader.partition_by",
            "time partitions of new tables: hour (columns dt and hr), day (dt) or auto",
        ),
        Flag("--master", "URL", "spark.master", "Spark master URL"),
        Flag("--database", "NAME", "hive.database", "Hive database of the tables"),
        Flag("--metastore", "URL", "hive.metastore", "thrift://host:port of a Hive metastore"),
        Flag("--hive-listen", "HOST:PORT", "hive.listen", "address of the metastore of `headrace up`"),
        Flag(
            "--hive-executor",
            "NAME",
            "hive.executor",
            "how tables are changed: spark, hive://host:port (a HiveServer2), or print (only print the statements)",
        ),
        Flag(
            "--sql-listen",
            "HOST:PORT",
            "sql.listen",
            "address of the SQL endpoint of `up` for PyHive, beeline and BI tools, with the users of registry.users",
        ),
        Flag("--console-listen", "HOST:PORT", "console.listen", "address of the console; port 0 takes a free one"),
        Flag("--gateway-listen", "HOST:PORT", "gateway.listen", "address of the HTTP gateway; port 0 takes a free one"),
    )
}


def add_settings_flags(parser: argparse.ArgumentParser, keys: Sequence[str]) -> None:
    """Adds `--config`, `--data-dir` and the flags that set the given keys of the settings, such as `loader.tasks`."""
    group = parser.add_argument_group("settings (override the environment and the file)")
    group.add_argument("--config", type=Path, metavar="FILE", help="settings file (default: headrace.toml)")
    defaults = Settings().masked()
    for key in ("data_dir", *keys):
        flag = FLAGS[key]
        section, _, name = key.partition(".")
        values = defaults[section]
        default = values[name] if isinstance(values, dict) else values
        shown = f"{flag.help} (default: {default})" if default not in ("", "None") else flag.help
        group.add_argument(flag.name, dest=f"{SETTING_PREFIX}{key}", metavar=flag.metavar, help=shown)


def settings_from(args: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Settings:
    """Returns the settings of a command line as `configured_settings` does, but the default of `loader.warehouse` is
    the warehouse of a running `headrace up`."""
    return with_live_warehouse(configured_settings(args, environment))


def configured_settings(args: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Settings:
    """Returns the settings of a command line: defaults, overridden by the settings file, environment variables and
    flags, in this order.

    Args:
        args: the parsed command line, of a parser with `add_settings_flags`.
        environment: the environment variables.

    Raises:
        SettingsError: a setting is invalid, see `load_settings`.
    """
    return load_settings(**{**_sources(args), "environment": environment})


def origins_from(args: argparse.Namespace) -> Mapping[str, str]:
    """Returns the sources of the settings that are set explicitly (the path of the file, the environment or the command
    line), by dotted key.

    Raises:
        SettingsError: a source cannot be used, see `setting_origins`.
    """
    return setting_origins(**_sources(args))


def _sources(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "flags": flag_values(args),
        "config": getattr(args, "config", None),
        "environment": os.environ,
        "working_dir": Path.cwd(),
        "home": home_directory(),
    }


def flag_values(args: argparse.Namespace) -> dict[str, str]:
    """Returns the values of the settings that the command line sets with flags, by dotted key."""
    return {
        name.removeprefix(SETTING_PREFIX): value
        for name, value in vars(args).items()
        if name.startswith(SETTING_PREFIX) and value is not None
    }


def examples(*lines: str) -> str:
    """Returns the section of examples for the end of a help text. The arguments are the command lines."""
    return "\n".join(("examples:", *(f"  headrace {line}" for line in lines)))


def add_author_flag(parser: argparse.ArgumentParser) -> None:
    """Adds --author, the name that is stored with a reason."""
    parser.add_argument(
        "--author", default="", metavar="NAME", help="name stored with the reason (default: the user of the process)"
    )


def process_user() -> str:
    """Returns the name of the user of this process."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user id without a name, as in containers
        return "headrace"


def add_format_flag(parser: argparse.ArgumentParser, choices: Sequence[str] = ("text", "json")) -> None:
    parser.add_argument(
        "--format", choices=choices, default=choices[0], help="format of standard output (default: %(default)s)"
    )


def print_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def print_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[int] = (),
    width_max: int | None = None,
    fixed: Sequence[int] = (),
) -> None:
    """Prints rows with aligned columns below a header with the column names.

    Args:
        right: the indexes of right-aligned columns.
        width_max: the width to which long cells are shortened, see `table_lines`; None for no limit.
        fixed: the indexes of the columns that are not shortened.
    """
    for line in styled_table(table_lines(header, rows, right, width_max, fixed)):
        sys.stdout.write(line + "\n")
