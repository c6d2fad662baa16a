"""`headrace audit recount`: counts the rows in a topic's files, and compares them with the commits and the audit."""

from __future__ import annotations

import argparse
import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Any

from headrace.cli.command import (
    EXIT_FINDINGS,
    EXIT_OK,
    CommandError,
    add_format_flag,
    add_settings_flags,
    examples,
    print_json,
)
from headrace.cli.loaded_state import loader_errors_as_command_errors, open_loaded_state
from headrace.cli.report import (
    FAILURE,
    WELL,
    ReportRow,
    TextReport,
    add_all_flag,
    count_text,
    print_lines,
    print_report,
)
from headrace.cli.terminal import steps_shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.loader.inspect.recount import RecountedWindow, RecountReport

HEADER = ("window", "files", "committed", "audit", "log", "difference", "verdict")
EPILOG = """

Columns:
  files       rows in the files
  committed   rows that loads wrote, by the commits
  audit       rows that loads wrote, by the audit's database; - without counts
  log         messages in the brokers' log, by the audit's database

Verdicts of a window:
  equal       the files have the committed rows; rows that a later command removed or replayed are no difference
  missing     the files have fewer rows
  extra       the files have more rows
  miscounted  the audit's database has counted another number of rows than the commits

exit codes:
  0  every window is equal, and every file is as committed
  1  findings: windows that differ, or files that are missing, changed or unknown
  2  failure
"""


def add_recount_verb(verbs: Any, time_of: Callable[[str], int]) -> None:
    """Adds the verb `recount` to the command `headrace audit`.

    Args:
        time_of: returns the time that a text means, in ms.
    """
    recount = verbs.add_parser(
        "recount",
        help="count the rows in a topic's files, and compare them with the commits and the counts",
        description="Reads a topic's data and quarantine files with Spark, counts the rows by ten-minute window of "
        "message time, and compares them with the commits and with the counts of the audit. Names each file that is "
        "missing, unreadable, changed or in no commit. Changes nothing. Safe while loads run.",
        epilog=examples(
            "audit recount orders --from 2026-01-31 --to 2026-02-01",
            "audit recount orders --from 7d --format json",
        )
        + EPILOG,
    )
    recount.add_argument("topic", metavar="TOPIC", help="a loaded topic")
    recount.add_argument(
        "--from",
        dest="since",
        type=time_of,
        metavar="TIME",
        help="windows of message time from TIME on (default: all): 2026-01-31, '2026-01-31 07:10Z', or 7d for the last "
        "7 days",
    )
    recount.add_argument(
        "--to", dest="until", type=time_of, metavar="TIME", help="windows that begin before TIME (default: all)"
    )
    add_all_flag(recount)
    add_settings_flags(recount, ("loader.warehouse", "spark.master"))
    add_format_flag(recount)
    recount.set_defaults(run=run_recount)


def run_recount(args: argparse.Namespace) -> int:
    from headrace.audit.verdict import Period
    from headrace.pipeline.recount import recount

    if args.since is not None and args.until is not None and args.until <= args.since:
        raise CommandError("--to is not after --from; expected a later time")
    with open_loaded_state(args) as known, loader_errors_as_command_errors(), steps_shown() as show:
        known.topic(args.topic)
        period = Period(args.since, args.until)
        report = recount(known.settings, known.log, known.storage, args.topic, period, show)
    if args.format == "json":
        print_json(_json(report))
    else:
        _print(report, shows_all=args.all)
    return EXIT_FINDINGS if report.findings or report.differing else EXIT_OK


def _json(report: RecountReport) -> dict[str, Any]:
    from headrace.audit.window import window_text

    windows = [
        {"window": window_text(one.window_start_ms), **dataclasses.asdict(one), "difference": one.difference}
        for one in report.windows
    ]
    return {**dataclasses.asdict(report), "windows": windows}


def _print(report: RecountReport, *, shows_all: bool) -> None:
    from headrace.loader.inspect.finding_texts import file_repair

    verdicts = Counter(one.verdict.value for one in report.windows)
    counts = ", ".join(f"{number:,} {verdict}" for verdict, number in sorted(verdicts.items()))
    totals = (
        f"{report.topic} as of commit {report.commit_number}: {count_text(report.rows, 'row')} in "
        f"{count_text(report.files, 'file')}; {count_text(len(report.windows), 'window')}"
        f"{f': {counts}' if counts else ''}; {count_text(len(report.findings), 'finding')} about files"
    )
    shown = report.windows if shows_all else report.differing
    rows = tuple(_row(one) for one in shown)
    print_report(
        TextReport(totals, "window", HEADER, rows, range(1, 6), fixed=range(7)),
        shows_all=shows_all,
    )
    lines = []
    for finding in report.findings:
        repair = file_repair(finding)
        remedy = f"; {repair}" if repair else ""
        lines.append(f"FINDING: {finding.where or finding.topic}: {finding.message}{remedy}")
    print_lines(lines, shows_all=shows_all)
    print_lines([f"note: {note}" for note in report.notes], shows_all=shows_all)


def _row(window: RecountedWindow) -> ReportRow:
    from headrace.audit.window import window_text
    from headrace.loader.inspect.recount import RecountVerdict

    numbers = (window.rows, window.committed, window.loaded, window.stored)
    cells = ("-" if number is None else f"{number:,}" for number in numbers)
    difference = f"{window.difference:+,}" if window.difference else "0"
    verdict = f"{window.verdict} ({window.reason})" if window.reason else window.verdict.value
    is_well = window.verdict is RecountVerdict.EQUAL
    return ReportRow((window_text(window.window_start_ms), *cells, difference, verdict), WELL if is_well else FAILURE)
