"""`headrace files`: lists the files of a topic's rows, for programs such as Pig that read paths instead of tables."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from headrace.cli.command import (
    EXIT_OK,
    CommandError,
    add_format_flag,
    add_settings_flags,
    examples,
    print_json,
)
from headrace.cli.loaded_state import LoadedState, open_loaded_state
from headrace.cli.report import ReportRow, TextReport, add_all_flag, count_text, print_report

if TYPE_CHECKING:
    from headrace.loader.inspect.published_files import PublishedFile

TIME_PARTITION = re.compile(r"dt=\d{4}-\d\d-\d\d(/hr=\d\d)?")
LIMIT = re.compile(r"\d{4}-\d\d-\d\d(T\d\d)?")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Lists the files that hold the rows of a topic. A directory listing may also contain files that were replaced "
        "by a later commit, and files that no commit added; this list has neither."
    )
    parser.epilog = examples(
        "files orders",
        "files orders --time-partition dt=2026-01-31",
        "files orders --from 2026-01-01 --to 2026-02-01 --format paths",
    )
    parser.add_argument("topic", metavar="TOPIC", help="topic of the files")
    parser.add_argument(
        "--time-partition",
        metavar="TIME_PARTITION",
        default="",
        help="only this day (dt=2026-01-31) or hour (dt=2026-01-31/hr=07)",
    )
    parser.add_argument(
        "--from",
        dest="since",
        metavar="TIME",
        default="",
        help="only time partitions from this day or hour (UTC) on: 2026-01-31",
    )
    parser.add_argument(
        "--to",
        dest="until",
        metavar="TIME",
        default="",
        help="only time partitions before this day or hour: 2026-01-31T07, in UTC",
    )
    parser.add_argument("--quarantine", action="store_true", help="list the files of the quarantine table instead")
    add_all_flag(parser)
    add_settings_flags(parser, ("loader.warehouse",))
    add_format_flag(parser, ("text", "json", "paths"))


def run(args: argparse.Namespace) -> int:
    from headrace.loader.commit.file_index import FileIndex
    from headrace.loader.inspect.published_files import TimePartitionFilter, applied_commit_number, published_files
    from headrace.loader.work_unit import FileKind

    _check(args)
    with open_loaded_state(args) as known:
        newest = known.topic(args.topic).commit_number
        commit_number = applied_commit_number(known.log, args.topic)
        kind = FileKind.QUARANTINE if args.quarantine else FileKind.DATA
        time_partition_filter = TimePartitionFilter(args.time_partition, args.since, args.until)
        index = FileIndex(known.log)
        files = list(published_files(index, known.log, args.topic, kind, commit_number, time_partition_filter))
    if args.format == "json":
        print_json(
            {
                "topic": args.topic,
                "commit_number": commit_number,
                "newest_commit_number": newest,
                "files": [_json(known, f) for f in files],
            }
        )
    elif args.format == "paths":
        for one in files:
            print(known.storage.files.describe(one.path))
    else:
        _print(known, files, shows_all=args.all)
        if commit_number < newest:
            print(
                f"files as of commit {commit_number}; the newest commit {newest} is not applied yet, the next load "
                "does so"
            )
    return EXIT_OK


def _check(args: argparse.Namespace) -> None:
    if args.time_partition and not TIME_PARTITION.fullmatch(args.time_partition):
        raise CommandError(
            f"--time-partition: expected dt=2026-01-31/hr=07 or dt=2026-01-31, found {args.time_partition}"
        )
    for flag, value in (("--from", args.since), ("--to", args.until)):
        if value and not LIMIT.fullmatch(value):
            raise CommandError(f"{flag}: expected a day 2026-01-31 or an hour 2026-01-31T07, found {value}")


def _print(known: LoadedState, files: list[PublishedFile], *, shows_all: bool) -> None:
    rows = tuple(
        ReportRow(
            (
                one.time_partition,
                f"{one.file.records:,}",
                f"{one.file.length:,}",
                f"{one.file.since}",
                known.storage.files.describe(one.path),
            )
        )
        for one in files
    )
    records, size = sum(one.file.records for one in files), sum(one.file.length for one in files)
    totals = f"{count_text(len(files), 'file')}, {count_text(records, 'row')}, {size / 1e6:,.1f} MB"
    header = ("time partition", "rows", "bytes", "commit", "path")
    print_report(TextReport(totals, "file", header, rows, (1, 2, 3), is_listing=True, fixed=(0,)), shows_all=shows_all)


def _json(known: LoadedState, one: PublishedFile) -> dict[str, Any]:
    return {
        "time_partition": one.time_partition,
        "path": known.storage.files.describe(one.path),
        "rows": one.file.records,
        "bytes": one.file.length,
        "checksum": one.file.checksum,
        "commit_number": one.file.since,
        "offsets": [
            {"partition": span.partition, "first": span.first, "last": span.last, "rows": span.records}
            for span in one.file.ranges
        ],
    }
