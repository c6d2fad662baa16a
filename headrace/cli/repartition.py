"""`headrace hive repartition`: changes the partitioning of a topic's tables."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING

from headrace.cli.command import EXIT_FINDINGS, EXIT_OK, examples, print_json, print_table
from headrace.cli.rewrite_command import EXIT_CODES, add_rewrite_flags, check_topic, open_rewrite_ports, print_problems

if TYPE_CHECKING:
    from headrace.loader.rewrite.repartition import FileLayout, RepartitionReport


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Moves all rows of a topic to files of days or of hours, and creates its tables again with the partition "
        "columns dt, or dt and hr. Queries see the old table until the new one has all partitions; between the two "
        "there is no table for a moment. Safe while loads run, and a killed command changes nothing or is finished by "
        "the next load. The old files are deleted a day later."
    )
    parser.epilog = (
        examples(
            "hive repartition orders --by day --dry-run",
            "hive repartition orders --by day",
            "hive repartition clicks --by hour --format json",
        )
        + EXIT_CODES
    )
    parser.add_argument("topic", metavar="TOPIC", help="the topic")
    parser.add_argument(
        "--by",
        choices=("hour", "day"),
        required=True,
        help="hour: columns dt and hr, for topics of over 1.5 GB of files a day; day: column dt",
    )
    add_rewrite_flags(parser)
    parser.set_defaults(run_verb=run)


def run(args: argparse.Namespace) -> int:
    from headrace.loader.rewrite.repartition import RepartitionSettings, repartition
    from headrace.pipeline.load import compact_settings

    with open_rewrite_ports(args) as (settings, ports):
        check_topic(ports, args.topic)
        files = compact_settings(settings)
        report = repartition(
            ports,
            args.topic,
            RepartitionSettings(
                args.by,
                files.bytes_target,
                files.block_bytes,
                files.codec_of,
                lambda topic: settings.loader.of_topic(topic).time_fields,
            ),
            is_dry=args.dry_run,
        )
    if args.format == "json":
        print_json({**dataclasses.asdict(report), "dry_run": args.dry_run})
    else:
        _print(report, args.by, is_dry=args.dry_run)
        print_problems({args.topic: report.problems}, report.notes, shows_all=args.all)
    return EXIT_FINDINGS if report.problems else EXIT_OK


def _print(report: RepartitionReport, partition_by: str, *, is_dry: bool) -> None:
    topic, before, after = report.topic, report.before, report.after
    if before.partition_by == partition_by:
        print(f"the tables of {topic} are partitioned by {partition_by}; nothing to do")
        return
    if after is None:
        print("nothing was committed")
        return
    commit = f" (commit {report.commit_number})" if report.commit_number else ""
    print(f"{topic} {'would be' if is_dry else 'is'} partitioned by {partition_by}{commit}")
    limit = "at most " if report.is_estimate else ""
    print_table(
        ("", "by", "partitions", "files", "rows", "MB"),
        [("before", *_cells(before, "")), ("after", *_cells(after, limit))],
        right=(2, 3, 4, 5),
    )


def _cells(layout: FileLayout, limit: str) -> tuple[str, ...]:
    return (
        layout.partition_by,
        f"{limit}{layout.time_partitions:,}",
        f"{limit}{layout.files:,}",
        f"{layout.rows:,}",
        f"{layout.bytes / 1e6:,.1f}",
    )
