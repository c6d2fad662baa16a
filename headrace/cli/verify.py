"""`headrace verify`: compares files, commits and brokers."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

from headrace.cli.colour import print_report_line
from headrace.cli.command import (
    EXIT_FINDINGS,
    EXIT_OK,
    add_format_flag,
    add_settings_flags,
    examples,
    print_json,
    print_table,
)
from headrace.cli.loaded_state import LoadedState, open_loaded_state
from headrace.cli.terminal import steps_shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.loader.inspect.findings import VerifiedTopic
    from headrace.loader.plan.discover import Discovery

FINDINGS_SHOWN_MAX = 20  # of a topic; --format json has all
EPILOG = """

Checks:
  commits    offsets are contiguous, and each is a row, quarantined, a tombstone, a transaction marker or a gap
  files      exist with the committed length, are readable to the end, and have the committed number of rows; there are
             no other files
  brokers    the log neither ends before the loaded offsets nor starts after them

exit codes:
  0  no findings
  1  findings: each names its file or partition
  2  failure
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Compares commits with the files on disk and with the brokers. Changes nothing, except that `headrace status` "
        "then shows its findings about files in place of earlier ones. Safe while loads run."
    )
    parser.epilog = examples("verify", "verify orders payments --checksums", "verify --format json") + EPILOG
    parser.add_argument("topics", nargs="*", metavar="TOPIC", help="only these topics (default: all)")
    parser.add_argument(
        "--checksums", action="store_true", help="also read every file and compare its checksum with the commit"
    )
    add_settings_flags(parser, ("loader.warehouse", "kafka.bootstrap_servers"))
    add_format_flag(parser)


def run(args: argparse.Namespace) -> int:
    with open_loaded_state(args) as known:
        topics = args.topics or sorted(known.log.state.topics)
        for topic in topics:
            known.topic(topic)
        discovery, notes = _discover(known)
        verified = _verify(known, topics, discovery, checksums=args.checksums)
    if discovery is not None:
        for topic in topics:
            if topic not in discovery.topics:
                notes.append(
                    f"{topic}: not compared with the brokers, because the topic is missing there or excluded by the "
                    "settings"
                )
    if args.format == "json":
        print_json({"topics": [_json(one) for one in verified], "notes": notes})
    else:
        _print(verified, notes)
    return EXIT_FINDINGS if any(one.findings for one in verified) else EXIT_OK


def _discover(known: LoadedState) -> tuple[Discovery | None, list[str]]:
    from headrace.kafka_wire.errors import KafkaError
    from headrace.loader.plan.discover import discover
    from headrace.pipeline.load import kafka_cluster

    loader = known.settings.loader
    try:
        with kafka_cluster(known.settings) as cluster:
            return discover(cluster, loader.topics_include, loader.topics_exclude), []
    except KafkaError as error:
        return None, [f"not compared with the brokers: {error}"]


def _verify(
    known: LoadedState, topics: Sequence[str], discovery: Discovery | None, *, checksums: bool
) -> list[VerifiedTopic]:
    from headrace.loader.commit.file_index import FileIndex
    from headrace.loader.inspect.open_findings import store_verified
    from headrace.loader.inspect.verify import verify_topic
    from headrace.pipeline.load import now_ms

    verified = []
    with steps_shown() as show:
        for number, topic in enumerate(topics, start=1):
            show(f"comparing {topic} ({number:,} of {len(topics):,})")
            discovered = discovery.topics.get(topic) if discovery else None
            # A new index for each topic releases the cached time partitions of the previous topic.
            index = FileIndex(known.log)
            verified.append(verify_topic(known.log, index, known.storage, topic, discovered, checksums=checksums))
    store_verified(known.log.storage, verified, now_ms(), checksums=checksums)
    return verified


def _print(verified: Sequence[VerifiedTopic], notes: Sequence[str]) -> None:
    if verified:
        print_table(
            ("topic", "commits", "files", "rows", "MB", "waiting", "findings"),
            [
                (
                    one.topic,
                    f"{one.commits:,}",
                    f"{one.files:,}",
                    f"{one.rows:,}",
                    f"{one.bytes / 1e6:,.1f}",
                    f"{one.waiting:,}",
                    f"{len(one.findings):,}",
                )
                for one in verified
            ],
            right=range(1, 7),
        )
    for one in verified:
        for finding in one.findings[:FINDINGS_SHOWN_MAX]:
            where = f": {finding.where}" if finding.where else ""
            print_report_line(f"FINDING: {one.topic}: {finding.check}{where}: {finding.message}")
        if len(one.findings) > FINDINGS_SHOWN_MAX:
            more = len(one.findings) - FINDINGS_SHOWN_MAX
            print_report_line(f"FINDING: {one.topic}: and {more:,} more; --format json has all")
    for note in notes:
        print_report_line(f"note: {note}")
    findings = sum(len(one.findings) for one in verified)
    print(f"{len(verified):,} topics, {sum(one.files for one in verified):,} files: {findings:,} findings")


def _json(one: VerifiedTopic) -> dict[str, Any]:
    return dataclasses.asdict(one)
