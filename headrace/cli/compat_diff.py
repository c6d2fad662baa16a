"""`headrace compat diff`: shows the changes of schemas since their earlier versions, and the levels that allow them."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from headrace.avro_schema import Schema, SchemaParseError
from headrace.cli.colour import styled
from headrace.cli.command import add_format_flag, add_settings_flags, print_json, settings_from
from headrace.compat import CompatError, Direction, VersionedSchema
from headrace.compat.check_result import CompatCheckResult, Failure, FailureKind, mask_unprintable
from headrace.compat.checking.baselines.base import BaselineFailed, CandidateSchema, LevelChoice, VersionHistory
from headrace.compat.checking.options import (
    add_source_flags,
    load_sources,
    open_baseline,
    parse_level_choice,
    parse_naming,
)
from headrace.compat.checking.output import escape_unencodable
from headrace.compat.checking.run import list_candidates
from headrace.compat.diff import SchemaChange, diff_schemas
from headrace.compat.levels import compare


def configure_diff(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `headrace compat diff`, except those that select the earlier versions (see
    `add_baseline_flags`)."""
    add_source_flags(parser)
    add_format_flag(parser)
    add_settings_flags(parser, ("registry.url",))
    parser.set_defaults(run=run_diff, pages=True)


def run_diff(args: argparse.Namespace) -> int:
    """Runs `headrace compat diff`: prints the changes of schemas since their earlier versions. Returns 0 if every
    schema could be compared, however much it changed; otherwise the exit code of the failure."""
    escape_unencodable(sys.stdout)
    escape_unencodable(sys.stderr)
    settings = settings_from(args)
    baseline = open_baseline(args, settings)
    choice = LevelChoice(parse_level_choice(args, settings.compat).level)
    try:
        sources = load_sources(args, settings.compat)
        candidates, failures = list_candidates(sources, parse_naming(args, settings.compat))
        failures = [*sources.failures, *failures]
        histories = baseline.histories(candidates, choice) if candidates else []
    except BaselineFailed as error:
        return _end(args, [], list(error.failures))
    rows = []
    for item, history in zip(candidates, histories, strict=True):
        try:
            rows.append(_row(item, history, sources.types.schema(item.file.path)))
        except SchemaParseError as error:
            failures.append(Failure.invalid(error.source or item.file.path, error))
        except CompatError as error:
            failures.append(Failure(FailureKind.INCOMPARABLE, item.file.path, str(error)))
    return _end(args, rows, failures)


def _row(item: CandidateSchema, history: VersionHistory, schema: Schema) -> dict[str, Any]:
    row: dict[str, Any] = {"file": item.file.path, "subject": item.subject}
    if not history.versions:
        return {**row, "earlier": None, "changes": [], "backward": True, "forward": True}
    latest = history.versions[-1]
    earlier = VersionedSchema(latest.version, latest.parse(), latest.label)
    return {
        **row,
        "earlier": latest.label,
        "changes": [_change(change) for change in diff_schemas(earlier.schema, schema)],
        "backward": not compare(schema, earlier, Direction.BACKWARD),
        "forward": not compare(schema, earlier, Direction.FORWARD),
    }


def _change(change: SchemaChange) -> dict[str, Any]:
    return {
        "kind": change.kind.value,
        "name": change.name,
        "attribute": change.attribute or None,
        "before": change.before or None,
        "after": change.after or None,
        "line": change.position.line,
        "column": change.position.column,
        "words": change.describe(),
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
    return CompatCheckResult((), tuple(failures)).exit_code


def _print_row(row: dict[str, Any]) -> None:
    file = styled(mask_unprintable(row["file"]), "head")
    if row["earlier"] is None:
        print(f"{file}: new")
        return
    earlier = mask_unprintable(row["earlier"])
    if not row["changes"]:
        print(f"{file}: the same as {earlier}")
        return
    print(f"{file} against {earlier}")
    for change in row["changes"]:
        print(f"  {mask_unprintable(change['words'])}")
    compatibility = {"BACKWARD": row["backward"], "FORWARD": row["forward"], "FULL": row["backward"] and row["forward"]}
    words = {True: styled("yes", "good"), False: styled("no", "warn")}
    print("  " + ", ".join(f"{level}: {words[is_compatible]}" for level, is_compatible in compatibility.items()))
