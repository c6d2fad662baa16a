"""`headrace expire`: deletes the time partitions of days that are older than the retention time."""

from __future__ import annotations

import argparse

from headrace.cli.command import CommandError, examples
from headrace.cli.report import add_topic_patterns
from headrace.cli.rewrite_command import EXIT_CODES, add_rewrite_flags, open_rewrite_ports, selected_topics, show_report


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Deletes the time partitions of old days from tables and quarantine: from the metastore at once, and their "
        "files a day later, when no query reads them any more. A message that arrives later for a deleted day is "
        "loaded into a new partition. Safe while loads run."
    )
    parser.epilog = examples("expire", "expire clicks --days 90 --dry-run") + EXIT_CODES
    add_topic_patterns(
        parser,
        positional=True,
        default="topics for which loader.retention_days is set, in [loader] or [[loader.topic]]",
    )
    parser.add_argument(
        "--days", type=int, metavar="N", help="keep N whole days of the named topics (default: loader.retention_days)"
    )
    add_rewrite_flags(parser)


def run(args: argparse.Namespace) -> int:
    from headrace.loader.rewrite.run import expire

    if args.days is not None and (args.days < 1 or not args.topics):
        raise CommandError(
            "--days: expected at least 1 day and the names of the topics, such as: headrace expire clicks --days 90"
        )
    with open_rewrite_ports(args) as (settings, ports):
        days = {
            topic: args.days or settings.loader.of_topic(topic).retention_days
            for topic in selected_topics(ports, args.topics)
        }
        retention_days = {topic: retention for topic, retention in days.items() if retention}
        if not retention_days:
            raise CommandError(
                "no topic has a retention time: set loader.retention_days, or name topics and a number of days, such "
                "as: headrace expire clicks --days 90"
            )
        report = expire(ports, retention_days, is_dry=args.dry_run)
    return show_report(args, report, "removed", "no day is older than the retention time")
