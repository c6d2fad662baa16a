"""A warehouse in a directory of a local file system, or of a network file system with hard links."""

from __future__ import annotations

from pathlib import Path

from headrace.loader.storage.local.commit_storage import LocalCommitStorage
from headrace.loader.storage.local.files import LocalFiles
from headrace.loader.storage.local.staging import LocalStaging
from headrace.loader.storage.protocols import Storage, WarehouseFiles

LOG_DIRECTORY = "_headrace"


def local_storage(warehouse: Path) -> Storage:
    """Returns the storage of the warehouse in this directory. Reads and writes nothing yet."""
    log = warehouse / LOG_DIRECTORY
    staging = LocalStaging(log)
    return Storage(LocalCommitStorage(log), staging, LocalFiles(warehouse, staging))


def files_at(root: str) -> WarehouseFiles:
    """Returns the files of the warehouse, opened in a task. `root` is the text that the driver passed to the task: its
    value of `WarehouseFiles.root`."""
    return local_storage(Path(root)).files
