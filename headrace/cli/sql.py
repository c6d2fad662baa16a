"""`headrace sql`: runs a query over the tables, or queries typed at a prompt."""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.colour import shows_colours
from headrace.cli.command import (
    EXIT_OK,
    CommandError,
    add_format_flag,
    add_settings_flags,
    examples,
    print_json,
    print_table,
    settings_from,
)
from headrace.cli.sql_plot import KINDS, plot_data, plot_svg, plot_text
from headrace.cli.sql_prompt import typed_statements
from headrace.cli.terminal import steps_shown
from headrace.pipeline.java import JavaNotFoundError, ensure_java
from headrace.settings import Duration
from headrace.settings.addresses import live_addresses, resolve_metastore, warehouse_location

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from headrace.pipeline.sql import QueryResult
    from headrace.settings import Settings

CELL_CHARS_MAX = 60  # in a table; json and csv have complete values
DESCRIPTION_COLUMNS = ("col_name", "data_type", "comment")  # of DESCRIBE, whose types and comments are not cut
STANDARD_INPUT = "-"
WAIT_POLL_S = 0.5


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Runs a query in Spark SQL over the tables and prints the result. Without a query it shows a prompt, where a "
        "semicolon ends each query, Tab completes names, and `help` lists commands. A running `headrace up` executes "
        "queries at once. Without it, the command first starts Spark, with the metastore of hive.metastore or the one "
        "in the data directory. Timestamps are in UTC."
    )
    parser.epilog = examples(
        'sql "SHOW TABLES"',
        'sql "SELECT carrier, count(*) FROM flights GROUP BY carrier" --format csv',
        "sql --file report.sql --format json",
        'sql "SELECT carrier, count(*) FROM flights GROUP BY carrier ORDER BY 2 DESC LIMIT 10" --plot bar',
        "sql",
    )
    parser.add_argument(
        "query",
        metavar="QUERY",
        nargs="?",
        help="one query, or - for standard input; tables of the database need no prefix",
    )
    parser.add_argument(
        "--wait",
        type=_duration,
        metavar="TIME",
        help="maximum wait for a metastore that another command has open or that is starting, such as 30s or 5m "
        "(default: no wait)",
    )
    parser.add_argument(
        "--plot",
        choices=KINDS,
        help="plot the result instead of printing it: the first column has labels or times, the others numbers",
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the plot to this file, as SVG")
    parser.add_argument("--file", type=Path, metavar="FILE", help="file with the query")
    add_format_flag(parser, ("table", "json", "csv"))
    add_settings_flags(parser, ("loader.warehouse", "hive.database", "hive.metastore", "spark.master"))


def _duration(text: str) -> float:
    """Parses a duration such as 30s or 5m into seconds."""
    try:
        return Duration.parse(text).seconds
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def run(args: argparse.Namespace) -> int:
    from headrace.hive_ddl.errors import HiveDdlError
    from headrace.pipeline.sql import QueryFailed, check_statement

    settings = settings_from(args)
    if args.plot and args.format != "table":
        raise CommandError(f"--plot draws the result, and --format {args.format} prints it; omit one of them")
    if args.svg and not args.plot:
        raise CommandError("--svg writes a plot to a file; add --plot bar or --plot line")
    query = _query(args)
    with_values = args.format == "json"
    try:
        if query is not None:
            statement = check_statement(query)
            with _QueryRunner(settings, with_values, args.wait) as runner:
                _run_and_print(runner, statement, args)
            return EXIT_OK
        with _QueryRunner(settings, with_values, args.wait) as runner:
            for typed in typed_statements("headrace sql", runner.run_quietly):
                try:
                    _run_and_print(runner, check_statement(typed), args)
                except (QueryFailed, HiveDdlError, CommandError) as error:
                    print(f"headrace: {error}", file=sys.stderr)
                except KeyboardInterrupt:
                    print("headrace: interrupted", file=sys.stderr)
    except (QueryFailed, HiveDdlError, JavaNotFoundError) as error:
        raise CommandError(str(error)) from error
    return EXIT_OK


def _query(args: argparse.Namespace) -> str | None:
    """Returns the text of the query: the argument, the content of --file, or standard input. Returns None if no query
    is given and standard input is a terminal; the command then shows a prompt."""
    if args.query is not None and args.file is not None:
        raise CommandError("expected either a query or --file, found both; omit one of them")
    try:
        if args.file is not None:
            return str(args.file.read_text(encoding="utf-8"))
        if args.query == STANDARD_INPUT or (args.query is None and not sys.stdin.isatty()):
            return sys.stdin.read()
    except (OSError, UnicodeDecodeError) as error:
        where = args.file or "standard input"
        raise CommandError(
            f"cannot read the query from {where}: {getattr(error, 'strerror', None) or error}"
        ) from error
    return args.query if args.query is None else str(args.query)


def _run_and_print(runner: _QueryRunner, statement: str, args: argparse.Namespace) -> None:
    from headrace.pipeline.sql import QueryFailed
    from headrace.pipeline.sql_damage import damaged_file_text, open_finding_notes

    started = time.monotonic()
    try:
        result = runner.run(statement)
    except QueryFailed as error:
        # An error in square brackets is one of the query's text or values, not of reading files.
        damage = "" if str(error).startswith("[") else damaged_file_text(runner.settings, statement)
        if not damage:
            raise
        raise QueryFailed(f"{error}; {damage}") from error
    if args.plot:
        _plot(result, args.plot, args.svg)
    else:
        _print(result, args.format)
    rows = len(result.rows)
    print(f"{rows:,} row{'' if rows == 1 else 's'} in {time.monotonic() - started:.1f} s", file=sys.stderr)
    for note in open_finding_notes(runner.settings, statement):
        print(f"note: {note}", file=sys.stderr)


class _QueryRunner:
    """Runs queries. A running `headrace up` that serves SQL runs the queries, unless the settings of this command name
    another metastore. Otherwise they run in a Spark session of this process, which the first such query starts.

    Args:
        with_values: whether results also have their rows as JSON values.
        wait_s: how long to wait for a metastore that cannot be used, such as one that another process has open or that
            is starting, from --wait; None does not wait.
    """

    def __init__(self, settings: Settings, with_values: bool, wait_s: float | None = None) -> None:
        self.settings = settings
        self._wait_s = wait_s
        self._with_values = with_values
        self._session: SparkSession | None = None

    def __enter__(self) -> _QueryRunner:
        return self

    def __exit__(self, *_: object) -> None:
        if self._session is not None:
            from headrace.hive_ddl.executors.session import close_session

            close_session(self._session)

    def run(self, statement: str) -> QueryResult:
        from headrace.pipeline.sql import run_query

        with steps_shown() as show:
            if self._session is None and (result := self._run_on_up(statement, show)) is not None:
                return result
            if self._session is None:
                self._session = self._session_after_wait(show)
            show("query")
            return run_query(self._session, statement, self.settings.hive.database, with_values=self._with_values)

    def run_quietly(self, statement: str) -> tuple[tuple[str | None, ...], ...]:
        """Returns the rows of a statement that the prompt needs; none if it fails, or if Spark is not running."""
        from headrace.pipeline.sql import QueryFailed, run_query

        try:
            if self._session is not None:
                return run_query(self._session, statement, self.settings.hive.database).rows
            result = self._run_on_up(statement, lambda step: None)
        except QueryFailed:
            return ()
        return () if result is None else result.rows

    def _run_on_up(self, statement: str, show: Callable[[str], None]) -> QueryResult | None:
        from headrace.pipeline.sql_protocol import SqlRequest, SqlServerUnavailable, send_query

        live = live_addresses(self.settings)
        if live is None or not live.sql_socket or resolve_metastore(self.settings) not in (None, live.metastore):
            return None
        show("query")
        request = SqlRequest(statement, self.settings.hive.database, self._with_values)
        try:
            return send_query(Path(live.sql_socket), request, lambda: live_addresses(self.settings) is not None)
        except SqlServerUnavailable:  # `headrace up` has just ended
            return None

    def _session_after_wait(self, show: Callable[[str], None]) -> SparkSession:
        """Opens a Spark session. If the metastore cannot be used, such as because another process has it open or
        because it does not accept connections yet, tries again as long as --wait permits.

        Args:
            show: shows the current step to the user.

        Raises:
            CommandError: the metastore cannot be used, also after the wait, or without waiting if its address is
                malformed.
            SessionFailed: Spark did not start.
        """
        from headrace.hive_ddl.errors import MetastoreMisconfigured, MetastoreUnavailable

        deadline = time.monotonic() + (self._wait_s or 0)
        while True:
            try:
                show("spark")
                return self._open_session()
            except MetastoreMisconfigured as error:
                raise CommandError(str(error)) from error
            except MetastoreUnavailable as error:
                if self._wait_s is None:
                    raise CommandError(f"{error}; if it is in use or starting, --wait 5m waits for it") from error
                if time.monotonic() >= deadline:
                    raise CommandError(
                        f"{error}; waited {self._wait_s:g} s for the metastore; try again later, or with a "
                        "longer --wait"
                    ) from error
                show(f"waiting: {error}")
                time.sleep(WAIT_POLL_S)

    def _open_session(self) -> SparkSession:
        from headrace.hive_ddl.executors.session import open_session
        from headrace.pipeline.storage import location_of

        ensure_java(self.settings.data_dir)
        return open_session(
            app_name="headrace sql",
            master=self.settings.spark.get("master", "local[*]"),
            metastore_uri=resolve_metastore(self.settings),
            data_dir=Path(self.settings.data_dir),
            warehouse_uri=location_of(warehouse_location(self.settings)),
            extra=self.settings.spark,
            short_lived=True,
        )


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
        if result.columns == DESCRIPTION_COLUMNS:
            cell_chars_max = sys.maxsize
        else:
            cell_chars_max = CELL_CHARS_MAX if len(result.columns) > 1 else _terminal_width()
        print_table(result.columns, aligned_rows(result, cell_chars_max), result.numeric_columns)


def _plot(result: QueryResult, kind: str, svg: Path | None) -> None:
    data = plot_data(result, kind)
    if svg is None:
        print(plot_text(data, kind, shutil.get_terminal_size().columns, with_colour=shows_colours(sys.stdout)))
        return
    try:
        svg.write_bytes(plot_svg(data, kind))
    except OSError as error:
        raise CommandError(f"cannot write the plot to {svg}: {error.strerror or error}") from error
    print(f"plot written to {svg}", file=sys.stderr)


def _distinct(names: tuple[str, ...]) -> list[str]:
    """Returns the column names as unique keys of a JSON object: a repeated name gets a number."""
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
