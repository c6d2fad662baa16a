"""`headrace offsets`: shows and changes the next offset of each partition."""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.colour import print_report_line
from headrace.cli.command import (
    EXIT_OK,
    CommandError,
    add_format_flag,
    add_settings_flags,
    examples,
    os_error_message,
    print_json,
    settings_from,
)
from headrace.cli.report import (
    FAILURE,
    ROWS_SHOWN_MAX,
    WELL,
    ReportRow,
    TextReport,
    add_all_flag,
    add_topic_patterns,
    count_text,
    print_lines,
    print_report,
    select_topics,
    unknown_topic,
)
from headrace.settings import Settings

if TYPE_CHECKING:
    from headrace.kafka_wire.topic_partition import TopicPartition
    from headrace.loader.commit.commit_log import CommitLog
    from headrace.loader.commit.state import LoaderState
    from headrace.loader.inspect.offsets import BrokerOffsets, PartitionStatus
    from headrace.loader.offsets.choose import LogBounds, OffsetChange, OffsetChoice
    from headrace.loader.plan.discover import Discovery

KEYS = ("kafka.bootstrap_servers", "loader.warehouse")
EXIT_CODES = """

exit codes:
  0  committed, or nothing to change
  2  failure, with the reason; nothing was changed
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Shows and changes the next offset of each partition, at which the next load starts. Like a load, a change is "
        "a commit; it records the reason. Safe while loads run."
    )
    parser.epilog = examples(
        "offsets show orders",
        "offsets skip orders 0 1500 --to 1520 --reason 'corrupt batch, ticket 4711'",
        "offsets import --group old-loader --dry-run",
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    _configure_show(verbs)
    _configure_skip(verbs)
    _configure_set(verbs)
    _configure_import(verbs)


Verbs = argparse._SubParsersAction


def _configure_show(verbs: Verbs[argparse.ArgumentParser]) -> None:
    show = verbs.add_parser(
        "show",
        help="show the next offset of every partition",
        description="Shows the next offset of each partition, and, if the brokers are available, the offsets in the "
        "log and the lag. With many partitions it shows those that need care: their log starts after the next offset, "
        "or ends before it.",
        epilog=examples("offsets show --all", "offsets show orders 'shop.*'", "offsets show orders --format json"),
    )
    add_topic_patterns(show, positional=True)
    add_all_flag(show)
    _add_flags(show, run_show)


def _configure_skip(verbs: Verbs[argparse.ArgumentParser]) -> None:
    skip = verbs.add_parser(
        "skip",
        help="skip the next offsets of a partition",
        description="Skips offsets that cannot be loaded, such as those of a corrupt batch: from OFFSET, which must "
        "be the "
        "partition's next offset, up to but not including --to. The next load starts at --to. The audit takes "
        "the skipped offsets into account.",
        epilog=examples("offsets skip orders 0 1500 --to 1520 --reason 'corrupt batch, ticket 4711'") + EXIT_CODES,
    )
    _add_partition_arguments(skip, "the partition's next offset, the first to skip")
    skip.add_argument(
        "--to", type=int, metavar="OFFSET", help="the offset at which loads continue (default: OFFSET + 1)"
    )
    skip.add_argument("--reason", required=True, metavar="TEXT", help="reason, recorded in the commit")
    _add_change_flags(skip, run_skip)


def _configure_set(verbs: Verbs[argparse.ArgumentParser]) -> None:
    choose = verbs.add_parser(
        "set",
        help="set the next offset of a partition",
        description="Sets the offset of the first load of a partition that has not been loaded. For a loaded "
        "partition the "
        "offset may only be increased, which skips the offsets in between; a decrease is rejected, since it "
        "would load rows twice.",
        epilog=examples("offsets set orders 0 1000000", "offsets set orders 0 1000000 --dry-run") + EXIT_CODES,
    )
    _add_partition_arguments(choose, "the next offset")
    choose.add_argument(
        "--reason", default="headrace offsets set", metavar="TEXT", help="reason, recorded in the commit"
    )
    _add_change_flags(choose, run_set)


def _configure_import(verbs: Verbs[argparse.ArgumentParser]) -> None:
    importing = verbs.add_parser(
        "import",
        help="start where another loader ended",
        description="Sets the start of partitions that have not been loaded: to the committed offsets of a consumer "
        "group, "
        "to the end of a Camus run, or after the files of Kafka Connect's HDFS or S3 sink. File names of the S3 "
        "sink have no end offset, so that its newest file is loaded again. Loaded partitions do not change.",
        epilog=examples(
            "offsets import --group old-loader --dry-run",
            "offsets import --connect /data/topics orders clicks",
            "offsets import --connect listing.txt",
            "offsets import --camus camus/exec/base/history",
        )
        + EXIT_CODES,
    )
    importing.add_argument(
        "topics", nargs="*", metavar="TOPIC", help="only these topics (default: all topics that the settings include)"
    )
    source = importing.add_mutually_exclusive_group(required=True)
    source.add_argument("--group", metavar="NAME", help="import the committed offsets of this consumer group")
    source.add_argument(
        "--connect",
        metavar="PATH",
        help="directory of the sink's files, or a file that lists them (hdfs dfs -ls -R, aws s3 ls --recursive)",
    )
    source.add_argument(
        "--camus",
        metavar="DIRECTORY",
        help="Camus' etl.execution.history.path, or the directory of one run in it, copied here (hdfs dfs -get)",
    )
    _add_change_flags(importing, run_import)


def _add_partition_arguments(parser: argparse.ArgumentParser, offset_help: str) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="name of the topic")
    parser.add_argument("partition", type=_number, metavar="PARTITION", help="number of the partition")
    parser.add_argument("offset", type=_number, metavar="OFFSET", help=offset_help)


def _number(text: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text):
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 on, found {text!r}")
    return int(text)


def _add_flags(parser: argparse.ArgumentParser, run_verb: Callable[[argparse.Namespace, Settings], int]) -> None:
    add_settings_flags(parser, KEYS)
    add_format_flag(parser)
    parser.set_defaults(run=run, run_verb=run_verb)


def _add_change_flags(parser: argparse.ArgumentParser, run_verb: Callable[[argparse.Namespace, Settings], int]) -> None:
    parser.add_argument("--dry-run", action="store_true", help="show the change without making it")
    add_all_flag(parser)
    _add_flags(parser, run_verb)


def run(args: argparse.Namespace) -> int:
    """Runs the verb of `headrace offsets` that the command line names, and returns its exit code. An expected error
    ends the command with one line."""
    from headrace.kafka_wire.errors import KafkaError
    from headrace.loader.errors import LoaderError

    settings = settings_from(args)
    try:
        return int(args.run_verb(args, settings))
    except (LoaderError, KafkaError) as error:
        raise CommandError(str(error)) from error
    except BrokenPipeError:  # the reader of standard output, such as `head`, has ended
        raise
    except OSError as error:
        raise CommandError(os_error_message(error)) from error


def run_show(args: argparse.Namespace, settings: Settings) -> int:
    from headrace.loader.inspect.offsets import partition_statuses

    log, state = _read(settings)
    offsets, note = _broker_offsets(settings)
    found = partition_statuses(state, offsets)
    if args.topics:
        problem = f"has not been loaded and was not found on the brokers{f' ({note})' if note else ''}"
        topics = set(select_topics(args.topics, {one.topic for one in found}, problem))
        found = tuple(one for one in found if one.topic in topics)
    if args.format == "json":
        print_json(
            {
                "commit_number": log.read_state().commit_number,
                "note": note,
                "partitions": [dataclasses.asdict(one) for one in found],
            }
        )
    else:
        _print_statuses(found, note, shows_all=args.all)
    return EXIT_OK


def run_skip(args: argparse.Namespace, settings: Settings) -> int:
    from headrace.loader.offsets.choose import skip

    bounds, note = _bounds(settings, args.topic, args.partition)
    to = args.offset + 1 if args.to is None else args.to
    return _commit_choice(
        args,
        settings,
        lambda state: skip(state, args.topic, args.partition, args.offset, to, args.reason, bounds),
        note,
    )


def run_set(args: argparse.Namespace, settings: Settings) -> int:
    from headrace.loader.offsets.choose import set_next_offset

    bounds, note = _bounds(settings, args.topic, args.partition)
    return _commit_choice(
        args,
        settings,
        lambda state: set_next_offset(state, args.topic, args.partition, args.offset, args.reason, bounds),
        note,
    )


def run_import(args: argparse.Namespace, settings: Settings) -> int:
    from headrace.loader.offsets.choose import starts
    from headrace.loader.plan.discover import is_wanted

    if args.group:
        found, source = _group_offsets(settings, args.group)
    elif args.connect:
        found, source = _connect_offsets(args.connect)
    else:
        found, source = _camus_offsets(args.camus)
    unknown = sorted(set(args.topics) - set(found))
    if unknown:
        raise CommandError(unknown_topic(unknown[0], sorted(found), f"has no offsets in {source}"))
    include, exclude = settings.loader.topics_include, settings.loader.topics_exclude
    selected = {
        topic: offsets
        for topic, offsets in found.items()
        if (topic in args.topics if args.topics else is_wanted(topic, include, exclude))
    }
    return _commit_choice(args, settings, lambda state: starts(state, selected, f"imported from {source}"), "")


def _group_offsets(settings: Settings, group: str) -> tuple[Mapping[str, Mapping[int, int]], str]:
    from headrace.pipeline.load import kafka_cluster

    found: dict[str, dict[int, int]] = {}
    with kafka_cluster(settings) as cluster:
        for topic_partition, offset in cluster.group_offsets(group).items():
            found.setdefault(topic_partition.topic, {})[topic_partition.partition] = offset
    if not found:
        raise CommandError(
            f"consumer group {group!r} has committed no offsets on these brokers; check its name and "
            "kafka.bootstrap_servers"
        )
    return found, f"consumer group {group}"


def _connect_offsets(path: str) -> tuple[Mapping[str, Mapping[int, int]], str]:
    from headrace.loader.offsets.connect_files import names_below, names_in_listing, next_offsets

    source_path = Path(path)
    if source_path.is_dir():
        found = next_offsets(names_below(source_path))
    else:
        with source_path.open(encoding="utf-8", errors="replace") as listing:
            found = next_offsets(names_in_listing(listing))
    if not found:
        raise CommandError(
            f"{path}: no file names like topic+partition+start+end.avro found; expected a directory with files of "
            "Kafka Connect's sink, or a file that lists them"
        )
    return found, f"the Kafka Connect files of {path}"


def _camus_offsets(path: str) -> tuple[Mapping[str, Mapping[int, int]], str]:
    from headrace.loader.offsets.camus_history import CamusHistoryError, next_offsets

    try:
        return next_offsets(Path(path)), f"Camus' history in {path}"
    except CamusHistoryError as error:
        raise CommandError(str(error)) from error


def _read(settings: Settings) -> tuple[CommitLog, LoaderState]:
    from headrace.pipeline.load import commit_log

    log = commit_log(settings, read_only=True)
    log.check_format(writing=False)
    return log, log.read_state()


def _discover(
    settings: Settings, include: Iterable[str], exclude: Iterable[str], state: LoaderState
) -> tuple[Discovery | None, str]:
    """Returns the log start and log end offsets on the brokers of each partition of the selected topics, and ""; if the
    brokers are not available, None and the reason.

    Args:
        include: patterns of the topics to select.
        exclude: patterns of topics to omit.
        state: the state of the loader, which shows whether a partition's log has diverged since the last load.
    """
    from headrace.kafka_wire.errors import KafkaError
    from headrace.loader.plan.discover import discover
    from headrace.pipeline.load import kafka_cluster

    try:
        with kafka_cluster(settings) as cluster:
            return discover(cluster, tuple(include), tuple(exclude), state), ""
    except KafkaError as error:
        return None, f"brokers not available: {error}"


def _broker_offsets(settings: Settings) -> tuple[Mapping[TopicPartition, BrokerOffsets] | None, str]:
    """Returns the offsets on the brokers of the topics that loads read, and ""; if the brokers are not available, None
    and the reason."""
    from headrace.kafka_wire.errors import KafkaError
    from headrace.loader.inspect.offsets import all_offsets
    from headrace.loader.plan.discover import is_wanted
    from headrace.pipeline.load import kafka_cluster

    include, exclude = settings.loader.topics_include, settings.loader.topics_exclude
    try:
        with kafka_cluster(settings) as cluster:
            return all_offsets(cluster, lambda topic: is_wanted(topic, include, exclude)), ""
    except KafkaError as error:
        return None, f"brokers not available: {error}"


def _bounds(settings: Settings, topic: str, partition: int) -> tuple[LogBounds | None, str]:
    from headrace.loader.offsets.choose import LogBounds

    _, state = _read(settings)
    discovery, note = _discover(settings, (re.escape(topic),), (), state)
    if discovery is None:
        return None, note
    found = discovery.topics.get(topic)
    for one in found.partitions if found else ():
        if one.partition == partition:
            return LogBounds(one.start, one.end, one.leader_epoch, one.shared_end), ""
    return None, f"the brokers return no offsets of {topic} partition {partition}; see headrace broker topics {topic}"


def _commit_choice(
    args: argparse.Namespace, settings: Settings, choose: Callable[[LoaderState], OffsetChoice], note: str
) -> int:
    """Determines at which offsets the next load continues, commits them unless this is a dry run, and prints them.
    Returns the exit code.

    Args:
        choose: returns these offsets, given the loader's current state.
        note: a sentence that is printed with the result.
    """
    from headrace.loader.build import current_build
    from headrace.loader.offsets.choose import commit_of
    from headrace.pipeline.load import commit_log, new_run_id, now_ms

    log = commit_log(settings)
    if args.dry_run:
        log.check_format(writing=False)
    else:
        log.open()
    state = log.read_state()
    choice = choose(state)
    commit_number = 0
    if choice.changes and not args.dry_run:
        proposal = commit_of(choice, state, run_id=new_run_id(), now_ms=now_ms(), build=current_build())
        commit_result = log.try_commit(proposal)
        if commit_result.commit is None or commit_result.refused:
            conflict = next(iter(commit_result.refused.values()), commit_result.conflict)
            raise CommandError(
                f"nothing was changed, because another run committed first: {conflict}; check `headrace offsets show`, "
                "then repeat the command"
            )
        commit_number = commit_result.commit.commit_number
    if args.format == "json":
        print_json(
            {**dataclasses.asdict(choice), "dry_run": args.dry_run, "commit_number": commit_number, "note": note}
        )
    else:
        _print_choice(choice, commit_number, note, is_dry=args.dry_run, shows_all=args.all)
    return EXIT_OK


def _print_choice(choice: OffsetChoice, commit_number: int, note: str, *, is_dry: bool, shows_all: bool) -> None:
    if not choice.changes:
        print("nothing to change")
    else:
        print("dry run: nothing was committed" if is_dry else f"commit {commit_number}: {choice.reason}")
    print_lines([f"skipped: {_gap_text(move)}" for move in choice.gaps], shows_all=shows_all)
    starts = [f"start: {_partition_name(move)}: the first load starts at {move.after}" for move in choice.starts]
    print_lines(starts, shows_all=shows_all, lines_max=ROWS_SHOWN_MAX)
    print_lines([f"left out: {sentence}" for sentence in choice.left], shows_all=shows_all)
    if note:
        print_report_line(f"note: {note}", sys.stderr)


def _gap_text(move: OffsetChange) -> str:
    assert move.before is not None
    return (
        f"{_partition_name(move)}: {move.after - move.before:,} offsets, {move.before} to {move.after - 1}, are "
        f"skipped; loads continue at {move.after}"
    )


def _partition_name(move: OffsetChange) -> str:
    return f"{move.topic} partition {move.partition}"


def _print_statuses(found: Sequence[PartitionStatus], note: str, *, shows_all: bool) -> None:
    lags = [one.lag for one in found if one.lag is not None]
    totals = (
        f"{count_text(len(found), 'partition')} of {count_text(len({one.topic for one in found}), 'topic')}, "
        f"lag {f'{sum(lags):,}' if lags else 'unknown'}"
    )
    header = ("topic", "partition", "next offset", "so far", "epoch", "log start", "log end", "lag")
    rows = tuple(map(_status_row, found))
    print_report(TextReport(totals, "partition", header, rows, (1, 2, 4, 5, 6, 7), fixed=(3,)), shows_all=shows_all)
    if note:
        print_report_line(f"note: {note}", sys.stderr)


def _status_row(one: PartitionStatus) -> ReportRow:
    numbers = (
        "-" if number in (None, -1) else str(number) for number in (one.leader_epoch, one.log_start, one.log_end)
    )
    cells = (
        one.topic,
        str(one.partition),
        "-" if one.next_offset is None else str(one.next_offset),
        "loaded" if one.is_loaded else "nothing loaded" if one.next_offset is None else "start chosen",
        *numbers,
        "-" if one.lag is None else f"{one.lag:,}",
    )
    return ReportRow(cells, FAILURE if one.is_outside_log else WELL, one.lag or 0)
