"""`headrace backfill`: rewrites files from the messages that the brokers still have."""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from typing import TYPE_CHECKING

from headrace.cli.colour import print_report_line
from headrace.cli.command import EXIT_FINDINGS, EXIT_OK, CommandError, examples, print_json, print_table
from headrace.cli.rewrite_command import (
    EXIT_CODES,
    TIME_PARTITIONS_SHOWN,
    add_rewrite_flags,
    checked_topics,
    open_rewrite_load,
)
from headrace.cli.terminal import print_line

if TYPE_CHECKING:
    from headrace.loader.rewrite.backfill_report import BackfillReport

TIME_PARTITION = re.compile(r"dt=\d{4}-\d\d-\d\d(/hr=\d\d)?")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Reads the messages of a topic's hours (or days) from the brokers again, with the current schema and "
        "settings, and replaces the old files. Use it after files were damaged or deleted, or after a change of "
        "settings. The old files are not read. A file is replaced only if the brokers return exactly as many messages "
        "as the file holds. Safe while loads run."
    )
    parser.epilog = (
        examples(
            "backfill orders --from dt=2026-01-31/hr=07 --to dt=2026-01-31/hr=07 --dry-run",
            "backfill orders --from dt=2026-01-30 --to dt=2026-01-31",
            "backfill orders --from dt=2026-01-30 --to dt=2026-01-31 --format json",
        )
        + EXIT_CODES
    )
    parser.add_argument("topic", metavar="TOPIC", help="topic to rewrite")
    parser.add_argument(
        "--from",
        dest="first",
        metavar="TIME_PARTITION",
        required=True,
        help="the first time partition: dt=2026-01-31/hr=07, or a day",
    )
    parser.add_argument(
        "--to",
        dest="last",
        metavar="TIME_PARTITION",
        required=True,
        help="the last time partition, inclusive; a day means all of its hours",
    )
    add_rewrite_flags(parser, ("registry.url", "loader.tasks"))


def run(args: argparse.Namespace) -> int:
    from headrace.loader.rewrite.backfill import BackfillPorts, BackfillSettings, backfill
    from headrace.loader.rewrite.backfill_report import BackfillPeriod

    for flag, time_partition in (("--from", args.first), ("--to", args.last)):
        if not TIME_PARTITION.fullmatch(time_partition):
            raise CommandError(
                f"{flag}: expected a time partition such as dt=2026-01-31/hr=07 or dt=2026-01-31, found "
                f"{time_partition}"
            )
    if args.first > args.last and not args.first.startswith(f"{args.last}/"):
        raise CommandError(
            f"--to: {args.last} is before --from {args.first}; expected the same or a later time partition"
        )
    output = sys.stderr if args.format == "json" else sys.stdout
    with open_rewrite_load(args) as (_, load):
        checked_topics(load.rewrites, [args.topic])
        known = load.rewrites.log.state.topics[args.topic]
        if known.partition_by == "day" and "/" in args.first + args.last:
            raise CommandError(
                f"--from, --to: the table of {args.topic} is partitioned by day; expected days such as dt=2026-01-31"
            )
        ports = BackfillPorts(
            rewrites=load.rewrites,
            cluster=load.ports.cluster,
            schemas=load.ports.schemas,
            run_units=load.ports.run_units,
            report_progress=lambda line: print_line(line, output),
        )
        settings = BackfillSettings(load.settings.plan, load.settings.task)
        report = backfill(ports, args.topic, BackfillPeriod(args.first, args.last), settings, is_dry=args.dry_run)
    if args.format == "json":
        print_json({"topic": args.topic, "dry_run": args.dry_run, **dataclasses.asdict(report)})
    else:
        _print(args.topic, report, is_dry=args.dry_run)
    return EXIT_FINDINGS if report.problems else EXIT_OK


def _print(topic: str, report: BackfillReport, *, is_dry: bool) -> None:
    rows = [
        (one.kind.value, one.time_partition, f"{one.files:,}", f"{one.rows:,}", f"{one.bytes / 1e6:,.1f}")
        for one in report.time_partitions
    ]
    if rows:
        print_table(("kind", "time partition", "files", "rows", "MB"), rows[:TIME_PARTITIONS_SHOWN], right=(2, 3, 4))
    if len(rows) > TIME_PARTITIONS_SHOWN:
        print(f"… and {len(rows) - TIME_PARTITIONS_SHOWN:,} more")
    for one in report.offsets:
        print(f"partition {one.partition}: {one.offsets:,} offsets from {one.first} to {one.last}")
    for problem in report.problems:
        print_report_line(f"PROBLEM: {topic}: {problem}")
    for note in report.notes:
        print_report_line(f"note: {note}")
    files = sum(one.files for one in report.time_partitions)
    if files:
        done = _done(report, files, is_dry)
        in_period = f"{report.files_requested:,} files are in the period"
        print(f"{in_period}; together with files of the same offset ranges, {done}")
    elif not report.files_requested:
        print("no files are in the period")
    else:
        print(f"none of the {report.files_requested:,} files in the period was replaced")


def _done(report: BackfillReport, files: int, is_dry: bool) -> str:
    if is_dry:
        return f"{files:,} would be replaced"
    by = (
        f"commit {report.commits[0]}"
        if len(report.commits) == 1
        else f"commits {report.commits[0]} to {report.commits[-1]}"
    )
    quarantined = f" and {report.quarantined:,} quarantined messages" if report.quarantined else ""
    return f"{files:,} were replaced by {report.files_written:,} with {report.rows:,} rows{quarantined} ({by})"
