"""Which files of a time partition are live: what all commits up to a commit number say of the time partitions of one
day. Pure.

The state keeps no files, since it must not grow with history; so each topic has an index, a document for every day
of each kind of its files and one that tells of all days. The index is never the truth: it is folded from the
commits, and any document of it may be thrown away.
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
    """A file that commit number `since` added to its time partition and commit number `until` took away again, 0 while
    it is live."""

    name: str
    since: int
    until: int
    length: int
    checksum: str
    records: int
    ranges: tuple[FileRange, ...]


@dataclass(frozen=True, slots=True)
class IndexedTimePartition:
    """`generations` are the commit numbers that rewrote the time partition, each with the generation that began there;
    `files` are in the order of their commit numbers. Both grow only."""

    generations: tuple[tuple[int, int], ...] = ()
    files: tuple[IndexedFile, ...] = ()


NO_FILES = IndexedTimePartition()


@dataclass(frozen=True, slots=True)
class DayIndex:
    """The time partitions of one day, as of `commit_number`: the newest that changed one of them. `sha256` is the
    checksum of the commit in it, by which an index of another log is known."""

    kind: FileKind
    day: str
    commit_number: int = 0
    sha256: str = ""
    time_partitions: Mapping[str, IndexedTimePartition] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class IndexedDays:
    """The days of a topic, each with the commit number of its document: `data/dt=2026-01-31` or
    `quarantine/dt=2026-01-31`.

    All commits of the topic up to `commit_number` are in it, and `sha256` is the checksum of the one there. So a day
    that is not in it has no files, and a document that is older than it says is a document that was lost.
    """

    commit_number: int
    sha256: str
    days: Mapping[str, int]


NO_DAYS = IndexedDays(0, "", {})


def day_of(time_partition: str) -> str:
    """`dt=2026-01-31` of `dt=2026-01-31/hr=07`."""
    return time_partition.partition("/")[0]


def day_key(kind: FileKind, day: str) -> str:
    return f"{kind.value}/{day}"


def by_day(committed: TopicCommit) -> dict[tuple[FileKind, str], TopicCommit]:
    """The days whose time partitions a commit changes, each with the part of it that does: once for all days, since the
    load of a year has thousands of files."""
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
    """The day after one more commit of its topic; as it was when the commit is in it already, or not of this day.

    Args:
        sha256: the checksum of the commit.
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
    """The generation whose directory holds the time partition as of a commit number, 0 before it was first
    rewritten."""
    return max((generation for since, generation in time_partition.generations if since <= commit_number), default=0)


def live_at(time_partition: IndexedTimePartition, commit_number: int) -> tuple[IndexedFile, ...]:
    """The files that belong to the topic as of a commit number; of commit numbers before a rewrite only until
    `without_dead`."""
    return tuple(
        file
        for file in time_partition.files
        if file.since <= commit_number and (not file.until or file.until > commit_number)
    )


def without_dead(index: DayIndex, commits: Collection[int]) -> DayIndex:
    """The day without the files that these commit numbers took away, for whoever has deleted them."""
    time_partitions = {
        name: dataclasses.replace(
            time_partition, files=tuple(file for file in time_partition.files if file.until not in commits)
        )
        for name, time_partition in index.time_partitions.items()
    }
    return dataclasses.replace(index, time_partitions=time_partitions)


def commits_with_deleted_files(index: DayIndex) -> frozenset[int]:
    """The commit numbers whose replaced files it still names."""
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
