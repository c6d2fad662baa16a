"""`headrace schema`: validates, registers, downloads and locks schema files.

Has the exit codes of `headrace compat`: 0 success; 1 incompatible, not registered, or different from the lock; 2
failure of a file or the command line; 3 a file is not a schema; 4 the registry is not available or denies access.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.colour import styled
from headrace.cli.command import (
    EXIT_FINDINGS,
    EXIT_OK,
    CommandError,
    add_format_flag,
    add_settings_flags,
    examples,
    print_json,
    settings_from,
)
from headrace.cli.report import ReportRow, TextReport, add_all_flag, print_lines, print_report
from headrace.compat.check_result import EXIT_CODES, CompatCheckResult, Failure, FailureKind, pluralize
from headrace.compat.checking.baselines.base import BaselineFailed, LevelChoice
from headrace.compat.checking.options import add_source_flags, load_sources, open_client, parse_naming
from headrace.compat.checking.output import escape_unencodable, print_result
from headrace.compat.checking.run import check, find_invalid
from headrace.compat.errors import NoSubject
from headrace.compat.subjects import SubjectNaming, SubjectSource
from headrace.settings import Settings

if TYPE_CHECKING:
    from headrace.compat.checking.downloads import SkippedDownload
    from headrace.compat.checking.registering import PlannedRegistration, RegisteredFile
    from headrace.compat.checking.sources import Sources
    from headrace.registry.client import RegistryClient

LOCK_FILE = "headrace.lock"
EXIT_REGISTRY = EXIT_CODES[FailureKind.REGISTRY]
EXIT_INVALID = EXIT_CODES[FailureKind.INVALID]


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    _configure_validate(
        verbs.add_parser(
            "validate",
            help="validate schema files",
            description="Parses schema files, including types that they use of each other, and reports errors. Needs "
            "neither earlier versions nor a registry.",
            epilog=examples("schema validate schemas", "schema validate schemas --since origin/main"),
        )
    )
    _configure_register(
        verbs.add_parser(
            "register",
            help="register schema files",
            description="Registers schemas, referenced ones first. Checks all files before it registers the first, "
            "so that an invalid file prevents every registration. A registered schema keeps its version and id.",
            epilog=examples("schema register schemas --dry-run", "schema register schemas/orders.avsc"),
        )
    )
    _configure_download(
        verbs.add_parser(
            "download",
            help="download schemas from a registry",
            description="Writes the newest version of subjects, and of the subjects that they reference, to "
            "<subject>.avsc.",
            epilog=examples(
                "schema download 'orders*' --to released/", "schema download --to released/ --all-versions"
            ),
        )
    )
    _configure_lock(
        verbs.add_parser(
            "lock",
            help="lock the version and id of each schema file",
            description="Writes a lock file with the registered version and id of each schema file. With --check it "
            "compares files, lock file and registry, and changes nothing.",
            epilog=examples("schema lock schemas", "schema lock schemas --check"),
        )
    )


def _configure_validate(parser: argparse.ArgumentParser) -> None:
    add_source_flags(parser)
    add_settings_flags(parser, ())
    parser.set_defaults(run_verb=run_validate)


def _configure_register(parser: argparse.ArgumentParser) -> None:
    add_source_flags(parser)
    parser.add_argument("--dry-run", action="store_true", help="show the registrations without making them")
    _add_registry_flags(parser)
    parser.set_defaults(run_verb=run_register)


def _configure_download(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "subjects", nargs="*", metavar="SUBJECT", help="subject, or pattern in quotes; default: all subjects"
    )
    parser.add_argument("--to", required=True, type=Path, metavar="DIR", help="directory to write to")
    parser.add_argument("--all-versions", action="store_true", help="every version, to <subject>/<version>.avsc")
    parser.add_argument(
        "--dry-run", action="store_true", help="show which files would be written, without writing them"
    )
    _add_registry_flags(parser)
    parser.set_defaults(run_verb=run_download)


def _configure_lock(parser: argparse.ArgumentParser) -> None:
    add_source_flags(parser)
    parser.add_argument("--lock-file", type=Path, default=Path(LOCK_FILE), metavar="FILE", help=f"default: {LOCK_FILE}")
    parser.add_argument(
        "--check", action="store_true", help="compare files, lock file and registry; exit 1 if they differ"
    )
    parser.add_argument(
        "--offline", action="store_true", help="with --check: compare files and lock file without the registry"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the lock file without writing it")
    _add_registry_flags(parser)
    parser.set_defaults(run_verb=run_lock)


def _add_registry_flags(parser: argparse.ArgumentParser) -> None:
    add_all_flag(parser)
    add_format_flag(parser)
    add_settings_flags(parser, ("registry.url",))


def run(args: argparse.Namespace) -> int:
    escape_unencodable(sys.stdout)
    escape_unencodable(sys.stderr)
    return int(args.run_verb(args))


def run_validate(args: argparse.Namespace) -> int:
    sources = _sources(args, settings_from(args))
    broken = [failure for file in sources.files if (failure := find_invalid(sources.types, file.path)) is not None]
    if sources.failures or broken:
        valid = pluralize(len(sources.files) - len(broken), "valid schema")
        return _refused_files((*sources.failures, *broken), valid)
    print(styled(pluralize(len(sources.files), "valid schema"), "good"))
    return EXIT_OK


def run_register(args: argparse.Namespace) -> int:
    from headrace.compat.checking.baselines.registry import RegistryBaseline
    from headrace.compat.checking.registering import plan_registrations, register_all, with_planned_files

    settings = settings_from(args)
    naming = parse_naming(args, settings.compat)
    sources = _sources(args, settings)
    plan, failures = plan_registrations(sources, naming)
    if failures:
        return _refused_files(failures, "nothing was registered")
    with open_client(settings, "") as client:
        result = check(with_planned_files(sources, plan), naming, RegistryBaseline(client), LevelChoice())
        if not result.is_compatible:
            return _refused(result)
        done: list[RegisteredFile] = []
        try:
            with _registry_errors(lambda: f"the schema {plan[len(done)].file}"):
                for item in register_all(plan, client, dry_run=args.dry_run):
                    done.append(item)
        finally:
            _print_registered(args, done)
    return EXIT_OK


def _sources(args: argparse.Namespace, settings: Settings) -> Sources:
    try:
        return load_sources(args, settings.compat)
    except BaselineFailed as error:
        raise CommandError(str(error)) from None


def _refused(result: CompatCheckResult) -> int:
    """Prints the errors or incompatibilities of schemas that prevent a command, in the format of `compat check`.
    Returns the exit code of the check.

    Args:
        result: the result of a check, which is not compatible.
    """
    print_result(result, "text", quiet=True)
    return result.exit_code


def _refused_files(failures: Sequence[Failure], rest: str) -> int:
    """Prints the failures that prevent a command, and a summary. Returns the exit code for the failures.

    Args:
        rest: the result for all other files, for the summary.
    """
    for failure in failures:
        print(failure.text(), file=sys.stderr)
    print(f"{rest}, {styled(pluralize(len(failures), 'error'), 'bad')}")
    return CompatCheckResult((), tuple(failures)).exit_code


@contextmanager
def _registry_errors(describe_schema: Callable[[], str] = lambda: "a schema") -> Iterator[None]:
    """Context manager that converts errors of the registry to a `CommandError` with a one-line message and an exit
    code.

    Args:
        describe_schema: describes the schema of the last request, for the message.
    """
    from headrace.registry.errors import (
        AccessDenied,
        IncompatibleSchema,
        InvalidSchema,
        RegistryError,
        RegistryUnavailable,
        ServiceError,
        StoreError,
    )

    try:
        yield
    except IncompatibleSchema as error:
        raise CommandError(str(error), EXIT_FINDINGS) from None
    except InvalidSchema as error:
        raise CommandError(f"the registry rejects {describe_schema()}: {error}", EXIT_INVALID) from None
    except (RegistryUnavailable, AccessDenied, ServiceError, StoreError) as error:
        raise CommandError(str(error), EXIT_REGISTRY) from None
    except RegistryError as error:
        raise CommandError(str(error)) from None


def _print_registered(args: argparse.Namespace, done: Sequence[RegisteredFile]) -> None:
    rows = [
        {
            "file": item.registration.file,
            "subject": item.registration.subject,
            "action": item.action.value,
            "version": item.version,
            "id": item.schema_id,
        }
        for item in done
    ]
    if args.format == "json":
        print_json({"format": 1, "dry_run": args.dry_run, "schemas": rows})
        return
    _print_rows(args, ("FILE", "SUBJECT", "ACTION", "VERSION", "ID"), rows)
    if args.dry_run:
        print("dry run: nothing was registered")


def _print_rows(args: argparse.Namespace, header: tuple[str, ...], rows: Sequence[dict[str, Any]]) -> None:
    # Of many schemas, the first rows shown are those with the rarest action, such as new ones among unchanged ones.
    actions = Counter(row["action"] for row in rows)
    totals = f"{pluralize(len(rows), 'schema')}{''.join(f', {count:,} {name}' for name, count in actions.items())}"
    cells = tuple(
        ReportRow(tuple("-" if value is None else str(value) for value in row.values()), weight=-actions[row["action"]])
        for row in rows
    )
    print_report(TextReport(totals, "schema", header, cells, (3, 4), is_listing=True), shows_all=args.all)


def run_download(args: argparse.Namespace) -> int:
    from headrace.compat.checking.downloads import SkippedDownload, match_subjects, plan_downloads

    settings = settings_from(args)
    rows: list[dict[str, Any]] = []
    skipped: list[SkippedDownload] = []
    with open_client(settings, "") as client, _registry_errors():
        subjects = match_subjects(client, args.subjects)
        try:
            for item in plan_downloads(client, subjects, args.to, all_versions=args.all_versions):
                if isinstance(item, SkippedDownload):
                    skipped.append(item)
                    continue
                rows.append(
                    {"file": str(item.path), "subject": item.subject, "action": item.state, "version": item.version}
                )
                if not args.dry_run and item.state != "unchanged":
                    item.path.parent.mkdir(parents=True, exist_ok=True)
                    item.path.write_text(item.text, encoding="utf-8")
        except OSError as error:
            raise CommandError(f"{error.filename or args.to} cannot be written: {error.strerror}") from None
    _print_downloads(args, rows, skipped)
    if skipped:
        raise CommandError(f"{pluralize(len(skipped), 'schema')} could not be downloaded")
    return EXIT_OK


def _print_downloads(
    args: argparse.Namespace, rows: Sequence[dict[str, Any]], skipped: Sequence[SkippedDownload]
) -> None:
    if args.format == "json":
        reasons = [{"subject": item.subject, "reason": item.reason} for item in skipped]
        print_json({"format": 1, "dry_run": args.dry_run, "schemas": rows, "skipped": reasons})
        return
    _print_rows(args, ("FILE", "SUBJECT", "ACTION", "VERSION"), rows)
    default = SubjectNaming()
    if not args.all_versions and any(_derived_subject(default, row["file"]) != row["subject"] for row in rows):
        print("check and register these files with --subject-strategy file: other strategies give other subjects")
    print_lines([f"NOT DOWNLOADED: {item.subject}: {item.reason}" for item in skipped], shows_all=args.all)
    if args.dry_run:
        print("dry run: no file was written")


def _derived_subject(naming: SubjectNaming, path: str) -> str:
    try:
        return naming.derive_subject(SubjectSource(path))
    except NoSubject:
        return ""


def run_lock(args: argparse.Namespace) -> int:
    from headrace.compat.checking.registering import plan_registrations

    if args.offline and not args.check:
        raise CommandError("--offline requires --check: writing a lock file needs the registry")
    settings = settings_from(args)
    sources = _sources(args, settings)
    plan, failures = plan_registrations(sources, parse_naming(args, settings.compat))
    if failures:
        return _refused_files(failures, "nothing was checked" if args.check else "nothing was locked")
    with open_client(settings, "") as client, _registry_errors():
        if args.check:
            return _check_lock(args, sources, plan, None if args.offline else client)
        return _write_lock(args, sources, plan, client)


def _write_lock(
    args: argparse.Namespace, sources: Sources, plan: Sequence[PlannedRegistration], client: RegistryClient
) -> int:
    from headrace.compat.checking.lock import lock_entry, lock_text
    from headrace.compat.checking.registering import register_all

    found = list(register_all(plan, client, dry_run=True))
    missing = tuple(
        Failure(
            FailureKind.NOT_REGISTERED,
            item.registration.file,
            f"is not registered in {item.registration.subject} of {client.url}; register it first",
        )
        for item in found
        if item.version is None
    )
    if missing:
        return _refused_files(missing, pluralize(len(found) - len(missing), "registered schema"))
    text = lock_text([lock_entry(item, sources) for item in found])
    if args.dry_run:
        print(text, end="")
        return EXIT_OK
    try:
        args.lock_file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"the lock file {args.lock_file} cannot be written: {error.strerror}") from None
    print(f"locked {pluralize(len(found), 'schema')} in {args.lock_file}")
    return EXIT_OK


def _check_lock(
    args: argparse.Namespace, sources: Sources, plan: Sequence[PlannedRegistration], client: RegistryClient | None
) -> int:
    from headrace.compat.checking.lock import InvalidLock, find_differences, parse_lock

    try:
        rows = parse_lock(args.lock_file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandError(
            f"the lock file {args.lock_file} cannot be read: {error.strerror}; create it with headrace schema lock"
        ) from None
    except (UnicodeDecodeError, InvalidLock) as error:
        raise CommandError(
            f"the lock file {args.lock_file} cannot be used: {error}; create it again with headrace schema lock"
        ) from None
    subjects = {item.file: item.subject for item in plan}
    found = list(find_differences(rows, sources, subjects, client))
    if args.format == "json":
        print_json({"format": 1, "agree": not found, "differences": found})
    else:
        print_lines([f"FINDING: {line}" for line in found], shows_all=args.all)
        if not found:
            where = "files and lock" if client is None else f"files, lock and {client.url}"
            print(f"{pluralize(len(rows), 'schema')} locked: {styled(f'{where} agree', 'good')}")
    return EXIT_FINDINGS if found else EXIT_OK
