"""`headrace demo`: the whole pipeline on a year of real flights."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from pathlib import Path

from headrace.cli.command import EXIT_FINDINGS, EXIT_OK, CommandError, examples, settings_from
from headrace.pipeline.java import JavaNotFoundError, ensure_java

DEFAULT_DATA_DIR = Path("headrace-data/demo")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Sends the flights, weather, planes, airlines and airports of New York 2013 from producer to Hive table, "
        "changes a schema on the way, and compares the tables' answers with the data set's. Ends 0 when all are right, "
        "1 when an answer differs or an event is missing or doubled, 2 when it could not run."
    )
    parser.epilog = examples("demo", "demo --data-dir /tmp/headrace-demo")
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=DEFAULT_DATA_DIR,
        metavar="DIRECTORY",
        help=f"where it keeps everything; emptied when the demo runs again (default: {DEFAULT_DATA_DIR})",
    )


def run(args: argparse.Namespace) -> int:
    from headrace.pipeline.demo.data import DemoDataError
    from headrace.pipeline.demo.run import DemoError, run_demo
    from headrace.pipeline.up.part import UpError

    settings = dataclasses.replace(settings_from(args), data_dir=args.data_dir)
    try:
        ensure_java(args.data_dir.parent)
        verdict = run_demo(settings, os.environ, sys.stdout)
    except (DemoError, DemoDataError, UpError, JavaNotFoundError) as error:
        raise CommandError(str(error)) from error
    return EXIT_OK if verdict.right else EXIT_FINDINGS
