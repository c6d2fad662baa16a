"""The command `repartition`: moves the rows of a topic to files of days or of hours, and changes the partition columns
of its tables.

One commit replaces all files of the topic, so that no row is in both partitionings or in none. It is refused if another
commit of the topic came first, such as that of a load. The files of that commit are then copied too, and the next
attempt commits: it takes only as long as these few files, so attempts soon succeed while loads run.

New files are in directories of a new generation, never below a directory of the old partitioning: readers of a
directory that include its subdirectories would find rows twice.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from headrace.loader.commit.commit import Commit, CommitKind, CommittedFile, Repartition, TopicCommit
from headrace.loader.commit.conflict import Conflict, ConflictRule
from headrace.loader.commit.partition_index import IndexedFile
from headrace.loader.commit.prepare import COMMIT_BYTES_MAX, FILE_BYTES, FILE_RANGE_BYTES, estimated_bytes
from headrace.loader.commit.state import LoaderState, TopicState
from headrace.loader.policy import DAY
from headrace.loader.rewrite.choose import rewrite, topic_commit
from headrace.loader.rewrite.closure import FileKey
from headrace.loader.rewrite.merge import MergeResult, MergeSource, MergeUnit
from headrace.loader.rewrite.row_hours import TimeSource
from headrace.loader.rewrite.run import (
    RewritePorts,
    catch_up,
    committed_file,
    file_path,
    live_files,
    recheck_findings,
)
from headrace.loader.storage.protocols import FinishedFile
from headrace.loader.work_unit import FileKind

logger = logging.getLogger(__name__)

ATTEMPTS_MAX = 10
REPLACED_FILE_BYTES = 60  # of the name of a replaced file in the commit
HOURS = 24  # of a day
REPLACED_PARTITION_BYTES = 120  # of a time partition with replaced or new files

RETRIED = frozenset({ConflictRule.TOPIC_CHANGED, ConflictRule.FILES_REPLACED, ConflictRule.LOAD_SCHEMA_CHANGED})
"""Conflicts after which the files that the other commit added are copied too."""


@dataclass(frozen=True, slots=True)
class RepartitionSettings:
    """Settings of `repartition`: `partition_by` is `hour` or `day`, sizes are in bytes. `time_fields_of` returns the
    setting `loader.time_fields` of a topic, `codec_of` the codec of its files."""

    partition_by: str
    bytes_target: int
    block_bytes: int
    codec_of: Callable[[str], str]
    time_fields_of: Callable[[str], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class FileLayout:
    """The live files of a topic, of the table and of the quarantine together."""

    partition_by: str
    files: int
    rows: int
    bytes: int
    time_partitions: int


@dataclass(frozen=True, slots=True)
class RepartitionReport:
    """The result of `repartition`. `after` is None if nothing was committed; in a dry run it has the numbers that are
    known before the rows are read, which are upper limits if `is_estimate`. `problems` are sentences."""

    topic: str
    before: FileLayout
    after: FileLayout | None
    is_estimate: bool = False
    commit_number: int = 0
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Group:
    """Files of one kind and day that a task copies."""

    kind: FileKind
    day: str
    files: tuple[tuple[str, IndexedFile], ...]  # each with its time partition

    @property
    def file_keys(self) -> frozenset[FileKey]:
        return frozenset((self.kind, time_partition, file.name) for time_partition, file in self.files)


@dataclass(slots=True)
class _Copied:
    """The groups that were copied so far, with their results. Their files are in the staging directory of `run_id`."""

    run_id: str
    groups: list[tuple[_Group, MergeResult]] = field(default_factory=list)
    next_task: int = 0


def repartition(ports: RewritePorts, topic: str, settings: RepartitionSettings, *, is_dry: bool) -> RepartitionReport:
    """Moves all rows of a topic to files of the partitioning in `settings`, and changes its tables. Returns a report.

    Args:
        topic: a topic with commits.
        is_dry: only report the numbers of files and partitions.
    """
    state, notes = catch_up(ports, is_dry)
    before = _layout(ports, state, topic)
    if before.partition_by == settings.partition_by:
        return RepartitionReport(topic, before, None, notes=notes)
    groups = list(_groups(ports, topic, settings.bytes_target, frozenset()))
    problem = _commit_size_problem(topic, _least_commit_bytes(groups))
    if is_dry or problem:
        after, is_estimate = _estimate(groups, before, settings.partition_by)
        problems = (problem,) if problem else ()
        return RepartitionReport(topic, before, after if is_dry else None, is_estimate, 0, problems, notes)
    copied = _Copied(ports.new_run_id())
    commit_number, problem = _copy_and_commit(ports, topic, settings, copied)
    if not commit_number:
        ports.staging.drop(copied.run_id)  # no commit contains its files
        return RepartitionReport(topic, before, None, problems=(problem,), notes=notes)
    applied = ports.engine.apply_pending()
    recheck_findings(ports, [topic])
    failure = applied.failures.get(topic)
    return RepartitionReport(
        topic,
        before,
        _layout(ports, ports.log.read_state(), topic),
        commit_number=commit_number,
        problems=() if failure is None else (failure.message,),
        notes=(*notes, *applied.warnings),
    )


def _copy_and_commit(
    ports: RewritePorts, topic: str, settings: RepartitionSettings, copied: _Copied
) -> tuple[int, str]:
    """Copies all files of a topic to the new partitioning and commits the result. Returns the commit number, or 0 and
    the reason why nothing was committed."""
    for _ in range(ATTEMPTS_MAX):
        state = ports.log.read_state()
        live = _file_keys(_groups(ports, topic, 0, frozenset()))
        copied.groups = [(group, result) for group, result in copied.groups if group.file_keys <= live]
        done = _file_keys(group for group, _ in copied.groups)
        problem = _copy(ports, state, topic, settings, copied, done)
        if problem:
            return 0, problem
        committed = _topic_commit(ports, state.topics[topic], topic, settings.partition_by, copied.groups)
        problem = _commit_size_problem(topic, _commit_bytes(committed))
        if problem:
            return 0, problem
        ports.staging.persist(copied.run_id, [FinishedFile(file.staged, file.length) for file in committed.files])
        commit_number, conflict = _try_commit(ports, state, topic, copied.run_id, committed)
        if conflict is None:
            return commit_number, ""
        logger.info("commit_refused run_id=%s conflict=%s", copied.run_id, conflict)
        if conflict.rule not in RETRIED:
            return 0, f"not repartitioned ({conflict}); run this command again"
        catch_up(ports, is_dry=False)  # publishes the files of the other commit, which are copied next
    return (
        0,
        f"not repartitioned, because other commands changed the topic {ATTEMPTS_MAX} times; run this command again",
    )


def _copy(
    ports: RewritePorts,
    state: LoaderState,
    topic: str,
    settings: RepartitionSettings,
    copied: _Copied,
    done: frozenset[FileKey],
) -> str:
    """Copies the files that are not in `done`, and adds them to `copied`. Returns the reason why a file could not be
    copied, "" on success."""
    groups = list(_groups(ports, topic, settings.bytes_target, done))
    if not groups:
        return ""
    logger.info("phase_started phase=merge run_id=%s groups=%d", copied.run_id, len(groups))
    units = [
        _unit(ports, state, topic, settings, copied.run_id, task, group)
        for task, group in enumerate(groups, start=copied.next_task)
    ]
    results = ports.run_merges(units)
    errors = sorted({result.error for result in results if result.error})
    if errors:
        return f"not repartitioned: {'; '.join(errors[:3])}"
    copied.next_task += len(groups)
    copied.groups += zip(groups, results, strict=True)
    return ""


def _unit(
    ports: RewritePorts,
    state: LoaderState,
    topic: str,
    settings: RepartitionSettings,
    run_id: str,
    task: int,
    group: _Group,
) -> MergeUnit:
    by_hour = TimeSource(state.topics[topic].load_schema.time_property, settings.time_fields_of(topic))
    return MergeUnit(
        run_id=run_id,
        task=task,
        kind=group.kind,
        topic=topic,
        time_partition=group.day,
        sources=tuple(
            MergeSource(
                file_path(ports, state, topic, group.kind, time_partition, file),
                file.length,
                file.checksum,
                file.records,
                file.ranges,
            )
            for time_partition, file in group.files
        ),
        warehouse=ports.files.root,
        staging=ports.staging.location(run_id),
        codec=settings.codec_of(topic),
        block_bytes=settings.block_bytes,
        build=ports.build,
        takes_all=True,
        times=None if settings.partition_by == DAY else by_hour,
    )


def _topic_commit(
    ports: RewritePorts,
    known: TopicState,
    topic: str,
    partition_by: str,
    copied: Sequence[tuple[_Group, MergeResult]],
) -> TopicCommit:
    """Returns the topic's commit. Besides the replaced time partitions, it rewrites those with new files, and with
    partitions by day every day that ever had files, so that all of them are in the new generation's directories."""
    replaced: dict[tuple[FileKind, str], list[IndexedFile]] = defaultdict(list)
    files: list[CommittedFile] = []
    for group, result in copied:
        for time_partition, file in group.files:
            replaced[group.kind, time_partition].append(file)
        for number, staged in enumerate(result.files):
            files.append(committed_file(result.task, number, staged))
            replaced.setdefault((staged.kind, staged.time_partition), [])
    for kind in FileKind if partition_by == DAY else ():
        for day in ports.index.days(topic, kind):
            replaced.setdefault((kind, day), [])
    rewrites = [rewrite(kind, time_partition, found) for (kind, time_partition), found in sorted(replaced.items())]
    return dataclasses.replace(
        topic_commit(known, rewrites, files),
        partition_by=partition_by,
        repartition=Repartition(known.partition_by, known.commit_number),
    )


def _try_commit(
    ports: RewritePorts, state: LoaderState, topic: str, run_id: str, committed: TopicCommit
) -> tuple[int, Conflict | None]:
    """Returns the commit number, or 0 and the conflict."""
    proposal = Commit(
        0,
        CommitKind.REPARTITION,
        run_id,
        ports.now_ms(),
        ports.build,
        {topic: committed},
        frozenset(),
        planned_after=state.commit_number,
    )
    result = ports.log.try_commit(proposal)
    if result.commit is not None and topic in result.commit.topics:
        return result.commit.commit_number, None
    conflict = result.refused.get(topic) or result.conflict
    assert conflict is not None, "a commit without its only topic has a conflict"
    return 0, conflict


def _groups(ports: RewritePorts, topic: str, bytes_target: int, done: frozenset[FileKey]) -> Iterator[_Group]:
    """Yields groups of at most `bytes_target` bytes (or one file) of the topic's live files that are not in `done`."""
    for kind in FileKind:
        for day in ports.index.days(topic, kind):
            group: list[tuple[str, IndexedFile]] = []
            size = 0
            for time_partition, files in live_files(ports, topic, kind, day):
                for file in files:
                    if (kind, time_partition, file.name) in done:
                        continue
                    if group and size + file.length > bytes_target:
                        yield _Group(kind, day, tuple(group))
                        group, size = [], 0
                    group.append((time_partition, file))
                    size += file.length
            if group:
                yield _Group(kind, day, tuple(group))


def _file_keys(groups: Iterable[_Group]) -> frozenset[FileKey]:
    return frozenset(key for group in groups for key in group.file_keys)


def _layout(ports: RewritePorts, state: LoaderState, topic: str) -> FileLayout:
    known = state.topics[topic]
    groups = list(_groups(ports, topic, 0, frozenset()))
    time_partitions = {(group.kind, time_partition) for group in groups for time_partition, _ in group.files}
    return FileLayout(
        known.partition_by,
        known.data.files + known.quarantine.files,
        known.data.records + known.quarantine.records,
        known.data.bytes + known.quarantine.bytes,
        len(time_partitions),
    )


def _estimate(groups: Sequence[_Group], before: FileLayout, partition_by: str) -> tuple[FileLayout, bool]:
    """Returns the numbers after the copy, as far as they are known before it, and whether they are upper limits. Files
    of different schemas are not merged, so with several schemas there are more files."""
    days = len({(group.kind, group.day) for group in groups})
    if partition_by == DAY:
        return dataclasses.replace(before, partition_by=DAY, files=len(groups), time_partitions=days), False
    hours = min(before.rows, HOURS * days)
    files = min(before.rows, HOURS * len(groups))
    return dataclasses.replace(before, partition_by=partition_by, files=files, time_partitions=hours), True


def _least_commit_bytes(groups: Iterable[_Group]) -> int:
    """Returns the bytes of the smallest commit that can replace these files: with one new file for each group."""
    return sum(
        FILE_BYTES
        + REPLACED_FILE_BYTES * len(group.files)
        + FILE_RANGE_BYTES * len({one.partition for _, file in group.files for one in file.ranges})
        for group in groups
    )


def _commit_bytes(committed: TopicCommit) -> int:
    names = sum(len(one.replaced) for one in committed.rewrites)
    return estimated_bytes(committed) + REPLACED_FILE_BYTES * names + REPLACED_PARTITION_BYTES * len(committed.rewrites)


def _commit_size_problem(topic: str, length: int) -> str:
    if length <= COMMIT_BYTES_MAX:
        return ""
    return (
        f"not repartitioned: one commit replaces all files, and that of {topic} would have about "
        f"{length / 1024**2:,.0f} MiB, more than {COMMIT_BYTES_MAX // 1024**2} MiB; merge its files with "
        f"`headrace compact {topic}`, remove old ones with `headrace expire`, or load all messages again into a second "
        "warehouse (`headrace load --new-warehouse`)"
    )
