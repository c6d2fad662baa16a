"""`headrace compact`: merges the small files of past time partitions."""

from __future__ import annotations

import argparse

from headrace.cli.command import CommandError, examples
from headrace.cli.report import add_topic_patterns
from headrace.cli.rewrite_command import EXIT_CODES, add_rewrite_flags, open_rewrite_ports, selected_topics, show_report


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Merges the small files of past hours (or days), so that queries open fewer files. Queries "
        "return the same rows before, during and after. The old files are deleted a day later, so that running queries "
        "can finish. Safe while loads run."
    )
    parser.epilog = examples("compact", "compact orders payments --dry-run") + EXIT_CODES
    add_topic_patterns(
        parser, positional=True, default="topics for which loader.compact = true, in [loader] or [[loader.topic]]"
    )
    add_rewrite_flags(parser)


def run(args: argparse.Namespace) -> int:
    from headrace.loader.rewrite.run import CompactSettings, RewriteReport, compact, merged_reports
    from headrace.loader.work_unit import BLOCK_BYTES

    with open_rewrite_ports(args) as (settings, ports):
        loader = settings.loader
        topics = [
            topic for topic in selected_topics(ports, args.topics) if args.topics or loader.of_topic(topic).compact
        ]
        if not topics:
            raise CommandError(
                "no topic selected: name a topic, or set loader.compact to true for all topics, or compact in "
                "[[loader.topic]] for some"
            )
        by_closing: dict[int, list[str]] = {}
        for topic in topics:
            by_closing.setdefault(loader.of_topic(topic).compact_after.ms, []).append(topic)
        report = RewriteReport()
        for closed_ms, members in sorted(by_closing.items()):
            choice = CompactSettings(
                closed_ms=closed_ms,
                bytes_target=loader.file_bytes_target,
                block_bytes=BLOCK_BYTES,
                codec_of=lambda topic: loader.of_topic(topic).codec,
            )
            report = merged_reports(report, compact(ports, members, choice, is_dry=args.dry_run))
    return show_report(args, report, "merged", "nothing to merge")
