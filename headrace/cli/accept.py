"""`headrace accept`: lists open alarms, and accepts them with a reason."""

from __future__ import annotations

import argparse
import dataclasses
import socket
import time
from typing import TYPE_CHECKING

from headrace.cli.command import (
    EXIT_FINDINGS,
    EXIT_OK,
    CommandError,
    add_author_flag,
    add_format_flag,
    add_settings_flags,
    examples,
    print_json,
    process_user,
)
from headrace.cli.loaded_state import open_loaded_state
from headrace.cli.report import add_all_flag, count_text, print_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.cli.loaded_state import LoadedState
    from headrace.loader.inspect.alarms import OpenAlarm

KINDS = {
    "quarantined": "messages in the quarantine",
    "lost": "offsets that were removed on the brokers before they were read",
    "replaced": "loaded offsets that have other messages now, or none: the log was truncated",
    "recreated": "a new topic of the same name was loaded",
    "corrupt": "offsets of corrupt batches that were skipped",
    "incompatible": "columns of schema versions with types that the former columns cannot hold",
    "times": "rows with implausible event times",
}
"""All kinds of alarms, copied from `loader.commit.alarms`. Importing that module would need the loader's libraries just
to print the help."""
EPILOG = (
    "\n\nkinds of alarms:\n"
    + "\n".join(f"  {kind:13} {text}" for kind, text in KINDS.items())
    + "\n\nexit codes:\n  0  no alarm is open, or accepted\n  1  alarms are open (without TOPIC)\n  2  failure\n"
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Lists open alarms: results of loads that `headrace status` reports until you repair or accept them. With "
        "TOPIC, accepts the open alarms of these topics, and records who accepted them, when and why. Later messages "
        "of the same kind are a new alarm. To repair instead: `headrace quarantine replay` and `discard` close alarms "
        "of quarantined messages."
    )
    parser.epilog = (
        examples(
            "accept",
            "accept orders --kind quarantined --dry-run",
            "accept orders --kind quarantined --reason 'tests of the new producer, ticket 4711'",
            "accept orders clicks --reason 'retention was too short, ticket 4712'",
            "accept orders --withdraw",
        )
        + EPILOG
    )
    add_all_flag(parser)
    parser.add_argument("topics", nargs="*", metavar="TOPIC", help="accept the open alarms of topics that match")
    parser.add_argument(
        "--kind",
        action="append",
        default=[],
        choices=tuple(KINDS),
        metavar="KIND",
        help=f"only alarms of this kind; may be repeated: {', '.join(KINDS)}",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--reason", default="", metavar="TEXT", help="why the alarms need no repair; recorded")
    how.add_argument("--withdraw", action="store_true", help="open accepted alarms again")
    parser.add_argument("--dry-run", action="store_true", help="show the alarms that would be accepted")
    add_author_flag(parser)
    add_settings_flags(parser, ("loader.warehouse",))
    add_format_flag(parser)


def run(args: argparse.Namespace) -> int:
    _check(args)
    with open_loaded_state(args) as known:
        if args.topics:
            args.topics = known.topics(args.topics)
        if args.withdraw:
            return _withdraw(args, known)
        alarms = _accept(args, known) if args.topics and not args.dry_run else _open(args, known)
    if args.format == "json":
        print_json({"accepted" if args.topics else "open": [dataclasses.asdict(alarm) for alarm in alarms]})
    else:
        _print(alarms, _word(args), shows_all=args.all)
    return EXIT_OK if args.topics or not alarms else EXIT_FINDINGS


def _word(args: argparse.Namespace) -> str:
    if not args.topics:
        return "open"
    return "would be accepted" if args.dry_run else "accepted"


def _check(args: argparse.Namespace) -> None:
    if args.withdraw and args.dry_run:
        raise CommandError("--withdraw has no dry run; `headrace accept` shows the alarms that are open afterwards")
    if args.topics and not args.withdraw and not args.dry_run and not args.reason.strip():
        raise CommandError("--reason is missing or empty; state why the alarms need no repair")
    if not args.topics and (args.withdraw or args.reason):
        raise CommandError("TOPIC is missing; `headrace accept` lists the topics with open alarms")


def _open(args: argparse.Namespace, known: LoadedState) -> Sequence[OpenAlarm]:
    from headrace.loader.commit.file_index import FileIndex
    from headrace.loader.inspect.alarms import open_alarms

    found = open_alarms(known.log, FileIndex(known.log), _now_ms(), args.topics or None)
    return [alarm for alarm in found if not args.kind or alarm.kind in args.kind]


def _accept(args: argparse.Namespace, known: LoadedState) -> Sequence[OpenAlarm]:
    from headrace.loader.commit.file_index import FileIndex
    from headrace.loader.inspect.alarms import accept

    by = args.author or f"{process_user()}@{socket.gethostname()}"
    return accept(known.log, FileIndex(known.log), args.topics, args.kind, args.reason.strip(), by, _now_ms())


def _withdraw(args: argparse.Namespace, known: LoadedState) -> int:
    from headrace.loader.inspect.alarms import withdraw

    count = withdraw(known.log, args.topics, args.kind)
    if args.format == "json":
        print_json({"withdrawn": count})
    else:
        print(f"{count} acceptances withdrawn")
    return EXIT_OK


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _print(alarms: Sequence[OpenAlarm], word: str, *, shows_all: bool) -> None:
    label = "ALARM" if word == "open" else word
    topics = count_text(len({alarm.topic for alarm in alarms}), "topic")
    print(f"{count_text(len(alarms), 'alarm')} of {topics} {word}")
    print_lines([f"{label}: {_alarm_text(alarm)}" for alarm in alarms], shows_all=shows_all)


def _alarm_text(alarm: OpenAlarm) -> str:
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(alarm.since_ms / 1000)) if alarm.since_ms else "unknown"
    text = f"; newest: {alarm.text}" if alarm.text else ""
    return f"{alarm.topic}: {alarm.kind}: {alarm.count:,} {KINDS.get(alarm.kind, '')} (since {since}){text}"
