"""What stands in the data directory beside the logs: the lock, the mark of a clean end, and what a crash left over."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import shutil
import threading
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from headrace.broker.errors import DataDirectoryInUse, StartError
from headrace.broker.log.leader_epochs import FILE_NAME as LEADER_EPOCHS
from headrace.broker.log.segment import DELETED, INDEX_SUFFIXES, SNAPSHOT

logger = logging.getLogger(__name__)

CLEAN_MARKER = ".kafka_cleanshutdown"
LOCK_FILE = ".lock"
DELETED_DIRECTORY = "-delete"
STRAY_DIRECTORY = "-stray"
STRAY_NAME_CHARS_MAX = 240
"""Of the partition's name in that of a stray: file systems have 255 for all of it, and topics may have 249."""
LOST_AND_FOUND = "lost+found"
"""At the top of a fresh file system."""

_PARTITION = re.compile(r"[a-zA-Z0-9._-]+-(0|[1-9][0-9]*)")
_DELETED = re.compile(r"[0-9a-f]{32}-[0-9]+-delete")


def boot_id() -> str:
    """What this start of the machine is called; "" where the system does not say, as only Linux does."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def lock(directory: Path) -> int:
    """Makes the directory and takes it for this process; closing the descriptor gives it back.

    Raises:
        DataDirectoryInUse: another broker holds it.
        StartError: it cannot be made or written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        fd = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise StartError(f"cannot use the data directory {directory}: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise DataDirectoryInUse(directory) from error
    return fd


@contextlib.contextmanager
def kept_from_brokers(directory: Path) -> Iterator[None]:
    """While open, no broker starts on the directory; nothing is written, and a copy without a lock file needs none.

    Raises:
        DataDirectoryInUse: a broker runs on it.
    """
    try:
        fd = os.open(directory / LOCK_FILE, os.O_RDONLY)
    except FileNotFoundError:
        yield
        return
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DataDirectoryInUse(directory) from error
        yield
    finally:
        os.close(fd)


def partition_directory(directory: Path, topic: str, index: int) -> Path:
    return directory / f"{topic}-{index}"


def partition_directories(directory: Path) -> list[Path]:
    """The directories that are named like those of partitions."""
    return [entry for entry in directory.iterdir() if entry.is_dir() and _PARTITION.fullmatch(entry.name)]


def put_strays_aside(directory: Path, wanted: Collection[str]) -> None:
    """Finishes deletions that a crash cut short, and renames directories of partitions that no topic has.

    A stray was being created or deleted when the broker ended, or its topic is not in a topic file that was put back
    from an older copy.
    """
    for entry in directory.iterdir():
        if not entry.is_dir() or entry.name in wanted or entry.name == LOST_AND_FOUND:
            continue
        if _DELETED.fullmatch(entry.name):
            _remove(entry)
        elif _PARTITION.fullmatch(entry.name):
            put_stray_aside(entry)
        else:
            logger.warning(
                "directory left alone directory=%s reason=it is not one of the broker's partitions", entry.name
            )


def put_stray_aside(entry: Path) -> None:
    """Renames the directory of a partition that no topic has; only one in which nothing is worth keeping is removed.

    Raises:
        OSError: it is there as before.
    """
    if not _is_worth_keeping(entry):
        _remove(entry)
        return
    stray = _free(entry)
    entry.rename(stray)
    logger.warning("partition of no topic put aside directory=%s as=%s", entry.name, stray.name)


def _remove(entry: Path) -> None:
    _remove_directory(entry)
    logger.info("leftover removed directory=%s", entry.name)


def _remove_directory(directory: Path) -> None:
    if not directory.is_symlink():
        shutil.rmtree(directory)
        return
    # Of a partition that was moved to another disk: what lies there goes, and the directory there, which may be that
    # disk's own, stays.
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    directory.unlink()


def _is_worth_keeping(directory: Path) -> bool:
    """Is there a record in it, or anything that is not the broker's? It may be somebody's `backup-2024`."""
    return any(
        path.is_dir() or path.lstat().st_size
        for path in directory.iterdir()
        if path.name != LEADER_EPOCHS and not path.name.endswith((*INDEX_SUFFIXES, SNAPSHOT, DELETED, ".tmp"))
    )


def _free(entry: Path) -> Path:
    """A name for a stray, which ends with that of its partition as long as a file system has room for it."""
    name = entry.name[-STRAY_NAME_CHARS_MAX:]
    number, free = 1, entry.with_name(name + STRAY_DIRECTORY)
    while free.exists():
        number += 1
        free = entry.with_name(f"{name}{STRAY_DIRECTORY}.{number}")
    return free


class Removal:
    """Removes files that nobody has any more, and keeps those in mind that stay: some file systems refuse even that
    for want of space. For threads."""

    def __init__(self) -> None:
        self._staying: list[Path] = []
        self._lock = threading.Lock()

    def remove(self, paths: Iterable[Path]) -> None:
        """Removes these, and what was to go before.

        Raises:
            OSError: some stay; they are tried again with the next ones.
        """
        with self._lock:
            all_paths, self._staying = [*self._staying, *paths], []
        failure: OSError | None = None
        for path in all_paths:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                failure = error
                with self._lock:
                    self._staying.append(path)
        if failure is not None:
            raise failure


def remove_directories(directories: Iterable[Path]) -> None:
    """What cannot be removed is left for the next start."""
    for directory in directories:
        if directory.is_symlink():
            with contextlib.suppress(OSError):
                _remove_directory(directory)
        else:
            shutil.rmtree(directory, ignore_errors=True)
