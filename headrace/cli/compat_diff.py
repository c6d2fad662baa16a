"""`headrace compat diff`: what changed in schemas since their earlier version, and which levels allow it."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from headrace.avro_schema import Schema, SchemaParseError
from headrace.cli.colour import painted
from headrace.cli.command import add_format_flag, add_settings_flags, print_json, settings_from
from headrace.compat import CompatError, Direction, VersionedSchema
from headrace.compat.checking.baselines.base import BaselineFailed, History, LevelChoice, Wanted
from headrace.compat.checking.options import add_source_flags, baseline_from, choice_from, naming_from, sources_from
from headrace.compat.checking.output import let_everything_through
from headrace.compat.checking.run import wanted_of
from headrace.compat.diff import Change, changes
from headrace.compat.levels import compare
from headrace.compat.outcome import Failure, FailureKind, Outcome, printable


def configure_diff(parser: argparse.ArgumentParser) -> None:
    """The flags besides those of the baseline."""
    add_source_flags(parser)
    add_format_flag(parser)
    add_settings_flags(parser, ("registry.url",))
    parser.set_defaults(run=run_diff)


def run_diff(args: argparse.Namespace) -> int:
    """Exit 0 when every schema could be compared, whatever changed; else the code of what is wrong."""
    let_everything_through(sys.stdout)
    let_everything_through(sys.stderr)
    settings = settings_from(args)
    baseline = baseline_from(args, settings)
    choice = LevelChoice(choice_from(args, settings.compat).level)
    try:
        sources = sources_from(args, settings.compat)
        wanted, failures = wanted_of(sources, naming_from(args, settings.compat))
        failures = [*sources.failures, *failures]
        histories = baseline.histories(wanted, choice) if wanted else []
    except BaselineFailed as error:
        return _end(args, [], list(error.failures))
    rows = []
    for item, history in zip(wanted, histories, strict=True):
        try:
            rows.append(_row(item, history, sources.types.schema(item.file.path)))
        except SchemaParseError as error:
            failures.append(Failure.invalid(error.source or item.file.path, error))
        except CompatError as error:
            failures.append(Failure(FailureKind.INCOMPARABLE, item.file.path, str(error)))
    return _end(args, rows, failures)


def _row(wanted: Wanted, history: History, candidate: Schema) -> dict[str, Any]:
    row: dict[str, Any] = {"file": wanted.file.path, "subject": wanted.subject}
    if not history.versions:
        return {**row, "earlier": None, "changes": [], "backward": True, "forward": True}
    latest = history.versions[-1]
    earlier = VersionedSchema(latest.version, latest.parse(), latest.label)
    return {
        **row,
        "earlier": latest.label,
        "changes": [_change(change) for change in changes(earlier.schema, candidate)],
        "backward": not compare(candidate, earlier, Direction.BACKWARD),
        "forward": not compare(candidate, earlier, Direction.FORWARD),
    }


def _change(change: Change) -> dict[str, Any]:
    return {
        "kind": change.kind.value,
        "name": change.name,
        "attribute": change.attribute or None,
        "before": change.before or None,
        "after": change.after or None,
        "line": change.position.line,
        "column": change.position.column,
        "words": change.words(),
    }


def _end(args: argparse.Namespace, rows: list[dict[str, Any]], failures: list[Failure]) -> int:
    if args.format == "json":
        errors = [{"kind": item.kind.value, "file": item.file, "message": item.message} for item in failures]
        print_json({"format": 1, "schemas": rows, "errors": errors})
    else:
        for row in rows:
            _print_row(row)
    sys.stdout.flush()
    for failure in failures:
        print(failure.text(), file=sys.stderr)
    return Outcome((), tuple(failures)).exit_code


def _print_row(row: dict[str, Any]) -> None:
    file = painted(printable(row["file"]), "head")
    if row["earlier"] is None:
        print(f"{file}: new")
        return
    earlier = printable(row["earlier"])
    if not row["changes"]:
        print(f"{file}: the same as {earlier}")
        return
    print(f"{file} against {earlier}")
    for change in row["changes"]:
        print(f"  {printable(change['words'])}")
    fits = {"BACKWARD": row["backward"], "FORWARD": row["forward"], "FULL": row["backward"] and row["forward"]}
    words = {True: painted("yes", "good"), False: painted("no", "warn")}
    print("  " + ", ".join(f"{level}: {words[fit]}" for level, fit in fits.items()))
