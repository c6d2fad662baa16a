"""Shared parts of the commands that rewrite time partitions, such as compact and expire: flags, access to the loader's
data, and reports."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
from typing import TYPE_CHECKING

from headrace.cli.colour import print_report_line
from headrace.cli.command import (
    EXIT_FINDINGS,
    EXIT_OK,
    CommandError,
    add_format_flag,
    add_settings_flags,
    print_json,
    print_table,
    settings_from,
)
from headrace.cli.loaded_state import loader_errors_as_command_errors
from headrace.cli.terminal import steps_shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.loader.rewrite.run import RewritePorts, RewriteReport
    from headrace.pipeline.load import Load
    from headrace.settings import Settings

KEYS = (
    "kafka.bootstrap_servers",
    "loader.warehouse",
    "spark.master",
    "hive.database",
    "hive.metastore",
    "hive.executor",
)
TIME_PARTITIONS_SHOWN = 40  # one screen; --format json has all
EXIT_CODES = """

exit codes:
  0  done, or nothing to do
  1  a topic needs attention; the output names it
  2  failure; nothing was committed
"""


def add_rewrite_flags(parser: argparse.ArgumentParser, more: Sequence[str] = ()) -> None:
    """Adds --dry-run, --format and the flags that override settings, such as --warehouse.

    Args:
        more: keys of settings that only this command uses.
    """
    parser.add_argument("--dry-run", action="store_true", help="show the changes without making them")
    add_settings_flags(parser, (*more, *KEYS))
    add_format_flag(parser)


@contextlib.contextmanager
def open_rewrite_load(args: argparse.Namespace) -> Iterator[tuple[Settings, Load]]:
    """Yields the settings, and the interfaces through which a rewrite reaches storage, commit log, brokers and
    metastore. In the context, expected errors end the command with one line."""
    from headrace.pipeline.load import commit_log, open_load

    settings = settings_from(args)
    output = sys.stderr if args.format == "json" else sys.stdout
    with loader_errors_as_command_errors():
        log = commit_log(settings)
        if args.dry_run:
            log.check_format(writing=False)
        else:
            log.open()
        steps = contextlib.nullcontext() if settings.hive.executor == "print" else steps_shown()
        with steps, open_load(settings, log, output, is_dry=args.dry_run) as load:
            yield settings, load


@contextlib.contextmanager
def open_rewrite_ports(args: argparse.Namespace) -> Iterator[tuple[Settings, RewritePorts]]:
    with open_rewrite_load(args) as (settings, load):
        yield settings, load.rewrites


def checked_topics(ports: RewritePorts, topics_given: Sequence[str]) -> list[str]:
    """Returns the given topics, or all loaded topics if none is given.

    Args:
        ports: the interfaces of a rewrite; this function uses only the commit log.

    Raises:
        CommandError: a topic has never been loaded.
    """
    topics = ports.log.read_state().topics
    for topic in topics_given:
        if topic not in topics:
            known = ", ".join(sorted(topics)) or "none yet"
            raise CommandError(f"topic {topic} has not been loaded; loaded topics: {known}")
    return list(topics_given) or sorted(topics)


def show_report(args: argparse.Namespace, report: RewriteReport, participle: str, empty_text: str) -> int:
    """Prints the report of a rewrite, as text or JSON. Returns the exit code.

    Args:
        participle: past participle of the operation, such as `removed`.
        empty_text: the sentence for an empty report.
    """
    if args.format == "json":
        print_json({**dataclasses.asdict(report), "dry_run": args.dry_run})
    else:
        _print(report, f"would be {participle}" if args.dry_run else participle, empty_text)
    return EXIT_FINDINGS if report.problems else EXIT_OK


def _print(report: RewriteReport, participle: str, empty_text: str) -> None:
    rows = [
        (one.topic, one.kind.value, one.time_partition, f"{one.files:,}", f"{one.rows:,}", f"{one.bytes / 1e6:,.1f}")
        for one in report.time_partitions
    ]
    if rows:
        header = ("topic", "kind", "time partition", "files", "rows", "MB")
        print_table(header, rows[:TIME_PARTITIONS_SHOWN], right=(3, 4, 5))
    if len(rows) > TIME_PARTITIONS_SHOWN:
        print(f"… and {len(rows) - TIME_PARTITIONS_SHOWN:,} more")
    for topic, sentences in report.problems.items():
        for sentence in sentences:
            print_report_line(f"PROBLEM: {topic}: {sentence}")
    for note in report.notes:
        print_report_line(f"note: {note}")
    if rows:
        files, time_partitions = sum(one.files for one in report.time_partitions), len(report.time_partitions)
        commit_number = f" (commit {report.commit_number})" if report.commit_number else ""
        print(f"{files:,} files of {time_partitions:,} time partitions {participle}{commit_number}")
    elif not report.problems:
        print(empty_text)
