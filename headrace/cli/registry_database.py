"""`headrace registry db`: creates and migrates the registry's database. Also opens it for other commands."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.command import EXIT_OK, CommandError, add_settings_flags, examples, settings_from
from headrace.settings import Settings

if TYPE_CHECKING:
    from headrace.registry.storage.database import Database


def add_verbs(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `db` to the verbs of `headrace registry`."""
    database = verbs.add_parser(
        "db", help="create or migrate the database", description="Manages the registry's database."
    )
    database_verbs = database.add_subparsers(metavar="VERB", required=True)
    upgrade = database_verbs.add_parser(
        "upgrade",
        help="migrate the tables to this version of Headrace",
        description="Creates or migrates the registry's tables. For SQLite this is not necessary: `registry serve` "
        "does it when it starts.",
        epilog=examples("registry db upgrade --database-url postgresql://headrace@db.example.com/registry"),
    )
    add_settings_flags(upgrade, ("registry.database_url",))
    upgrade.set_defaults(run_verb=upgrade_database)


def upgrade_database(args: argparse.Namespace) -> int:
    from headrace.registry.errors import RegistryError
    from headrace.registry.storage.database import Database

    settings = settings_from(args)
    try:
        database = Database(database_url(settings))
        database.upgrade()
    except RegistryError as error:
        raise CommandError(str(error)) from error
    print(f"database {database.name} is up to date")
    return EXIT_OK


def open_database(args: argparse.Namespace) -> Database:
    """Opens the configured database of the registry. Migrates it first if it is SQLite; otherwise checks its version.

    Raises:
        CommandError: the database cannot be used.
    """
    from headrace.registry.errors import RegistryError
    from headrace.registry.storage.database import Database

    try:
        database = Database(database_url(settings_from(args)))
        (database.upgrade if database.is_sqlite else database.check)()
    except RegistryError as error:
        raise CommandError(str(error)) from error
    return database


def database_url(settings: Settings) -> str:
    """Returns the configured URL of the registry's database, or that of the SQLite file in the data directory. Creates
    the directory if necessary.

    Raises:
        CommandError: the directory cannot be created.
    """
    from headrace.registry.storage.database import sqlite_url

    if settings.registry.database_url:
        return settings.registry.database_url
    directory = Path(settings.data_dir).resolve()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(
            f"data_dir {directory} cannot be created: {error.strerror}; choose another --data-dir"
        ) from error
    return sqlite_url(directory / "registry.db")
