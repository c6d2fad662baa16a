"""Chooses the time partitions to rewrite, and builds the commit. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence

from headrace.loader.commit.commit import CommittedFile, TimePartitionRewrite, TopicCommit
from headrace.loader.commit.partition_index import IndexedFile
from headrace.loader.commit.state import TopicState
from headrace.loader.work_unit import FileKind

DAY_MS = 86_400_000
SMALL_FILE_RATIO = 0.5  # files below this part of the target size are merged; merging larger ones would save little
FILES_MIN = 2  # of a merge


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


def mergeable(lengths: Mapping[str, int]) -> frozenset[str]:
    """Returns the names of the small files of a time partition that are to be merged now; none if merging is not worth
    its cost.

    A file of a load is merged with any other file. A file that a rewrite wrote is rewritten again only if it is not
    larger than the other chosen files together, so each rewrite of a row at least doubles the size of its file. Late
    messages therefore do not rewrite a large file each time: their files are first merged among themselves. (This is
    the size-tiered rule of log-structured merge trees: O'Neil and others, 1996.)

    Args:
        lengths: by name, the length of each small file with one schema.
    """
    rewritten = sorted((length, name) for name, length in lengths.items() if is_rewritten(name))
    others = sum(lengths.values()) - sum(length for length, _ in rewritten)
    count = len(rewritten)
    while count and rewritten[count - 1][0] > others + sum(length for length, _ in rewritten[: count - 1]):
        count -= 1
    chosen = lengths.keys() - {name for _, name in rewritten[count:]}
    return frozenset(chosen) if len(chosen) >= FILES_MIN else frozenset()


def is_rewritten(name: str) -> bool:
    """Whether a rewrite wrote the file `name`; if not, a load did. Names begin with the generation, which is 0 for
    loads."""
    generation = name.partition("-")[0]
    return generation.isdecimal() and int(generation) > 0


def merge_groups(files: Sequence[IndexedFile], bytes_target: int) -> list[tuple[IndexedFile, ...]]:
    """Returns groups of small files of a time partition, oldest first; each group is to be merged into one file, or
    into one per schema. See `mergeable` for the rule.

    Args:
        files: all files of the time partition, oldest first.
        bytes_target: maximum size of a group. Files of at least half this size are in no group.
    """
    chosen = _mergeable([file for file in files if file.length < SMALL_FILE_RATIO * bytes_target])
    groups: list[list[IndexedFile]] = [[]]
    for file in chosen:
        if sum(one.length for one in groups[-1]) + file.length > bytes_target:
            groups.append([])
        groups[-1].append(file)
    return [tuple(group) for group in map(_mergeable, groups) if group]


def _mergeable(files: Sequence[IndexedFile]) -> list[IndexedFile]:
    names = mergeable({file.name: file.length for file in files})
    return [file for file in files if file.name in names]


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
