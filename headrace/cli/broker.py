"""`headrace broker serve`: the bundled Kafka-protocol broker, on one address, until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal

from headrace.cli.command import EXIT_OK, CommandError, add_settings_flags, examples, settings_from
from headrace.settings import Address, Settings


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    serve = verbs.add_parser(
        "serve",
        help="serve until stopped",
        description=(
            "Serves a durable single-node broker that Kafka clients can use unmodified, and prints one line, "
            "`ready broker=HOST:PORT`, once it does. Data is in <data-dir>/broker/. Ends with exit code 0 on SIGTERM "
            "or Ctrl-C."
        ),
        epilog=examples("broker serve", "broker serve --data-dir /var/lib/headrace --broker-listen 10.0.0.5:9092"),
    )
    add_settings_flags(serve, ("broker.listen",))
    serve.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from headrace.broker.errors import BrokerError

    settings = settings_from(args)
    try:
        asyncio.run(_serve(settings))
    except BrokerError as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(f"cannot serve from {settings.data_dir / 'broker'}: {error}") from error
    return EXIT_OK


async def _serve(settings: Settings) -> None:
    from headrace.broker.config import BrokerConfig, FsyncMode
    from headrace.broker.server import BrokerServer

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
            node_id=settings.broker.node_id,
            partitions=settings.broker.partitions,
            creates_topics=settings.broker.auto_create_topics,
            rebalance_delay_ms=settings.broker.rebalance_delay.ms,
            session_timeout_ms_min=settings.broker.session_timeout_min.ms,
            retention_ms=settings.broker.retention.ms,
            segment_bytes_max=settings.broker.segment_bytes_max,
            message_bytes_max=settings.broker.message_bytes_max,
            fsync=FsyncMode(settings.broker.fsync),
            sets_damaged_aside=settings.broker.damaged == "set-aside",
        )
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    host, port = await server.start()
    with contextlib.suppress(BrokenPipeError):
        print(f"ready broker={Address(host, port)}", flush=True)
    await server.wait()
