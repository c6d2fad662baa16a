"""What every subcommand shares: the context it runs in, its exit codes and the common flags."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.settings import Settings, load_settings

SETTING_PREFIX = "setting:"  # of the argparse names of flags that set a key
EXIT_OK = 0
EXIT_FINDINGS = 1  # the command ran and found something a person must act on
EXIT_FAILED = 2  # it could not tell: usage, settings, input or output


class CommandError(Exception):
    """Ends a command with one line on standard error and `exit_code`."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class Flag:
    """A command-line flag that sets one key of the settings."""

    name: str
    key: str
    help: str


FLAGS: Mapping[str, Flag] = {
    flag.key: flag
    for flag in (
        Flag("--data-dir", "data_dir", "folder of everything this installation keeps"),
        Flag("--registry-listen", "registry.listen", "host:port the registry listens on"),
        Flag("--database-url", "registry.database_url", "SQLAlchemy URL of the registry's database"),
        Flag("--workers", "registry.workers", "number of processes that serve the registry"),
        Flag("--users", "registry.users", "file of the registry's users and what each may do"),
        Flag("--registry-url", "registry.url", "URL of the schema registry; several joined by commas"),
        Flag("--broker-listen", "broker.listen", "host:port the bundled broker listens on"),
        Flag("--bootstrap-servers", "kafka.bootstrap_servers", "host:port,… of the Kafka brokers"),
        Flag("--warehouse", "loader.warehouse", "folder or URI that the tables' files go to"),
        Flag("--tasks", "loader.tasks", "size of the fixed pool of tasks; 0 is the number of cores"),
        Flag("--interval", "loader.interval", "time between scheduled loads, such as 10m"),
        Flag("--partition-by", "loader.partition_by", "hour (dt and hr) or day (dt)"),
        Flag("--master", "spark.master", "Spark master URL"),
        Flag("--database", "hive.database", "Hive database of the tables"),
        Flag("--metastore", "hive.metastore", "thrift://host:port of the Hive metastore"),
        Flag("--hive-listen", "hive.listen", "host:port of the metastore endpoint"),
        Flag("--hive-executor", "hive.executor", "spark (change tables) or print (only show the statements)"),
        Flag("--sql-listen", "sql.listen", "host:port of the SQL endpoint; whoever reaches it runs code as you"),
    )
}


def add_settings_flags(parser: argparse.ArgumentParser, keys: Sequence[str]) -> None:
    """Adds `--config`, `--data-dir` and the flags of `keys`."""
    group = parser.add_argument_group("settings")
    group.add_argument("--config", type=Path, metavar="FILE", help="settings file (default: headrace.toml)")
    for key in ("data_dir", *keys):
        flag = FLAGS[key]
        group.add_argument(flag.name, dest=f"{SETTING_PREFIX}{key}", metavar="VALUE", help=flag.help)


def settings_from(args: argparse.Namespace) -> Settings:
    """The settings in force for these arguments.

    Raises:
        SettingsError: see `load_settings`.
    """
    return load_settings(
        flags=flag_values(args),
        config=getattr(args, "config", None),
        environment=os.environ,
        working_dir=Path.cwd(),
        home=Path.home(),
    )


def flag_values(args: argparse.Namespace) -> dict[str, str]:
    """The settings given by flags: dotted key to text."""
    return {
        name.removeprefix(SETTING_PREFIX): value
        for name, value in vars(args).items()
        if name.startswith(SETTING_PREFIX) and value is not None
    }


def add_format_flag(parser: argparse.ArgumentParser, choices: Sequence[str] = ("text", "json")) -> None:
    parser.add_argument("--format", choices=choices, default=choices[0], help="what standard output gets")


def print_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
    """Prints aligned columns; the column indexes in `right` are aligned to the right."""
    for line in table_lines(header, rows, right):
        sys.stdout.write(line + "\n")


def table_lines(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """The lines of an aligned table, without line ends."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    lines = []
    for row in (header, ["-" * width for width in widths], *rows):
        cells = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
