"""`headrace compat`: checks schema changes for compatibility.

Exit codes: 0 compatible, 1 incompatible, 2 a file could not be read or the command line is wrong, 3 a file is not a
valid Avro schema, 4 the registry cannot be reached or denies access. If several apply, the order of precedence is 4, 2,
3, 1: the failure that hides most results comes first.
"""

from __future__ import annotations

import argparse
import datetime
from dataclasses import replace
from pathlib import Path

from headrace.cli.colour import styled
from headrace.cli.command import EXIT_OK, CommandError, add_settings_flags, examples, print_table, settings_from
from headrace.cli.compat_diff import configure_diff
from headrace.compat import CompatibilityLevel
from headrace.compat.baseline_file import render_baseline
from headrace.compat.check_result import CompatCheckResult, pluralize
from headrace.compat.checking.baselines.base import BaselineFailed
from headrace.compat.checking.baselines.files import FilesBaseline
from headrace.compat.checking.options import (
    add_source_flags,
    load_sources,
    open_baseline,
    parse_exemptions,
    parse_level_choice,
    parse_lint_options,
    parse_naming,
)
from headrace.compat.checking.output import parse_outputs, print_result, write_outputs
from headrace.compat.checking.run import CheckOptions, apply_exemptions, check
from headrace.compat.finding import Severity
from headrace.compat.formats import FORMATS
from headrace.version import VERSION

EXAMPLES = examples(
    "compat check schemas --against git:origin/main --level FULL",
    "compat check schemas --against-registry http://127.0.0.1:8081 --since origin/main",
    "compat check order.avsc --against released/ --level FULL",
    "compat check order.avsc --against v1.avsc v2.avsc v3.avsc --level FULL_TRANSITIVE",
    "compat check schemas --against git:origin/main --level FULL --format github --output sarif=compat.sarif",
)
EXIT_CODES = """

exit codes:
  0  compatible
  1  incompatible: each problem has its line, column and a fix
  2  failure: a file or git revision could not be read, or the command line is wrong
  3  a file is not a valid Avro schema
  4  the registry cannot be reached, or denies access
"""


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    configure_check(
        verbs.add_parser(
            "check",
            help="check new schemas against earlier ones",
            description="Checks whether each SCHEMA is compatible with its earlier versions, as a registry does at "
            "registration. Implements the rules of Avro Java's SchemaCompatibility.",
            epilog=EXAMPLES + EXIT_CODES,
        )
    )
    diff = verbs.add_parser(
        "diff",
        help="show the changes since the earlier version",
        description="Shows the changes of each SCHEMA since its latest earlier version, including documentation, and "
        "the levels that allow them. The exit code is 0 for all changes.",
        epilog=examples("compat diff schemas --against git:origin/main", "compat diff order.avsc --against released/"),
    )
    add_baseline_flags(diff)
    configure_diff(diff)
    explain = verbs.add_parser(
        "explain",
        help="explain a rule or lint",
        description="Explains the requirement of a rule or lint and its reason, or lists all rules and lints.",
        epilog=examples("compat explain", "compat explain TYPE_MISMATCH"),
    )
    explain.add_argument(
        "rule", nargs="?", metavar="RULE", help="a name such as TYPE_MISMATCH, case-insensitive (default: list all)"
    )
    explain.set_defaults(run=run_explain)


def configure_check(parser: argparse.ArgumentParser) -> None:
    add_source_flags(parser)
    add_baseline_flags(parser)
    group = parser.add_argument_group("checks")
    group.add_argument(
        "--lint",
        action="append",
        default=[],
        metavar="NAME[=LEVEL]",
        help="also run a lint: a name from `headrace compat explain`, or all; LEVEL is error, warning or off; "
        "separate several by commas; may be repeated",
    )
    group.add_argument(
        "--require-subject",
        action="store_true",
        help="fail for a schema without an earlier version (default: report it and pass)",
    )
    group.add_argument(
        "--skip-invalid", action="store_true", help="skip earlier versions that are not valid schemas, and print a note"
    )
    group.add_argument("--baseline", metavar="FILE", help="file of known findings, which are not reported")
    group.add_argument(
        "--write-baseline",
        metavar="FILE",
        help="write the findings to FILE as known findings; exit 0 unless a schema could not be checked",
    )
    group.add_argument("--exit-zero", action="store_true", help="exit 0 also when schemas are incompatible (exit 1)")
    group = parser.add_argument_group("output")
    group.add_argument("--format", choices=FORMATS, default="text", help="format of standard output (default: text)")
    group.add_argument(
        "--output",
        action="append",
        default=[],
        metavar="FORMAT=PATH",
        help="also write a format to a file; may be repeated",
    )
    group.add_argument(
        "--verbose", action="store_true", help="show each schema, the compared versions and the source of the level"
    )
    group.add_argument("--quiet", action="store_true", help="omit schemas without findings")
    parser.add_argument("--jobs", type=_count, metavar="N", help="processes to use (default: the number of cores)")
    add_settings_flags(parser, ("registry.url",))
    parser.set_defaults(run=run_check, pages=True)


def add_baseline_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that select the earlier versions with which schemas are compared, and the compatibility level."""
    group = parser.add_argument_group("earlier versions")
    group.add_argument(
        "--against",
        nargs="+",
        action="extend",
        metavar="OLD",
        help="git:REF or git:REF:PATH: the commit where this branch left REF (follows renames; no network, except in a "
        "partial clone); git-tip:REF: the newest commit of REF; a directory; schema files, oldest first; or registry: "
        "the registry of the settings",
    )
    group.add_argument(
        "--against-registry", metavar="URL", help="URL of a registry; each subject is checked at its own level"
    )
    group.add_argument("--against-db", metavar="URL", help="URL of a Headrace registry's database; needs no server")
    levels = ", ".join(CompatibilityLevel)
    group.add_argument(
        "--level",
        metavar="LEVEL",
        help=f"{levels}, case-insensitive; default: the subject's level in a registry, else BACKWARD. BACKWARD: the "
        "new schema reads data written with the earlier one; FORWARD: the earlier schema reads new data; FULL: "
        "both. Compares with the last version only; with _TRANSITIVE, with all versions",
    )
    group.add_argument(
        "--all-new",
        action="store_true",
        help="pass if the registry has subjects but none of these (default: fail, since the subject name strategy is "
        "probably wrong)",
    )
    group.add_argument("--all-versions", action="store_true", help="compare with all earlier versions at every level")


def _count(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) < 1000:
        raise argparse.ArgumentTypeError(f"expected 1 to 999 processes, found {text!r}")
    return int(text)


def run(args: argparse.Namespace) -> int:
    return run_check(args)


def run_check(args: argparse.Namespace) -> int:
    settings = settings_from(args)
    outputs = parse_outputs(args.output)
    baseline = open_baseline(args, settings)
    choice = parse_level_choice(args, settings.compat)
    naming = parse_naming(args, settings.compat)
    exemptions = parse_exemptions(args, settings.compat)
    lints = parse_lint_options(args, settings.compat)
    try:
        sources = load_sources(args, settings.compat)
    except BaselineFailed as error:
        result = CompatCheckResult((), error.failures, tool_version=VERSION)
    else:
        require = args.require_subject or settings.compat.require_subject
        options = CheckOptions(require, args.skip_invalid, args.jobs, lints, deleted=True)
        result = check(sources, naming, baseline, choice, options)
        result = apply_exemptions(result, exemptions, datetime.date.today())
    if isinstance(baseline, FilesBaseline):
        result = _with_note_on_older_files(result)
    write_outputs(result, outputs)
    print_result(result, args.format, verbose=args.verbose, quiet=args.quiet)
    if args.write_baseline:
        return _write_baseline(args.write_baseline, result)
    return EXIT_OK if args.exit_zero and result.exit_code == 1 else result.exit_code


def run_explain(args: argparse.Namespace) -> int:
    """Prints the requirement of the rule or lint that the command line names, and its reason. Lists all rules and lints
    if it names none. Returns the exit code."""
    from headrace.compat.catalogue import CATALOGUE, find_catalogue_entry
    from headrace.compat.lints import DEFAULT_LINTS

    if args.rule is None:
        rows = [
            (row.id, "lint" if row.is_lint else "rule", row.severity.value, row.purpose) for row in CATALOGUE.values()
        ]
        print_table(("NAME", "KIND", "SEVERITY", "REQUIREMENT"), rows)
        return EXIT_OK
    row = find_catalogue_entry(args.rule)
    if row is None:
        raise CommandError(f"{args.rule!r} is not a rule or lint; expected one of {', '.join(CATALOGUE)}")
    severity = styled(row.severity.value, "bad" if row.severity is Severity.ERROR else "warn")
    print(f"{styled(row.id, 'head')} ({severity}): {row.purpose}\n\n{row.rationale}")
    if row.id in DEFAULT_LINTS:
        print(f"\nOn by default, as a warning; --lint {row.id}=error makes it an error, {row.id}=off disables it.")
    elif row.is_lint:
        print(f"\nOff by default; enable it with --lint {row.id}, or compat.lints in headrace.toml.")
    return EXIT_OK


def _with_note_on_older_files(result: CompatCheckResult) -> CompatCheckResult:
    """Returns the result of a check, with a sentence added to its `notes` for the user if only the newest of several
    earlier files was compared. Levels without _TRANSITIVE compare only that file, and a user with several files may
    expect otherwise."""
    for checked in result.checked[:1]:
        older = checked.version_count - len(checked.compared)
        if checked.compared and older > 0:
            others = "the older file was" if older == 1 else f"the {older} older files were"
            note = f"{others} not compared; --level {checked.level.value}_TRANSITIVE compares every one"
            return replace(result, notes=(*result.notes, note))
    return result


def _write_baseline(path: str, result: CompatCheckResult) -> int:
    """Writes the findings of a check to a file, so that later checks with `--baseline` do not fail because of them.
    Returns the exit code of the check, but 0 in place of 1 if schemas are only incompatible. A failure, such as of
    `--require-subject`, is not in the file."""
    text = render_baseline(result.checked)
    try:
        Path(path).write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise CommandError(f"--write-baseline: {path} cannot be written: {error.strerror}") from None
    count = text.count('"fingerprint"')
    print(f"wrote {pluralize(count, 'known finding')} to {path}; check with --baseline {path}")
    return result.exit_code if result.failures else EXIT_OK
