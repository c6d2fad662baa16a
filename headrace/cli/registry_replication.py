"""`headrace registry follow` and `promote`: a registry that holds what another one does, for a second data centre."""

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

if TYPE_CHECKING:
    from headrace.registry.replication.replica import Replica
    from headrace.registry.storage.database import Database

logger = logging.getLogger(__name__)

PAUSE_S: Final = 1.0  # between two rounds
PAUSE_S_MAX: Final = 3600.0


def add_verbs(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `follow` and `promote` to the verbs of `headrace registry`."""
    follow = verbs.add_parser(
        "follow",
        help="keep a database equal to another registry, read-only",
        description="Brings a registry's database to what another registry of Headrace holds, with its ids, versions "
        "and settings, and keeps it so until it is stopped. `registry serve` on that database then answers all that "
        "the other one does, and refuses changes, until `registry promote`. The database has to be empty at first.",
        epilog=examples(
            "registry follow --registry-url https://registry.dc1.example.com:8081 "
            "--database-url postgresql://headrace@db.dc2.example.com/registry"
        ),
    )
    follow.add_argument(
        "--pause",
        type=_pause,
        default=PAUSE_S,
        metavar="SECONDS",
        help="from one look at the other registry to the next (default: %(default)s)",
    )
    add_settings_flags(follow, ("registry.url", "registry.database_url"))
    follow.set_defaults(run_verb=replicate_registry)
    promote = verbs.add_parser(
        "promote",
        help="let a database that follows another registry take changes",
        description="Ends following: from then on all registries on this database take changes, without a restart, "
        "and nothing that the other registry does comes here any more. There is no way back but an empty database. "
        "Stop the other registry first, or set its mode to READONLY, so that no id is given twice.",
        epilog=examples("registry promote --database-url postgresql://headrace@db.dc2.example.com/registry"),
    )
    add_settings_flags(promote, ("registry.database_url",))
    promote.set_defaults(run_verb=promote_registry)


def replicate_registry(args: argparse.Namespace) -> int:
    from headrace.registry.client.of_settings import registry_client
    from headrace.registry.errors import RegistryError
    from headrace.registry.replication.replica import Replica, HttpReplicationSource

    settings = settings_from(args)
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    database = _database(args)
    try:
        with registry_client(settings) as client:
            holder = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
            _follow(Replica(HttpReplicationSource(client), database, _now_ms, holder), client.url, args.pause, ending)
    except RegistryError as error:
        raise CommandError(str(error)) from error
    finally:
        database.close()
    return EXIT_OK


def _follow(follower: Replica, url: str, pause_s: float, ending: threading.Event) -> None:
    """Rounds until the end.

    Raises:
        RegistryError: no other round will be better, or the first one failed.
    """
    from headrace.registry.errors import InvalidResponse, ReplicationStopped, RegistryError
    from headrace.registry.replication.replica import Round

    begun = False
    trouble = ""
    while not ending.is_set():
        now = ""
        try:
            outcome = follower.round()
            if outcome is Round.PROMOTED:
                logger.info("following ended: the database was promoted")
                return
            if outcome is Round.WAITING:
                now = "another process follows for this database"
            elif not begun:
                print(f"ready follower={url}", flush=True)
                begun = True
        except (ReplicationStopped, InvalidResponse):
            raise
        except RegistryError as error:
            if not begun:
                raise
            now = str(error)
        if now != trouble:
            logger.warning("following waits: url=%s cause=%s", url, now) if now else logger.info(
                "following: url=%s", url
            )
        trouble = now
        ending.wait(pause_s)


def promote_registry(args: argparse.Namespace) -> int:
    from headrace.registry.errors import RegistryError
    from headrace.registry.replication.replica import promote

    database = _database(args)
    try:
        now_ms = _now_ms()
        promoted = promote(database, now_ms)
    except RegistryError as error:
        raise CommandError(str(error)) from error
    finally:
        database.close()
    behind = f"{promoted.behind_s(now_ms):.1f} s ago" if promoted.as_of_ms else "never: it holds nothing of it"
    print(f"promoted database {database.name}; it last held all that {promoted.url} did: {behind}")
    return EXIT_OK


def _database(args: argparse.Namespace) -> Database:
    """
    Raises:
        CommandError: it cannot be used.
    """
    from headrace.cli.registry import database_url
    from headrace.registry.errors import RegistryError
    from headrace.registry.storage.database import Database

    try:
        database = Database(database_url(settings_from(args)))
        (database.upgrade if database.is_sqlite else database.check)()
    except RegistryError as error:
        raise CommandError(str(error)) from error
    return database


def _pause(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= PAUSE_S_MAX:
        raise argparse.ArgumentTypeError(f"expected seconds, more than 0 and at most {PAUSE_S_MAX:g}, found {text!r}")
    return seconds


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
