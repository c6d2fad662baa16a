"""Where the settings say that the warehouse and the commit log are, and how they are reached.

What is not local is reached through Spark's own JVM, which is started when the first file is looked at. A session that
is opened later in the process runs in that JVM, so it is started with the session's properties.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.hive_ddl.table import local_location
from headrace.kafka_wire.of_settings import secrets_in_environment
from headrace.loader.errors import StorageError
from headrace.loader.storage.local import LOG_DIRECTORY, local_storage
from headrace.loader.storage.local.commit_storage import LocalCommitStorage
from headrace.loader.storage.protocols import CommitStorage, Storage
from headrace.pipeline.java import ensure_java
from headrace.settings import Settings
from headrace.settings.addresses import RemoteDirectory, resolve_metastore, state_location, warehouse_location

if TYPE_CHECKING:
    from headrace.loader.storage.hadoop.file_system import RemoteFileSystem

STATE_NAME = f"{LOG_DIRECTORY}/state.json"
"""In a warehouse whose commit log is elsewhere: where that is."""

PYTHON_OF_WORKERS = "pyspark.python"

WAREHOUSE_NAME = "warehouse.json"
"""In a commit log that is not in its warehouse: where that is."""


def warehouse_storage(settings: Settings) -> Storage:
    """The storage of the settings; nothing is made or looked at yet."""
    directory, state = warehouse_location(settings), state_location(settings)
    if isinstance(directory, RemoteDirectory):
        from headrace.loader.storage.hadoop import hadoop_storage

        storage = hadoop_storage(_file_system(settings, directory), directory.uri)
    else:
        storage = local_storage(directory)
    if state is None:
        return storage
    return Storage(_commits(settings, state), storage.staging, storage.files)


def _commits(settings: Settings, directory: Path | RemoteDirectory) -> CommitStorage:
    if not isinstance(directory, RemoteDirectory):
        return LocalCommitStorage(directory)
    from headrace.loader.storage.hadoop.commit_storage import HadoopCommitStorage

    return HadoopCommitStorage(_file_system(settings, directory), directory.uri)


def _file_system(settings: Settings, directory: RemoteDirectory) -> RemoteFileSystem:
    from headrace.loader.storage.hadoop.jvm import FILE_SYSTEMS

    return FILE_SYSTEMS[directory.scheme](lambda: _gateway(settings), directory.uri)


def _gateway(settings: Settings) -> Any:
    from headrace.hive_ddl.executors.session import session_properties, shared_jvm

    prepare_environment(settings)
    properties = session_properties(**session_arguments(settings, resolve_metastore(settings)), short_lived=True)
    return shared_jvm(settings.data_dir, properties)


def check_warehouse_and_log(settings: Settings, storage: Storage, *, is_dry: bool) -> None:
    """Makes sure that this commit log and this warehouse belong together, where one is not in the other: with another
    log everything would be loaded a second time into the same tables.

    Raises:
        StorageError: they do not.
    """
    state, warehouse = state_location(settings), location_of(warehouse_location(settings))
    wanted = warehouse if state is None else location_of(state)
    told = _told(storage, STATE_NAME)
    if state is None:
        if told:
            raise StorageError(f"the commits of the warehouse {warehouse} are in {told}: set loader.state to that")
        return
    if storage.files.length(f"{LOG_DIRECTORY}/format.json") is not None:
        raise StorageError(f"the warehouse {warehouse} has commits of its own, and loader.state is {wanted}: unset it")
    if told not in ("", wanted):
        raise StorageError(f"the commits of the warehouse {warehouse} are in {told}, and loader.state is {wanted}")
    held = json.loads(storage.commits.read(WAREHOUSE_NAME) or b'""')
    if held not in ("", warehouse):
        raise StorageError(f"the commits in {wanted} are of the warehouse {held}, and loader.warehouse is {warehouse}")
    if not is_dry:
        storage.commits.put_if_absent(WAREHOUSE_NAME, json.dumps(warehouse).encode())
        storage.files.put(STATE_NAME, json.dumps(wanted).encode())


def _told(storage: Storage, name: str) -> str:
    if storage.files.length(name) is None:
        return ""
    with storage.files.open(name) as file:
        return str(json.load(file))


def location_of(directory: Path | RemoteDirectory) -> str:
    """A directory in Hadoop's spelling."""
    return directory.uri if isinstance(directory, RemoteDirectory) else local_location(directory)


def lease_path(settings: Settings) -> Path:
    """A lock file on this machine: beside the log, since that is what the load works on; for one that is elsewhere, in
    the data directory, under a name of its own."""
    directory = state_location(settings) or warehouse_location(settings)
    if isinstance(directory, RemoteDirectory):
        path = settings.data_dir / f"lease-{hashlib.sha256(directory.uri.encode()).hexdigest()[:16]}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path
    return (directory if settings.loader.state else directory / LOG_DIRECTORY) / "lease.json"


def prepare_environment(settings: Settings) -> None:
    """What Spark's JVM and its Python workers find in their environment; to be called before it is started."""
    ensure_java(settings.data_dir)
    if PYTHON_OF_WORKERS in settings.spark:
        # spark-submit reads it and leaves it here for the driver, which is not started by it.
        os.environ["PYSPARK_PYTHON"] = settings.spark[PYTHON_OF_WORKERS]
    if settings.spark["master"].startswith("local"):
        # Else the workers are whatever `python3` the PATH has, which need not be the one that has the libraries.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        # Not in what Spark is told, which it shows to whoever looks at its pages and logs.
        os.environ.update(secrets_in_environment(settings))


def session_arguments(settings: Settings, metastore_uri: str | None) -> dict[str, Any]:
    """For `session_properties` and `open_session`."""
    return {
        "app_name": "headrace load",
        "master": settings.spark["master"],
        "metastore_uri": metastore_uri,
        "data_dir": settings.data_dir,
        "warehouse_uri": location_of(warehouse_location(settings)),
        "extra": settings.spark,
    }
