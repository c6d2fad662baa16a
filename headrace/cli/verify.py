"""`headrace verify`: compares files, commits and brokers."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

from headrace.cli.command import (
    EXIT_FINDINGS,
    EXIT_OK,
    add_format_flag,
    add_settings_flags,
    examples,
    print_json,
)
from headrace.cli.loaded_state import LoadedState, open_loaded_state
from headrace.cli.report import (
    ATTENTION,
    FAILURE,
    WELL,
    ReportRow,
    TextReport,
    add_all_flag,
    add_topic_patterns,
    count_text,
    print_lines,
    print_reasons,
    print_report,
)
from headrace.cli.terminal import steps_shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.loader.inspect.findings import VerifiedTopic
    from headrace.loader.plan.discover import Discovery

HEADER = ("topic", "commits", "files", "rows", "MB", "waiting", "findings")
ABSENT = "not compared with the brokers, because the topic is missing there or excluded by the settings"
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
    parser.epilog = examples("verify", "verify orders 'shop.*' --checksums", "verify --format json") + EPILOG
    add_topic_patterns(parser, positional=True)
    add_all_flag(parser)
    parser.add_argument(
        "--checksums", action="store_true", help="also read every file and compare its checksum with the commit"
    )
    add_settings_flags(parser, ("loader.warehouse", "kafka.bootstrap_servers"))
    add_format_flag(parser)


def run(args: argparse.Namespace) -> int:
    with open_loaded_state(args) as known:
        topics = known.topics(args.topics)
        discovery, notes = _discover(known)
        verified = _verify(known, topics, discovery, checksums=args.checksums)
    absent = [topic for topic in topics if discovery is not None and topic not in discovery.topics]
    if args.format == "json":
        notes += [f"{topic}: {ABSENT}" for topic in absent]
        print_json({"topics": [_json(one) for one in verified], "notes": notes})
    else:
        _print(verified, notes, absent, shows_all=args.all)
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


def _print(verified: Sequence[VerifiedTopic], notes: Sequence[str], absent: Sequence[str], *, shows_all: bool) -> None:
    from headrace.loader.inspect.finding_texts import file_repair

    findings = sum(len(one.findings) for one in verified)
    totals = (
        f"{count_text(len(verified), 'topic')}, {count_text(sum(one.files for one in verified), 'file')}: "
        f"{count_text(findings, 'finding')}"
    )
    rows = tuple(map(_row, verified))
    print_report(TextReport(totals, "topic", HEADER, rows, range(1, len(HEADER))), shows_all=shows_all)
    lines = []
    for one in verified:
        for finding in one.findings:
            where = f": {finding.where}" if finding.where else ""
            repair = file_repair(finding)
            remedy = f"; {repair}" if repair else ""
            lines.append(f"FINDING: {one.topic}: {finding.check}{where}: {finding.message}{remedy}")
    print_lines(lines, shows_all=shows_all)
    print_reasons("note", ((topic, ABSENT) for topic in absent), shows_all=shows_all)
    print_lines([f"note: {note}" for note in notes], shows_all=shows_all)


def _row(one: VerifiedTopic) -> ReportRow:
    numbers = (f"{number:,}" for number in (one.commits, one.files, one.rows))
    rest = (f"{one.bytes / 1e6:,.1f}", f"{one.waiting:,}", f"{len(one.findings):,}")
    severity = FAILURE if one.findings else ATTENTION if one.waiting else WELL
    return ReportRow((one.topic, *numbers, *rest), severity, len(one.findings))


def _json(one: VerifiedTopic) -> dict[str, Any]:
    return dataclasses.asdict(one)
