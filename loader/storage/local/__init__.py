"""A directory of a local file system, or of a shared one that has hard links, as a warehouse."""

from __future__ import annotations

from pathlib import Path

from headrace.loader.storage.local.commit_storage import LocalCommitStorage
from headrace.loader.storage.local.files import LocalFiles
from headrace.loader.storage.local.staging import LocalStaging
from headrace.loader.storage.protocols import Storage, WarehouseFiles

LOG_DIRECTORY = "_headrace"


def local_storage(warehouse: Path) -> Storage:
    """The storage of the warehouse in this directory; nothing is made or looked at yet."""
    log = warehouse / LOG_DIRECTORY
    staging = LocalStaging(log)
    return Storage(LocalCommitStorage(log), staging, LocalFiles(warehouse, staging))


def files_at(reach: str) -> WarehouseFiles:
    """The files of the warehouse that a task was told of."""
    return local_storage(Path(reach)).files
