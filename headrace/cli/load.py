"""`headrace load`: loads the new messages of every topic into its table."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import sys
import time
from typing import TYPE_CHECKING

from headrace.cli.command import (
    EXIT_FAILED,
    EXIT_FINDINGS,
    EXIT_OK,
    CommandError,
    add_format_flag,
    add_settings_flags,
    examples,
    print_json,
    print_table,
    settings_from,
)
from headrace.cli.compact import run_turn
from headrace.cli.load_server import serve
from headrace.cli.loaded_state import loader_errors_as_command_errors
from headrace.cli.report import (
    ATTENTION,
    FAILURE,
    WELL,
    ReportRow,
    TextReport,
    add_all_flag,
    add_topic_patterns,
    count_text,
    print_lines,
    print_reasons,
    print_report,
    select_topics,
)
from headrace.cli.terminal import steps_shown
from headrace.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headrace.loader.inspect.status import LoadStatus, TopicStatus
    from headrace.loader.plan.load_plan import LoadPlan
    from headrace.loader.report import LoadedTopic, RunReport
    from headrace.loader.run_log import RunLine
    from headrace.loader.work_unit import OffsetRange
    from headrace.pipeline.load_session import LoadSession

KEYS = (
    "registry.url",
    "kafka.bootstrap_servers",
    "loader.warehouse",
    "loader.tasks",
    "loader.interval",
    "loader.partition_by",
    "spark.master",
    "hive.database",
    "hive.metastore",
    "hive.executor",
)
GC_THRESHOLD = 1_000_000
"""Number of allocations between two garbage collections of Python during a load. Commits consist of hundreds of
thousands of small values without reference cycles; with Python's default of 700, the collections would take as long as
reading the commits."""
EXIT_CODES = """

exit codes:
  0  done, or another load is running
  1  a topic needs attention; the output names it
  2  failure; the next load catches up
"""
LOADED_HEADER = ("topic", "table", "rows", "files", "partitions", "quarantined", "tombstones", "gaps")
PLAN_HEADER = ("topic", "table", "partitions", "offsets", "MB (estimate)", "table changes")
STATUS_HEADER = ("topic", "table", "lag", "rows", "files", "quarantined", "complete until", "pending")
RUNS_SHOWN = 10
TASKS_COMPARED_MIN = 2  # with fewer tasks the imbalance is meaningless


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Loads the new messages of every topic: creates and evolves tables, and adds files and partitions. Each "
        "message is loaded exactly once, even if the load is killed. Run it every ten minutes from cron, Oozie or "
        "`headrace up`."
    )
    parser.epilog = (
        examples(
            "load",
            "load plan",
            "load --topic orders --topic clicks",
            "load --topic orders --quarantine-all",
            "load --hive-executor print --format json",
            "load --bootstrap-servers kafka-1:9092,kafka-2:9092 --registry-url http://registry:8081 --tasks 4",
        )
        + EXIT_CODES
    )
    _add_flags(parser)
    add_all_flag(parser, pages=False)  # an executor that prints shows each statement at once
    add_topic_patterns(parser)
    parser.add_argument(
        "--no-lease",
        action="store_true",
        help="run although another load is running: safe, but only one of the two loads commits",
    )
    parser.add_argument(
        "--new-warehouse",
        action="store_true",
        help="start an empty warehouse even if the brokers or the tables record loads into another warehouse",
    )
    parser.add_argument(
        "--quarantine-all",
        action="store_true",
        help="with --topic: quarantine all messages that cannot be loaded, even if loader.quarantine_ratio_max allows "
        "fewer; look at them first with `headrace quarantine preview TOPIC`",
    )
    parser.set_defaults(run_verb=run_once)
    verbs = parser.add_subparsers(metavar="VERB")
    plan = verbs.add_parser(
        "plan",
        help="show the ranges and table changes of the next load",
        description="Shows what the next load would read and change. Changes nothing. --format json has the offset "
        "ranges of each task.",
        epilog=examples("load plan", "load plan --topic 'shop.*' --all", "load plan --format json"),
    )
    _add_flags(plan)
    add_all_flag(plan)
    add_topic_patterns(plan)
    plan.set_defaults(run_verb=show_plan)
    status = verbs.add_parser(
        "status",
        help="show the state of every topic",
        description="Shows for each topic the lag (in messages, if the brokers are available), its rows and files, the "
        "time up to which the table is complete, and the steps of its newest commit that are pending; also the newest "
        "loads. With many topics it shows those that need care: with pending steps, quarantined messages, or "
        "messages that the newest loads left. --format json has all topics and further numbers; `headrace offsets "
        "show` has the offsets. Exit code 1: a commit is not yet applied to its table.",
        epilog=examples("load status", "load status --topic 'shop.*' --all", "load status --format json"),
    )
    _add_flags(status)
    add_all_flag(status)
    add_topic_patterns(status)
    status.set_defaults(run_verb=show_status)
    serving = verbs.add_parser(
        "serve",
        help="run loads on request, for `headrace up`",
        description="Runs a load for each line `load` on standard input, merges small files for each line `compact`, "
        "and reuses Spark (loader.spark_idle_timeout). Prints `ended code=0` on standard output after each; reports go "
        "to standard error. Ends at the end of its input, after a failed load, and with exit code 75 when it must be "
        "started again, such as after a change of settings.",
        epilog=examples("load serve"),
    )
    add_settings_flags(serving, KEYS)
    serving.set_defaults(run_verb=serve_loads, all=False)


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add_settings_flags(parser, KEYS)
    add_format_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the verb of `headrace load` that the command line names, and returns its exit code. An expected error
    becomes one line on standard error."""
    settings = settings_from(args)
    with loader_errors_as_command_errors():
        return int(args.run_verb(args, settings))


def run_once(args: argparse.Namespace, settings: Settings, session: LoadSession | None = None) -> int:
    """Runs one load, prints its report, and returns the exit code. Appends a line about it to the log of runs
    (`loader.run_log`, which `load status` shows), also after a failure.

    Args:
        session: the Spark session to use, shared with other loads; None if this load opens its own.

    Raises:
        CommandError: the registry was unavailable (the report was printed), or the flags contradict each other.
    """
    if getattr(args, "quarantine_all", False) and not args.topic:
        raise CommandError("--quarantine-all needs --topic: name the topics whose messages may all be quarantined")
    from headrace.loader.run_log import YIELDED, RunLine, append_line, line_of
    from headrace.pipeline.load import now_ms, run_log_path

    started_ms = now_ms()
    path = run_log_path(settings)
    try:
        with _rare_garbage_collection():
            report = _load_once(args, settings, session)
    except Exception as error:
        failed = RunLine(started_ms, max(0, now_ms() - started_ms), "failed", EXIT_FAILED, error=str(error)[:1_000])
        append_line(path, failed)
        raise
    if report is None:
        append_line(path, RunLine(started_ms, max(0, now_ms() - started_ms), YIELDED, EXIT_OK))
        return EXIT_OK
    code = EXIT_FAILED if report.registry_outage else EXIT_FINDINGS if report.has_findings else EXIT_OK
    append_line(path, line_of(report, started_ms, code))
    if args.format == "json":
        print_json({**dataclasses.asdict(report), "has_findings": report.has_findings})
    else:
        print_run(report, shows_all=args.all)
    _raise_for_outage(report.registry_outage)
    return code


@contextlib.contextmanager
def _rare_garbage_collection() -> Iterator[None]:
    thresholds = gc.get_threshold()
    gc.set_threshold(GC_THRESHOLD)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def serve_loads(args: argparse.Namespace, settings: Settings) -> int:
    return serve(args, settings, run_once, run_turn)


def _load_once(args: argparse.Namespace, settings: Settings, session: LoadSession | None) -> RunReport | None:
    """Runs the load and returns its report. If another load is running, prints a line about it and returns None.

    Args:
        session: the Spark session to use, shared with other loads; None if this load opens its own.
    """
    from headrace.loader.run import run_load
    from headrace.loader.storage.local.lease import Lease
    from headrace.pipeline.load import commit_log, now_ms, open_load, reject_second_warehouse, with_any_quarantine
    from headrace.pipeline.storage import lease_path

    log = commit_log(settings)
    if not args.new_warehouse:
        reject_second_warehouse(settings, log)
    log.open()
    lease = Lease(lease_path(settings))
    holder = None if args.no_lease else lease.acquire(now_ms())
    if holder is not None:
        line = holder.describe(now_ms(), settings.loader.interval.ms)
        if args.format == "json":
            print_json({"yielded": line})
        else:
            print(f"{line}; this load ends without loading")
        return None
    try:
        # Statements that the executor prints are the result; with JSON they go to standard error.
        output = sys.stderr if args.format == "json" else sys.stdout
        # The executor prints statements to the same terminal, where a step line would overwrite them.
        steps = contextlib.nullcontext() if settings.hive.executor == "print" else steps_shown()
        with (
            steps,
            open_load(
                settings, log, output, only=args.topic, allow_new_warehouse=args.new_warehouse, session=session
            ) as load,
        ):
            return run_load(load.ports, with_any_quarantine(load.settings) if args.quarantine_all else load.settings)
    finally:
        lease.release()


def _raise_for_outage(registry_outage: str) -> None:
    """Ends the command with an error if the registry could not be used during the load.

    Raises:
        CommandError: `registry_outage` is not empty. Messages that need newer schemas may not have been loaded.
    """
    if registry_outage:
        raise CommandError(
            f"{registry_outage}; loads continue with the cached schemas, and the first load that can use the registry "
            "again loads the messages that need newer ones"
        )


def show_plan(args: argparse.Namespace, settings: Settings) -> int:
    from headrace.loader.plan.load_plan import plan_json
    from headrace.loader.run import plan_load
    from headrace.pipeline.load import commit_log, open_load

    log = commit_log(settings)
    log.check_format(writing=False)
    with steps_shown(), open_load(settings, log, sys.stdout, is_dry=True, only=args.topic) as load:
        plan = plan_load(load.ports, load.settings)
    if args.format == "json":
        print_json(plan_json(plan))
    else:
        print_plan(plan, shows_all=args.all)
    _raise_for_outage(plan.registry_outage)
    return EXIT_FINDINGS if plan.problems else EXIT_OK


def show_status(args: argparse.Namespace, settings: Settings) -> int:
    from headrace.kafka_wire.errors import KafkaError
    from headrace.loader.build import missing_core_warnings
    from headrace.loader.inspect.status import load_status
    from headrace.loader.plan.discover import discover
    from headrace.loader.run_log import newest_lines
    from headrace.pipeline.load import audit_positions, commit_log, kafka_cluster, run_log_path, topic_policy

    log = commit_log(settings, read_only=True)
    log.check_format(writing=False)
    discovery, note = None, ""
    try:
        with kafka_cluster(settings) as cluster:
            discovery = discover(cluster, settings.loader.topics_include, settings.loader.topics_exclude)
    except KafkaError as error:
        note = f"no lag: {error}"
    path = run_log_path(settings)
    runs = newest_lines(path, RUNS_SHOWN) if path is not None else ()
    status = load_status(
        log,
        discovery,
        audit_positions(settings),
        note,
        runs,
        missing_core_warnings(),
        policy_of=lambda topic: topic_policy(settings.loader.of_topic(topic)),
    )
    if args.topic:
        topics = select_topics(args.topic, (*(one.topic for one in status.topics), *status.waiting))
        status = status.of_topics(topics)
    if args.format == "json":
        print_json(dataclasses.asdict(status))
    else:
        print_status(status, shows_all=args.all)
    return EXIT_FINDINGS if status.has_pending else EXIT_OK


def print_run(report: RunReport, *, shows_all: bool = False) -> None:
    """Prints the report of a load as text."""
    rows = tuple(_loaded_row(one) for one in report.loaded)
    print_report(
        TextReport(_summary(report), "topic", LOADED_HEADER, rows, range(2, len(LOADED_HEADER)), is_listing=True),
        shows_all=shows_all,
    )
    changes = [
        f"schema changed: {one.topic}: {', '.join(one.changes) or 'no column changed'}"
        for one in report.loaded
        if one.schema_changed
    ]
    print_lines(changes, shows_all=shows_all)
    _print_causes(report.waiting, report.problems, report.notes, shows_all=shows_all)


def _loaded_row(one: LoadedTopic) -> ReportRow:
    name = one.topic + (" (new)" if one.new else " (schema changed)" if one.schema_changed else "")
    numbers = (one.rows, one.files, one.partitions, one.quarantined, one.tombstones, one.gaps)
    severity = ATTENTION if one.quarantined or one.gaps else WELL
    return ReportRow((name, one.table, *(f"{number:,}" for number in numbers)), severity, one.rows)


def _print_causes(
    waiting: Mapping[str, str], problems: Mapping[str, Sequence[str]], notes: Sequence[str], *, shows_all: bool
) -> None:
    print_reasons(
        "PROBLEM", ((topic, text) for topic, texts in problems.items() for text in texts), shows_all=shows_all
    )
    print_reasons("waiting", waiting.items(), shows_all=shows_all)
    print_lines([f"note: {note}" for note in notes], shows_all=shows_all)


def _summary(report: RunReport) -> str:
    seconds = report.duration_ms / 1000
    if report.conflict:
        return f"another load committed first; this load's work was discarded ({report.conflict}; {seconds:.1f} s)"
    if not report.commit_number:
        suffix = f"; topics with problems: {count_text(len(report.problems), 'topic')}" if report.problems else ""
        applied = set(report.applied) - set(report.problems)
        caught_up = f"; applied earlier commits: {count_text(len(applied), 'topic')}" if applied else ""
        outcome = (
            f"nothing loaded, {count_text(report.held_back, 'message')} held back"
            if report.held_back
            else "nothing new"
        )
        return f"{outcome}{caught_up}{suffix} ({seconds:.1f} s)"
    rows = sum(one.rows for one in report.loaded)
    files = sum(one.files for one in report.loaded)
    size = sum(one.bytes_written for one in report.loaded)
    rate = rows * 1000 // max(1, report.read_ms)
    suffix = f"; {count_text(report.held_back, 'message')} held back" if report.held_back else ""
    return (
        f"commit {report.commit_number}: {count_text(rows, 'row')} in {count_text(files, 'file')} "
        f"({size / 1e6:,.1f} MB) of {count_text(len(report.loaded), 'topic')} in {seconds:.1f} s; "
        f"read at {rate:,} rows/s by {count_text(report.tasks, 'task')}{_slowest(report)}{suffix}"
    )


def _slowest(report: RunReport) -> str:
    """Returns a text that compares the time of the slowest task with the mean of all tasks; "" if there was only one
    task."""
    if report.tasks < TASKS_COMPARED_MIN:
        return ""
    return f", the slowest of which took {report.imbalance_measured:.1f} times the mean"


def print_plan(plan: LoadPlan, *, shows_all: bool = False) -> None:
    rows = tuple(_plan_rows(plan))
    offsets = sum(one.end - one.start for unit in plan.units for one in unit.ranges)
    imbalance = f", the largest with {plan.imbalance:.1f} times the mean bytes" if len(plan.units) > 1 else ""
    totals = (
        f"after commit {plan.commit_number}: {count_text(offsets, 'offset')} of {count_text(len(rows), 'topic')} in "
        f"{count_text(len(plan.units), 'task')}{imbalance}"
    )
    print_report(TextReport(totals, "topic", PLAN_HEADER, rows, (2, 3, 4), is_listing=True), shows_all=shows_all)
    _print_causes(plan.waiting, plan.problems, plan.notes, shows_all=shows_all)


def _plan_rows(plan: LoadPlan) -> Iterator[ReportRow]:
    """Yields a row for each topic that the load would read, or whose table it would create or change."""
    ranges: dict[str, list[OffsetRange]] = {}
    for unit in plan.units:
        for one in unit.ranges:
            ranges.setdefault(one.topic_partition.topic, []).append(one)
    for topic, planned_topic in plan.planned_topics.items():
        found = ranges.get(topic, ())
        is_new, is_changed = planned_topic.known is None, planned_topic.schemas.is_changed
        if not (found or is_new or is_changed):
            continue
        changes = "new" if is_new else ", ".join(planned_topic.column_changes) or "no column" if is_changed else "-"
        offsets = sum(one.end - one.start for one in found)
        size = sum(one.bytes_estimate for one in found)
        partitions = len({one.topic_partition for one in found})
        cells = (topic, planned_topic.table, f"{partitions:,}", f"{offsets:,}", f"{size / 1e6:,.2f}", changes)
        yield ReportRow(cells, ATTENTION if topic in plan.problems else WELL, offsets)


def print_runs(runs: Sequence[RunLine]) -> None:
    """Prints a table of the loads `runs`, one row each, in the given order."""
    rows = [
        (
            _instant(one.started_at_ms),
            one.outcome,
            f"{one.exit_code}",
            f"{one.commit_number or '-'}",
            f"{one.topics:,}",
            f"{one.rows:,}",
            f"{one.duration_ms / 1000:,.1f}",
            f"{one.imbalance:.2f}" if one.tasks else "-",
            one.error
            or one.conflict
            or (count_text(one.problems, "topic") + " with problems" if one.problems else "-"),
        )
        for one in runs
    ]
    if rows:
        header = ("load", "outcome", "exit", "commit", "topics", "rows", "seconds", "slowest task / mean", "note")
        print_table(header, rows, right=range(2, 8))


def _instant(instant_ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(instant_ms / 1000))


def print_status(status: LoadStatus, *, shows_all: bool = False) -> None:
    rows = tuple(
        ReportRow(
            (
                one.topic,
                one.table,
                "-" if one.lag is None else f"{one.lag:,}",
                f"{one.rows:,}",
                f"{one.files:,}",
                f"{one.quarantined:,}",
                one.complete_until or "-",
                " ".join(one.pending) or "-",
            ),
            _severity(status, one),
            one.lag or one.quarantined,
        )
        for one in status.topics
    )
    report = TextReport(_status_totals(status), "topic", STATUS_HEADER, rows, range(2, 6), fixed=(6, 7))
    print_report(report, shows_all=shows_all)
    print_lines([f"not loaded yet: {topic}" for topic in status.waiting], shows_all=shows_all)
    notes = [(one.topic, note) for one in status.topics for note in (one.time_note, one.partition_note) if note]
    print_reasons("note", notes, shows_all=shows_all)
    print_lines([f"note: {note}" for note in (*filter(None, [status.note]), *status.notes)], shows_all=shows_all)
    print_runs(status.runs)


def _severity(status: LoadStatus, one: TopicStatus) -> int:
    if status.is_pending(one):
        return FAILURE
    return ATTENTION if one.quarantined or status.is_left_behind(one) else WELL


def _status_totals(status: LoadStatus) -> str:
    if not status.commit_number:
        return "nothing has been committed yet"
    behind = ", ".join(
        f"{name} at {commit_number}"
        for name, commit_number in status.cursors.items()
        if commit_number < status.commit_number
    )
    lags = [one.lag for one in status.topics if one.lag is not None]
    facts = (
        f"{count_text(sum(one.rows for one in status.topics), 'row')} in "
        f"{count_text(sum(one.files for one in status.topics), 'file')} of {count_text(len(status.topics), 'topic')}",
        f"lag {sum(lags):,}" if lags else "lag unknown",
        f"{sum(one.quarantined for one in status.topics):,} quarantined",
        f"newest commit {status.commit_number} at {_instant(status.committed_at_ms)}",
    )
    return f"{', '.join(facts)}; behind: {behind or 'nothing'}"
