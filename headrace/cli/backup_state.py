"""`headrace backup-state`: copies the state of this machine while everything runs."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.command import (
    EXIT_FINDINGS,
    EXIT_OK,
    CommandError,
    add_format_flag,
    add_settings_flags,
    examples,
    print_json,
    print_table,
    settings_from,
)
from headrace.cli.loaded_state import loader_errors_as_command_errors
from headrace.cli.terminal import steps_shown

if TYPE_CHECKING:
    from headrace.pipeline.state_backup.manifest import Manifest

EXCLUDABLE = ("metastore", "audit", "tables", "broker", "registry")
EPILOG = """

Stores in a backup:
  commit-log  commits, checkpoints, writer schemas
  tables      the files of the tables: as hard links if DIR is on the same file system, else as copies
  broker      topics, messages, group offsets, transactions: all partitions at one instant
  registry    SQLite, or PostgreSQL by pg_dump
  metastore   Derby
  audit       counts and accepted findings
A store that runs elsewhere is left out, and the report says so. Settings, users files, TLS keys and logs are no state:
keep copies of them yourself.

exit codes:
  0  the backup is complete
  1  the backup is complete, and the state that it copied has faults: the report names them
  2  failure: there is no backup
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Backs up the state of this machine into a new directory, while registry, broker, loads and producers run. "
        "`headrace restore-state` restores it. The directory holds messages: only its owner can read it."
    )
    parser.epilog = (
        examples("backup-state /backup/2026-01-31", "backup-state /backup/today --without tables --format json")
        + EPILOG
    )
    parser.add_argument("directory", metavar="DIR", type=Path, help="new or empty directory of the backup")
    parser.add_argument(
        "--without",
        metavar="STORE",
        action="append",
        default=[],
        choices=EXCLUDABLE,
        help=f"leave out a store ({', '.join(EXCLUDABLE)}); may be repeated",
    )
    add_settings_flags(parser, ("registry.database_url", "loader.warehouse"))
    add_format_flag(parser)


def run(args: argparse.Namespace) -> int:
    from headrace.pipeline.state_backup.backup import back_up
    from headrace.pipeline.state_backup.manifest import Store

    with backup_errors_as_command_errors(), steps_shown() as show:
        manifest = back_up(
            settings_from(args), args.directory, without=[Store(name) for name in args.without], progress=show
        )
    if args.format == "json":
        print_json({"directory": str(args.directory.resolve()), **manifest_json(manifest)})
    else:
        print(f"backup {args.directory.resolve()}: {len(manifest.files):,} files, {manifest.bytes / 1e6:,.1f} MB")
        print_stores(manifest)
        for finding in manifest.findings:
            print(f"FINDING: {finding}")
    return EXIT_FINDINGS if manifest.findings else EXIT_OK


@contextlib.contextmanager
def backup_errors_as_command_errors() -> Iterator[None]:
    from headrace.broker.errors import BrokerError
    from headrace.pipeline.state_backup.manifest import BackupError

    with loader_errors_as_command_errors():
        try:
            yield
        except (BackupError, BrokerError) as error:
            raise CommandError(str(error)) from error


def manifest_json(manifest: Manifest) -> dict[str, Any]:
    """Returns the facts of a manifest without the list of its files."""
    return {
        "release": manifest.release,
        "git_commit": manifest.git_commit,
        "started_at": manifest.started_at,
        "finished_at": manifest.finished_at,
        "data_dir": manifest.data_dir,
        "warehouse": manifest.warehouse,
        "commit_number": manifest.commit_number,
        "files": len(manifest.files),
        "bytes": manifest.bytes,
        "stores": dict(manifest.stores),
        "left_out": dict(manifest.left_out),
        "findings": list(manifest.findings),
    }


def print_stores(manifest: Manifest) -> None:
    from headrace.pipeline.state_backup.manifest import Store

    rows = []
    for store in Store:
        files = tuple(manifest.files_of(store))
        size = f"{sum(file.bytes for file in files) / 1e6:,.1f}"
        if store in manifest.stores:
            rows.append((str(store), f"{len(files):,}", size, manifest.stores[store]))
        else:
            rows.append((str(store), "-", "-", f"left out: {manifest.left_out.get(store, '')}"))
    print_table(("store", "files", "MB", "state"), rows, (1, 2))
