"""`headrace broker`: serves the bundled broker, and prints lines for its users file. Adds the verbs that inspect
running brokers and log directories."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import secrets
import signal
from typing import Final

from headrace.cli import broker_admin, broker_log_directories
from headrace.cli.command import EXIT_OK, CommandError, add_settings_flags, examples, settings_from
from headrace.cli.registry_access import read_password
from headrace.settings import Address, BrokerSettings, Settings
from headrace.settings.values import is_loopback

logger = logging.getLogger(__name__)

GARBAGE_THRESHOLDS: Final = (20_000, 10, 10)  # few collections: requests create hardly any reference cycles

GROUPS = """\
run the bundled broker:                  serve, user
query running brokers of any kind:       topics, groups
read the bundled broker's log files:     dump, verify
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = GROUPS
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    serve = verbs.add_parser(
        "serve",
        help="serve until stopped",
        description=(
            "Serves a durable single-node broker for unmodified Kafka clients. Prints the line `ready "
            "broker=HOST:PORT` when it accepts connections. The data is in <data-dir>/broker/. SIGTERM and Ctrl-C "
            "end it with exit code 0. Without broker.users every client may do everything. The broker then listens "
            "on loopback only, unless it requires client certificates (broker.tls_client_ca) or "
            "broker.allow_unauthenticated_from is network."
        ),
        epilog=examples("broker serve", "broker serve --data-dir /var/lib/headrace --broker-listen 10.0.0.5:9092"),
    )
    add_settings_flags(serve, ("broker.listen",))
    serve.set_defaults(run_verb=serve_broker)
    user = verbs.add_parser(
        "user",
        help="print a line for the users file",
        description="Prints the line that defines a user in the file broker.users, with SCRAM verifiers of the "
        "password. A "
        "terminal prompts for the password; otherwise it is the first line of standard input. The file also has "
        "lines `grant NAME read|write|admin RESOURCE`, where RESOURCE is topic:PATTERN, group:PATTERN or "
        "transaction:PATTERN (a transactional id), with * as a wildcard, or * for everything.",
        epilog=examples("broker user shop >> /etc/headrace/broker-users"),
    )
    user.add_argument("name", metavar="NAME", help="the user's name")
    user.set_defaults(run_verb=print_user)
    broker_admin.add_verbs(verbs)
    broker_log_directories.add_verbs(verbs)


def run(args: argparse.Namespace) -> int:
    """Runs the verb of `headrace broker` that the command line names, such as `serve`, and returns its exit code."""
    return int(args.run_verb(args))


def print_user(args: argparse.Namespace) -> int:
    from headrace.broker.access.login import PASSWORD_BYTES_MAX
    from headrace.broker.access.scram import HASHES, SALT_BYTES, Verifier
    from headrace.broker.access.users import user_line

    password = read_password()
    if not 0 < len(password.encode("utf-8", "surrogateescape")) <= PASSWORD_BYTES_MAX or "\0" in password:
        raise CommandError(
            f"the password is empty, longer than {PASSWORD_BYTES_MAX} bytes or contains a NUL character; "
            "choose another password"
        )
    verifiers = {name: Verifier.derive(name, password, secrets.token_bytes(SALT_BYTES)) for name in HASHES}
    try:
        print(user_line(args.name, verifiers))
    except ValueError as error:
        raise CommandError(str(error)) from error
    return EXIT_OK


def check_access(settings: BrokerSettings) -> None:
    """Checks that anonymous clients from a network can use the broker only if a setting permits it. Logs a warning if
    passwords would be sent unencrypted over a network.

    Raises:
        CommandError: they could use it, and no setting permits it.
    """
    if is_loopback(settings.listen.host):
        return
    if not (settings.users or settings.tls_client_ca or settings.allow_unauthenticated_from == "network"):
        raise CommandError(
            f"broker.listen is {settings.listen}, where anonymous clients could read and delete everything; set "
            "broker.users to a file with users, require certificates with broker.tls_client_ca, or set "
            "broker.allow_unauthenticated_from to network"
        )
    if settings.users and not settings.tls_certificate:
        logger.warning("passwords_sent_unencrypted, set broker.tls_certificate listen=%s", settings.listen)


def check_timeouts(settings: BrokerSettings) -> None:
    """Checks the timeouts of consumer groups.

    Raises:
        CommandError: the session timeout is not longer than the heartbeat interval, so that members would be removed
            from their group before their next heartbeat.
    """
    if settings.consumer_session_timeout <= settings.consumer_heartbeat_interval:
        raise CommandError(
            f"broker.consumer_session_timeout is {settings.consumer_session_timeout}; expected more than "
            f"broker.consumer_heartbeat_interval, which is {settings.consumer_heartbeat_interval}"
        )


def metrics_address(settings: BrokerSettings) -> Address | None:
    """Returns the address on which the broker serves /metrics, or None if it does not.

    Raises:
        CommandError: `broker.metrics_listen` is not an address, or it is one on which anonymous clients from a network
            could read topic names, and no setting permits that.
    """
    if not settings.metrics_listen:
        return None
    try:
        address = Address.parse(settings.metrics_listen)
    except ValueError as error:
        raise CommandError(f"broker.metrics_listen {settings.metrics_listen}: {error}") from error
    if not is_loopback(address.host) and settings.allow_unauthenticated_from != "network":
        raise CommandError(
            f"broker.metrics_listen is {address}, where anonymous clients could read topic names and traffic; set "
            "broker.allow_unauthenticated_from to network to permit that"
        )
    return address


def serve_broker(args: argparse.Namespace) -> int:
    from headrace.broker.errors import BrokerError

    settings = settings_from(args)
    check_access(settings.broker)
    check_timeouts(settings.broker)
    metrics_address(settings.broker)
    try:
        asyncio.run(_serve(settings))
    except BrokerError as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(
            f"cannot serve from {settings.data_dir / 'broker'}: {error}; check the directory's permissions "
            "and free space"
        ) from error
    return EXIT_OK


async def _serve(settings: Settings) -> None:
    from headrace.broker.config import BrokerConfig, FsyncMode
    from headrace.broker.server import BrokerServer

    metrics = metrics_address(settings.broker)
    server = BrokerServer(
        BrokerConfig(
            data_dir=settings.data_dir / "broker",
            host=settings.broker.listen.host,
            port=settings.broker.listen.port,
            advertised_host=settings.broker.advertised_host,
            advertised_port=settings.broker.advertised_port,
            tls_certificate=settings.broker.tls_certificate,
            tls_key=settings.broker.tls_key,
            tls_client_ca=settings.broker.tls_client_ca,
            metrics_host=metrics.host if metrics is not None else "",
            metrics_port=metrics.port if metrics is not None else 0,
            users=settings.broker.users,
            connections_per_address_max=settings.broker.connections_per_address_max,
            bytes_per_second_max=settings.broker.bytes_per_second_max,
            node_id=settings.broker.node_id,
            partitions=settings.broker.partitions,
            auto_create_topics=settings.broker.auto_create_topics,
            rebalance_delay_ms=settings.broker.rebalance_delay.ms,
            session_timeout_ms_min=settings.broker.session_timeout_min.ms,
            consumer_session_timeout_ms=settings.broker.consumer_session_timeout.ms,
            consumer_heartbeat_interval_ms=settings.broker.consumer_heartbeat_interval.ms,
            retention_ms=settings.broker.retention.ms,
            segment_bytes_max=settings.broker.segment_bytes_max,
            message_bytes_max=settings.broker.message_bytes_max,
            fsync=FsyncMode(settings.broker.fsync),
            repairs_corrupt_logs=settings.broker.on_corruption == "rename",
        )
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    host, port = await server.start()
    with contextlib.suppress(BrokenPipeError):
        shown = f" metrics={Address(*server.metrics_address)}" if server.metrics_address is not None else ""
        print(f"ready broker={Address(host, port)}{shown}", flush=True)
    # A fetch of a hundred partitions allocates enough objects to start a garbage collection. Modules and recovered logs
    # live until the end: scanning them too took a third of the time of such fetches.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    await server.wait()
