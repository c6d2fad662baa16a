"""`headrace quarantine list`: the messages that could not be loaded, and why."""

from __future__ import annotations

import argparse
import itertools
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.loader.inspect.quarantine import QuarantinedRow, QuarantineFile
    from headrace.loader.storage.protocols import WarehouseFiles

ROWS_SHOWN = 100  # by default: a screen or two; the count of all is always told
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    listing = verbs.add_parser(
        "list",
        help="show quarantined messages with their reasons",
        description="Messages that could not be loaded: where they are, when they were written and what is wrong.",
        epilog=examples("quarantine list", "quarantine list orders --limit 10 --format json"),
    )
    listing.add_argument("topic", nargs="?", metavar="TOPIC", help="only of this topic (default: of all)")
    listing.add_argument(
        "--limit", type=int, default=ROWS_SHOWN, metavar="N", help=f"show at most N messages (default: {ROWS_SHOWN})"
    )
    add_settings_flags(listing, ("loader.warehouse",))
    add_format_flag(listing)
    listing.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from headrace.loader.errors import LoaderError
    from headrace.loader.inspect.quarantine import decided_files
    from headrace.pipeline.load import decision_log, warehouse_storage

    if args.limit < 0:
        raise CommandError(f"--limit: expected a number of messages, found {args.limit}")
    settings = settings_from(args)
    log = decision_log(settings)
    try:
        log.check_format(writing=False)
        state = log.read_state()
    except LoaderError as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(f"cannot read the decisions at {error.filename}: {error.strerror}") from error
    if args.topic is not None and args.topic not in state.topics:
        known = ", ".join(sorted(state.topics)) or "none yet"
        raise CommandError(f"nothing of topic {args.topic} has been loaded; loaded topics: {known}")
    files = decided_files(log, args.topic)
    total = sum(file.records for file in files)
    rows = list(itertools.islice(_rows(files, warehouse_storage(settings).files), args.limit))
    if args.format == "json":
        print_json({"total": total, "messages": [_json(topic, row) for topic, row in rows]})
    else:
        _print(rows, total)
    return EXIT_OK


def _rows(files: Sequence[QuarantineFile], warehouse: WarehouseFiles) -> Iterator[tuple[str, QuarantinedRow]]:
    from headrace.loader.inspect.quarantine import read_rows

    for file in files:
        try:
            with warehouse.open(file.name) as opened:
                rows = list(read_rows(opened))
        except FileNotFoundError:
            # Decided, and its follower has not brought it there yet; the next load does.
            continue
        except (OSError, ValueError) as error:
            raise CommandError(f"cannot read the quarantine file {warehouse.describe(file.name)}: {error}") from error
        for row in sorted(rows, key=lambda row: (row.partition, row.offset)):
            yield file.topic, row


def _print(rows: Sequence[tuple[str, QuarantinedRow]], total: int) -> None:
    if rows:
        print_table(
            ("topic", "partition", "offset", "time", "schema", "reason"),
            [
                (
                    topic,
                    str(row.partition),
                    str(row.offset),
                    _time(row.timestamp_ms),
                    "-" if row.schema_id is None else str(row.schema_id),
                    f"{row.code}: {row.reason}",
                )
                for topic, row in rows
            ],
            right=(1, 2, 4),
        )
    more = f", {len(rows)} shown" if len(rows) < total else ""
    print(f"{total} quarantined messages{more}")


def _json(topic: str, row: QuarantinedRow) -> dict[str, Any]:
    return {
        "topic": topic,
        "partition": row.partition,
        "offset": row.offset,
        "timestamp_ms": row.timestamp_ms,
        "code": row.code,
        "reason": row.reason,
        "schema_id": row.schema_id,
        "value_bytes": None if row.value is None else len(row.value),
    }


def _time(time_ms: int) -> str:
    """The record's timestamp in UTC; one beyond the calendar stays a number."""
    try:
        return (_EPOCH + timedelta(milliseconds=time_ms)).strftime("%Y-%m-%d %H:%M:%SZ")
    except OverflowError:
        return f"{time_ms} ms"
