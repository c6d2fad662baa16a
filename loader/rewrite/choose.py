"""Chooses the time partitions to rewrite, and builds the commit. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence

from headrace.loader.commit.commit import CommittedFile, TimePartitionRewrite, TopicCommit
from headrace.loader.commit.partition_index import IndexedFile
from headrace.loader.commit.state import TopicState
from headrace.loader.work_unit import FileKind

DAY_MS = 86_400_000
SMALL_FILE_RATIO = 0.5  # files below this part of the target size are merged; merging larger ones would save little
FILES_MIN = 2  # number of small files from which a time partition is merged


def is_expired(day: str, keep_days: int, now_ms: int) -> bool:
    """Whether a day ended at least `keep_days` days before `now_ms`.

    Args:
        day: in UTC, such as `dt=2026-01-31`.
        keep_days: whole days since the end of that day.
    """
    return end_of_day_ms(day) + keep_days * DAY_MS <= now_ms


def end_of_day_ms(day: str) -> int:
    date = datetime.date.fromisoformat(day.removeprefix("dt="))
    return (date.toordinal() - datetime.date(1970, 1, 1).toordinal() + 1) * DAY_MS


def end_of_time_partition_ms(time_partition: str) -> int:
    """Returns the end of a time partition, exclusive, in ms since 1970."""
    day, _, hour = time_partition.partition("/hr=")
    return end_of_day_ms(day) - (23 - int(hour)) * 3_600_000 if hour else end_of_day_ms(day)


def merge_groups(files: Sequence[IndexedFile], bytes_target: int) -> list[tuple[IndexedFile, ...]]:
    """Returns groups of small files of a time partition, oldest first; each group is to be merged into one file, or
    into one per schema. A group has at least `FILES_MIN` files.

    Args:
        files: all files of the time partition, oldest first.
        bytes_target: maximum size of a group. Files of at least half this size are in no group.
    """
    small = [file for file in files if file.length < SMALL_FILE_RATIO * bytes_target]
    groups: list[list[IndexedFile]] = [[]]
    for file in small:
        if sum(one.length for one in groups[-1]) + file.length > bytes_target:
            groups.append([])
        groups[-1].append(file)
    return [tuple(group) for group in groups if len(group) >= FILES_MIN]


def rewrite(kind: FileKind, time_partition: str, files: Iterable[IndexedFile]) -> TimePartitionRewrite:
    """Returns the rewrite that removes these files of one kind (table or quarantine) from a time partition."""
    replaced = tuple(files)
    return TimePartitionRewrite(
        kind=kind,
        time_partition=time_partition,
        replaced=tuple(sorted(file.name for file in replaced)),
        records=sum(file.records for file in replaced),
        bytes=sum(file.length for file in replaced),
    )


def topic_commit(
    topic_state: TopicState, rewrites: Sequence[TimePartitionRewrite], files: Sequence[CommittedFile] = ()
) -> TopicCommit:
    """Returns a topic's commit that removes the files of the rewrites, adds `files`, and changes nothing else.

    Args:
        topic_state: the topic's state, from which the commit takes everything else.
    """
    return TopicCommit(
        topic_id=topic_state.topic_id,
        topic_id_before=topic_state.topic_id,
        revision_before=topic_state.load_schema.revision,
        table=topic_state.table,
        directory=topic_state.directory,
        partition_by=topic_state.partition_by,
        load_schema=None,
        ranges=(),
        files=tuple(files),
        audit=(),
        time_sources={},
        foreign_ids=frozenset(),
        generation_before=topic_state.generation,
        rewrites=tuple(rewrites),
    )
