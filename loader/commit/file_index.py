"""Reads and writes the index files, which list a topic's live files by time partition.

    index/<directory>/days.json                     the days of a topic, and the newest commit they cover
    index/<directory>/data/dt=2026-01-31.json       the time partitions of a day
    index/<directory>/quarantine/dt=2026-01-31.json

Invariant: a day's index file is written before the `days.json` that lists it. If an index file is older than
`days.json` states, it was lost, or overwritten by a driver that resumed late. A missing, damaged, stale or foreign
index file is rebuilt from the topic's commits. The index files are therefore not fsynced: the load of a year would wait
for hundreds of fsyncs.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from headrace.loader.commit.commit import Commit, TopicCommit
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.commit.document import read_document, write_document
from headrace.loader.commit.partition_index import (
    NO_DAYS,
    NO_FILES,
    DayIndex,
    IndexedDays,
    IndexedFile,
    IndexedTimePartition,
    apply,
    by_day,
    commits_with_removed_files,
    day_key,
    day_of,
    generation_at,
    live_at,
    without_files_removed_by,
)
from headrace.loader.work_unit import FileKind

logger = logging.getLogger(__name__)

INDEX_DIRECTORY = "index"

T = TypeVar("T")


def index_directory(directory: str) -> str:
    """Returns the directory of a topic's index, below the directory of the log.

    Args:
        directory: directory of the topic's files.
    """
    return f"{INDEX_DIRECTORY}/{directory}"


def days_path(directory: str) -> str:
    """Returns the path of the list of days in a topic's index, below the directory of the log.

    Args:
        directory: directory of the topic's files.
    """
    return f"{index_directory(directory)}/days.json"


@dataclass(frozen=True, slots=True)
class _Change:
    """The changes of a topic by one commit: the files added and removed, by kind and day (`data/dt=2026-01-31`)."""

    commit_number: int
    sha256: str
    previous_commit_number: int | None
    days: Mapping[str, TopicCommit]


@dataclass(slots=True)
class _Topic:
    """The index of one topic, as far as it was read.

    `days` is the content of `days.json`. `unindexed` are the changes of the commits that are newer than `days.json`, by
    kind and day (`data/dt=2026-01-31`) and in commit order. `commit_number` and `sha256` identify the topic's newest
    commit. `loaded` holds the indexes of the days read so far, by the same keys.
    """

    days: IndexedDays
    commit_number: int
    sha256: str
    unindexed: Mapping[str, Sequence[_Change]]
    loaded: dict[str, DayIndex] = field(default_factory=dict)

    def all_days(self) -> list[str]:
        return sorted({*self.days.days, *self.unindexed})


class FileIndex:
    """Index of the live files of all topics (files that no rewrite has removed), as of the newest state that the commit
    log has read. Also maintains the index files, which have the index of one day of a topic each.

    Caches the index files that it has read, except for `day_uncached`; only `update_files` writes. A damaged index file
    is rebuilt in memory from the commits.

    Args:
        sha256s: cache of the checksums of commits, by number, for several indexes of one log; by default its own.
    """

    def __init__(self, log: CommitLog, sha256s: dict[int, str] | None = None) -> None:
        self._log = log
        self._topics: dict[str, _Topic] = {}
        self._sha256s: dict[int, str] = {} if sha256s is None else sha256s

    @property
    def commit_number(self) -> int:
        """The newest commit that the log has read."""
        return self._log.state.commit_number

    def days(self, topic: str, kind: FileKind) -> tuple[str, ...]:
        """Returns the days for which the topic has or had files of this kind (data or quarantine), in order:
        `dt=2026-01-31`.

        Raises:
            CorruptCommit, UnsupportedFormat: the commits of the topic cannot be read. All methods of `FileIndex` raise
                these errors.
        """
        prefix = day_key(kind, "")
        return tuple(key.removeprefix(prefix) for key in self._topic(topic).all_days() if key.startswith(prefix))

    def day(self, topic: str, kind: FileKind, day: str) -> DayIndex:
        """Returns the index of one day of a topic: its time partitions with their files of one kind (data or
        quarantine). The index is empty if the topic never had such files for that day."""
        key = day_key(kind, day)
        known = self._topic(topic)
        if key not in known.loaded:
            index = self._folded(topic, known, kind, day)
            if index is None:
                known = self._topics[topic] = self._rebuilt(topic)
                index = self._folded(topic, known, kind, day)
            assert index is not None, "a day folded from all commits needs no index file"
            known.loaded[key] = index
        return known.loaded[key]

    def day_uncached(self, topic: str, kind: FileKind, day: str) -> DayIndex:
        """Returns the index of one day of a topic (its time partitions with their files of one kind, data or
        quarantine) without caching it, for callers that read every day of a long history once."""
        found = self.day(topic, kind, day)
        self._topics[topic].loaded.pop(day_key(kind, day), None)
        return found

    def time_partition(self, topic: str, kind: FileKind, time_partition: str) -> IndexedTimePartition:
        return self.day(topic, kind, day_of(time_partition)).time_partitions.get(time_partition, NO_FILES)

    def generation_at(self, topic: str, kind: FileKind, time_partition: str, commit_number: int) -> int:
        """Returns the generation of a time partition as of a commit. Reads nothing for topics that were never
        rewritten.

        Args:
            kind: data or quarantine; a time partition has a separate directory and generation for each.
        """
        known = self._log.state.topics.get(topic)
        if known is None or not known.generation:
            return 0
        return generation_at(self.time_partition(topic, kind, time_partition), commit_number)

    def live(
        self, topic: str, kind: FileKind, time_partition: str, commit_number: int | None = None
    ) -> tuple[IndexedFile, ...]:
        """Returns the files of one kind (data or quarantine) that a topic's time partition has as of a commit, by
        default the newest. If a later rewrite replaced some of them and they have been deleted from the storage since,
        the result lacks them."""
        return live_at(
            self.time_partition(topic, kind, time_partition),
            self._log.state.commit_number if commit_number is None else commit_number,
        )

    def update_files(self, topic: str, commits: Sequence[Commit] = ()) -> None:
        """Updates the index files of a topic to the newest commit. Rebuilds all of them if `days.json` or a file that
        must change is unusable: missing, damaged, stale or of another log.

        Args:
            commits: the topic's newest commits, oldest first, if the caller has already read them.

        Raises:
            OSError: an index file cannot be written.
        """
        known = self._open(topic, commits)
        if known.commit_number > known.days.commit_number and not self._write(topic, known):
            self._write(topic, self._rebuilt(topic))

    def _topic(self, topic: str) -> _Topic:
        known = self._topics.get(topic)
        if known is None or known.commit_number < self._log.state.topics[topic].commit_number:
            known = self._topics[topic] = self._open(topic, ())
        return known

    def _open(self, topic: str, commits: Sequence[Commit]) -> _Topic:
        state = self._log.state.topics[topic]
        days = self._read(days_path(state.directory), IndexedDays)
        if days is None:
            return self._rebuilt(topic)
        changes = [
            _change(commit, topic, self._sha256(commit.commit_number))
            for commit in commits
            if commit.commit_number > days.commit_number
        ]
        if not _covers_all_commits(days, changes, state.commit_number):
            changes = self._changes_since(topic, days.commit_number)
        if not _covers_all_commits(days, changes, state.commit_number):
            return self._rebuilt(topic)
        return _indexed_topic(days, changes)

    def _rebuilt(self, topic: str) -> _Topic:
        return _indexed_topic(NO_DAYS, self._changes_since(topic, 0))

    def _changes_since(self, topic: str, commit_number: int) -> list[_Change]:
        found = self._log.history(topic, self._log.state, commit_number)
        return [_change(one.value, topic, one.sha256) for one in found][::-1]

    def _folded(self, topic: str, known: _Topic, kind: FileKind, day: str) -> DayIndex | None:
        """Returns the index of one day for one kind of files: the content of its index file with the changes of later
        commits applied. Returns None if the index file is unusable.

        Args:
            known: the index of the topic, with the commits that are newer than its files.
        """
        key = day_key(kind, day)
        index: DayIndex | None = DayIndex(kind, day)
        if key in known.days.days:
            index = self._read(self._path(topic, key), DayIndex)
            if index is None or (index.kind, index.day) != (kind, day) or index.commit_number < known.days.days[key]:
                logger.warning("index_rebuilt topic=%s day=%s", topic, key)
                return None
        assert index is not None
        for change in known.unindexed.get(key, ()):
            index = apply(index, change.days[key], change.commit_number, change.sha256)
        state = self._log.state
        retired_rewrites = {
            commit_number
            for commit_number in commits_with_removed_files(index)
            if commit_number <= state.commit_number and commit_number not in state.rewrites
        }
        return without_files_removed_by(index, retired_rewrites) if retired_rewrites else index

    def _write(self, topic: str, known: _Topic) -> bool:
        """Updates the index files of all days that the commits newer than `days.json` changed, then `days.json`.
        Returns False if the old index file of one of these days is unusable.

        Args:
            known: the index of the topic, with the commits that are newer than its files.
        """
        commit_numbers = dict(known.days.days)
        for key in known.unindexed:
            kind, _, day = key.partition("/")
            index = self._folded(topic, known, FileKind(kind), day)
            if index is None:
                return False
            self._log.storage.replace(self._path(topic, key), write_document(index), fsynced=False)
            commit_numbers[key] = index.commit_number
        days = IndexedDays(known.commit_number, known.sha256, commit_numbers)
        self._log.storage.replace(self._path(topic, "days"), write_document(days), fsynced=False)
        return True

    def _path(self, topic: str, key: str) -> str:
        return f"{index_directory(self._log.state.topics[topic].directory)}/{key}.json"

    def _read(self, path: str, kind: type[T]) -> T | None:
        """Returns the content of the index file `path` as a `kind`, which is `DayIndex` or `IndexedDays`. Returns None
        if the file is missing, damaged or of another log."""
        content = self._log.storage.read(path)
        if content is None:
            return None
        try:
            found = read_document(content, kind).value
        except ValueError as error:
            logger.warning("index_ignored path=%s reason=%s", path, error)
            return None
        assert isinstance(found, DayIndex | IndexedDays)
        if found.commit_number and self._sha256(found.commit_number) != found.sha256:
            logger.warning("index_ignored path=%s reason=belongs to another commit log", path)
            return None
        return found

    def _sha256(self, commit_number: int) -> str:
        """Returns the checksum of a commit. Cached, because a commit usually adds files to many days."""
        if commit_number not in self._sha256s:
            self._sha256s[commit_number] = self._log.sha256(commit_number)
        return self._sha256s[commit_number]


def _change(commit: Commit, topic: str, sha256: str) -> _Change:
    committed = commit.topics[topic]
    days = {day_key(kind, day): part for (kind, day), part in by_day(committed).items()}
    return _Change(commit.commit_number, sha256, committed.previous_commit_number, days)


def _indexed_topic(days: IndexedDays, changes: Sequence[_Change]) -> _Topic:
    unindexed: dict[str, list[_Change]] = defaultdict(list)
    for change in changes:
        for key in change.days:
            unindexed[key].append(change)
    commit_number, sha256 = (
        (changes[-1].commit_number, changes[-1].sha256) if changes else (days.commit_number, days.sha256)
    )
    return _Topic(days, commit_number, sha256, unindexed)


def _covers_all_commits(days: IndexedDays, changes: Sequence[_Change], newest: int) -> bool:
    """Whether `days.json` (the list of days in a topic's index) and the commits after it together cover all commits of
    the topic. `days.json` may also be newer than the state that was read.

    Args:
        days: the content of `days.json`.
        changes: the changes of the later commits, oldest first.
        newest: the number of the topic's newest commit in the state.
    """
    if not changes:
        return days.commit_number >= newest
    return changes[0].previous_commit_number == days.commit_number
