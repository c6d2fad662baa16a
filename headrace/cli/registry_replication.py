"""`headrace registry replicate` and `promote`: a read-only replica of a registry, for a second data centre."""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING, Final

from headrace.cli.command import EXIT_OK, CommandError, add_settings_flags, examples, settings_from
from headrace.cli.registry_database import open_database

if TYPE_CHECKING:
    from headrace.registry.replication.replica import Replica

logger = logging.getLogger(__name__)

PAUSE_S: Final = 1.0  # between two rounds
PAUSE_S_MAX: Final = 3600.0


def add_verbs(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `replicate` and `promote` to the verbs of `headrace registry`."""
    replicate = verbs.add_parser(
        "replicate",
        help="keep a database as a read-only replica of another registry",
        description="Copies another Headrace registry into this database, with ids, versions and settings, and keeps "
        "the copy current until it is stopped. `registry serve` on this database serves the same reads as the source "
        "registry and rejects writes until `registry promote`. The database must be empty when replication first "
        "starts.",
        epilog=examples(
            "registry replicate --registry-url https://registry.dc1.example.com:8081 "
            "--database-url postgresql://headrace@db.dc2.example.com/registry"
        ),
    )
    replicate.add_argument(
        "--pause",
        type=_pause,
        default=PAUSE_S,
        metavar="SECONDS",
        help="time between two polls of the source registry (default: %(default)s)",
    )
    add_settings_flags(replicate, ("registry.url", "registry.database_url"))
    replicate.set_defaults(run_verb=replicate_registry)
    promote = verbs.add_parser(
        "promote",
        help="make a replica database writable",
        description="Ends replication: all registries on this database accept writes from then on, without a restart, "
        "and changes of the source registry are no longer copied. Replicating again needs an empty database. "
        "Stop the source registry first, or set its mode to READONLY, so that no id is assigned twice.",
        epilog=examples("registry promote --database-url postgresql://headrace@db.dc2.example.com/registry"),
    )
    add_settings_flags(promote, ("registry.database_url",))
    promote.set_defaults(run_verb=promote_registry)


def replicate_registry(args: argparse.Namespace) -> int:
    from headrace.registry.client.of_settings import registry_client
    from headrace.registry.errors import RegistryError
    from headrace.registry.replication.replica import HttpReplicationSource, Replica

    settings = settings_from(args)
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    database = open_database(args)
    try:
        with registry_client(settings) as client:
            holder = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
            _run_rounds(
                Replica(HttpReplicationSource(client), database, _now_ms, holder), client.url, args.pause, stopped
            )
    except RegistryError as error:
        raise CommandError(str(error)) from error
    finally:
        database.close()
    return EXIT_OK


def _run_rounds(replica: Replica, url: str, pause_s: float, stopped: threading.Event) -> None:
    """Runs replication rounds until the process is stopped or the database is promoted. Each round copies the changes
    since the previous one.

    Args:
        url: URL of the source registry, for messages.
        pause_s: time between two rounds.
        stopped: set by a signal that stops the process.

    Raises:
        RegistryError: a round failed before any round had succeeded, or later with an error that a retry cannot fix.
    """
    from headrace.registry.errors import InvalidResponse, RegistryError, ReplicationStopped
    from headrace.registry.replication.replica import RoundResult

    is_ready = False
    logged_cause = ""
    while not stopped.is_set():
        cause = ""
        try:
            result = replica.run_round()
            if result is RoundResult.PROMOTED:
                logger.info("replication ended: the database was promoted")
                return
            if result is RoundResult.WAITING:
                cause = "another process replicates into this database"
            elif not is_ready:
                print(f"ready replica={url}", flush=True)
                is_ready = True
        except (ReplicationStopped, InvalidResponse):
            raise
        except RegistryError as error:
            if not is_ready:
                raise
            cause = str(error)
        if cause != logged_cause:
            logger.warning("replication waiting: url=%s cause=%s", url, cause) if cause else logger.info(
                "replicating: url=%s", url
            )
        logged_cause = cause
        stopped.wait(pause_s)


def promote_registry(args: argparse.Namespace) -> int:
    from headrace.registry.errors import RegistryError
    from headrace.registry.replication.replica import promote

    database = open_database(args)
    try:
        now_ms = _now_ms()
        promoted = promote(database, now_ms)
    except RegistryError as error:
        raise CommandError(str(error)) from error
    finally:
        database.close()
    last_sync = f"{promoted.lag_s(now_ms):.1f} s ago" if promoted.as_of_ms else "never: nothing was replicated"
    print(f"promoted database {database.name}; last in sync with {promoted.url}: {last_sync}")
    return EXIT_OK


def _pause(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= PAUSE_S_MAX:
        raise argparse.ArgumentTypeError(
            f"expected a number of seconds above 0 and at most {PAUSE_S_MAX:g}, found {text!r}"
        )
    return seconds


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
