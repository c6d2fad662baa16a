"""`headrace compat check`: may a schema change go out?

Exit codes: 0 compatible, 1 incompatible, 2 a file could not be read or the command line is wrong, 3 a file is not a
valid Avro schema. Of several that apply the one that leaves most in the dark is given: 2, then 3, then 1.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

from avro_schema import Position, Schema, SchemaParseError, parse_schema
from compat import (
    CompatError,
    CompatibilityLevel,
    InvalidLevel,
    Report,
    VersionedSchema,
    check_level,
    parse_level,
)
from compat.report import COLOURED, PLAIN, json_document, printable, text_report
from headrace.cli.command import EXIT_FAILED, EXIT_FINDINGS, EXIT_OK, CommandError, add_format_flag, print_json

EXIT_INVALID_SCHEMA = 3

FILE_BYTES_MAX = 16_000_000
"""Largest file that is read: the longest schema text in the widest characters."""

EPILOG = """\
examples:
  headrace compat check order.avsc --against released/order.avsc
  headrace compat check order.avsc --against v1.avsc v2.avsc v3.avsc --level FULL_TRANSITIVE
  headrace compat check order.avsc --against <(git show main:order.avsc) --format json

exit codes:
  0  compatible
  1  incompatible: each problem is named with its line, column and a fix
  2  could not tell: a file could not be read, or the command line is wrong
  3  a file is not a valid Avro schema
"""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a file could not be judged; `exit_code` says what kind of reason it is."""

    exit_code: int
    file: str
    message: str
    position: Position | None = None

    def line(self) -> str:
        place = f"{self.position.line}:{self.position.column}: " if self.position else ""
        file = self.file or '""'
        return printable(f"{file}:{place or ' '}error: {self.message}")


class _FileError(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.line())
        self.failure = failure


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    check = verbs.add_parser(
        "check",
        help="check new schemas against earlier ones",
        description="Checks whether each NEW schema is compatible with the earlier ones, as a registry would on "
        "registration. The meaning is that of Avro Java's SchemaCompatibility.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    check.add_argument("new", nargs="+", metavar="NEW", help="schema file (.avsc) to check; each is checked by itself")
    check.add_argument(
        "--against",
        nargs="+",
        action="extend",
        required=True,
        metavar="OLD",
        help="schema files of the earlier versions, oldest first",
    )
    levels = ", ".join(CompatibilityLevel)
    check.add_argument(
        "--level",
        default=CompatibilityLevel.BACKWARD.value,
        help=f"{levels}, in any case (default: BACKWARD). BACKWARD: NEW reads data written with OLD; FORWARD: OLD "
        "reads data written with NEW; FULL: both. Only the last OLD is compared, all of them with _TRANSITIVE",
    )
    add_format_flag(check)
    check.set_defaults(run=run_check)


def run(args: argparse.Namespace) -> int:
    return run_check(args)


def run_check(args: argparse.Namespace) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A file name need not be valid text, and not every terminal has every character; neither may end the check.
        sys.stdout.reconfigure(errors="backslashreplace")
    level = _level(args.level)
    schemas, failures = _read_all([*args.against, *args.new])
    reports: list[Report] = []
    if all(file in schemas for file in args.against):
        history = [VersionedSchema(number, schemas[file], file) for number, file in enumerate(args.against, 1)]
        for file in args.new:
            if file in schemas:
                _check(schemas[file], history, level, reports, failures)
    if args.format == "json":
        print_json(json_document(reports, [_failure_json(failure) for failure in failures]))
    else:
        _print_text(reports, len(history) if reports else 0)
    sys.stdout.flush()
    for failure in failures:
        print(failure.line(), file=sys.stderr)
    return _exit_code(reports, failures)


def _level(text: str) -> CompatibilityLevel:
    try:
        return parse_level(text)
    except InvalidLevel as error:
        raise CommandError(f"--level: {error}") from error


def _check(
    schema: Schema,
    history: Sequence[VersionedSchema],
    level: CompatibilityLevel,
    reports: list[Report],
    failures: list[Failure],
) -> None:
    try:
        reports.append(check_level(schema, history, level, every_version=True))
    except CompatError as error:
        failures.append(Failure(EXIT_FAILED, schema.source, str(error)))


def _read_all(files: Sequence[str]) -> tuple[Mapping[str, Schema], list[Failure]]:
    """The schemas of all files that hold one, each file read once, and what is wrong with the others."""
    schemas: dict[str, Schema] = {}
    failures: list[Failure] = []
    for file in dict.fromkeys(files):
        try:
            schemas[file] = parse_schema(_read_text(file), source=file)
        except _FileError as error:
            failures.append(error.failure)
        except SchemaParseError as error:
            failures.append(Failure(EXIT_INVALID_SCHEMA, file, error.message, error.position))
    return schemas, failures


def _read_text(file: str) -> str:
    """The text of a file.

    Raises:
        _FileError: it cannot be read, or is no UTF-8 text.
    """
    try:
        with open(file, "rb") as stream:  # noqa: PTH123 - Path would take "" for the current folder
            data = stream.read(FILE_BYTES_MAX + 1)
    except IsADirectoryError as error:
        raise _FileError(Failure(EXIT_FAILED, file, "is a folder; expected a schema file (.avsc)")) from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise _FileError(Failure(EXIT_FAILED, file, f"cannot be read: {reason}; expected a schema file")) from error
    if len(data) > FILE_BYTES_MAX:
        message = f"longer than {FILE_BYTES_MAX} bytes; expected an Avro schema in JSON"
        raise _FileError(Failure(EXIT_INVALID_SCHEMA, file, message))
    if not data.strip():
        message = "the file is empty; expected an Avro schema in JSON"
        raise _FileError(Failure(EXIT_INVALID_SCHEMA, file, message, Position("", 1, 1)))
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _FileError(Failure(EXIT_INVALID_SCHEMA, file, *_not_text(data, error))) from error


def _not_text(data: bytes, error: UnicodeDecodeError) -> tuple[str, Position]:
    """What is wrong with bytes that are not UTF-8, and where."""
    before = data[: error.start]
    line_start = before.rfind(b"\n") + 1
    position = Position("", before.count(b"\n") + 1, len(before[line_start:].decode("utf-8")) + 1)
    found = "UTF-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else f"the byte 0x{data[error.start]:02x}"
    return f"not UTF-8 text (found {found}); expected an Avro schema in JSON", position


def _failure_json(failure: Failure) -> dict[str, object]:
    position = failure.position
    return {
        "kind": "invalid" if failure.exit_code == EXIT_INVALID_SCHEMA else "unreadable",
        "file": failure.file,
        "line": position.line if position else None,
        "column": position.column if position else None,
        "pointer": position.pointer if position else None,
        "message": failure.message,
    }


def _print_text(reports: Sequence[Report], versions: int) -> None:
    style = COLOURED if _wants_colour(sys.stdout) else PLAIN
    for report in reports:
        print(text_report(report, style))
    if reports and versions > 1 and reports[0].compared and len(reports[0].compared) < versions:
        level = reports[0].level.value
        others = "the older file was" if versions == 2 else f"the {versions - 1} older files were"
        print(f"note: {others} not compared; --level {level}_TRANSITIVE compares every one")


def _wants_colour(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _exit_code(reports: Sequence[Report], failures: Sequence[Failure]) -> int:
    codes = {failure.exit_code for failure in failures}
    for code in (EXIT_FAILED, EXIT_INVALID_SCHEMA):
        if code in codes:
            return code
    return EXIT_OK if all(report.is_compatible for report in reports) else EXIT_FINDINGS
