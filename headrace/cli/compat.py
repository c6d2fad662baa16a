"""`headrace compat`: may a schema change go out?

Exit codes: 0 compatible, 1 incompatible, 2 a file could not be read or the command line is wrong, 3 a file is not a
valid Avro schema, 4 the registry cannot be reached or refuses access. Of several that apply the one that leaves most
in the dark is given: 4, then 2, then 3, then 1.
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
from headrace.compat.check_result import CheckResult, pluralize
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
    "compat check schemas/ --against git:origin/main",
    "compat check schemas/ --against-registry http://127.0.0.1:8081 --since origin/main",
    "compat check order.avsc --against released/ --level FULL",
    "compat check order.avsc --against v1.avsc v2.avsc v3.avsc --level FULL_TRANSITIVE",
    "compat check schemas/ --against git:main --format github --output sarif=compat.sarif",
)
EXIT_CODES = """

exit codes:
  0  compatible
  1  incompatible: each problem is named with its line, column and a fix
  2  could not tell: a file or git revision could not be read, or the command line is wrong
  3  a file is not a valid Avro schema
  4  the registry cannot be reached, or refuses access
"""


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    configure_check(
        verbs.add_parser(
            "check",
            help="check new schemas against earlier ones",
            description="Checks whether each SCHEMA is compatible with its earlier versions, as a registry would on "
            "registration. The meaning is that of Avro Java's SchemaCompatibility.",
            epilog=EXAMPLES + EXIT_CODES,
        )
    )
    diff = verbs.add_parser(
        "diff",
        help="show what changed since the earlier version",
        description="Shows what changed in each SCHEMA since its latest earlier version, documentation too, and which "
        "levels allow it. Exit 0 whatever changed.",
        epilog=examples("compat diff schemas/ --against git:main", "compat diff order.avsc --against released/"),
    )
    add_baseline_flags(diff)
    configure_diff(diff)
    explain = verbs.add_parser(
        "explain",
        help="say what a rule or lint asks, and why",
        description="Explains rules and lints.",
        epilog=examples("compat explain", "compat explain TYPE_MISMATCH"),
    )
    explain.add_argument(
        "rule", nargs="?", metavar="RULE", help="such as TYPE_MISMATCH, in any case; default: list all"
    )
    explain.set_defaults(run=run_explain)


def configure_check(parser: argparse.ArgumentParser) -> None:
    add_source_flags(parser)
    add_baseline_flags(parser)
    group = parser.add_argument_group("what counts")
    group.add_argument(
        "--lint",
        action="append",
        default=[],
        metavar="NAME[=LEVEL]",
        help="also look for what compatibility does not ask: a lint of `headrace compat explain`, or all; LEVEL is "
        "error, warning or off; several by comma; may be repeated",
    )
    group.add_argument(
        "--require-subject",
        action="store_true",
        help="fail for a schema that has no earlier version; without it that is told and passes",
    )
    group.add_argument(
        "--skip-invalid", action="store_true", help="leave out earlier versions that are no valid schemas, and say so"
    )
    group.add_argument("--baseline", metavar="FILE", help="known findings that do not count (adopting the check late)")
    group.add_argument("--write-baseline", metavar="FILE", help="write what is found to FILE as known; exit 0")
    group.add_argument("--exit-zero", action="store_true", help="exit 0 also when schemas are incompatible (exit 1)")
    group = parser.add_argument_group("output")
    group.add_argument("--format", choices=FORMATS, default="text", help="what standard output gets (default: text)")
    group.add_argument(
        "--output",
        action="append",
        default=[],
        metavar="FORMAT=PATH",
        help="also write a format to a file; may be repeated",
    )
    group.add_argument("--verbose", action="store_true", help="say which versions and whose level were used")
    group.add_argument("--quiet", action="store_true", help="leave out schemas of which there is nothing to say")
    parser.add_argument("--jobs", type=_count, metavar="N", help="processes to use (default: the number of cores)")
    add_settings_flags(parser, ("registry.url",))
    parser.set_defaults(run=run_check)


def add_baseline_flags(parser: argparse.ArgumentParser) -> None:
    """What is compared with, and how."""
    group = parser.add_argument_group("what it is compared with")
    group.add_argument(
        "--against",
        nargs="+",
        action="extend",
        metavar="OLD",
        help="git:REF or git:REF:PATH, where this branch left REF (no network, renames followed), or git-tip:REF, its "
        "newest commit; a directory; schema files, oldest first; or registry, the one of the settings",
    )
    group.add_argument("--against-registry", metavar="URL", help="a registry, each subject at its own level")
    group.add_argument("--against-db", metavar="URL", help="a Headrace registry's database, without its server")
    levels = ", ".join(CompatibilityLevel)
    group.add_argument(
        "--level",
        metavar="LEVEL",
        help=f"{levels}, in any case; default: the subject's own in a registry, else BACKWARD. BACKWARD: the new "
        "schema reads data written with the earlier one; FORWARD: the other way round; FULL: both. Only the last "
        "version is compared, every one with _TRANSITIVE",
    )
    group.add_argument(
        "--all-new",
        action="store_true",
        help="pass where a registry has subjects and none of these; without it that is taken for a wrong strategy",
    )
    group.add_argument("--all-versions", action="store_true", help="compare with every earlier version at any level")


def _count(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) < 1000:
        raise argparse.ArgumentTypeError(f"expected a number of processes from 1 to 999, found {text!r}")
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
        result = CheckResult((), error.failures, tool_version=VERSION)
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
    """What a rule or lint asks for and why, or the list of all."""
    from headrace.compat.catalogue import CATALOGUE, find_catalogue_entry
    from headrace.compat.lints import DEFAULT_LINTS

    if args.rule is None:
        rows = [
            (row.id, "lint" if row.is_lint else "rule", row.severity.value, row.purpose) for row in CATALOGUE.values()
        ]
        print_table(("NAME", "KIND", "SEVERITY", "WHAT IT ASKS"), rows)
        return EXIT_OK
    row = find_catalogue_entry(args.rule)
    if row is None:
        raise CommandError(f"{args.rule!r} is no rule or lint; expected one of {', '.join(CATALOGUE)}")
    severity = styled(row.severity.value, "bad" if row.severity is Severity.ERROR else "warn")
    print(f"{styled(row.id, 'head')} ({severity}): {row.purpose}\n\n{row.why}")
    if row.id in DEFAULT_LINTS:
        print(
            f"\nIt is looked at by default, as a warning; --lint {row.id}=error makes it fail, {row.id}=off is silent."
        )
    elif row.is_lint:
        print(f"\nIt has to be asked for: --lint {row.id}, or compat.lints in headrace.toml.")
    return EXIT_OK


def _with_note_on_older_files(result: CheckResult) -> CheckResult:
    """Comparing with the latest only surprises people who have just named several files."""
    for checked in result.checked[:1]:
        older = checked.version_count - len(checked.compared)
        if checked.compared and older > 0:
            others = "the older file was" if older == 1 else f"the {older} older files were"
            note = f"{others} not compared; --level {checked.level.value}_TRANSITIVE compares every one"
            return replace(result, notes=(*result.notes, note))
    return result


def _write_baseline(path: str, result: CheckResult) -> int:
    """Writes what is found as known; schemas that could not be judged keep their exit code."""
    text = render_baseline(result.checked)
    try:
        Path(path).write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise CommandError(f"--write-baseline: {path} cannot be written: {error.strerror}") from None
    count = text.count('"fingerprint"')
    print(f"wrote {pluralize(count, 'known finding')} to {path}; check with --baseline {path}")
    return EXIT_OK if result.exit_code == 1 else result.exit_code
