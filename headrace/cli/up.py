"""`headrace up`: everything on this machine with one command."""

from __future__ import annotations

import argparse
import os
import signal
import sys

from headrace.cli.command import EXIT_OK, CommandError, add_settings_flags, examples, flag_values, settings_from
from headrace.pipeline.java import JavaNotFoundError, ensure_java
from headrace.pipeline.up.plan import PARTS
from headrace.settings.addresses import LiveAddresses

KEYS = (
    "registry.listen",
    "registry.url",
    "kafka.bootstrap_servers",
    "hive.metastore",
    "registry.database_url",
    "broker.listen",
    "hive.listen",
    "sql.listen",
    "loader.warehouse",
    "loader.tasks",
    "loader.interval",
    "loader.partition_by",
    "hive.database",
    "spark.master",
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Runs registry, broker, metastore, SQL and scheduled loads on this machine, on loopback, until Ctrl-C or "
        "SIGTERM. Prints one line when all is ready, on a terminal an address a line. Other commands on the same "
        "--data-dir find it by themselves. What registry.url, kafka.bootstrap_servers or hive.metastore place "
        "elsewhere is not started."
    )
    parser.epilog = examples(
        "up",
        "up --interval 1m --sql-listen 127.0.0.1:10000",
        "up --only metastore,load --registry-url http://registry:8081 --bootstrap-servers kafka1:9092",
    )
    parser.add_argument(
        "--only",
        metavar="PARTS",
        type=_parts,
        default=(),
        help=f"run these alone, joined by commas: {', '.join(PARTS)}",
    )
    add_settings_flags(parser, KEYS)


def run(args: argparse.Namespace) -> int:
    # Until the parts are started either signal just ends the command; from there on `run_up` has them. SIGINT is set as
    # well, because a shell that starts the command in the background has it ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        from headrace.pipeline.up.part import UpError
        from headrace.pipeline.up.plan import child_environment
        from headrace.pipeline.up.supervisor import run_up

        settings = settings_from(args)
        ensure_java(settings.data_dir)

        def announce(addresses: LiveAddresses) -> None:
            lines = ready_lines(addresses, settings.hive.database, for_people=sys.stdout.isatty())
            print(*lines, sep="\n", flush=True)

        run_up(settings, child_environment(os.environ, flag_values(args), args.config), announce, args.only)
    except KeyboardInterrupt:
        return EXIT_OK
    except (UpError, JavaNotFoundError) as error:
        raise CommandError(str(error)) from error
    return EXIT_OK


def _parts(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in PARTS:
            raise argparse.ArgumentTypeError(f"there is no part {name!r}; expected some of {', '.join(PARTS)}")
    return names


def ready_lines(addresses: LiveAddresses, database: str, *, for_people: bool) -> tuple[str, ...]:
    """One line for what reads it; for people an address a line, and what to do with them."""
    served = {name: getattr(addresses, name) for name in ("registry", "broker", "metastore", "sql", "warehouse")}
    there = {name: address for name, address in served.items() if address}
    if not for_people:
        return (" ".join(("ready", *(f"{name}={address}" for name, address in there.items()))),)
    if addresses.sql:
        there["jdbc"] = f"jdbc:hive2://{addresses.sql}/{database}"
    there["try"] = 'headrace doctor; headrace load; headrace sql "SHOW TABLES"'
    return ("ready, until Ctrl-C", *(f"  {name:<9}  {address}" for name, address in there.items()))
