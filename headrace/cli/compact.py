"""`headrace compact`: merges the small files of past time partitions."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from headrace.cli.command import EXIT_FAILED, EXIT_FINDINGS, EXIT_OK, CommandError, examples
from headrace.cli.report import add_topic_patterns
from headrace.cli.rewrite_command import EXIT_CODES, add_rewrite_flags, open_rewrite_ports, selected_topics, show_report

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.loader.rewrite.run import RewriteReport
    from headrace.pipeline.load_session import LoadSession
    from headrace.settings import Settings

DONE, NOTHING_TO_DO = "merged", "nothing to merge"
TURN_S_MAX = 60.0
TURN_SHARE_MAX = 0.25  # of the interval between loads


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Merges the small files of past hours (or days), so that queries open fewer files. `headrace up` does this "
        "after its loads; without `up`, run it once a day. Queries return the same rows before, during and after. The "
        "old files are deleted a day later, so that running queries can finish. Safe while loads run, and continues "
        "after a kill."
    )
    parser.epilog = examples("compact", "compact --dry-run", "compact orders payments") + EXIT_CODES
    add_topic_patterns(
        parser,
        positional=True,
        default="the days that loads have changed since the last compaction, of all topics except those with "
        "loader.compact = false",
    )
    add_rewrite_flags(parser)


def run(args: argparse.Namespace) -> int:
    from headrace.loader.rewrite.backlog import compact_backlog
    from headrace.loader.rewrite.run import compact
    from headrace.pipeline.load import compact_settings, compaction_delay_ms, now_ms

    started_ms = now_ms()
    with open_rewrite_ports(args) as (settings, ports):
        topics = selected_topics(ports, args.topics)
        if args.topics:
            report = compact(ports, topics, compact_settings(settings), is_dry=args.dry_run)
        else:
            delay_ms_of = compaction_delay_ms(settings)
            if topics and all(delay_ms_of(topic) is None for topic in topics):
                raise CommandError(
                    "no topic selected: name a topic, or set loader.compact to true; with HiveServer2, use a warehouse "
                    "whose path has no blank"
                )
            report = compact_backlog(ports, compact_settings(settings), delay_ms_of, waits=False, is_dry=args.dry_run)
    if not args.dry_run:
        _log_run(settings, report, started_ms)
    return show_report(args, report, DONE, NOTHING_TO_DO)


def run_turn(
    args: argparse.Namespace, settings: Settings, session: LoadSession, is_load_requested: Callable[[], bool]
) -> int:
    """Merges small files for a limited time, after a load of `headrace up`. Prints a report and appends a line to the
    run log if files were merged or a problem was found. Returns the exit code.

    Args:
        session: the Spark session of the loads; started only if files are to be merged.
        is_load_requested: whether a load waits for the end of the turn; it then ends after some seconds.
    """
    from headrace.cli.loaded_state import loader_errors_as_command_errors
    from headrace.loader.run_log import COMPACTION_LINE, RunLine, append_line
    from headrace.pipeline.load import now_ms, run_log_path

    started_ms = now_ms()
    try:
        with loader_errors_as_command_errors():
            report = _run_turn(settings, session, started_ms, is_load_requested)
    except Exception as error:
        duration_ms = max(0, now_ms() - started_ms)
        line = RunLine(started_ms, duration_ms, "failed", EXIT_FAILED, error=str(error)[:1_000], kind=COMPACTION_LINE)
        append_line(run_log_path(settings), line)
        raise
    if not (report.time_partitions or report.problems):
        return EXIT_OK
    _log_run(settings, report, started_ms)
    return show_report(argparse.Namespace(format="text", dry_run=False, all=False), report, DONE, NOTHING_TO_DO)


def _run_turn(
    settings: Settings, session: LoadSession, started_ms: int, is_load_requested: Callable[[], bool]
) -> RewriteReport:
    from headrace.loader.rewrite.backlog import compact_backlog, is_turn_due
    from headrace.loader.rewrite.run import RewriteReport
    from headrace.pipeline.load import commit_log, compact_settings, compaction_delay_ms, open_load

    end_s = time.monotonic() + min(TURN_S_MAX, TURN_SHARE_MAX * settings.loader.interval.ms / 1000)
    delay_ms_of = compaction_delay_ms(settings)
    log = commit_log(settings)
    log.open()
    if not is_turn_due(log, delay_ms_of, started_ms):
        return RewriteReport()
    with open_load(settings, log, sys.stdout, session=session) as load:
        return compact_backlog(
            load.rewrites,
            compact_settings(settings),
            delay_ms_of,
            waits=True,
            is_stopped=lambda: time.monotonic() >= end_s or is_load_requested(),
        )


def _log_run(settings: Settings, report: RewriteReport, started_ms: int) -> None:
    from headrace.loader.run_log import append_line, compaction_line
    from headrace.pipeline.load import now_ms, run_log_path

    code = EXIT_FINDINGS if report.problems else EXIT_OK
    line = compaction_line(report, started_ms, max(0, now_ms() - started_ms), code)
    append_line(run_log_path(settings), line)
