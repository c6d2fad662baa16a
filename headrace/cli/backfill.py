"""`headrace backfill`: rewrites files from the messages that the brokers still have."""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from typing import TYPE_CHECKING

from headrace.cli.command import EXIT_FINDINGS, EXIT_OK, CommandError, examples, print_json
from headrace.cli.report import ReportRow, TextReport, count_text, print_lines, print_report
from headrace.cli.rewrite_command import (
    EXIT_CODES,
    TIME_PARTITION_HEADER,
    add_rewrite_flags,
    check_topic,
    open_rewrite_load,
    print_problems,
    time_partition_cells,
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
            "backfill orders --from dt=2026-01-31 --to dt=2026-01-31 --dry-run",
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
        help="the first time partition: dt=2026-01-31, or an hour such as dt=2026-01-31/hr=07",
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
        check_topic(load.rewrites, args.topic)
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
        _print(args.topic, report, is_dry=args.dry_run, shows_all=args.all)
    return EXIT_FINDINGS if report.problems else EXIT_OK


def _print(topic: str, report: BackfillReport, *, is_dry: bool, shows_all: bool) -> None:
    rows = tuple(ReportRow(time_partition_cells(one)) for one in report.time_partitions)
    totals = _totals(report, is_dry=is_dry)
    print_report(
        TextReport(totals, "time partition", TIME_PARTITION_HEADER, rows, (2, 3, 4), is_listing=True, fixed=(0, 1)),
        shows_all=shows_all,
    )
    ranges = [
        f"partition {one.partition}: {one.offsets:,} offsets from {one.first} to {one.last}" for one in report.offsets
    ]
    print_lines(ranges, shows_all=shows_all)
    print_problems({topic: report.problems}, report.notes, shows_all=shows_all)


def _totals(report: BackfillReport, *, is_dry: bool) -> str:
    files = sum(one.files for one in report.time_partitions)
    requested = count_text(report.files_requested, "file")
    if files:
        return (
            f"{requested} in the period; together with files of the same offset ranges, {_done(report, files, is_dry)}"
        )
    return (
        f"none of the {requested} in the period was replaced"
        if report.files_requested
        else ("no files are in the period")
    )


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
