"""`headrace quarantine`: previews, lists, shows, replays and discards messages that cannot be loaded."""

from __future__ import annotations

import argparse
import base64
import codecs
import dataclasses
import itertools
import sys
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from headrace.cli.colour import print_report_line, styled
from headrace.cli.command import (
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
from headrace.cli.loaded_state import loader_errors_as_command_errors, open_loaded_state
from headrace.cli.report import ReportRow, TextReport, add_all_flag, add_topic_patterns, count_text, print_report
from headrace.cli.rewrite_command import EXIT_CODES, add_rewrite_flags, check_topic, open_rewrite_load
from headrace.cli.terminal import steps_shown, terminal_width
from headrace.pipeline.text_table import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from headrace.loader.inspect.preview import Preview
    from headrace.loader.inspect.quarantine import QuarantinedRow, QuarantineFile
    from headrace.loader.rewrite.discard import DiscardReport
    from headrace.loader.rewrite.replay import ReplayReport
    from headrace.loader.storage.protocols import WarehouseFiles

MESSAGES_SHOWN = 20  # by default; the total is always printed
BYTES_SHOWN = 256  # of a key or value: a few lines of a terminal
LIST_BYTES = 12  # of a value in the list
REASONS = (
    "framing",
    "schema_not_found",
    "unreadable_schema",
    "malformed",
    "unreadable",
    "unconvertible",
    "corrupt_batch",
)
"""All quarantine codes, copied from `loader.project.quarantine`. Importing that module would need the loader's
libraries just to print the help."""
REPLAYED = ("schema_not_found", "unreadable_schema", "malformed", "unreadable", "unconvertible")
"""Codes of messages that `replay` retries: those with a schema id in the message. A message without a schema id cannot
be decoded."""
TOPIC_HELP = "topic of the messages"
PREVIEW_MESSAGES, PREVIEW_MEBIBYTES, PREVIEW_SECONDS = 10_000, 64, 30
PREVIEW_BYTES = 24  # of a value: one line of a terminal in both forms
PREVIEW_EXIT_CODES = """

exit codes:
  0  all messages that were read can be loaded
  1  some cannot be loaded, or could not be read
  2  failure
"""
HEADER = ("topic", "partition", "offset", "time", "schema", "begins with", "reason")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    _configure_list(
        verbs.add_parser(
            "list",
            help="show quarantined messages with their reasons",
            description="Lists messages that could not be loaded: their offsets and times, their first bytes, the "
            "error, and a guess at their format.",
            epilog=examples("quarantine list", "quarantine list orders --limit 10 --format json"),
        )
    )
    _configure_show(
        verbs.add_parser(
            "show",
            help="show quarantined messages with their bytes",
            description="Shows quarantined messages of a topic with their bytes. Binary data is shown in "
            "hexadecimal, and control characters are escaped, so that the output is safe for a terminal.",
            epilog=examples(
                "quarantine show orders",
                "quarantine show orders --reason schema_not_found --limit 5",
                "quarantine show orders --format json",
            ),
        )
    )
    _configure_preview(
        verbs.add_parser(
            "preview",
            help="show which pending messages of a topic cannot be loaded",
            description="Reads the messages that the next load has to read, as that load would, and shows why some "
            "cannot be loaded: reasons with numbers, sample offsets, the first bytes, and a guess at the producer's "
            "mistake. Use it for a topic that a load holds back. Changes nothing, and needs no Java if the warehouse "
            "is a local directory.",
            epilog=examples("quarantine preview orders", "quarantine preview orders --messages 100000 --format json")
            + PREVIEW_EXIT_CODES,
        )
    )
    for verb in REWRITES:
        _configure_rewrite(
            verbs.add_parser(
                verb.name,
                help=verb.help,
                description=verb.description,
                epilog=examples(*verb.examples) + EXIT_CODES,
            ),
            verb,
        )


def _configure_list(parser: argparse.ArgumentParser) -> None:
    add_topic_patterns(parser, positional=True)
    add_all_flag(parser)
    parser.add_argument(
        "--limit",
        type=int,
        default=MESSAGES_SHOWN,
        metavar="N",
        help=f"at most N messages, also in JSON; --all has all (default: {MESSAGES_SHOWN})",
    )
    add_settings_flags(parser, ("loader.warehouse",))
    add_format_flag(parser)
    parser.set_defaults(run=run)


def _configure_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help=TOPIC_HELP)
    parser.add_argument(
        "--reason", metavar="CODE", default="", help=f"only messages with this code: {', '.join(REASONS)}"
    )
    parser.add_argument(
        "--limit", type=int, default=MESSAGES_SHOWN, metavar="N", help=f"at most N messages (default: {MESSAGES_SHOWN})"
    )
    parser.add_argument(
        "--bytes",
        type=int,
        default=BYTES_SHOWN,
        metavar="N",
        help=f"at most N bytes of a key or value; --format json has all, in base64 (default: {BYTES_SHOWN})",
    )
    add_settings_flags(parser, ("loader.warehouse",))
    add_format_flag(parser)
    parser.set_defaults(run=run_show, pages=True)


def _configure_preview(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help=TOPIC_HELP)
    for flag, default, unit in (
        ("--messages", PREVIEW_MESSAGES, "messages"),
        ("--mebibytes", PREVIEW_MEBIBYTES, "MiB of fetched batches"),
        ("--seconds", PREVIEW_SECONDS, "seconds of reading"),
    ):
        parser.add_argument(
            flag, type=int, default=default, metavar="N", help=f"at most about N {unit} (default: {default:,})"
        )
    add_settings_flags(parser, ("registry.url", "kafka.bootstrap_servers", "loader.warehouse"))
    add_format_flag(parser)
    parser.set_defaults(run=run_preview, pages=True)


def _configure_rewrite(parser: argparse.ArgumentParser, verb: Rewrite) -> None:
    parser.add_argument("topic", metavar="TOPIC", help=TOPIC_HELP)
    parser.add_argument(
        "--reason", metavar="CODE", default="", help=f"only messages with this code: {', '.join(verb.reasons)}"
    )
    parser.add_argument(
        "--because", required=verb.needs_reason, default="", metavar="TEXT", help="the reason, stored in the commit"
    )
    if verb.has_limit:
        parser.add_argument(
            "--at-most", type=int, metavar="N", help="change nothing if there are more than N such messages"
        )
    add_rewrite_flags(parser, verb.settings)
    parser.set_defaults(run=verb.run)


def run(args: argparse.Namespace) -> int:
    from headrace.loader.inspect.quarantine import committed_files

    if args.limit < 0:
        raise CommandError(f"--limit: expected a number from 0, found {args.limit}")
    with open_loaded_state(args) as known:
        files = committed_files(known.log, known.topics(args.topics))
    total = sum(file.records for file in files)
    rows = list(itertools.islice(_rows(files, known.storage.files), None if args.all else args.limit))
    if args.format == "json":
        print_json({"total": total, "messages": [_json(topic, row) for topic, row in rows]})
    else:
        _print(rows, files, args.limit, shows_all=args.all)
    return EXIT_OK


def run_show(args: argparse.Namespace) -> int:
    from headrace.loader.inspect.quarantine import committed_files

    for flag in ("limit", "bytes"):
        if getattr(args, flag) < 0:
            raise CommandError(f"--{flag}: expected a number from 0, found {getattr(args, flag)}")
    _check_reason(args.reason, REASONS)
    with open_loaded_state(args) as known:
        known.topic(args.topic)
        files = committed_files(known.log, [args.topic])
    selected = (row for _, row in _rows(files, known.storage.files) if not args.reason or row.code == args.reason)
    rows = list(itertools.islice(selected, args.limit))
    if args.format == "json":
        print_json({"topic": args.topic, "messages": [_complete_json(args.topic, row) for row in rows]})
    else:
        for row in rows:
            _print_message(row, args.bytes)
        print(f"{len(rows)} messages shown of {sum(file.records for file in files)} in quarantine")
    return EXIT_OK


def run_preview(args: argparse.Namespace) -> int:
    from headrace.loader.inspect.preview import PreviewLimits, preview
    from headrace.pipeline.load import commit_log, open_load

    for flag in ("messages", "mebibytes", "seconds"):
        if getattr(args, flag) < 1:
            raise CommandError(f"--{flag}: expected a number from 1, found {getattr(args, flag)}")
    limits = PreviewLimits(args.messages, args.mebibytes * 1024 * 1024, args.seconds)
    settings = settings_from(args)
    with loader_errors_as_command_errors(), steps_shown():
        log = commit_log(settings, read_only=True)
        log.check_format(writing=False)
        with open_load(settings, log, sys.stderr, is_dry=True, only=(args.topic,)) as load:
            found = preview(load.ports, load.settings, args.topic, limits)
    if args.format == "json":
        print_json(_preview_json(found))
    else:
        _print_preview(found)
    return EXIT_FINDINGS if found.quarantined or found.problems else EXIT_OK


def _preview_json(found: Preview) -> dict[str, Any]:
    groups = [
        {
            **dataclasses.asdict(group),
            "samples": [{"partition": partition, "offset": offset} for partition, offset in group.samples],
            "value": _base64(None if group.value is None else group.value[:BYTES_SHOWN]),
        }
        for group in found.groups
    ]
    return {**dataclasses.asdict(found), "groups": groups}


def _print_preview(found: Preview) -> None:
    topic = found.topic
    for group in found.groups:
        print(styled(f"{count_text(group.count, 'message')}: {group.code}", "warn") + printable(f": {group.reason}"))
        samples = ", ".join(f"{partition}:{offset}" for partition, offset in group.samples)
        print(f"  partition:offset  {samples}{', …' if group.count > len(group.samples) else ''}")
        if group.value is not None:
            shown = group.value[:PREVIEW_BYTES]
            more = f" … ({len(group.value):,} bytes)" if len(group.value) > PREVIEW_BYTES else ""
            print(f"  hex   {shown.hex(' ')}{more}")
            print(f"  text  {printable(shown.decode('utf-8', 'backslashreplace'))}{' …' if more else ''}")
        if group.hint:
            print(f"  looks like {printable(group.hint)}")
    for problem in found.problems:
        print_report_line(f"PROBLEM: {topic}: {problem}")
    limit = f" (limit: --{'mebibytes' if found.limit == 'bytes' else found.limit})" if found.limit else ""
    print(
        f"read {found.read:,} of {found.pending:,} pending offsets{limit}: {found.loadable:,} messages can be loaded, "
        f"{found.quarantined:,} cannot, {found.others:,} offsets have no value"
    )
    if found.is_waiting:
        print(
            "loads do not read this topic until its schema is registered; its messages stay in Kafka until they expire"
        )
    elif found.is_held_back:
        print(
            "a load holds this topic back: remove the cause, or let the messages into the quarantine with "
            f"`headrace load --topic {topic} --quarantine-all`"
        )
    elif found.quarantined:
        print("a load puts these messages into the quarantine and loads the others")


def run_replay(args: argparse.Namespace) -> int:
    from headrace.loader.project.quarantine import QuarantineCode
    from headrace.loader.rewrite.replay import REPLAYABLE, ReplaySettings, replay
    from headrace.pipeline.load import topic_policy

    _check_reason(args.reason, REPLAYED)
    codes = frozenset({QuarantineCode(args.reason)}) if args.reason else REPLAYABLE
    with open_rewrite_load(args) as (settings, load):
        check_topic(load.rewrites, args.topic)
        policy = topic_policy(settings.loader.of_topic(args.topic))
        sizes = ReplaySettings(policy, load.settings.task.block_bytes, load.settings.task.file_bytes_target)
        report = replay(
            load.rewrites, load.ports.schemas, args.topic, sizes, codes, args.because.strip(), is_dry=args.dry_run
        )
    return _print_result(args, report, report.loaded, "loaded")


def run_discard(args: argparse.Namespace) -> int:
    from headrace.loader.rewrite.discard import discard
    from headrace.loader.rewrite.driver_files import FileShape

    _check_reason(args.reason, REASONS)
    if not args.because.strip():
        raise CommandError("--because is empty; expected the reason for discarding these messages")
    codes = {args.reason} if args.reason else frozenset()
    with open_rewrite_load(args) as (settings, load):
        check_topic(load.rewrites, args.topic)
        codec, task = settings.loader.of_topic(args.topic).codec, load.settings.task
        shape = FileShape("", codec, task.block_bytes, task.file_bytes_target)
        report = discard(
            load.rewrites, args.topic, shape, codes, args.because, is_dry=args.dry_run, messages_max=args.at_most
        )
    return _print_result(args, report, report.discarded, "discarded")


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A verb of `headrace quarantine` that removes messages from a topic's quarantine table and commits the change:
    `replay`, `discard`.

    Attributes:
        reasons: the quarantine codes that `--reason` accepts.
        run: runs the verb and returns the exit code.
        settings: keys of further settings that have flags.
        needs_reason: whether the user must give a reason for the commit with `--because`.
        has_limit: whether `--at-most` limits the number of messages.
    """

    name: str
    help: str
    description: str
    examples: tuple[str, ...]
    reasons: tuple[str, ...]
    run: Callable[[argparse.Namespace], int]
    settings: tuple[str, ...] = ()
    needs_reason: bool = False
    has_limit: bool = False


REWRITES = (
    Rewrite(
        "replay",
        "load messages that can be loaded now",
        "Retries the quarantined messages of a topic, such as after a missing schema was registered. Messages "
        "that can be loaded now become rows of the table, exactly once. The others stay in quarantine.",
        (
            "quarantine replay orders --dry-run",
            "quarantine replay orders",
            "quarantine replay orders --reason schema_not_found --format json",
        ),
        REPLAYED,
        run_replay,
        settings=("registry.url",),
    ),
    Rewrite(
        "discard",
        "delete quarantined messages for good",
        "Deletes quarantined messages of a topic for good: from the quarantine table at once, and from the disk a "
        "day later. The commit records the reason. The audit continues to count them as quarantined.",
        (
            "quarantine discard orders --because 'tests of the new producer' --dry-run",
            "quarantine discard orders --reason framing --because 'JSON sent by mistake, ticket 4711'",
        ),
        REASONS,
        run_discard,
        needs_reason=True,
        has_limit=True,
    ),
)


def _check_reason(reason: str, known: Sequence[str]) -> None:
    if reason and reason not in known:
        raise CommandError(f"--reason: expected one of {', '.join(known)}, found {reason}")


def _print_result(
    args: argparse.Namespace, report: ReplayReport | DiscardReport, counts: Mapping[str, int], participle: str
) -> int:
    """Prints the report of a replay or discard, as text or JSON. Returns the exit code.

    Args:
        counts: the number of replayed or discarded messages, by quarantine code.
        participle: past participle of the operation, such as `loaded`.
    """
    if args.format == "json":
        print_json({"topic": args.topic, "dry_run": args.dry_run, **dataclasses.asdict(report)})
    else:
        _print_rewrite(args.topic, report, counts, f"would be {participle}" if args.dry_run else participle)
    return EXIT_FINDINGS if report.problems else EXIT_OK


def _print_rewrite(topic: str, report: ReplayReport | DiscardReport, counts: Mapping[str, int], word: str) -> None:
    codes = sorted({*counts, *report.left})
    if codes:
        rows = [(code, f"{counts.get(code, 0):,}", f"{report.left.get(code, 0):,}") for code in codes]
        print_table(("quarantined for", word, "stay"), rows, right=(1, 2))
    for problem in report.problems:
        print_report_line(f"PROBLEM: {topic}: {problem}")
    for note in report.notes:
        print_report_line(f"note: {note}")
    by = f" by commit {report.commit_number}" if report.commit_number else ""
    print(f"{count_text(sum(counts.values()), 'message')} {word}{by}")


def _print_message(row: QuarantinedRow, bytes_max: int) -> None:
    schema = "" if row.schema_id is None else f", schema {row.schema_id}"
    print(styled(f"partition {row.partition}, offset {row.offset}, {_time(row.timestamp_ms)}{schema}", "head"))
    code, colon, reason = _reason_text(row).partition(":")
    print(f"  {styled(code, 'warn')}{colon}{reason}")
    for name, data in (("key", row.key), ("value", row.value), *((f"header {key}", data) for key, data in row.headers)):
        print(f"  {printable(name)}: {_format_bytes(data, bytes_max)}")


def _format_bytes(data: bytes | None, bytes_max: int, *, with_length: bool = True) -> str:
    """Formats `data` for a terminal: as text with control characters escaped if it is UTF-8 without a zero byte,
    otherwise in hexadecimal; "none" for None.

    Args:
        bytes_max: number of bytes to show; an ellipsis replaces the rest.
        with_length: whether the total length follows the ellipsis.
    """
    if data is None:
        return "none"
    shown = data[:bytes_max]
    more = (f" … ({len(data):,} bytes)" if with_length else " …") if len(data) > bytes_max else ""
    try:
        # Drops a character that the limit cuts through.
        text = codecs.getincrementaldecoder("utf-8")().decode(shown, final=not more)
    except UnicodeDecodeError:
        return f"0x{shown.hex()}{more}"
    # A message in the wire format begins with a zero byte; it is not text even if all its bytes decode.
    return f"0x{shown.hex()}{more}" if "\0" in text else f"{printable(text)}{more}"


def _complete_json(topic: str, row: QuarantinedRow) -> dict[str, Any]:
    """Returns a quarantined message of the topic as JSON, with its whole key, value and headers in base64; `quarantine
    list` shows only the first bytes of the value."""
    return {
        **_json(topic, row),
        "key": _base64(row.key),
        "value": _base64(row.value),
        "headers": [{"key": key, "value": _base64(value)} for key, value in row.headers],
    }


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _rows(files: Sequence[QuarantineFile], warehouse: WarehouseFiles) -> Iterator[tuple[str, QuarantinedRow]]:
    from headrace.loader.inspect.quarantine import read_rows

    for file in files:
        try:
            with warehouse.open(file.name) as stream:
                rows = list(read_rows(stream))
        except FileNotFoundError:
            # The file is committed, but still in the staging directory; the next load moves it.
            continue
        except (OSError, ValueError) as error:
            raise CommandError(f"cannot read the quarantine file {warehouse.describe(file.name)}: {error}") from error
        for row in sorted(rows, key=lambda row: (row.partition, row.offset)):
            yield file.topic, row


def _print(
    rows: Sequence[tuple[str, QuarantinedRow]], files: Sequence[QuarantineFile], limit: int, *, shows_all: bool
) -> None:
    """Prints the numbers of quarantined messages by topic if there are several, and the messages in `rows`."""
    by_topic = Counter[str]()
    for file in files:
        by_topic[file.topic] += file.records
    total = by_topic.total()
    totals = f"{count_text(total, 'quarantined message')} of {count_text(len(by_topic), 'topic')}"
    topics = tuple(ReportRow((topic, f"{count:,}"), weight=count) for topic, count in by_topic.items())
    topics = topics if len(topics) > 1 else ()
    print_report(TextReport(totals, "topic", ("topic", "messages"), topics, (1,), is_listing=True), shows_all=shows_all)
    if rows:
        print_table(HEADER, [_cells(topic, row) for topic, row in rows], (1, 2, 4), terminal_width(), (3, 5))
    more = count_text(total - len(rows), "more message")
    if len(rows) < total and (shows_all or len(rows) < limit):
        print(f"{more} in files that the next load publishes")
    elif len(rows) < total:
        print(f"{more}; --all shows all")


def _cells(topic: str, row: QuarantinedRow) -> tuple[str, ...]:
    return (
        topic,
        str(row.partition),
        str(row.offset),
        _time(row.timestamp_ms),
        "-" if row.schema_id is None else str(row.schema_id),
        _format_bytes(row.value, LIST_BYTES, with_length=False),
        _reason_text(row),
    )


def _reason_text(row: QuarantinedRow) -> str:
    from headrace.loader.inspect.producer_hint import producer_hint

    hint = producer_hint(row.value, row.code)
    return printable(f"{row.code}: {row.reason}{f'; looks like {hint}' if hint else ''}")


def _json(topic: str, row: QuarantinedRow) -> dict[str, Any]:
    from headrace.loader.inspect.producer_hint import producer_hint

    return {
        "topic": topic,
        "partition": row.partition,
        "offset": row.offset,
        "timestamp_ms": row.timestamp_ms,
        "code": row.code,
        "reason": row.reason,
        "schema_id": row.schema_id,
        "producer_hint": producer_hint(row.value, row.code),
        "value_begins": _base64(None if row.value is None else row.value[:LIST_BYTES]),
        "value_bytes": None if row.value is None else len(row.value),
    }


def _time(time_ms: int) -> str:
    """Formats a record's timestamp in UTC. A time outside of the years 1 to 9999 is shown as its number of
    milliseconds."""
    try:
        return (_EPOCH + timedelta(milliseconds=time_ms)).strftime("%Y-%m-%d %H:%M:%SZ")
    except OverflowError:
        return f"{time_ms} ms"
