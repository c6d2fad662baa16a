"""`headrace load`: loads the new messages of every topic into its table."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import itertools
import re
import sys
import time
from typing import TYPE_CHECKING, Any

from headrace.cli.colour import print_report_line
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
from headrace.cli.load_server import serve
from headrace.cli.loaded_state import loader_errors_as_command_errors
from headrace.cli.terminal import steps_shown
from headrace.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headrace.loader.inspect.status import LoadStatus
    from headrace.loader.plan.load_plan import LoadPlan
    from headrace.loader.report import RunReport
    from headrace.loader.run_log import RunLine
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
STATUS_HEADER = (
    "topic",
    "table",
    "next offsets",
    "lag",
    "rows",
    "files",
    "MB/file",
    "quarantined",
    "version",
    "commit",
    "complete until",
    "pending",
)
_PARTITIONS = re.compile(r"(?:partition|offsets) [^:;]*: ")
RUNS_SHOWN = 10
TASKS_COMPARED_MIN = 2  # with fewer tasks the imbalance is meaningless
TOPICS_NAMED_MAX = 3  # of topics with the same reason
REASONS_SHOWN_MAX = 20  # per kind, so that a thousand waiting topics do not hide the rest; --format json has all


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
            "load --hive-executor print --format json",
            "load --bootstrap-servers kafka-1:9092,kafka-2:9092 --registry-url http://registry:8081 --tasks 4",
        )
        + EXIT_CODES
    )
    _add_flags(parser)
    _add_topic_flag(parser)
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
    parser.set_defaults(run_verb=run_once)
    verbs = parser.add_subparsers(metavar="VERB")
    plan = verbs.add_parser(
        "plan",
        help="show the ranges and table changes of the next load",
        description="Shows what the next load would read and change. Changes nothing.",
        epilog=examples("load plan", "load plan --format json"),
    )
    _add_flags(plan)
    _add_topic_flag(plan)
    plan.set_defaults(run_verb=show_plan)
    status = verbs.add_parser(
        "status",
        help="show the state of every topic",
        description="Shows for each topic the next offsets, the lag (in messages, if the brokers are available), the "
        "number and mean size of its files, the time up to which the table is complete, and the commits "
        "that are not yet applied to it; also the newest loads. Exit code 1: a commit is not yet applied to its table.",
        epilog=examples("load status", "load status --format json"),
    )
    _add_flags(status)
    status.set_defaults(run_verb=show_status)
    serving = verbs.add_parser(
        "serve",
        help="run loads on request, for `headrace up`",
        description="Runs a load for each line on standard input, and reuses Spark (loader.spark_idle_timeout). "
        "Prints `ended code=0` on standard output after each load; reports go to standard error. Ends at the end of "
        "its input, after a failed load, and with exit code 75 when it must be started again, such as after a change "
        "of settings.",
        epilog=examples("load serve"),
    )
    add_settings_flags(serving, KEYS)
    serving.set_defaults(run_verb=serve_loads)


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add_settings_flags(parser, KEYS)
    add_format_flag(parser)


def _add_topic_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--topic", action="append", default=[], metavar="TOPIC", help="only this topic; may be repeated"
    )


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
        CommandError: the registry was unavailable; the report was printed.
    """
    from headrace.loader.run_log import RunLine, append_line, line_of
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
        append_line(path, RunLine(started_ms, max(0, now_ms() - started_ms), "yielded", EXIT_OK))
        return EXIT_OK
    code = EXIT_FAILED if report.registry_outage else EXIT_FINDINGS if report.has_findings else EXIT_OK
    append_line(path, line_of(report, started_ms, code))
    if args.format == "json":
        print_json({**dataclasses.asdict(report), "has_findings": report.has_findings})
    else:
        print_report(report)
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
    return serve(args, settings, run_once)


def _load_once(args: argparse.Namespace, settings: Settings, session: LoadSession | None) -> RunReport | None:
    """Runs the load and returns its report. If another load is running, prints a line about it and returns None.

    Args:
        session: the Spark session to use, shared with other loads; None if this load opens its own.
    """
    from headrace.loader.run import run_load
    from headrace.loader.storage.local.lease import Lease
    from headrace.pipeline.load import commit_log, now_ms, open_load, reject_second_warehouse
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
            return run_load(load.ports, load.settings)
    finally:
        lease.release()


def _raise_for_outage(registry_outage: str) -> None:
    """Ends the command with an error if the registry was unavailable during the load.

    Raises:
        CommandError: `registry_outage` is not empty. Messages that need newer schemas may not have been loaded.
    """
    if registry_outage:
        raise CommandError(
            f"{registry_outage}; loads continue with the cached schemas; messages that need newer schemas are loaded "
            "by the first load after the registry is available again"
        )


def show_plan(args: argparse.Namespace, settings: Settings) -> int:
    from headrace.loader.run import plan_load
    from headrace.pipeline.load import commit_log, open_load

    log = commit_log(settings)
    log.check_format(writing=False)
    with steps_shown(), open_load(settings, log, sys.stdout, is_dry=True, only=args.topic) as load:
        plan = plan_load(load.ports, load.settings)
    if args.format == "json":
        print_json(plan_json(plan))
    else:
        print_plan(plan)
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
    if args.format == "json":
        print_json(dataclasses.asdict(status))
    else:
        print_status(status)
    return EXIT_FINDINGS if status.has_pending else EXIT_OK


def print_report(report: RunReport) -> None:
    """Prints the report of a load as text."""
    if report.loaded:
        rows = [
            (
                one.topic + (" (new)" if one.new else " (schema changed)" if one.schema_changed else ""),
                one.table,
                f"{one.rows:,}",
                f"{one.files:,}",
                f"{one.partitions:,}",
                f"{one.quarantined:,}",
                f"{one.tombstones:,}",
                f"{one.gaps:,}",
            )
            for one in report.loaded
        ]
        header = ("topic", "table", "rows", "files", "partitions", "quarantined", "tombstones", "gaps")
        print_table(header, rows, right=range(2, len(header)))
    for one in report.loaded:
        if one.schema_changed:
            print_report_line(f"schema changed: {one.topic}: {', '.join(one.changes) or 'no column changed'}")
    _print_reasons("waiting", report.waiting.items())
    _print_reasons("PROBLEM", ((topic, text) for topic, texts in report.problems.items() for text in texts))
    for note in report.notes:
        print_report_line(f"note: {note}")
    print(_summary(report))


def _print_reasons(word: str, reasons: Iterable[tuple[str, str]]) -> None:
    """Prints why topics wait or have problems, one line per reason, at most `REASONS_SHOWN_MAX`. A line covers all
    topics or partitions with the same reason, such as all topics if the metastore is unavailable, and names the first
    topics.

    Args:
        word: the first word of each line, such as PROBLEM.
        reasons: pairs of a topic and a reason. A reason that concerns only some partitions begins with their numbers.
    """
    topics_by_reason: dict[str, list[tuple[str, str]]] = {}
    for topic, text in reasons:
        partitions = _PARTITIONS.match(text)
        topics_by_reason.setdefault(text[partitions.end() :] if partitions else text, []).append(
            (topic, partitions[0] if partitions else "")
        )
    for reason, found in itertools.islice(topics_by_reason.items(), REASONS_SHOWN_MAX):
        print_report_line(f"{word}: {_subject(found)}{reason}")
    if len(topics_by_reason) > REASONS_SHOWN_MAX:
        print_report_line(f"{word}: and {len(topics_by_reason) - REASONS_SHOWN_MAX} more; --format json has all")


def _subject(found: Sequence[tuple[str, str]]) -> str:
    """Returns the first part of a line of `_print_reasons`, before the reason: the topics and partitions that it
    concerns.

    Args:
        found: pairs of a topic and the text that names its partitions, such as `partition 3: `; "" if the reason
            concerns the whole topic.
    """
    topics = list(dict.fromkeys(topic for topic, _ in found))
    named = ", ".join(topics[:TOPICS_NAMED_MAX]) + (", …" if len(topics) > TOPICS_NAMED_MAX else "")
    topics_text = topics[0] if len(topics) == 1 else f"{len(topics):,} topics ({named})"
    partition_names = {(topic, partitions) for topic, partitions in found if partitions}
    if len(found) == 1:
        return f"{topics_text}: {found[0][1]}"
    return f"{len(partition_names):,} partitions of {topics_text}: " if partition_names else f"{topics_text}: "


def _summary(report: RunReport) -> str:
    seconds = report.duration_ms / 1000
    if report.conflict:
        return f"another load committed first; this load's work was discarded ({report.conflict}; {seconds:.1f} s)"
    if not report.commit_number:
        suffix = f"; topics with problems: {_count(len(report.problems), 'topic')}" if report.problems else ""
        applied = set(report.applied) - set(report.problems)
        caught_up = f"; applied earlier commits: {_count(len(applied), 'topic')}" if applied else ""
        outcome = (
            f"nothing loaded, {_count(report.held_back, 'message')} held back" if report.held_back else "nothing new"
        )
        return f"{outcome}{caught_up}{suffix} ({seconds:.1f} s)"
    rows = sum(one.rows for one in report.loaded)
    files = sum(one.files for one in report.loaded)
    size = sum(one.bytes_written for one in report.loaded)
    rate = rows * 1000 // max(1, report.read_ms)
    suffix = f"; {_count(report.held_back, 'message')} held back" if report.held_back else ""
    return (
        f"commit {report.commit_number}: {_count(rows, 'row')} in {_count(files, 'file')} ({size / 1e6:,.1f} MB) "
        f"of {_count(len(report.loaded), 'topic')} in {seconds:.1f} s; read at {rate:,} rows/s "
        f"by {_count(report.tasks, 'task')}{_slowest(report)}"
        f"{suffix}"
    )


def _slowest(report: RunReport) -> str:
    """Returns a text that compares the time of the slowest task with the mean of all tasks; "" if there was only one
    task."""
    if report.tasks < TASKS_COMPARED_MIN:
        return ""
    return f", the slowest of which took {report.imbalance_measured:.1f} times the mean"


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def print_plan(plan: LoadPlan) -> None:
    rows = [
        (
            f"{unit.task}",
            one.topic_partition.topic,
            f"{one.topic_partition.partition}",
            f"{one.start:,}",
            f"{one.end:,}",
            f"{one.bytes_estimate / 1e6:,.2f}",
        )
        for unit in plan.units
        for one in unit.ranges
    ]
    if rows:
        print_table(("task", "topic", "partition", "start", "end", "MB (estimate)"), rows, right=(0, 2, 3, 4, 5))
    for topic, planned_topic in plan.planned_topics.items():
        if planned_topic.known is None:
            print(f"new: {topic}: table {planned_topic.table}")
        elif planned_topic.schemas.is_changed:
            print_report_line(
                f"schema changes: {topic}: table {planned_topic.table}: "
                f"{', '.join(planned_topic.column_changes) or 'no column'}"
            )
    _print_reasons("waiting", plan.waiting.items())
    _print_reasons("PROBLEM", ((topic, text) for topic, texts in plan.problems.items() for text in texts))
    for note in plan.notes:
        print_report_line(f"note: {note}")
    offsets = sum(one.end - one.start for unit in plan.units for one in unit.ranges)
    imbalance = f", the largest with {plan.imbalance:.1f} times the mean bytes" if len(plan.units) > 1 else ""
    print(f"after commit {plan.commit_number}: {offsets:,} offsets in {_count(len(plan.units), 'task')}{imbalance}")


def plan_json(plan: LoadPlan) -> dict[str, Any]:
    return {
        "after_commit_number": plan.commit_number,
        "tasks": [
            {
                "task": unit.task,
                "ranges": [
                    {
                        "topic": one.topic_partition.topic,
                        "partition": one.topic_partition.partition,
                        "start": one.start,
                        "end": one.end,
                        "bytes_estimate": one.bytes_estimate,
                    }
                    for one in unit.ranges
                ],
            }
            for unit in plan.units
        ],
        "topics": {
            topic: {
                "table": planned_topic.table,
                "new": planned_topic.known is None,
                "schema_changes": planned_topic.known is not None and planned_topic.schemas.is_changed,
                "changes": list(planned_topic.column_changes),
            }
            for topic, planned_topic in plan.planned_topics.items()
        },
        "waiting": dict(plan.waiting),
        "problems": {topic: list(texts) for topic, texts in plan.problems.items()},
        "notes": list(plan.notes),
        "imbalance": plan.imbalance,
    }


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
            one.error or one.conflict or (_count(one.problems, "topic") + " with problems" if one.problems else "-"),
        )
        for one in runs
    ]
    if rows:
        header = ("load", "outcome", "exit", "commit", "topics", "rows", "seconds", "slowest task / mean", "note")
        print_table(header, rows, right=range(2, 8))


def _instant(instant_ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(instant_ms / 1000))


def print_status(status: LoadStatus) -> None:
    rows = [
        (
            one.topic,
            one.table,
            " ".join(f"{partition}:{offset}" for partition, offset in one.next_offsets.items()) or "-",
            "-" if one.lag is None else f"{one.lag:,}",
            f"{one.rows:,}",
            f"{one.files:,}",
            "-" if one.file_bytes_mean is None else f"{one.file_bytes_mean / 1e6:,.2f}",
            f"{one.quarantined:,}",
            f"{one.schema_version}",
            f"{one.commit_number}",
            one.complete_until or "-",
            " ".join(one.pending) or "-",
        )
        for one in status.topics
    ]
    if rows:
        print_table(STATUS_HEADER, rows, right=(3, 4, 5, 6, 7, 8, 9))
    print_runs(status.runs)
    for topic in status.waiting[:REASONS_SHOWN_MAX]:
        print(f"not loaded yet: {topic}")
    time_notes = (f"{one.topic}: {one.time_note}" for one in status.topics if one.time_note)
    for note in (*filter(None, [status.note]), *status.notes, *time_notes):
        print_report_line(f"note: {note}")
    if not status.commit_number:
        print("nothing has been committed yet")
        return
    behind = ", ".join(
        f"{name} at {commit_number}"
        for name, commit_number in status.cursors.items()
        if commit_number < status.commit_number
    )
    print(f"newest commit {status.commit_number} at {_instant(status.committed_at_ms)}; behind: {behind or 'nothing'}")
