"""What the commands that rewrite time partitions share: the wiring, and how their reports are shown."""

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
TIME_PARTITIONS_SHOWN = 40  # a screen; json has them all
EXIT_CODES = """

exit codes:
  0  done, or there was nothing to do
  1  a topic needs attention, and is named
  2  the command could not run; nothing was committed
"""


def add_rewrite_flags(parser: argparse.ArgumentParser, more: Sequence[str] = ()) -> None:
    """
    Args:
        more: keys of the settings that the command needs besides.
    """
    parser.add_argument("--dry-run", action="store_true", help="show what would be done, and change nothing")
    add_settings_flags(parser, (*more, *KEYS))
    add_format_flag(parser)


@contextlib.contextmanager
def open_rewrite_load(args: argparse.Namespace) -> Iterator[tuple[Settings, Load]]:
    """While open, what keeps the command from running becomes its one line."""
    from headrace.pipeline.load import commit_log, open_load

    settings = settings_from(args)
    output = sys.stderr if args.format == "json" else sys.stdout
    log = commit_log(settings)
    with loader_errors_as_command_errors():
        if args.dry_run:
            log.check_format(writing=False)
        else:
            log.open()
        shown = contextlib.nullcontext() if settings.hive.executor == "print" else steps_shown()
        with shown, open_load(settings, log, output, is_dry=args.dry_run) as load:
            yield settings, load


@contextlib.contextmanager
def open_rewrite_ports(args: argparse.Namespace) -> Iterator[tuple[Settings, RewritePorts]]:
    with open_rewrite_load(args) as (settings, load):
        yield settings, load.rewrites


def checked_topics(ports: RewritePorts, wanted: Sequence[str]) -> list[str]:
    """The topics that were asked for; all that have been loaded where none was.

    Raises:
        CommandError: nothing of one has been loaded.
    """
    topics = ports.log.read_state().topics
    for topic in wanted:
        if topic not in topics:
            known = ", ".join(sorted(topics)) or "none yet"
            raise CommandError(f"nothing of topic {topic} has been loaded; loaded topics: {known}")
    return list(wanted) or sorted(topics)


def show_report(args: argparse.Namespace, report: RewriteReport, done: str, nothing: str) -> int:
    """Prints what was or would be done, and returns the exit code.

    Args:
        done: such as `removed`.
        nothing: the sentence where there was nothing to do.
    """
    if args.format == "json":
        print_json({**dataclasses.asdict(report), "dry_run": args.dry_run})
    else:
        _print(report, f"would be {done}" if args.dry_run else done, nothing)
    return EXIT_FINDINGS if report.problems else EXIT_OK


def _print(report: RewriteReport, done: str, nothing: str) -> None:
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
        print(f"{files:,} files of {time_partitions:,} time partitions {done}{commit_number}")
    elif not report.problems:
        print(nothing)
