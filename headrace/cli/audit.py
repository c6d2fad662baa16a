"""`headrace audit`: what every tier counted, compared, the first place to look when numbers differ; and what a person
has accepted of it."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import os
import pwd
import re
import sys
import time
from typing import TYPE_CHECKING

from headrace.cli.colour import print_report_line
from headrace.cli.command import (
    EXIT_FAILED,
    EXIT_FINDINGS,
    EXIT_OK,
    CommandError,
    add_format_flag,
    add_settings_flags,
    examples,
    print_json,
    print_table,
    settings_from,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.audit.ingest import Ingested
    from headrace.audit.store import AuditStore
    from headrace.audit.verdict import Acceptance, Period, TopicVerdict, WindowVerdict
    from headrace.settings import Settings

EPILOG = """

A window is ten minutes of message time. Its verdict:
  complete  every tier counted the same messages
  pending   not equal yet, and less than audit.grace since it ended or was last counted
  uncounted there are more than were sent: a producer that does not count sends here too
  short     messages are missing           surplus   rows are too many, or messages where all producers count
  mixed     some are missing, others are too many
  unknown   a tier that must have counted is silent
  accepted  a finding that `headrace audit accept` took, with its reason
  past      a finding that nothing was counted for since longer than audit.findings_ttl

exit codes:
  0  none of the next
  1  short, surplus or mixed
  2  could not tell, also when brokers or registry are down: then it compares what it has
"""


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    report = verbs.add_parser(
        "report",
        help="compare what producers, log and tables counted",
        description="Reads the counts that have come since the last report and compares the tiers of every topic.",
        epilog=examples(
            "audit report",
            "audit report --topic orders --format json",
            "audit report --since 7d",
        )
        + EPILOG,
    )
    report.add_argument("--topic", metavar="TOPIC", help="only this topic (default: all)")
    _add_flags(report)
    report.set_defaults(run=run)
    accept = verbs.add_parser(
        "accept",
        help="accept findings, with the reason, so that they are none any more",
        description="Notes that what the report finds in a topic's windows is known, and why; the report shows it with "
        "the reason and ends 0. It is of what was found: where more goes missing later there is a finding again. The "
        "notes are kept in audit.db.",
        epilog=examples(
            "audit accept orders --reason 'disk of kafka-2 lost, ticket 4711'",
            "audit accept orders --since '2026-01-31 07:00Z' --until '2026-01-31 08:00Z' --reason 'ticket 4711'",
            "audit accept orders --withdraw",
        ),
    )
    accept.add_argument("topic", metavar="TOPIC", help="the topic that the findings are of")
    what = accept.add_mutually_exclusive_group(required=True)
    what.add_argument("--reason", metavar="TEXT", help="why, which the report shows")
    what.add_argument("--withdraw", action="store_true", help="make what was accepted a finding again")
    accept.add_argument("--dry-run", action="store_true", help="show what would be accepted, and change nothing")
    _add_flags(accept)
    accept.set_defaults(run=accept_findings)


_AGO = re.compile(r"(\d{1,12})(m|h|d)")


def _add_flags(parser: argparse.ArgumentParser) -> None:
    when = "windows of message time"
    parser.add_argument(
        "--since", type=_instant_ms, metavar="TIME", help=f"{when} from TIME on: 2026-01-31, '2026-01-31 07:10Z', or 7d"
    )
    parser.add_argument("--until", type=_instant_ms, metavar="TIME", help=f"{when} that begin before TIME")
    add_settings_flags(parser, ("registry.url", "kafka.bootstrap_servers"))
    add_format_flag(parser)


def _instant_ms(text: str) -> int:
    """A day or time (UTC unless it says otherwise), or how long ago, in milliseconds since 1970."""
    from headrace.settings.values import Duration

    if _AGO.fullmatch(text):
        return time.time_ns() // 1_000_000 - Duration.parse(text).ms
    try:
        instant = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time; expected a day such as 2026-01-31, a time such as '2026-01-31 07:10Z', or how long "
            "ago, such as 7d"
        ) from error
    return round((instant if instant.tzinfo else instant.replace(tzinfo=datetime.UTC)).timestamp() * 1000)


def run(args: argparse.Namespace) -> int:
    from headrace.audit.errors import AuditError
    from headrace.audit.report import as_json, has_findings, worst_state
    from headrace.audit.store import DATABASE_NAME, AuditStore
    from headrace.audit.verdict import State

    settings = settings_from(args)
    try:
        with AuditStore(settings.data_dir / DATABASE_NAME) as store:
            ingested, outage = _bring_up_to_date(store, settings)
            verdicts = _reconcile(store, settings, args.topic, _period(args))
    except AuditError as error:
        raise CommandError(str(error)) from error
    if args.topic is not None and not verdicts:
        raise CommandError(f"no tier has counted the topic {args.topic!r} in this period")
    if args.format == "json":
        print_json({**as_json(verdicts, ingested.bad), "not_fresh": outage})
    else:
        _print_text(verdicts, ingested)
    if outage:
        # Findings too may come of the counts that are missing.
        raise CommandError(
            f"this is not fresh, since counts that were published lately are not in it: {outage}; "
            "ask again when brokers and registry answer"
        )
    if has_findings(verdicts):
        return EXIT_FINDINGS
    return EXIT_FAILED if worst_state(verdicts) is State.UNKNOWN else EXIT_OK


def accept_findings(args: argparse.Namespace) -> int:
    """Notes the topic's findings as accepted, or takes that back, and shows them."""
    from headrace.audit.errors import AuditError
    from headrace.audit.store import DATABASE_NAME, AuditStore

    settings = settings_from(args)
    try:
        with AuditStore(settings.data_dir / DATABASE_NAME) as store:
            _, outage = _bring_up_to_date(store, settings)
            (verdict, *_) = _reconcile(store, settings, args.topic, _period(args)) or (None,)
            windows = verdict.windows if verdict is not None else ()
            if args.withdraw:
                chosen = _withdrawn(store, args.topic, windows)
                if not args.dry_run:
                    store.withdraw(chosen)
            else:
                if outage:
                    raise CommandError(f"what is found now may come of counts that are missing: {outage}")
                chosen = _accepted(args.topic, windows, args.reason)
                if not args.dry_run:
                    store.accept(chosen)
    except AuditError as error:
        raise CommandError(str(error)) from error
    _print_accepted(args, chosen)
    return EXIT_OK


def _accepted(topic: str, windows: Sequence[WindowVerdict], reason: str) -> list[Acceptance]:
    from headrace.audit.verdict import MAY_END, Acceptance

    if not reason.strip():
        raise CommandError("the reason is empty; expected why these findings are none")
    who, now_ms = pwd.getpwuid(os.getuid()).pw_name, time.time_ns() // 1_000_000
    return [
        Acceptance(topic, window.facts.window_start_ms, window.state, window.difference, reason, who, now_ms)
        for window in windows
        if window.state in MAY_END
    ]


def _withdrawn(store: AuditStore, topic: str, windows: Sequence[WindowVerdict]) -> list[Acceptance]:
    starts = {window.facts.window_start_ms for window in windows}
    return [one for one in store.accepted() if one.topic == topic and one.window_start_ms in starts]


def _print_accepted(args: argparse.Namespace, chosen: Sequence[Acceptance]) -> None:
    from headrace.audit.window import many, window_text

    if args.format == "json":
        print_json([{"window": window_text(one.window_start_ms), **dataclasses.asdict(one)} for one in chosen])
        return
    rows = [(window_text(one.window_start_ms), one.state.value, f"{one.difference:+,}", one.reason) for one in chosen]
    if rows:
        print_table(("window", "verdict", "messages", "reason"), rows, right=(2,))
    what = "findings again" if args.withdraw else "accepted"
    print(f"{'dry run: would be ' if args.dry_run else ''}{what}: {many(len(chosen), 'window')} of {args.topic}")


def _period(args: argparse.Namespace) -> Period:
    from headrace.audit.verdict import Period

    return Period(args.since, args.until)


def _bring_up_to_date(store: AuditStore, settings: Settings) -> tuple[Ingested, str]:
    """Adds what came on the audit topic, and what producers that died on this machine left in their spools.

    Also says why the audit topic could not be read, "" when it was.
    """
    from headrace.audit.errors import IngestFailed
    from headrace.audit.ingest import Ingested, ingest
    from headrace.audit.spool import left_spools
    from headrace.clients.audit_publisher import spool_directories
    from headrace.kafka_wire.of_settings import NotLetIn, client_options
    from headrace.registry.client.of_settings import registry_client
    from headrace.registry.errors import RegistryError

    ingested, outage = Ingested(), ""
    registry = registry_client(settings)
    try:
        ingested = ingest(
            store,
            client_options=client_options(settings),
            topic=settings.audit.topic,
            schema_text=lambda schema_id: registry.schema_by_id(schema_id).text,
        )
    except (IngestFailed, NotLetIn, RegistryError) as error:
        outage = str(error)
    finally:
        registry.close()
    for directory in spool_directories(settings):
        for spool in left_spools(directory):
            # The files stay: the next producer publishes them for the other readers of the audit topic.
            with spool:
                store.add_rows(spool.rows)
    return ingested, outage


def _reconcile(store: AuditStore, settings: Settings, only: str | None, period: Period) -> tuple[TopicVerdict, ...]:
    from headrace.audit.reconcile import reconcile_topics
    from headrace.audit.verdict import Ruling

    topics = [topic for topic in store.topics() if topic != settings.audit.topic]
    if only is not None:
        if only not in topics:
            raise CommandError(f"no tier has counted the topic {only!r}; counted: {', '.join(topics) or 'none yet'}")
        topics = [only]
    patterns = settings.audit.counted_topics
    ruling = Ruling(
        all_count=lambda topic: any(re.fullmatch(pattern, topic) for pattern in patterns),
        accepted=store.accepted(),
        findings_ttl_ms=settings.audit.findings_ttl.ms,
    )
    return reconcile_topics(
        (facts for topic in topics for facts in store.facts(topic)),
        {topic: store.offset_check(topic) for topic in topics},
        now_ms=time.time_ns() // 1_000_000,
        grace_ms=settings.audit.grace.ms,
        ruling=ruling,
        period=period,
    )


def _print_text(verdicts: Sequence[TopicVerdict], ingested: Ingested) -> None:
    from headrace.audit.report import MEANINGS, topic_lines, topics_listing

    if not verdicts:
        print("no tier has counted anything yet: produce with headrace.Producer, or load a topic")
        return
    listing = topics_listing(verdicts)
    print_table(listing.header, listing.rows, listing.right)
    print()
    for verdict in verdicts:
        for line in topic_lines(verdict):
            print_report_line(line)
    print()
    for column, meaning in MEANINGS.items():
        print(f"{column}: {meaning}")
    if ingested.bad:
        print(f"{ingested.bad} messages of the audit topic are no audit rows and were passed over", file=sys.stderr)
