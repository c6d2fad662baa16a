"""`headrace locate`: finds the file that holds the message at an offset, or the reason why the message has no row."""

from __future__ import annotations

import argparse
import dataclasses
import time
from typing import TYPE_CHECKING

from headrace.cli.colour import styled
from headrace.cli.command import EXIT_OK, CommandError, add_format_flag, add_settings_flags, examples, print_json
from headrace.cli.loaded_state import LoadedState, open_loaded_state

if TYPE_CHECKING:
    from headrace.loader.inspect.locate import LocatedMessage


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Shows the file that holds the message at an offset, and the commit that loaded it; or the reason why it has "
        "no row: it is quarantined, a tombstone, a transaction marker, of an aborted transaction, in a gap of the "
        "log, or not loaded yet."
    )
    parser.epilog = (
        examples("locate orders 0 12345", "locate orders 0 12345 --format json")
        + "\n\nThe commit log names the file. Files are read only if the offset ranges of several files include the "
        "offset."
    )
    parser.add_argument("topic", metavar="TOPIC", help="the topic of the message")
    parser.add_argument("partition", metavar="PARTITION", type=int, help="number of the partition")
    parser.add_argument("offset", metavar="OFFSET", type=int, help="offset of the message")
    add_settings_flags(parser, ("loader.warehouse",))
    add_format_flag(parser)


def run(args: argparse.Namespace) -> int:
    from headrace.loader.commit.file_index import FileIndex
    from headrace.loader.inspect.locate import locate

    for name in ("partition", "offset"):
        if getattr(args, name) < 0:
            raise CommandError(f"{name.upper()}: expected a number from 0, found {getattr(args, name)}")
    with open_loaded_state(args) as known:
        known.topic(args.topic)
        index = FileIndex(known.log)
        try:
            found = locate(known.log, index, known.storage.files, args.topic, args.partition, args.offset)
        except ValueError as error:
            raise CommandError(
                f"the message was not located, because a file that may contain it cannot be read: {error}; "
                "see: headrace verify"
            ) from error
    if args.format == "json":
        paths = [known.storage.files.describe(path) for path in found.files]
        print_json({**dataclasses.asdict(found), "status": found.status.name.lower(), "files": paths})
    else:
        _print(found, known)
    return EXIT_OK


def _print(found: LocatedMessage, known: LoadedState) -> None:
    detail = f" ({found.detail})" if found.detail else ""
    offset_text = styled(f"{found.topic}-{found.partition} offset {found.offset}", "head")
    style = "good" if found.status.name == "ROW" else "warn"
    print(f"{offset_text}: {styled(found.status.value, style)}{detail}")
    for path in found.files:
        print(f"  {known.storage.files.describe(path)}")
    if found.commit_number:
        committed_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(found.committed_at_ms / 1000))
        print(
            f"  loaded by commit {found.commit_number} at {committed_at} with offsets [{found.start}, {found.end}) "
            f"(run {found.run_id})"
        )
