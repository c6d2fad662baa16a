"""`headrace restore-state`: restores a backup of `headrace backup-state`."""

from __future__ import annotations

import argparse
from pathlib import Path

from headrace.cli.backup_state import backup_errors_as_command_errors, manifest_json, print_stores
from headrace.cli.command import (
    EXIT_FINDINGS,
    EXIT_OK,
    add_format_flag,
    add_settings_flags,
    examples,
    print_json,
    settings_from,
)
from headrace.cli.terminal import steps_shown

EPILOG = """

Stop `headrace up`, registries, brokers and loads first. Nothing is changed before every file of the backup was compared
with its manifest.

exit codes:
  0  restored, or with --dry-run: it can be restored
  1  restored; findings need action: the report names them
  2  failure
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Restores a backup of `headrace backup-state` into the places that the settings name, such as --data-dir. Use "
        "the same paths as before: the metastore refers to them, and is left out if the warehouse has another path."
    )
    parser.epilog = (
        examples("restore-state /backup/2026-01-31 --dry-run", "restore-state /backup/2026-01-31 --replace") + EPILOG
    )
    parser.add_argument("directory", metavar="DIR", type=Path, help="directory of the backup")
    parser.add_argument("--dry-run", action="store_true", help="check the backup and the target, and change nothing")
    parser.add_argument(
        "--replace",
        action="store_true",
        help="rename existing stores to <name>.before-restore-<time>; a PostgreSQL database is overwritten",
    )
    add_settings_flags(parser, ("registry.database_url", "loader.warehouse"))
    add_format_flag(parser)


def run(args: argparse.Namespace) -> int:
    from headrace.pipeline.state_backup.restore import restore

    with backup_errors_as_command_errors(), steps_shown() as show:
        report = restore(
            settings_from(args), args.directory.resolve(), replaces=args.replace, is_dry=args.dry_run, progress=show
        )
    manifest = report.manifest
    if args.format == "json":
        facts = {"backup": manifest_json(manifest), "is_dry_run": args.dry_run, "restored": report.restored}
        print_json({**facts, "moved_aside": report.moved_aside, "notes": report.notes, "findings": report.findings})
    else:
        verb = "can be restored" if args.dry_run else "restored"
        print(f"backup of {manifest.started_at}, commit {manifest.commit_number:,}: {verb}")
        print_stores(manifest)
        for store, place in report.restored.items():
            print(f"{store} {'would be' if args.dry_run else 'is'} in {place}")
        for path in report.moved_aside:
            print(f"note: moved aside: {path}")
        for note in report.notes:
            print(f"note: {note}")
        for finding in report.findings:
            print(f"FINDING: {finding}")
    return EXIT_FINDINGS if report.findings else EXIT_OK
