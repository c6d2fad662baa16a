"""`headrace up`: runs all servers and the scheduled loads on this machine."""

from __future__ import annotations

import argparse
import os
import signal
import sys

from headrace.cli.command import EXIT_OK, CommandError, add_settings_flags, examples, flag_values, settings_from
from headrace.pipeline.java import JavaNotFoundError, ensure_java
from headrace.pipeline.up.plan import PARTS
from headrace.settings.addresses import LiveAddresses
from headrace.settings.masking import mask_passwords

KEYS = (
    "registry.listen",
    "registry.url",
    "kafka.bootstrap_servers",
    "hive.metastore",
    "registry.database_url",
    "broker.listen",
    "hive.listen",
    "sql.listen",
    "console.listen",
    "gateway.listen",
    "loader.warehouse",
    "loader.tasks",
    "loader.interval",
    "loader.partition_by",
    "hive.database",
    "spark.master",
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Runs registry, broker, metastore, SQL, auditor, console, gateway and scheduled loads on this machine, on "
        "loopback, until Ctrl-C or SIGTERM. Prints one line when all parts are ready; on a terminal, one address per "
        "line. Other commands with the same --data-dir use these addresses and this warehouse. A part is not started "
        "if registry.url, kafka.bootstrap_servers or hive.metastore names a server on another machine. `headrace "
        "status` shows whether all is well; logs/up.log in the data directory has the deaths of parts and the reason "
        "of its end."
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
        help=f"run only these parts, separated by commas: {', '.join(PARTS)}",
    )
    add_settings_flags(parser, KEYS)


def run(args: argparse.Namespace) -> int:
    # Until the parts start, SIGINT or SIGTERM ends the command; afterwards `run_up` handles both. SIGINT needs a
    # handler because shells start background commands with SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        from headrace.pipeline.up.part import UpError
        from headrace.pipeline.up.plan import child_environment
        from headrace.pipeline.up.supervisor import run_up

        settings = settings_from(args)
        ensure_java(settings.data_dir)

        def print_ready(addresses: LiveAddresses) -> None:
            lines = ready_lines(addresses, settings.hive.database, on_terminal=sys.stdout.isatty())
            print(*lines, sep="\n", flush=True)

        run_up(settings, child_environment(os.environ, flag_values(args), args.config), print_ready, args.only)
    except KeyboardInterrupt:
        return EXIT_OK
    except (UpError, JavaNotFoundError) as error:
        raise CommandError(str(error)) from error
    return EXIT_OK


def _parts(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in PARTS:
            raise argparse.ArgumentTypeError(f"unknown part {name!r}; expected any of {', '.join(PARTS)}")
    return names


def ready_lines(addresses: LiveAddresses, database: str, *, on_terminal: bool) -> tuple[str, ...]:
    """Returns the lines to print when all parts are ready. Programs get one line; a terminal gets a line for each
    address and a line of commands to try.

    Args:
        addresses: the addresses of the parts.
        database: the Hive database in the JDBC address.
        on_terminal: whether the lines are for a terminal.
    """
    addresses_by_name = {
        name: mask_passwords(getattr(addresses, name))
        for name in ("registry", "broker", "metastore", "sql", "console", "gateway", "warehouse")
    }
    available = {name: address for name, address in addresses_by_name.items() if address}
    if not on_terminal:
        return (" ".join(("ready", *(f"{name}={address}" for name, address in available.items()))),)
    if addresses.sql:
        available["jdbc"] = f"jdbc:hive2://{addresses.sql}/{database}"
    available["try"] = 'headrace status; headrace load; headrace sql "SHOW TABLES"'
    return ("ready, until Ctrl-C", *(f"  {name:<9}  {address}" for name, address in available.items()))
