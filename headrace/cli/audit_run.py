"""`headrace audit run`: keeps the audit up to date, in a separate process that `headrace up` starts.

Every few seconds it reads the new counts of the audit topic, counts the messages in the brokers' log independently of
loads (`pipeline.log_counter`), and updates the stored verdicts. Failures of brokers, registry or database are logged
when they begin and end; the next round tries again.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from headrace.cli.command import EXIT_FAILED, EXIT_FINDINGS, EXIT_OK, add_settings_flags, examples, settings_from

if TYPE_CHECKING:
    from headrace.audit.storage.store import AuditStore
    from headrace.audit.stored import UncountedBatch
    from headrace.pipeline.log_counter import LogCounter
    from headrace.settings import Settings

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 5.0
"""Pause between two rounds. A round that leaves messages uncounted is followed by the next one at once."""


def add_run_verb(verbs: Any) -> None:
    """Adds the verb `run` to the command `headrace audit`."""
    run = verbs.add_parser(
        "run",
        help="count the log and read the counts of producers, until it is stopped",
        description="Reads the counts of the audit topic, and counts the messages in the brokers' log independently of "
        "loads, every few seconds until SIGTERM or Ctrl-C. The report then compares the log with the messages that "
        "loads read. `headrace up` runs it. Several of them count nothing twice.",
        epilog=examples("audit run", "audit run --once"),
    )
    run.add_argument(
        "--once",
        action="store_true",
        help="count the messages in the log now, and end; exit code 1 with corrupt batches, 2 on failure",
    )
    add_settings_flags(run, ("registry.url", "kafka.bootstrap_servers"))
    run.set_defaults(run=run_auditor)


def run_auditor(args: argparse.Namespace) -> int:
    from headrace.audit.stored import corrupt_text
    from headrace.pipeline.status.audit import CORRUPT_REMEDY

    settings = settings_from(args)
    stop = threading.Event()
    auditor = Auditor(settings, stop)
    if not args.once:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        print("ready audit=counting", flush=True)
    while True:
        has_more = auditor.run_round()
        if not has_more and args.once:
            print(f"counted {auditor.messages:,} messages in the log")
            for one in auditor.corrupt:
                print(f"FINDING: topic {one.topic}: {corrupt_text(one)}; {CORRUPT_REMEDY}")
            for source, problem in sorted(auditor.problems.items()):
                print(f"headrace: {source}: {problem}", file=sys.stderr)
            return EXIT_FAILED if auditor.problems else EXIT_FINDINGS if auditor.corrupt else EXIT_OK
        if stop.wait(0 if has_more else INTERVAL_S):
            return EXIT_OK


class Auditor:
    """Runs rounds. `problems` are the failures of the last round by their source, `messages` is the number of messages
    counted in the log so far, and `corrupt` are the corrupt batches in the log."""

    def __init__(self, settings: Settings, stop: threading.Event) -> None:
        self._settings = settings
        self._stop = stop
        self._open = contextlib.ExitStack()
        self._parts: tuple[AuditStore, LogCounter] | None = None
        self.problems: dict[str, str] = {}
        self.messages = 0
        self.corrupt: list[UncountedBatch] = []

    def run_round(self) -> bool:
        """Brings the audit up to date. Returns whether messages of the log remain to be counted."""
        from headrace.audit.errors import AuditError
        from headrace.cli.audit import ingest_counts
        from headrace.kafka_wire.errors import KafkaError
        from headrace.kafka_wire.from_settings import LoginRejected
        from headrace.pipeline.audit_store import update_stored_verdicts
        from headrace.registry.errors import RegistryError

        problems: dict[str, str] = {}
        has_more = False
        try:
            store, counter = self._connected()
            _, outage = ingest_counts(store, self._settings)
            if outage:
                problems["counts"] = outage
            counted = counter.count()
            self.messages += counted.messages
            self.corrupt = store.corrupt_batches()
            has_more = counted.has_more and not self._stop.is_set()
            update_stored_verdicts(store, self._settings)
            problems |= {f"topic {topic}": reason for topic, reason in counted.problems.items()}
        except (AuditError, KafkaError, RegistryError, LoginRejected, OSError) as error:
            problems["audit"] = str(error)
            self._open.close()
            self._parts = None
        self._log_changes(problems)
        return has_more

    def _connected(self) -> tuple[AuditStore, LogCounter]:
        """Returns the database and the counter of the log; opens both after the start and after a failure."""
        from headrace.pipeline.audit_store import open_audit_store
        from headrace.pipeline.load import kafka_cluster
        from headrace.pipeline.log_counter import LogCounter
        from headrace.registry.client.of_settings import registry_client

        if self._parts is None:
            store = self._open.enter_context(open_audit_store(self._settings))
            cluster = self._open.enter_context(kafka_cluster(self._settings))
            registry = self._open.enter_context(registry_client(self._settings))
            self._parts = store, LogCounter(self._settings, store, cluster, registry, self._stop.wait)
        return self._parts

    def _log_changes(self, problems: dict[str, str]) -> None:
        for source, problem in problems.items():
            if source not in self.problems:
                logger.warning("audit incomplete source=%s reason=%s", source, problem)
        for source in self.problems.keys() - problems.keys():
            logger.info("audit complete again source=%s", source)
        self.problems = problems
