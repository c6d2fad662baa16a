"""`headrace demo`: runs the whole pipeline, on a year of real flights or on a growing access log."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import sys
import threading
from pathlib import Path

from headrace.cli.command import EXIT_FINDINGS, EXIT_OK, CommandError, examples, settings_from
from headrace.pipeline.java import JavaNotFoundError, ensure_java

DEFAULT_DATA_DIR = Path("headrace-data/demo")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "flights: sends the flights, weather, planes, airlines and airports of New York 2013 from producer to Hive "
        "tables, changes a schema halfway, and compares query results with the data set. logs: sends a growing access "
        "log with the push client through the gateway to a table, rotates it and kills client and gateway meanwhile, "
        "and compares the table with what was written. Exit code 0: all results are correct; 1: a result differs, or "
        "an event is missing or duplicated; 2: the demo failed."
    )
    parser.epilog = examples("demo", "demo logs", "demo --data-dir /tmp/headrace-demo", "demo --no-wait")
    parser.add_argument(
        "data", nargs="?", choices=("flights", "logs"), default="flights", help="the data (default: flights)"
    )
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=DEFAULT_DATA_DIR,
        metavar="DIRECTORY",
        help=f"directory of the demo's files; the next run empties it (default: {DEFAULT_DATA_DIR})",
    )

    parser.add_argument(
        "--wait",
        action=argparse.BooleanOptionalAction,
        default=sys.stdout.isatty() and sys.stdin.isatty(),
        help="flights: at the end, print the address of the console and run the servers until Ctrl-C (default: on a "
        "terminal)",
    )


def run(args: argparse.Namespace) -> int:
    from headrace.pipeline.demo.data import DemoDataError
    from headrace.pipeline.demo.flights import run_demo
    from headrace.pipeline.demo.logs import run_log_demo
    from headrace.pipeline.demo.steps import DemoError
    from headrace.pipeline.up.part import UpError

    settings = dataclasses.replace(settings_from(args), data_dir=args.data_dir)
    try:
        ensure_java(args.data_dir.parent)
        if args.data == "logs":
            result = run_log_demo(settings, os.environ, sys.stdout)
        else:
            result = run_demo(settings, os.environ, sys.stdout, _wait_for_interrupt if args.wait else None)
    except (DemoError, DemoDataError, UpError, JavaNotFoundError) as error:
        raise CommandError(str(error)) from error
    return EXIT_OK if result.is_correct else EXIT_FINDINGS


def _wait_for_interrupt() -> None:
    """Waits for Ctrl-C, which ends the wait only, or SIGTERM, which ends the demo as at any time."""
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()
