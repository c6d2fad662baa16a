"""`headrace audit`: compares the message counts of all tiers, and accepts differences that the user has explained."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import re
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

from headrace.cli.audit_recount import add_recount_verb
from headrace.cli.audit_run import add_run_verb
from headrace.cli.colour import print_report_line
from headrace.cli.command import (
    EXIT_FAILED,
    EXIT_FINDINGS,
    EXIT_OK,
    CommandError,
    add_author_flag,
    add_format_flag,
    add_settings_flags,
    examples,
    print_json,
    print_table,
    process_user,
    settings_from,
)
from headrace.cli.report import (
    ROWS_SHOWN_MAX,
    WELL,
    ReportRow,
    TextReport,
    add_all_flag,
    add_topic_patterns,
    check_known,
    count_text,
    print_report,
    select_topics,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.audit.ingest import IngestResult
    from headrace.audit.report import TopicCauses
    from headrace.audit.storage.store import AuditStore
    from headrace.audit.stored import CompletenessTimes
    from headrace.audit.verdict import Acceptance, Period, TopicResult, WindowResult
    from headrace.settings import Settings

EPILOG = """

A window is ten minutes of message time. Its verdict:
  complete   all tiers counted the same messages
  pending    the counts differ, and the window ended or was last counted less than audit.grace ago
  skipped    fewer messages, by as many offsets as were skipped in the topic
  untracked  more messages than the producers counted: a producer without counts also sends to the topic
  missing    messages are missing
  extra      more rows than messages; or more messages than sent, where all producers count
  mismatch   the same number of messages with other content: some are missing and others are extra
  unknown    a tier that should have counted has not
  accepted   a finding accepted with `headrace audit accept`, with its reason
  expired    a finding without new counts for longer than audit.findings_ttl

exit codes:
  0  no finding
  1  missing, extra or mismatch
  2  failure or unknown; without brokers or registry the report compares the counts that it has
"""


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    report = verbs.add_parser(
        "report",
        help="compare the counts of producers, log and tables",
        description="Compares how many messages of each topic its tiers have counted: producers, the brokers' log, "
        "tables and consumers. First reads the new counts from the audit topic. With many topics it shows those with "
        "the verdicts missing, extra, mismatch and unknown.",
        epilog=examples(
            "audit report",
            "audit report --topic orders --topic 'shop.*' --format json",
            "audit report --since 7d --all",
        )
        + EPILOG,
    )
    add_topic_patterns(report)
    add_all_flag(report)
    _add_flags(report)
    report.set_defaults(run=run)
    add_run_verb(verbs)
    add_recount_verb(verbs, _instant_ms)
    accept = verbs.add_parser(
        "accept",
        help="accept findings, with a reason",
        description="Marks a topic's findings (windows that are missing, extra, mismatch or unknown) as accepted, with "
        "the reason. The report then shows the reason and ends with exit code 0. If more messages go missing later, "
        "the window is a finding again. Accepted findings are stored in audit.db.",
        epilog=examples(
            "audit accept orders --reason 'disk of kafka-2 lost, ticket 4711'",
            "audit accept orders --since '2026-01-31 07:00Z' --until '2026-01-31 08:00Z' --reason 'ticket 4711'",
            "audit accept orders --withdraw",
        ),
    )
    accept.add_argument("topic", metavar="TOPIC", help="the topic of the findings")
    action = accept.add_mutually_exclusive_group(required=True)
    action.add_argument("--reason", metavar="TEXT", help="the reason that the report shows")
    action.add_argument("--withdraw", action="store_true", help="turn accepted findings into findings again")
    accept.add_argument(
        "--dry-run", action="store_true", help="show the findings that would be changed, without changing them"
    )
    add_author_flag(accept)
    _add_flags(accept)
    accept.set_defaults(run=accept_findings)


NO_COUNTS = "has no counts in the audit"
LINES_SHOWN_MAX = 25  # about the topics that need care, if there are many topics
_AGE = re.compile(r"(\d{1,12})(m|h|d)")


def _add_flags(parser: argparse.ArgumentParser) -> None:
    windows = "ten-minute windows of message time"
    parser.add_argument(
        "--since",
        type=_instant_ms,
        metavar="TIME",
        help=f"{windows} from TIME on: 2026-01-31, '2026-01-31 07:10Z', or 7d for the last 7 days",
    )
    parser.add_argument("--until", type=_instant_ms, metavar="TIME", help=f"{windows} that begin before TIME")
    add_settings_flags(parser, ("registry.url", "kafka.bootstrap_servers"))
    add_format_flag(parser)


def _instant_ms(text: str) -> int:
    """Returns the time that a text means, in milliseconds since 1970. The text is a day, a time (UTC by default), or an
    age such as 7d, which is subtracted from now."""
    from headrace.settings.values import Duration

    if _AGE.fullmatch(text):
        return time.time_ns() // 1_000_000 - Duration.parse(text).ms
    try:
        instant = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time; expected a day such as 2026-01-31, a time such as '2026-01-31 07:10Z', or how "
            f"long "
            "ago, such as 7d"
        ) from error
    return round((instant if instant.tzinfo else instant.replace(tzinfo=datetime.UTC)).timestamp() * 1000)


def run(args: argparse.Namespace) -> int:
    from headrace.audit.errors import AuditError
    from headrace.audit.report import as_json, causes_by_topic, completeness_json, has_findings, worst_verdict
    from headrace.audit.strip import DAY_MS
    from headrace.audit.verdict import AuditVerdict
    from headrace.pipeline.audit_store import open_audit_store, update_stored_verdicts

    settings = settings_from(args)
    try:
        with open_audit_store(settings) as store:
            ingested, outage = ingest_counts(store, settings)
            topics = _audited_topics(store, settings, args.topic)
            update_stored_verdicts(store, settings)
            now_ms = _now_ms()
            results = store.report(topics, now_ms=now_ms, period=_period(args))
            events = store.events(now_ms, only_open=True, counts_clean_windows=False)
            causes = causes_by_topic(events, store.producer_faults(now_ms), now_ms)
            since_ms, until_ms = args.since or now_ms - DAY_MS, args.until or now_ms
            times = store.completeness_times(since_ms, until_ms, topics if args.topic else None)
    except AuditError as error:
        raise CommandError(str(error)) from error
    if args.topic and not results:
        raise CommandError(
            f"the audit has no counts of {', '.join(args.topic)} in this period; check --since and --until"
        )
    if args.format == "json":
        completeness = completeness_json(times)
        print_json({**as_json(results, ingested.bad, causes), "completeness": completeness, "not_fresh": outage})
    else:
        _print_text(results, ingested, causes, shows_all=args.all)
        _print_completeness(times, "" if args.since or args.until else " of the last 24 hours")
    if outage:
        # Findings may be caused by counts that could not be read.
        raise CommandError(
            f"the report lacks recent counts: {outage}; run it again when brokers and registry are available"
        )
    if has_findings(results):
        return EXIT_FINDINGS
    return EXIT_FAILED if worst_verdict(results) is AuditVerdict.UNKNOWN else EXIT_OK


def accept_findings(args: argparse.Namespace) -> int:
    """Runs the verb `accept`: accepts the findings of a topic with `--reason`, or withdraws earlier acceptances with
    `--withdraw`. Prints the windows that changed, or with `--dry-run` would change. Returns the exit code."""
    from headrace.audit.errors import AuditError
    from headrace.pipeline.audit_store import open_audit_store, update_stored_verdicts

    settings = settings_from(args)
    try:
        with open_audit_store(settings) as store:
            _, outage = ingest_counts(store, settings)
            check_known(args.topic, _audited_topics(store, settings, ()), NO_COUNTS)
            update_stored_verdicts(store, settings)
            (result, *_) = store.report([args.topic], now_ms=_now_ms(), period=_period(args)) or (None,)
            windows = result.windows if result is not None else ()
            if args.withdraw:
                acceptances = _acceptances_to_withdraw(store, args.topic, windows)
                if not args.dry_run:
                    store.withdraw(acceptances)
            else:
                if outage:
                    raise CommandError(
                        f"findings cannot be accepted while counts may be missing: {outage}; try again when brokers "
                        "and registry are available"
                    )
                acceptances = _acceptances(args.topic, windows, args.reason, args.author)
                if not args.dry_run:
                    store.accept(acceptances)
            if not args.dry_run:
                update_stored_verdicts(store, settings)
    except AuditError as error:
        raise CommandError(str(error)) from error
    _print_accepted(args, acceptances)
    return EXIT_OK


def _acceptances(topic: str, windows: Sequence[WindowResult], reason: str, author: str) -> list[Acceptance]:
    from headrace.audit.verdict import EXPIRABLE, Acceptance

    user = author or process_user()
    if not reason.strip():
        raise CommandError("--reason is empty; expected an explanation of the findings")
    now_ms = time.time_ns() // 1_000_000
    return [
        Acceptance(topic, window.facts.window_start_ms, window.verdict, window.difference, reason, user, now_ms)
        for window in windows
        if window.verdict in EXPIRABLE
    ]


def _acceptances_to_withdraw(store: AuditStore, topic: str, windows: Sequence[WindowResult]) -> list[Acceptance]:
    starts = {window.facts.window_start_ms for window in windows}
    return [one for one in store.accepted() if one.topic == topic and one.window_start_ms in starts]


def _print_accepted(args: argparse.Namespace, acceptances: Sequence[Acceptance]) -> None:
    from headrace.audit.window import window_text

    if args.format == "json":
        print_json([{"window": window_text(one.window_start_ms), **dataclasses.asdict(one)} for one in acceptances])
        return
    rows = [
        (window_text(one.window_start_ms), one.verdict.value, f"{one.difference:+,}", one.reason) for one in acceptances
    ]
    if rows:
        print_table(("window", "verdict", "messages", "reason"), rows, right=(2,))
    action = "findings again" if args.withdraw else "accepted"
    print(
        f"{'dry run: would be ' if args.dry_run else ''}{action}: {count_text(len(acceptances), 'window')} of "
        f"{args.topic}"
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _period(args: argparse.Namespace) -> Period:
    from headrace.audit.verdict import Period

    return Period(args.since, args.until)


def ingest_counts(store: AuditStore, settings: Settings) -> tuple[IngestResult, str]:
    """Adds new message counts to the audit store: those of the audit topic, and those in the spool files of producers
    on this machine that ended before they published their counts.

    Returns:
        The numbers of messages read from the audit topic (all 0 if it could not be read), and the reason why it could
        not be read ("" if it was read).
    """
    from headrace.audit.errors import IngestFailed
    from headrace.audit.ingest import IngestResult, ingest
    from headrace.audit.spool import leftover_spools
    from headrace.clients.audit_publisher import spool_directories
    from headrace.kafka_wire.from_settings import LoginRejected, client_options
    from headrace.registry.client.of_settings import registry_client
    from headrace.registry.errors import RegistryError

    ingested, outage = IngestResult(), ""
    registry = registry_client(settings)
    try:
        ingested = ingest(
            store,
            client_options=client_options(settings),
            topic=settings.audit.topic,
            schema_text=lambda schema_id: registry.schema_by_id(schema_id).text,
        )
        store.set_ingested(_now_ms())
    except (IngestFailed, LoginRejected, RegistryError) as error:
        outage = str(error)
    finally:
        registry.close()
    for directory in spool_directories(settings):
        for spool in leftover_spools(directory):
            # The spool files stay: the next producer publishes them to the audit topic for other readers.
            with spool:
                store.add_rows(spool.rows)
    return ingested, outage


def _audited_topics(store: AuditStore, settings: Settings, patterns: Sequence[str]) -> list[str]:
    topics = [topic for topic in store.topics() if topic != settings.audit.topic]
    return select_topics(patterns, topics, NO_COUNTS)


def _print_text(
    results: Sequence[TopicResult], ingested: IngestResult, causes: Mapping[str, TopicCauses], *, shows_all: bool
) -> None:
    from headrace.audit.report import COLUMN_DESCRIPTIONS, topics_listing

    if not results:
        print("no counts yet: send messages with headrace.Producer, or load a topic with headrace load")
        return
    listing = topics_listing(results)
    rows = tuple(ReportRow(cells, _severity(one)) for one, cells in zip(results, listing.rows, strict=True))
    report = TextReport(
        _totals(results), "topic", listing.header, rows, listing.right, fixed=range(1, len(listing.header))
    )
    print_report(report, shows_all=shows_all)
    print()
    _print_topics(results, causes, shows_all=shows_all or len(results) <= ROWS_SHOWN_MAX)
    print()
    for column, meaning in COLUMN_DESCRIPTIONS.items():
        print(f"{column}: {meaning}")
    if ingested.bad:
        print(
            f"{ingested.bad} messages of the audit topic were skipped, because they are not audit counts",
            file=sys.stderr,
        )


def _print_completeness(times: Mapping[str, CompletenessTimes], period: str) -> None:
    """Prints the distribution of the times to completeness; nothing without windows."""
    from headrace.audit.report import completeness_listing

    listing = completeness_listing(times)
    if listing.rows:
        print(f"\ntime from the end of a window until a share of its messages had arrived, windows{period}:")
        print_table(listing.header, listing.rows, right=listing.right)


def _totals(results: Sequence[TopicResult]) -> str:
    from headrace.audit.verdict import SEVERITY

    topics = Counter(one.verdict for one in results)
    counts = ", ".join(f"{topics[verdict]:,} {verdict.value}" for verdict in reversed(SEVERITY) if topics[verdict])
    return f"{count_text(len(results), 'topic')}: {counts}"


def _severity(result: TopicResult) -> int:
    """Returns the severity of a topic's row: the place of its verdict among all, if that needs action."""
    from headrace.audit.verdict import EXPIRABLE, SEVERITY

    return SEVERITY.index(result.verdict) if result.verdict in EXPIRABLE else WELL


def _print_topics(results: Sequence[TopicResult], causes: Mapping[str, TopicCauses], *, shows_all: bool) -> None:
    """Prints lines about each topic, the most severe first: all, or some lines about topics that need care."""
    from headrace.audit.report import NO_CAUSES, topic_lines

    ordered = sorted(results, key=_severity, reverse=True)
    shown = ordered if shows_all else [one for one in ordered if _severity(one) > WELL or one.topic in causes]
    printed = 0
    for number, result in enumerate(shown):
        lines = topic_lines(result, causes.get(result.topic, NO_CAUSES))
        if number and not shows_all and printed + len(lines) > LINES_SHOWN_MAX:
            print(f"… and the windows of {count_text(len(shown) - number, 'more topic')}; --all or --topic shows them")
            return
        for line in lines:
            print_report_line(line)
        printed += len(lines)
