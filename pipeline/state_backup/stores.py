"""Decides which stores a backup of this machine contains, and where they are. A store on
another server has its own backups: it is left out, with the reason."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.audit.storage.store import audit_address
from headrace.hive_ddl.executors.session import METASTORE_DIRECTORY
from headrace.loader.storage.local import LOG_DIRECTORY
from headrace.pipeline.state_backup.manifest import BackupError, Store
from headrace.registry.storage.engines import DatabaseAddress
from headrace.settings import Settings
from headrace.settings.addresses import RemoteDirectory, state_location, warehouse_location

BROKER_DIRECTORY = "broker"
REGISTRY_FILE = "registry.db"
REGISTRY_DUMP = "registry.dump"


@dataclass(frozen=True, slots=True)
class StorePlaces:
    """Where the stores of this machine are, or would be after a restore.

    `paths` has the directory or file of each local store. `database_url` is the URL of a PostgreSQL database of the
    registry, "" for SQLite. `left_out` has the reasons why the other stores are not backed up.
    """

    paths: Mapping[Store, Path]
    database_url: str
    left_out: Mapping[Store, str]


def store_places(settings: Settings, without: Collection[Store] = ()) -> StorePlaces:
    """Returns the places of the stores that the settings name.

    Args:
        without: stores that the user excludes.
    """
    data_dir = settings.data_dir.resolve()
    warehouse, state = warehouse_location(settings), state_location(settings)
    log = state or (warehouse if isinstance(warehouse, RemoteDirectory) else warehouse / LOG_DIRECTORY)
    paths: dict[Store, Path] = {}
    left_out: dict[Store, str] = {}
    database_url = ""
    for store, key, address, path in (
        (Store.METASTORE, "hive.metastore", settings.hive.metastore, data_dir / METASTORE_DIRECTORY),
        (Store.BROKER, "kafka.bootstrap_servers", settings.kafka.bootstrap_servers, data_dir / BROKER_DIRECTORY),
        (Store.REGISTRY, "registry.url", settings.registry.url, data_dir / REGISTRY_FILE),
    ):
        if address:
            left_out[store] = f"{key} names another server; use its own backup"
        else:
            paths[store] = path
    audit = audit_address(data_dir, settings.audit.database_url)
    audit_file = audit if isinstance(audit, Path) else _sqlite_file(audit, "audit.database_url")
    if audit_file is None:
        left_out[Store.AUDIT] = "audit.database_url names a server; use its own backup"
    else:
        paths[Store.AUDIT] = audit_file
    if Store.REGISTRY in paths and settings.registry.database_url:
        found = _sqlite_file(settings.registry.database_url, "registry.database_url")
        if found is None:
            del paths[Store.REGISTRY]
            database_url = settings.registry.database_url
        else:
            paths[Store.REGISTRY] = found
    for store, directory in ((Store.COMMIT_LOG, log), (Store.TABLES, warehouse)):
        if isinstance(directory, RemoteDirectory):
            left_out[store] = f"it is on {directory.scheme}://; use snapshots or copies of that file system"
        else:
            paths[store] = directory
    for store in without:
        paths.pop(store, None)
        left_out[store] = "--without"
    if Store.REGISTRY in without:
        database_url = ""
    return StorePlaces(paths, database_url, left_out)


def _sqlite_file(url: str, key: str) -> Path | None:
    """Returns the file of an SQLite database, None for PostgreSQL.

    Raises:
        BackupError: the URL is invalid.
    """
    try:
        address = DatabaseAddress.of(url)
    except Exception as error:
        raise BackupError(f"{key} is invalid; correct it") from error
    if not address.url.drivername.startswith("sqlite"):
        return None
    return Path(str(address.url.database)).resolve()
