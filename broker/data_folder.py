"""What stands in the data folder beside the logs: the lock, the mark of a clean end, and what a crash left over."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
from collections.abc import Container, Iterable
from pathlib import Path

from headrace.broker.errors import DataFolderInUse, StartError

logger = logging.getLogger(__name__)

CLEAN_MARKER = ".kafka_cleanshutdown"
LOCK_FILE = ".lock"
DELETED_FOLDER = "-delete"


def lock(folder: Path) -> int:
    """Makes the folder and takes it for this process; closing the descriptor gives it back.

    Raises:
        DataFolderInUse: another broker holds it.
        StartError: it cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise StartError(f"cannot use the data folder {folder}: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise DataFolderInUse(folder) from error
    return fd


def remove_orphans(folder: Path, wanted: Container[str]) -> None:
    """Removes folders of partitions that no topic has: a creation or deletion that a crash cut short."""
    for entry in folder.iterdir():
        if entry.is_dir() and entry.name not in wanted:
            logger.info("orphan removed folder=%s", entry.name)
            shutil.rmtree(entry)


def unlink_files(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def remove_folders(folders: Iterable[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
