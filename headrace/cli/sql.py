"""`headrace sql`: asks the tables a question."""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.command import (
    CommandError,
    add_format_flag,
    add_settings_flags,
    examples,
    print_json,
    print_table,
    settings_from,
)
from headrace.cli.terminal import steps_shown
from headrace.pipeline.java import JavaNotFoundError, ensure_java
from headrace.settings.addresses import resolve_metastore, warehouse_dir

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.pipeline.sql import QueryResult
    from headrace.settings import Settings

CELL_CHARS_MAX = 60  # in a table; json and csv give whole values


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Runs one query in Spark SQL over the tables and prints the answer. Uses the metastore of a running "
        "`headrace up`, else opens the one in the data folder. Timestamps are in UTC."
    )
    parser.epilog = examples(
        'sql "SHOW TABLES"', 'sql "SELECT carrier, count(*) FROM flights GROUP BY carrier" --format csv'
    )
    parser.add_argument("query", metavar="QUERY", help="one query; tables of the database need no prefix")
    add_format_flag(parser, ("table", "json", "csv"))
    add_settings_flags(parser, ("loader.warehouse", "hive.database", "hive.metastore", "spark.master"))


def run(args: argparse.Namespace) -> int:
    from headrace.hive_ddl.errors import HiveDdlError
    from headrace.pipeline.sql import QueryFailed, check_statement

    settings = settings_from(args)
    started = time.monotonic()
    try:
        statement = check_statement(args.query)
        ensure_java(settings.data_dir)
        with steps_shown() as show:
            result = _answer(settings, statement, show, with_values=args.format == "json")
    except (QueryFailed, HiveDdlError, JavaNotFoundError) as error:
        raise CommandError(str(error)) from error
    _print(result, args.format)
    rows = len(result.rows)
    print(f"{rows:,} row{'' if rows == 1 else 's'} in {time.monotonic() - started:.1f} s", file=sys.stderr)
    return 0


def _answer(settings: Settings, statement: str, show: Callable[[str], None], with_values: bool) -> QueryResult:
    from headrace.hive_ddl.executors.session import close_session, open_session
    from headrace.hive_ddl.table import local_location
    from headrace.pipeline.sql import run_query

    show("spark")
    session = open_session(
        app_name="headrace sql",
        master=settings.spark.get("master", "local[*]"),
        metastore_uri=resolve_metastore(settings),
        data_dir=Path(settings.data_dir),
        warehouse_uri=local_location(warehouse_dir(settings)),
        extra=settings.spark,
        short_lived=True,
    )
    try:
        show("query")
        return run_query(session, statement, settings.hive.database, with_values=with_values)
    finally:
        close_session(session)


def _print(result: QueryResult, form: str) -> None:
    from headrace.pipeline.sql import aligned_rows

    if form == "json":
        names = _distinct(result.columns)
        print_json([dict(zip(names, values, strict=True)) for values in result.values])
    elif form == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(result.columns)
        writer.writerows(["" if value is None else value for value in row] for row in result.rows)
    elif result.columns:
        cell_chars_max = CELL_CHARS_MAX if len(result.columns) > 1 else _terminal_width()
        print_table(result.columns, aligned_rows(result, cell_chars_max), result.numeric_columns)


def _distinct(names: tuple[str, ...]) -> list[str]:
    """Keys of a JSON object: a name met before gets a number."""
    found: list[str] = []
    for name in names:
        candidate, number = name, 1
        while candidate in found:
            number += 1
            candidate = f"{name}_{number}"
        found.append(candidate)
    return found


def _terminal_width() -> int:
    try:
        return max(CELL_CHARS_MAX, os.get_terminal_size(sys.stdout.fileno()).columns)
    except (OSError, ValueError):
        return 10 * CELL_CHARS_MAX
