"""Copies the commit log and the files of the tables as of one commit, while loads and rewrites go on.

Commits are never changed, so the log up to one number is a state of the past that later commits do not affect. What a
later commit may do is delete files that this state has: a load moves them from staging to their names, `compact` and
`expire` delete replaced files after a day. So staging is copied before the names in the warehouse. If a file is missing
in both although the state has it, the caller tries again with a newer state, which does not have the file if it was
deleted regularly.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.loader.apply.engine import FILES, read_cursor
from headrace.loader.apply.layout import time_partition_directory, topic_directory
from headrace.loader.commit.commit_files import archive_path, commit_path
from headrace.loader.commit.commit_log import CHECKPOINT_DIRECTORY, FORMAT_PATH, HEAD_PATH, CommitLog
from headrace.loader.commit.document import has_stated_checksum
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.commit.partition_index import IndexedTimePartition, generation_at, live_at
from headrace.loader.errors import CorruptCommit
from headrace.loader.storage.local import LOG_DIRECTORY
from headrace.loader.work_unit import FileKind
from headrace.pipeline.state_backup.manifest import BackupWriter, Store
from headrace.pipeline.storage import STATE_NAME, WAREHOUSE_NAME

STAGING = "staging"
SCHEMA_DIRECTORY = "_schema"

OMITTED_HINTS = frozenset({HEAD_PATH, "lease.json", WAREHOUSE_NAME, Path(STATE_NAME).name, FORMAT_PATH})
"""Files of the log's directory that are not copied as hints: the newest commit number, which the copy may not have; the
lock of a load; locations, which a load records again; and the format, which is copied with the commits."""


@dataclass(frozen=True, slots=True)
class CopiedTables:
    """`files` and `bytes` of the tables; `missing` are the paths of files that the state has and that do not exist."""

    files: int
    bytes: int
    missing: tuple[str, ...]


def copy_hints(log_directory: Path, writer: BackupWriter) -> None:
    """Copies the cursors of the appliers, the open findings and the completeness of the tables.

    Must run before the state to copy is read, and before the metastore is copied: a cursor must not be ahead of the
    state that it describes. A cursor that is behind is normal, because appliers are idempotent.
    """
    paths = [path for path in log_directory.glob("*.json") if path.name not in OMITTED_HINTS]
    for path in (*paths, *(log_directory / "cursor").glob("*.json")):
        with contextlib.suppress(FileNotFoundError):
            writer.copy(path, f"{Store.COMMIT_LOG}/{path.relative_to(log_directory)}")


def copy_commits(log: CommitLog, log_directory: Path, writer: BackupWriter) -> None:
    """Copies the commits up to the state that the log has read, with checkpoints and writer schemas. Commits that were
    archived meanwhile are copied from their archive.

    Raises:
        CorruptCommit: a commit is missing or damaged.
    """
    head, number = log.state.commit_number, 1
    while number <= head:
        path = archive_path(number)
        end = int(Path(path).stem)
        content = log.storage.read(path) if end <= head else None
        if content is None:
            path, end = commit_path(number), number
            content = log.commits.read(number)
        _check_commits(log.commits.path(number), content)
        writer.progress(f"copying commit {end:,} of {head:,}")
        writer.write(f"{Store.COMMIT_LOG}/{path}", content or b"")
        number = end + 1
    for path_found in sorted((log_directory / CHECKPOINT_DIRECTORY).glob("*.json")):
        if path_found.stem.isdecimal() and int(path_found.stem) <= head:
            _copy_if_exists(path_found, log_directory, writer)
    for path_found in sorted((log_directory / "schemas").glob("*.avsc")):
        _copy_if_exists(path_found, log_directory, writer)
    _copy_if_exists(log_directory / FORMAT_PATH, log_directory, writer)


def _check_commits(path: str, content: bytes | None) -> None:
    if content is None:
        raise CorruptCommit(path, "the file is missing")
    if not all(map(has_stated_checksum, content.splitlines())):
        raise CorruptCommit(path, "the checksum does not match the content")


def _copy_if_exists(path: Path, log_directory: Path, writer: BackupWriter) -> None:
    with contextlib.suppress(FileNotFoundError):
        writer.copy(path, f"{Store.COMMIT_LOG}/{path.relative_to(log_directory)}")


def copy_tables(log: CommitLog, warehouse: Path, writer: BackupWriter) -> CopiedTables:
    """Copies the files that the state has: published ones, committed ones that are not published yet, and the schemas
    that tables refer to. Files of other programs and of later commits are omitted.

    Raises:
        CorruptCommit, UnsupportedFormat: the commits cannot be read.
    """
    for run_id in sorted(log.state.staged_runs):
        for path in _files_below(warehouse / LOG_DIRECTORY / STAGING / run_id):
            with contextlib.suppress(FileNotFoundError):
                writer.copy(path, f"{Store.TABLES}/{path.relative_to(warehouse)}")
    files = size = 0
    missing: list[str] = []
    index = FileIndex(log)
    for topic, state in sorted(log.state.topics.items()):
        for path in _files_below(warehouse / state.directory / SCHEMA_DIRECTORY):
            with contextlib.suppress(FileNotFoundError):
                writer.copy(path, f"{Store.TABLES}/{path.relative_to(warehouse)}")
        copied = _copy_topic(log, index, topic, warehouse, writer)
        files, size, missing = files + copied.files, size + copied.bytes, [*missing, *copied.missing]
    return CopiedTables(files, size, tuple(missing))


def _copy_topic(log: CommitLog, index: FileIndex, topic: str, warehouse: Path, writer: BackupWriter) -> CopiedTables:
    state = log.state.topics[topic]
    published_to = read_cursor(log.storage, FILES).position(topic)
    files = size = 0
    missing: list[str] = []
    for kind, totals in ((FileKind.DATA, state.data), (FileKind.QUARANTINE, state.quarantine)):
        found = 0
        for day in index.days(topic, kind):
            for time_partition, indexed in index.day_uncached(topic, kind, day).time_partitions.items():
                for file in live_at(indexed, log.state.commit_number):
                    found += 1
                    paths = [
                        f"{directory}/{file.name}"
                        for directory in _directories(state.directory, kind, time_partition, indexed, log)
                    ]
                    if not (
                        _copy_first(paths, file.length, warehouse, writer)
                        or (file.since > published_to and _is_staged(log, topic, file.name, file.since, writer))
                    ):
                        missing.append(paths[0])
                        continue
                    files, size = files + 1, size + file.length
        if found != totals.files:
            missing.append(f"{topic_directory(state.directory, kind)} ({totals.files - found} files)")
    return CopiedTables(files, size, tuple(missing))


def _directories(
    directory: str, kind: FileKind, time_partition: str, indexed: IndexedTimePartition, log: CommitLog
) -> Iterator[str]:
    """Yields the directories in which a live file of a time partition may be: the directory of its generation, then the
    directories of older generations, from which an applier has yet to bring it."""
    newest = generation_at(indexed, log.state.commit_number)
    older = sorted((generation for _, generation in indexed.generations if generation < newest), reverse=True)
    for generation in dict.fromkeys((newest, *older, 0)):
        yield time_partition_directory(directory, kind, time_partition, generation)


def _copy_first(paths: list[str], length: int, warehouse: Path, writer: BackupWriter) -> bool:
    """Adds the first of these files that exists to the backup. Returns whether one does."""
    for path in paths:
        name = f"{Store.TABLES}/{path}"
        with contextlib.suppress(FileNotFoundError):
            if (warehouse / path).stat().st_size == length:
                writer.link(warehouse / path, name)
                return True
    return False


def _is_staged(log: CommitLog, topic: str, name: str, commit_number: int, writer: BackupWriter) -> bool:
    """Whether a file that is not published yet was copied from staging."""
    commit = log.commit(commit_number)
    staged = (file.staged for file in commit.topics[topic].files if file.name == name)
    return any(writer.has(f"{Store.TABLES}/{LOG_DIRECTORY}/{STAGING}/{commit.run_id}/{path}") for path in staged)


def _files_below(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())
