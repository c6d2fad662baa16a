"""`headrace audit report`: what every tier counted, compared; the first place to look when numbers differ."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

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
    from headrace.audit.reconcile import TopicVerdict
    from headrace.audit.store import AuditStore
    from headrace.settings import Settings

EPILOG = """

A window is ten minutes of message time. Its verdict:
  complete  every tier counted the same messages
  pending   not equal yet, and less than audit.grace since it ended or was last counted
  short     messages are missing           surplus   there are more than were sent
  mixed     some are missing, others are too many
  unknown   a tier that must have counted is silent

exit codes:
  0  all complete or pending
  1  short, surplus or mixed
  2  could not tell, also when brokers or registry are down: then it compares what it has
"""


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    report = verbs.add_parser(
        "report",
        help="compare what producers, log and tables counted",
        description="Reads the counts that have come since the last report and compares the tiers of every topic.",
        epilog=examples("audit report", "audit report --topic orders --format json") + EPILOG,
    )
    report.add_argument("--topic", metavar="TOPIC", help="only this topic (default: all)")
    add_settings_flags(report, ("registry.url", "kafka.bootstrap_servers"))
    add_format_flag(report)
    report.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from headrace.audit.errors import AuditError
    from headrace.audit.reconcile import State
    from headrace.audit.report import as_json, has_findings, worst_state
    from headrace.audit.store import DATABASE_NAME, AuditStore

    settings = settings_from(args)
    try:
        with AuditStore(settings.data_dir / DATABASE_NAME) as store:
            ingested, outage = _bring_up_to_date(store, settings)
            verdicts = _reconcile(store, settings, args.topic)
    except AuditError as error:
        raise CommandError(str(error)) from error
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


def _bring_up_to_date(store: AuditStore, settings: Settings) -> tuple[Ingested, str]:
    """Adds what came on the audit topic, and what producers that died on this machine left in their spools.

    Also says why the audit topic could not be read, "" when it was.
    """
    from headrace.audit.errors import IngestFailed
    from headrace.audit.ingest import Ingested, ingest
    from headrace.audit.spool import SPOOL_FOLDER, left_spools
    from headrace.pipeline.brokers import NotLetIn, client_options
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
    for spool in left_spools(settings.data_dir / SPOOL_FOLDER):
        # The files stay: the next producer publishes them for the other readers of the audit topic.
        with spool:
            store.add_rows(spool.rows)
    return ingested, outage


def _reconcile(store: AuditStore, settings: Settings, only: str | None) -> tuple[TopicVerdict, ...]:
    from headrace.audit.reconcile import reconcile_topics

    topics = [topic for topic in store.topics() if topic != settings.audit.topic]
    if only is not None:
        if only not in topics:
            raise CommandError(f"no tier has counted the topic {only!r}; counted: {', '.join(topics) or 'none yet'}")
        topics = [only]
    return reconcile_topics(
        (facts for topic in topics for facts in store.facts(topic)),
        {topic: store.offset_check(topic) for topic in topics},
        now_ms=time.time_ns() // 1_000_000,
        grace_ms=settings.audit.grace.ms,
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
            print(line)
    print()
    for column, meaning in MEANINGS.items():
        print(f"{column}: {meaning}")
    if ingested.bad:
        print(f"{ingested.bad} messages of the audit topic are no audit rows and were passed over", file=sys.stderr)
