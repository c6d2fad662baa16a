"""Lists the live files of a topic with their paths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from headrace.loader.apply.engine import FILES, read_cursor
from headrace.loader.apply.layout import partition_values, time_partition_directory
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.commit.partition_index import IndexedFile, IndexedTimePartition, generation_at, live_at
from headrace.loader.work_unit import FileKind


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A file of a time partition; `path` is relative to the warehouse."""

    kind: FileKind
    time_partition: str
    path: str
    file: IndexedFile


@dataclass(frozen=True, slots=True)
class TimePartitionFilter:
    """Selects time partitions. `time_partition` selects one time partition, or all of one day. `since` and `until`
    select those in `[since, until)`, given as days or hours: `2026-01-31` or `2026-01-31T07`. An empty text does not
    restrict the selection."""

    time_partition: str = ""
    since: str = ""
    until: str = ""

    def __call__(self, time_partition: str) -> bool:
        time = "T".join(partition_values(time_partition))
        if (
            self.time_partition
            and time_partition != self.time_partition
            and not time_partition.startswith(self.time_partition + "/")
        ):
            return False
        # A day sorts before its hours: 2026-01-31 is before 2026-01-31T00.
        # (Plain text comparison gives this order.)
        return (not self.since or _first_hour(time) >= _first_hour(self.since)) and (
            not self.until or _first_hour(time) < _first_hour(self.until)
        )


EVERY_TIME_PARTITION = TimePartitionFilter()


def _first_hour(time: str) -> str:
    return time if "T" in time else f"{time}T00"


def applied_commit_number(log: CommitLog, topic: str) -> int:
    """Returns the newest commit of a topic up to which all its files are published. If the applier has no cursor,
    because it was lost or no file has been published yet, returns the topic's newest commit."""
    newest = log.state.topics[topic].commit_number
    return min(newest, read_cursor(log.storage, FILES).position(topic) or newest)


def published_files(
    index: FileIndex,
    log: CommitLog,
    topic: str,
    kind: FileKind,
    commit_number: int,
    wanted: Callable[[str], bool] = EVERY_TIME_PARTITION,
) -> Iterator[PublishedFile]:
    """Returns the files that belong to a topic as of a commit, by time partition and in commit order.

    Args:
        index: the index of the files that belong to each topic.
        log: the commit log; its state has the topic's directory.
        kind: data files or quarantine files.
        commit_number: the commit.
        wanted: returns whether to include a time partition.

    Raises:
        CorruptCommit, UnsupportedFormat: the commits of the topic cannot be read.
    """
    for day in index.days(topic, kind):
        for time_partition, indexed in sorted(index.day(topic, kind, day).time_partitions.items()):
            if not wanted(time_partition):
                continue
            yield from _published(log, topic, kind, time_partition, indexed, commit_number)


def newest_file(index: FileIndex, log: CommitLog, topic: str, kind: FileKind) -> PublishedFile | None:
    """Returns the newest published file in the topic's newest time partition with files; None if there is none."""
    return next(newest_files(index, log, topic, kind), None)


def newest_files(index: FileIndex, log: CommitLog, topic: str, kind: FileKind) -> Iterator[PublishedFile]:
    """Yields the published files of a topic, newest time partitions first. Reads the index day by day, so
    the cost depends on the number of files that the caller takes."""
    commit_number = applied_commit_number(log, topic)
    for day in reversed(index.days(topic, kind)):
        files = [
            file
            for time_partition, indexed in index.day(topic, kind, day).time_partitions.items()
            for file in _published(log, topic, kind, time_partition, indexed, commit_number)
        ]
        yield from sorted(files, key=lambda one: (one.time_partition, one.file.since), reverse=True)


def _published(
    log: CommitLog,
    topic: str,
    kind: FileKind,
    time_partition: str,
    indexed: IndexedTimePartition,
    commit_number: int,
) -> Iterator[PublishedFile]:
    generation = generation_at(indexed, commit_number)
    directory = time_partition_directory(log.state.topics[topic].directory, kind, time_partition, generation)
    for file in live_at(indexed, commit_number):
        yield PublishedFile(kind, time_partition, f"{directory}/{file.name}", file)
