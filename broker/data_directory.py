"""The data directory as a whole: its lock, the marker of a clean shutdown, and partition directories left by a crash.

A stray is a partition's directory without a topic.
"""

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
"""A stray's new name begins with its old one, of which at most this many last characters are used: file systems allow
255 in all, and topic names have up to 249."""
LOGIN_KEY_FILE = "login-key"
RESERVE_FILE = ".reserve"
RESERVE_BYTES = 4 * 1024 * 1024
"""Size of a file that is deleted if the disk is too full for a start: more than the topics file, the checkpoints and
the indexes that a start may write for 20,000 partitions."""
SNAPSHOT_DIRECTORY = ".snapshot"
"""Directory with hard links of the segments while a backup is made, see `snapshot`."""
LOST_AND_FOUND = "lost+found"
"""Directory that mkfs creates at the top of a new file system; it is not reported as unknown."""

_PARTITION = re.compile(r"[a-zA-Z0-9._-]+-(0|[1-9][0-9]*)")
_DELETED = re.compile(r"[0-9a-f]{32}-[0-9]+-delete")


def boot_id() -> str:
    """Returns the id of the machine's current boot, which changes with every boot; "" if it cannot be read (only Linux
    has one)."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def lock(directory: Path) -> int:
    """Creates the data directory if it is missing, and locks it for this process. Closing the returned descriptor
    releases the lock.

    Raises:
        DataDirectoryInUse: another broker, or a block of `exclude_brokers`, holds the lock.
        StartError: the directory cannot be created or written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        fd = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise StartError(
            f"cannot use the data directory {directory}: {error.strerror}; check its owner and permissions, or choose "
            "another --data-dir"
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise DataDirectoryInUse(directory) from error
    return fd


def login_key(directory: Path, size: int) -> bytes:
    """Returns the key of `size` random bytes in the data directory, which is created if it is missing. If the file
    cannot be used, the key is a new one at each start."""
    path = directory / LOGIN_KEY_FILE
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            key = os.read(fd, size)
            if len(key) < size:
                key = os.urandom(size)
                os.pwrite(fd, key, 0)
        finally:
            os.close(fd)
    except OSError as error:
        logger.warning("key of the data directory not used file=%s error=%s", LOGIN_KEY_FILE, error)
        key = os.urandom(size)
    return key


def hold_reserve(directory: Path) -> None:
    """Allocates the reserve in the data directory unless it exists; does nothing if the disk is too full for it."""
    path = directory / RESERVE_FILE
    if path.exists():
        return
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.posix_fallocate(fd, 0, RESERVE_BYTES)
        finally:
            os.close(fd)
    except OSError:
        path.unlink(missing_ok=True)


def release_reserve(directory: Path) -> bool:
    """Deletes the reserve in the data directory; returns False if there was none."""
    try:
        (directory / RESERVE_FILE).unlink()
    except FileNotFoundError:
        return False
    return True


@contextlib.contextmanager
def exclude_brokers(directory: Path) -> Iterator[None]:
    """Context manager: while its block runs, no broker can start on the data directory.

    No file is written. A directory without a lock file, such as a copy that omits it, is not locked.

    Raises:
        DataDirectoryInUse: a broker is running on the directory.
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
    """Returns the directories with the name of a partition, such as `orders-0`."""
    return [entry for entry in directory.iterdir() if entry.is_dir() and _PARTITION.fullmatch(entry.name)]


def clean_up_strays(directory: Path, known_names: Collection[str]) -> None:
    """Completes interrupted deletions of topics. Renames strays, and deletes those without data.

    A stray was being created or deleted when the broker stopped, or its topic is missing because the topics file was
    restored from an older copy. A directory of the user whose name ends like a partition's is treated as a stray too.

    Args:
        known_names: directory names of the partitions of all topics.
    """
    for entry in directory.iterdir():
        if not entry.is_dir() or entry.name in known_names or entry.name == LOST_AND_FOUND:
            continue
        if _DELETED.fullmatch(entry.name):
            _remove(entry)
        elif _PARTITION.fullmatch(entry.name):
            rename_stray(entry)
        else:
            logger.warning(
                "unknown directory ignored directory=%s reason=the name is not that of a topic partition, such as "
                "orders-0",
                entry.name,
            )


def rename_stray(entry: Path) -> None:
    """Renames the stray directory `entry` so that a new partition can take its name; deletes it if it contains no data.

    Raises:
        OSError: the directory could not be renamed or completely deleted.
    """
    if not _has_data(entry):
        _remove(entry)
        return
    stray = _unused_name(entry)
    entry.rename(stray)
    logger.warning("stray partition renamed directory=%s new_name=%s", entry.name, stray.name)


def _remove(entry: Path) -> None:
    _remove_directory(entry)
    logger.info("leftover directory of a partition removed, its topic does not exist directory=%s", entry.name)


def _remove_directory(directory: Path) -> None:
    if not directory.is_symlink():
        shutil.rmtree(directory)
        return
    # The partition was moved to another disk through a symbolic link. Delete its files but not the target directory,
    # which may be a mount point.
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    directory.unlink()


def _has_data(directory: Path) -> bool:
    """Returns whether a directory contains data: a subdirectory, or a non-empty file other than the broker's indexes,
    snapshots, leader epochs and temporary files. The directory may belong to the user: `backup-2024` is also the name
    of a partition."""
    return any(
        path.is_dir() or path.lstat().st_size
        for path in directory.iterdir()
        if path.name != LEADER_EPOCHS and not path.name.endswith((*INDEX_SUFFIXES, SNAPSHOT, DELETED, ".tmp"))
    )


def _unused_name(entry: Path) -> Path:
    """Returns an unused path for the stray directory `entry`: its name, shortened if necessary, and a suffix."""
    name = entry.name[-STRAY_NAME_CHARS_MAX:]
    number, free = 1, entry.with_name(name + STRAY_DIRECTORY)
    while free.exists():
        number += 1
        free = entry.with_name(f"{name}{STRAY_DIRECTORY}.{number}")
    return free


class FileRemover:
    """Deletes files, and retries failed deletions: some file systems cannot delete when they are full. May be called
    from several threads."""

    def __init__(self) -> None:
        self._remaining: list[Path] = []
        self._lock = threading.Lock()

    def remove(self, paths: Iterable[Path]) -> None:
        """Deletes the files `paths`, and files that earlier calls could not delete.

        Raises:
            OSError: some could not be deleted; the next call retries them.
        """
        with self._lock:
            all_paths, self._remaining = [*self._remaining, *paths], []
        failure: OSError | None = None
        for path in all_paths:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                failure = error
                with self._lock:
                    self._remaining.append(path)
        if failure is not None:
            raise failure


def remove_directories(directories: Iterable[Path]) -> None:
    """Deletes directories; errors are ignored. If a part of a directory cannot be deleted, the next start deletes or
    renames the rest."""
    for directory in directories:
        if directory.is_symlink():
            with contextlib.suppress(OSError):
                _remove_directory(directory)
        else:
            shutil.rmtree(directory, ignore_errors=True)
