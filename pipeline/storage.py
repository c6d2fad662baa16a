"""Builds the storage of the warehouse and the commit log from the settings.

HDFS and S3 are accessed through Spark's JVM, which the first file operation starts. The JVM gets the Spark properties
of a load's session even if only files are accessed, because a load in the same process opens its session in that JVM.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.hive_ddl.table import local_location
from headrace.kafka_wire.from_settings import secrets_in_environment
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
"""File in the warehouse that records the location of a separate commit log."""

WORKER_PYTHON_PROPERTY = "pyspark.python"

WAREHOUSE_NAME = "warehouse.json"
"""File in a separate commit log that records the location of its warehouse."""


def warehouse_storage(settings: Settings) -> Storage:
    """Returns the storage of the configured warehouse and commit log. Performs no file operation yet."""
    directory, state = warehouse_location(settings), state_location(settings)
    if isinstance(directory, RemoteDirectory):
        from headrace.loader.storage.hadoop import hadoop_storage

        storage = hadoop_storage(_file_system(settings, directory), directory.uri)
    else:
        storage = local_storage(directory)
    if state is None:
        return storage
    return Storage(_commit_storage(settings, state), storage.staging, storage.files)


def _commit_storage(settings: Settings, directory: Path | RemoteDirectory) -> CommitStorage:
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
    """Checks that a separate commit log (`loader.state`) and the warehouse belong together. With the commit log of
    another warehouse, a load would load all messages a second time into the same tables.

    Args:
        is_dry: whether to check only; otherwise each of the two records the location of the other.

    Raises:
        StorageError: they do not belong together.
    """
    state, warehouse = state_location(settings), location_of(warehouse_location(settings))
    configured_log = warehouse if state is None else location_of(state)
    recorded_log = _recorded_location(storage, STATE_NAME)
    if state is None:
        if recorded_log:
            raise StorageError(
                f"warehouse {warehouse}: its commit log is {recorded_log}; set loader.state to this location"
            )
        return
    if storage.files.length(f"{LOG_DIRECTORY}/format.json") is not None:
        raise StorageError(
            f"warehouse {warehouse}: it contains a commit log, but loader.state is {configured_log}; unset loader.state"
        )
    if recorded_log not in ("", configured_log):
        raise StorageError(
            f"warehouse {warehouse}: its commit log is {recorded_log}, but loader.state is {configured_log}; correct "
            f"loader.state"
        )
    recorded_warehouse = json.loads(storage.commits.read(WAREHOUSE_NAME) or b'""')
    if recorded_warehouse not in ("", warehouse):
        raise StorageError(
            f"commit log {configured_log}: it belongs to the warehouse {recorded_warehouse}, but loader.warehouse is "
            f"{warehouse}; correct one of them"
        )
    if not is_dry:
        storage.commits.put_if_absent(WAREHOUSE_NAME, json.dumps(warehouse).encode())
        storage.files.put(STATE_NAME, json.dumps(configured_log).encode())


def _recorded_location(storage: Storage, name: str) -> str:
    if storage.files.length(name) is None:
        return ""
    with storage.files.open(name) as file:
        return str(json.load(file))


def location_of(directory: Path | RemoteDirectory) -> str:
    """Returns the location of a directory as a URI, as Hadoop writes it: `file:///data`, `hdfs://…` or `s3a://…`."""
    return directory.uri if isinstance(directory, RemoteDirectory) else local_location(directory)


def lease_path(settings: Settings) -> Path:
    """Returns the path of the file of the lease, which keeps loads of this machine from running at once. It is next to
    a local commit log. For a remote commit log it is in the data directory, with a name derived from the log's
    location."""
    directory = state_location(settings) or warehouse_location(settings)
    if isinstance(directory, RemoteDirectory):
        return settings.data_dir / f"lease-{hashlib.sha256(directory.uri.encode()).hexdigest()[:16]}.json"
    return (directory if settings.loader.state else directory / LOG_DIRECTORY) / "lease.json"


def prepare_environment(settings: Settings) -> None:
    """Sets the environment variables of Spark's JVM and its Python workers in this process, which they inherit. Call it
    before the JVM starts."""
    ensure_java(settings.data_dir)
    if WORKER_PYTHON_PROPERTY in settings.spark:
        # spark-submit applies this property itself; a driver started without spark-submit needs the variable.
        os.environ["PYSPARK_PYTHON"] = settings.spark[WORKER_PYTHON_PROPERTY]
    if settings.spark["master"].startswith("local"):
        # Otherwise the workers run the first `python3` on the PATH, which may lack the libraries.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        # In the environment, not in Spark's configuration, which its web pages and logs show.
        os.environ.update(secrets_in_environment(settings))


def session_arguments(settings: Settings, metastore_uri: str | None) -> dict[str, Any]:
    """Returns the keyword arguments with which a load calls `session_properties` and `open_session` of
    `hive_ddl.executors.session`.

    Args:
        metastore_uri: thrift:// URI of the metastore; None for the Derby metastore in the data directory.
    """
    return {
        "app_name": "headrace load",
        "master": settings.spark["master"],
        "metastore_uri": metastore_uri,
        "data_dir": settings.data_dir,
        "warehouse_uri": location_of(warehouse_location(settings)),
        "extra": settings.spark,
    }
