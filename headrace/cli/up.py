"""`headrace up`: everything on this machine with one command."""

from __future__ import annotations

import argparse
import os
import signal

from headrace.cli.command import EXIT_OK, CommandError, add_settings_flags, examples, flag_values, settings_from
from headrace.pipeline.java import JavaNotFoundError, ensure_java
from headrace.settings.addresses import LiveAddresses

KEYS = (
    "registry.listen",
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
        "Runs registry, broker, metastore and scheduled loads on this machine, on loopback, until Ctrl-C or SIGTERM. "
        "Prints one line when all is ready. Other commands on the same --data-dir find it by themselves."
    )
    parser.epilog = examples(
        "up", "up --interval 1m --sql-listen 127.0.0.1:10000", "up --config /etc/headrace/headrace.toml"
    )
    add_settings_flags(parser, KEYS)


def run(args: argparse.Namespace) -> int:
    # Until the parts are started either signal just ends the command; from there on `run_up` has them. SIGINT is set as
    # well, because a shell that starts the command in the background has it ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        from headrace.pipeline.up import UpError, child_environment, run_up

        settings = settings_from(args)
        ensure_java(settings.data_dir)
        run_up(settings, child_environment(os.environ, flag_values(args), args.config), _announce)
    except KeyboardInterrupt:
        return EXIT_OK
    except (UpError, JavaNotFoundError) as error:
        raise CommandError(str(error)) from error
    return EXIT_OK


def _announce(addresses: LiveAddresses) -> None:
    sql = f" sql={addresses.sql}" if addresses.sql else ""
    print(
        f"ready registry={addresses.registry} broker={addresses.broker} metastore={addresses.metastore} "
        f"warehouse={addresses.warehouse}{sql}",
        flush=True,
    )
