"""Compares the tables' files with a restored commit log that is older than they are.

Without this, queries would read the files of the later commits, and the next load would write their messages a second
time: the log does not have these commits any more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.loader.apply.layout import QUARANTINE_DIRECTORY, time_partition_directory, topic_directory
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.commit.partition_index import generation_at, live_at
from headrace.loader.storage.protocols import WarehouseFiles
from headrace.loader.work_unit import FileKind

FOREIGN_DIRECTORY = "_foreign"
COMMITTED_NAME = re.compile(r"\d+-\d+-.+\.avro")
"""Names of committed files: generation, commit number, and further parts."""
ROW_DIRECTORY = re.compile(r"_g\d+|dt=.+|hr=.+")


@dataclass(frozen=True, slots=True)
class ComparedFiles:
    """`moved` are the former names of files that no commit of the log has. `missing` are the names of files that the
    log has and that do not exist, for example because a later compaction replaced them."""

    moved: tuple[str, ...]
    missing: tuple[str, ...]


def compare_files(log: CommitLog, files: WarehouseFiles) -> ComparedFiles:
    """Moves the files that the log does not have to the directory `_foreign` of their topic. Returns these and the
    missing ones.

    Args:
        log: the restored log, after a call of `read_state`. No load runs.

    Raises:
        CorruptCommit, UnsupportedFormat: the commits cannot be read.
        OSError: a file cannot be moved.
    """
    index = FileIndex(log)
    topics = {
        topic_directory(state.directory, kind): (topic, kind)
        for topic, state in log.state.topics.items()
        for kind in FileKind
    }
    moved: list[str] = []
    missing: list[str] = []
    for directory in sorted({*_topic_directories(files), *topics}):
        known: set[str] = set()
        live: set[str] = set()
        if directory in topics:
            known, live = _files_of(log, index, *topics[directory])
        present = {f"{directory}/{path}" for path in _committed_files(files, directory)}
        for name in sorted(name for name in present if name.rpartition("/")[2] not in known):
            if files.move_uncommitted(name, f"{directory}/{FOREIGN_DIRECTORY}/{name.removeprefix(directory + '/')}"):
                moved.append(name)
        missing += sorted(live - present)
    return ComparedFiles(tuple(moved), tuple(missing))


def _files_of(log: CommitLog, index: FileIndex, topic: str, kind: FileKind) -> tuple[set[str], set[str]]:
    """Returns the file names of all commits of a topic, also of replaced files, and the paths of its live files."""
    directory = log.state.topics[topic].directory
    known: set[str] = set()
    live: set[str] = set()
    for day in index.days(topic, kind):
        for time_partition, indexed in index.day_uncached(topic, kind, day).time_partitions.items():
            known |= {file.name for file in indexed.files}
            generation = generation_at(indexed, log.state.commit_number)
            place = time_partition_directory(directory, kind, time_partition, generation)
            live |= {f"{place}/{file.name}" for file in live_at(indexed, log.state.commit_number)}
    return known, live


def _topic_directories(files: WarehouseFiles) -> Iterator[str]:
    for name in files.children(""):
        if not name.startswith(("_", ".")):
            yield name
    for name in files.children(QUARANTINE_DIRECTORY):
        yield f"{QUARANTINE_DIRECTORY}/{name}"


def _committed_files(files: WarehouseFiles, directory: str, below: str = "") -> Iterator[str]:
    """Yields the paths of files below a topic's directory that have names of committed files."""
    for name, length in files.lengths(f"{directory}/{below}" if below else directory).items():
        path = f"{below}/{name}" if below else name
        if length is None:
            if ROW_DIRECTORY.fullmatch(name):
                yield from _committed_files(files, directory, path)
        elif COMMITTED_NAME.fullmatch(name):
            yield path
