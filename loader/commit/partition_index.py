"""Computes the live files of each time partition from the commits, one day at a time. A file is live until a rewrite
removes it from its topic. Pure.

The loader's state holds no files, since it must not grow with history. Each topic therefore has an index: one index
file per day and kind of files, and one that lists the days. The index is a cache: any index file may be deleted and is
rebuilt from the commits.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from headrace.loader.commit.commit import CommittedFile, TimePartitionRewrite, TopicCommit
from headrace.loader.work_unit import FileKind, FileRange


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """A file that commit `since` added to its time partition and commit `until` removed; `until` is 0 while the file is
    live."""

    name: str
    since: int
    until: int
    length: int
    checksum: str
    records: int
    ranges: tuple[FileRange, ...]


@dataclass(frozen=True, slots=True)
class IndexedTimePartition:
    """The files of a time partition, live and removed, in commit order. `generations` are the commits that rewrote the
    time partition, each with the generation that began there. Entries are only added, except that
    `without_files_removed_by` takes out files that were deleted from the storage."""

    generations: tuple[tuple[int, int], ...] = ()
    files: tuple[IndexedFile, ...] = ()


NO_FILES = IndexedTimePartition()


@dataclass(frozen=True, slots=True)
class DayIndex:
    """The time partitions of one day of a topic, with their files of one kind (data or quarantine). `commit_number` is
    the newest commit that changed one of them, and `sha256` the checksum of that commit, which identifies the log."""

    kind: FileKind
    day: str
    commit_number: int = 0
    sha256: str = ""
    time_partitions: Mapping[str, IndexedTimePartition] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class IndexedDays:
    """The days of a topic with the commit numbers of their index files. The keys are `data/dt=2026-01-31` or
    `quarantine/dt=2026-01-31`.

    Covers all commits of the topic up to `commit_number`; `sha256` is the checksum of that commit. A day that is not
    listed has no files. An index file with a lower commit number than listed here is stale.
    """

    commit_number: int
    sha256: str
    days: Mapping[str, int]


NO_DAYS = IndexedDays(0, "", {})


def day_of(time_partition: str) -> str:
    """Returns the day of a time partition: `dt=2026-01-31` of `dt=2026-01-31/hr=07`."""
    return time_partition.partition("/")[0]


def day_key(kind: FileKind, day: str) -> str:
    return f"{kind.value}/{day}"


def by_day(committed: TopicCommit) -> dict[tuple[FileKind, str], TopicCommit]:
    """Splits `committed`, the part of a commit for one topic, by the days of the time partitions that it changes.
    Returns by (kind of files, day) a copy with only the files and rewrites of that day. Handles all days in one pass,
    because the load of a year has thousands of files."""
    files, rewrites = defaultdict(list), defaultdict(list)
    for file in committed.files:
        files[file.kind, day_of(file.time_partition)].append(file)
    for rewrite in committed.rewrites:
        rewrites[rewrite.kind, day_of(rewrite.time_partition)].append(rewrite)
    bare = dataclasses.replace(committed, ranges=(), audit=(), time_sources={}, load_schema=None)
    return {
        day: dataclasses.replace(bare, files=tuple(files[day]), rewrites=tuple(rewrites[day]))
        for day in {**files, **rewrites}
    }


def apply(index: DayIndex, committed: TopicCommit, commit_number: int, sha256: str) -> DayIndex:
    """Returns the index of a day after one more commit of its topic. Returns the index unchanged if the commit is
    already applied or concerns other days.

    Args:
        committed: the part of the commit for the topic, or for this day of it.
        sha256: checksum of the commit.
    """
    if commit_number <= index.commit_number:
        return index
    time_partitions = dict(index.time_partitions)
    for rewrite in committed.rewrites:
        if _is_of(index, rewrite):
            known = time_partitions.get(rewrite.time_partition, NO_FILES)
            time_partitions[rewrite.time_partition] = _rewritten(known, rewrite, commit_number, committed.generation)
    for file in committed.files:
        if _is_of(index, file):
            known = time_partitions.get(file.time_partition, NO_FILES)
            time_partitions[file.time_partition] = dataclasses.replace(
                known, files=(*known.files, _indexed(file, commit_number))
            )
    changed = time_partitions != index.time_partitions
    return (
        dataclasses.replace(index, commit_number=commit_number, sha256=sha256, time_partitions=time_partitions)
        if changed
        else index
    )


def generation_at(time_partition: IndexedTimePartition, commit_number: int) -> int:
    """Returns the generation of the time partition's directory as of a commit, 0 before the first rewrite."""
    return max((generation for since, generation in time_partition.generations if since <= commit_number), default=0)


def live_at(time_partition: IndexedTimePartition, commit_number: int) -> tuple[IndexedFile, ...]:
    """Returns the files of a time partition that belonged to the topic as of a commit, as far as the index still lists
    them. Files that a rewrite removed are taken out of the index after their deletion from the storage."""
    return tuple(
        file
        for file in time_partition.files
        if file.since <= commit_number and (not file.until or file.until > commit_number)
    )


def without_files_removed_by(index: DayIndex, commits: Collection[int]) -> DayIndex:
    """Returns the index of a day without the files that any of these commits removed from the topic.

    Args:
        commits: numbers of rewrites. The files that they removed have been deleted from the storage.
    """
    time_partitions = {
        name: dataclasses.replace(
            time_partition, files=tuple(file for file in time_partition.files if file.until not in commits)
        )
        for name, time_partition in index.time_partitions.items()
    }
    return dataclasses.replace(index, time_partitions=time_partitions)


def commits_with_removed_files(index: DayIndex) -> frozenset[int]:
    """Returns the numbers of the rewrites that removed files from the topic, as far as the index of this day still
    lists such files."""
    return frozenset(file.until for file in _files(index) if file.until)


def _files(index: DayIndex) -> Iterator[IndexedFile]:
    for time_partition in index.time_partitions.values():
        yield from time_partition.files


def _is_of(index: DayIndex, change: CommittedFile | TimePartitionRewrite) -> bool:
    return change.kind is index.kind and day_of(change.time_partition) == index.day


def _rewritten(
    known: IndexedTimePartition, rewrite: TimePartitionRewrite, commit_number: int, generation: int
) -> IndexedTimePartition:
    replaced = frozenset(rewrite.replaced)
    files = tuple(
        dataclasses.replace(file, until=commit_number) if file.name in replaced and not file.until else file
        for file in known.files
    )
    return IndexedTimePartition((*known.generations, (commit_number, generation)), files)


def _indexed(file: CommittedFile, commit_number: int) -> IndexedFile:
    return IndexedFile(file.name, commit_number, 0, file.length, file.checksum, file.records, file.ranges)
