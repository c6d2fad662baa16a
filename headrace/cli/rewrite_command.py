"""Shared parts of the commands that rewrite time partitions, such as compact and expire: flags, access to the loader's
data, and reports."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
from typing import TYPE_CHECKING

from headrace.cli.command import (
    EXIT_FINDINGS,
    EXIT_OK,
    add_format_flag,
    add_settings_flags,
    print_json,
    settings_from,
)
from headrace.cli.loaded_state import loader_errors_as_command_errors
from headrace.cli.report import (
    ReportRow,
    TextReport,
    add_all_flag,
    check_known,
    count_text,
    print_lines,
    print_reasons,
    print_report,
    select_topics,
)
from headrace.cli.terminal import steps_shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headrace.loader.rewrite.run import RewritePorts, RewriteReport, TimePartitionRow
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
TIME_PARTITION_HEADER = ("kind", "time partition", "files", "rows", "MB")
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
    add_all_flag(parser, pages=False)  # a backfill shows its progress
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


def selected_topics(ports: RewritePorts, patterns: Sequence[str]) -> list[str]:
    """Returns the loaded topics that match one of the patterns; all loaded topics without patterns.

    Args:
        ports: the interfaces of a rewrite; this function uses only the commit log.

    Raises:
        CommandError: no loaded topic matches one of the patterns.
    """
    return select_topics(patterns, ports.log.read_state().topics)


def check_topic(ports: RewritePorts, topic: str) -> None:
    """Checks that a topic has been loaded.

    Raises:
        CommandError: the topic has never been loaded.
    """
    check_known(topic, sorted(ports.log.read_state().topics))


def show_report(args: argparse.Namespace, report: RewriteReport, participle: str, empty_text: str) -> int:
    """Prints the report of a rewrite, as text or JSON. Returns the exit code.

    Args:
        participle: past participle of the operation, such as `removed`.
        empty_text: the sentence for an empty report.
    """
    if args.format == "json":
        print_json({**dataclasses.asdict(report), "dry_run": args.dry_run})
    else:
        _print(report, f"would be {participle}" if args.dry_run else participle, empty_text, shows_all=args.all)
    return EXIT_FINDINGS if report.problems else EXIT_OK


def _print(report: RewriteReport, participle: str, empty_text: str, *, shows_all: bool) -> None:
    rows = [ReportRow((one.topic, *time_partition_cells(one))) for one in report.time_partitions]
    totals = empty_text
    if rows:
        files = count_text(sum(one.files for one in report.time_partitions), "file")
        topics = len({one.topic for one in report.time_partitions})
        commit_number = f" (commit {report.commit_number})" if report.commit_number else ""
        totals = (
            f"{files} of {count_text(len(rows), 'time partition')} of {count_text(topics, 'topic')} "
            f"{participle}{commit_number}"
        )
    elif report.problems:
        totals = f"nothing {participle}"
    print_report(
        TextReport(
            totals,
            "time partition",
            ("topic", *TIME_PARTITION_HEADER),
            tuple(rows),
            (3, 4, 5),
            is_listing=True,
            fixed=(1, 2),
        ),
        shows_all=shows_all,
    )
    print_problems(report.problems, report.notes, shows_all=shows_all)


def time_partition_cells(one: TimePartitionRow) -> tuple[str, ...]:
    """Returns the cells below `TIME_PARTITION_HEADER`."""
    return (one.kind.value, one.time_partition, f"{one.files:,}", f"{one.rows:,}", f"{one.bytes / 1e6:,.1f}")


def print_problems(problems: Mapping[str, Sequence[str]], notes: Sequence[str], *, shows_all: bool) -> None:
    """Prints problems by topic, and notes."""
    print_reasons(
        "PROBLEM", ((topic, text) for topic, texts in problems.items() for text in texts), shows_all=shows_all
    )
    print_lines([f"note: {note}" for note in notes], shows_all=shows_all)
