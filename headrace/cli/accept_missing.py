"""`headrace accept-missing`: removes a topic's missing files from the commit log."""

from __future__ import annotations

import argparse

from headrace.cli.command import CommandError, examples
from headrace.cli.rewrite_command import EXIT_CODES, add_rewrite_flags, check_topic, open_rewrite_ports, show_report


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Removes files that are missing in the warehouse from the commit log, so that `headrace verify` no longer "
        "reports them: files that were lost with a disk or deleted by other programs. Existing files stay. The rows "
        "of the missing files are not loaded again. If possible, restore the files instead."
    )
    parser.epilog = (
        examples("accept-missing orders --dry-run", "accept-missing orders --time-partition dt=2026-01-31") + EXIT_CODES
    )
    parser.add_argument("topic", metavar="TOPIC", help="topic of the missing files")
    parser.add_argument(
        "--time-partition",
        default="",
        metavar="TIME_PARTITION",
        help="only files of this time partition: dt=2026-01-31, or an hour such as dt=2026-01-31/hr=07",
    )
    parser.add_argument("--quarantine", action="store_true", help="files of the topic's quarantine table instead")
    add_rewrite_flags(parser)


def run(args: argparse.Namespace) -> int:
    from headrace.loader.rewrite.run import accept_missing
    from headrace.loader.work_unit import FileKind

    kind = FileKind.QUARANTINE if args.quarantine else FileKind.DATA
    with open_rewrite_ports(args) as (_, ports):
        check_topic(ports, args.topic)
        time_partitions = {
            time_partition
            for day in ports.index.days(args.topic, kind)
            for time_partition in ports.index.day(args.topic, kind, day).time_partitions
        }
        if args.time_partition and args.time_partition not in time_partitions:
            raise CommandError(
                f"--time-partition: topic {args.topic} has no time partition {args.time_partition}; "
                f"`headrace files {args.topic}` lists its time partitions"
            )
        report = accept_missing(ports, args.topic, [kind], args.time_partition, is_dry=args.dry_run)
    return show_report(args, report, "removed from the commit log", "no file is missing")
