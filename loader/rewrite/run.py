"""The commands `expire`, `accept_missing` and `compact`, and the steps that all rewriting commands share: catch up,
commit, apply.

Nothing is reserved: loads run concurrently, and files that they add to a time partition stay live in its new
generation. Of two concurrent rewrites of one topic the slower one is rejected and its work discarded.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.loader.apply.engine import ApplierEngine
from headrace.loader.apply.layout import time_partition_directory
from headrace.loader.commit.commit import Commit, CommitKind, CommittedFile, TimePartitionRewrite, TopicCommit
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.commit.partition_index import IndexedFile, live_at
from headrace.loader.commit.prepare import split_commit, staged_files
from headrace.loader.commit.state import LoaderState
from headrace.loader.errors import CommitLogError
from headrace.loader.inspect.rolling_check import RollingCheck
from headrace.loader.report import merged_problems
from headrace.loader.rewrite.choose import end_of_time_partition_ms, is_expired, merge_groups, rewrite, topic_commit
from headrace.loader.rewrite.merge import MergeResult, MergeSource, MergeUnit
from headrace.loader.storage.protocols import FinishedFile, Staging, WarehouseFiles
from headrace.loader.work_unit import FileKind, StagedFile

logger = logging.getLogger(__name__)

PORTION_BYTES_MAX = 128 * 1024 * 1024
"""Bytes of files after which a compaction commits: merged in some seconds, so that little work is lost with a kill, and
a load that is due during a turn of `headrace up` waits no longer."""
PORTION_GROUPS_MAX = 100
"""Merges after which a compaction commits; each changes a partition in the metastore."""


@dataclass(frozen=True, slots=True)
class RewritePorts:
    """The interfaces that a rewrite uses. `run_merges` runs merge units: as parallel tasks on a local file system, one
    after the other in the driver on HDFS and S3."""

    log: CommitLog
    staging: Staging
    files: WarehouseFiles
    index: FileIndex
    engine: ApplierEngine
    run_merges: Callable[[Sequence[MergeUnit]], Sequence[MergeResult]]
    now_ms: Callable[[], int]
    new_run_id: Callable[[], str]
    build: str


@dataclass(frozen=True, slots=True)
class TimePartitionRow:
    """A change of one time partition: `files` files with `rows` rows and `bytes` bytes are removed. `made` is 1 for
    files that `compact` merges, also if one file per schema remains; otherwise 0."""

    topic: str
    kind: FileKind
    time_partition: str
    files: int
    rows: int
    bytes: int
    made: int = 0


@dataclass(frozen=True, slots=True)
class RewriteReport:
    """The result of a rewriting command. `time_partitions` are the committed changes, in a dry run the changes that
    would be committed. `commit_number` is its newest commit, 0 for none; `problems` are sentences by topic; `notes`
    need no action."""

    time_partitions: tuple[TimePartitionRow, ...] = ()
    commit_number: int = 0
    problems: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CompactSettings:
    """Settings of `compact`. A time partition is merged `closed_ms_of` (of its topic) after its end at the earliest,
    because late messages may add files until then. Sizes are in bytes. `codec_of` returns the codec of a topic's files.
    """

    closed_ms_of: Callable[[str], int]
    bytes_target: int
    block_bytes: int
    codec_of: Callable[[str], str]


def merged_reports(one: RewriteReport, other: RewriteReport) -> RewriteReport:
    """Returns one report on two consecutive rewrites, `one` and then `other`: the changes, problems and notes of both,
    and the newest commit number."""
    return RewriteReport(
        (*one.time_partitions, *other.time_partitions),
        other.commit_number or one.commit_number,
        merged_problems(one.problems, other.problems),
        (*one.notes, *other.notes),
    )


FileSelection = tuple[str, FileKind, str, tuple[IndexedFile, ...]]
"""(topic, kind, time partition, files to remove)"""


def expire(ports: RewritePorts, keep_days: Mapping[str, int], *, is_dry: bool) -> RewriteReport:
    """Removes time partitions that are older than their topic's retention, both from tables and from quarantines.
    Returns a report of the removed files.

    Args:
        keep_days: by topic, the retention in whole days after the end of a time partition's day.
        is_dry: only report the files that would be removed.
    """
    state, notes = catch_up(ports, is_dry)
    chosen = [
        (topic, kind, time_partition, files)
        for topic in sorted(keep_days)
        for kind in FileKind
        for day in ports.index.days(topic, kind)
        if is_expired(day, keep_days[topic], ports.now_ms())
        for time_partition, files in live_files(ports, topic, kind, day)
    ]
    return _with_notes(notes, _commit_removal(ports, state, CommitKind.EXPIRE, chosen, is_dry))


def accept_missing(
    ports: RewritePorts, topic: str, kinds: Iterable[FileKind], time_partition: str, *, is_dry: bool
) -> RewriteReport:
    """Commits the removal of a topic's files that no longer exist, because the operator accepts their loss. Returns a
    report of these files.

    Args:
        kinds: the kinds of files to check: files of the table, of the quarantine or both.
        time_partition: limits this to one time partition; "" for all of the topic.
        is_dry: only report the missing files.
    """
    state, notes = catch_up(ports, is_dry)
    chosen = []
    for kind in kinds:
        for day in ports.index.days(topic, kind):
            for found, files in live_files(ports, topic, kind, day):
                missing = tuple(file for file in files if _is_missing(ports, state, topic, kind, found, file))
                if missing and time_partition in ("", found):
                    chosen.append((topic, kind, found, missing))
    return _with_notes(notes, _commit_removal(ports, state, CommitKind.EXPIRE, chosen, is_dry))


def compact(ports: RewritePorts, topics: Sequence[str], settings: CompactSettings, *, is_dry: bool) -> RewriteReport:
    """Merges the small files of past time partitions, with a commit for each portion of `PORTION_BYTES_MAX`. Returns a
    report of the replaced files.

    Args:
        topics: names of the topics to compact, with all their time partitions.
        settings: the sizes of the new files, and how long after its end a time partition is merged.
        is_dry: only report the files that would be merged.
    """
    _, notes = catch_up(ports, is_dry)
    groups = _groups(ports, topics, settings)
    if is_dry:
        return _with_notes(notes, planned(groups))
    report = RewriteReport(notes=notes)
    portion: list[FileSelection] = []
    for group in groups:
        portion.append(group)
        if is_full(portion):
            report, portion = merged_reports(report, merge_files(ports, portion, settings)), []
    return merged_reports(report, merge_files(ports, portion, settings))


def planned(groups: Iterable[FileSelection]) -> RewriteReport:
    """Returns a report of the files that a merge of these groups would replace."""
    return RewriteReport(_report_rows(_rewrites(groups), CommitKind.COMPACT))


def is_full(portion: Sequence[FileSelection]) -> bool:
    """Whether these files are enough for one commit of a compaction, so that a kill or a conflict discards only the
    work of seconds."""
    return len(portion) >= PORTION_GROUPS_MAX or sum(file.length for *_, files in portion for file in files) >= (
        PORTION_BYTES_MAX
    )


def merge_files(ports: RewritePorts, groups: Sequence[FileSelection], settings: CompactSettings) -> RewriteReport:
    """Merges each group of files, commits the result and applies it. Returns a report of the replaced files.

    Args:
        groups: files as of the state that the commit log has read.
    """
    if not groups:
        return RewriteReport()
    state, run_id = ports.log.state, ports.new_run_id()
    logger.info("phase_started phase=merge run_id=%s groups=%d", run_id, len(groups))
    results = ports.run_merges(
        [_unit(ports, state, settings, run_id, task, *group) for task, group in enumerate(groups)]
    )
    commits, problems = _merge_commits(state, groups, results)
    for committed in commits.values():
        ports.staging.persist(run_id, [FinishedFile(file.staged, file.length) for file in committed.files])
    report = add_commit(ports, state, CommitKind.COMPACT, run_id, commits) if commits else RewriteReport()
    if not report.commit_number:
        ports.staging.drop(run_id)  # no commit contains its files
    return dataclasses.replace(report, problems=merged_problems(problems, report.problems))


def catch_up(ports: RewritePorts, is_dry: bool) -> tuple[LoaderState, tuple[str, ...]]:
    """Applies all commits, so that no file is missing merely because it is not published yet. A dry run (`is_dry`)
    applies nothing.

    Returns:
        The newest state of the commit log, and the appliers' warnings.
    """
    if is_dry:
        return ports.log.read_state(), ()
    applied = ports.engine.apply_pending()
    if applied.outage is not None:
        raise applied.outage
    return ports.log.read_state(), tuple(applied.warnings)


def _with_notes(notes: tuple[str, ...], report: RewriteReport) -> RewriteReport:
    return dataclasses.replace(report, notes=(*notes, *report.notes))


def live_files(
    ports: RewritePorts, topic: str, kind: FileKind, day: str
) -> Iterator[tuple[str, tuple[IndexedFile, ...]]]:
    for time_partition in sorted(ports.index.day(topic, kind, day).time_partitions):
        files = ports.index.live(topic, kind, time_partition)
        if files:
            yield time_partition, files


def _groups(ports: RewritePorts, topics: Sequence[str], settings: CompactSettings) -> Iterator[FileSelection]:
    for topic in topics:
        for kind in FileKind:
            for day in ports.index.days(topic, kind):
                yield from groups_of_day(ports, topic, kind, day, settings)[0]


def groups_of_day(
    ports: RewritePorts, topic: str, kind: FileKind, day: str, settings: CompactSettings
) -> tuple[list[FileSelection], int | None]:
    """Returns the groups of files to merge in the closed time partitions of a day. Also returns the time in ms at which
    the next one is closed, None if all are."""
    groups: list[FileSelection] = []
    open_until: list[int] = []
    for time_partition, indexed in sorted(ports.index.day_uncached(topic, kind, day).time_partitions.items()):
        closed_at_ms = end_of_time_partition_ms(time_partition) + settings.closed_ms_of(topic)
        if closed_at_ms > ports.now_ms():
            open_until.append(closed_at_ms)
            continue
        files = live_at(indexed, ports.log.state.commit_number)
        groups += [(topic, kind, time_partition, group) for group in merge_groups(files, settings.bytes_target)]
    return groups, min(open_until, default=None)


def file_path(
    ports: RewritePorts, state: LoaderState, topic: str, kind: FileKind, time_partition: str, file: IndexedFile
) -> str:
    generation = ports.index.generation_at(topic, kind, time_partition, state.commit_number)
    return f"{time_partition_directory(state.topics[topic].directory, kind, time_partition, generation)}/{file.name}"


def _is_missing(
    ports: RewritePorts, state: LoaderState, topic: str, kind: FileKind, time_partition: str, file: IndexedFile
) -> bool:
    return ports.files.length(file_path(ports, state, topic, kind, time_partition, file)) is None


def _unit(
    ports: RewritePorts,
    state: LoaderState,
    settings: CompactSettings,
    run_id: str,
    task: int,
    topic: str,
    kind: FileKind,
    time_partition: str,
    files: Sequence[IndexedFile],
) -> MergeUnit:
    return MergeUnit(
        run_id=run_id,
        task=task,
        kind=kind,
        topic=topic,
        time_partition=time_partition,
        sources=tuple(
            MergeSource(
                file_path(ports, state, topic, kind, time_partition, file),
                file.length,
                file.checksum,
                file.records,
                file.ranges,
            )
            for file in files
        ),
        warehouse=ports.files.root,
        staging=ports.staging.location(run_id),
        codec=settings.codec_of(topic),
        block_bytes=settings.block_bytes,
        build=ports.build,
    )


def _rewrites(chosen: Iterable[FileSelection]) -> dict[str, list[TimePartitionRewrite]]:
    """Returns by topic the rewrites that remove the chosen files, one for each time partition and kind of files."""
    removed: dict[str, dict[tuple[FileKind, str], list[IndexedFile]]] = defaultdict(lambda: defaultdict(list))
    for topic, kind, time_partition, files in chosen:
        removed[topic][kind, time_partition] += files
    return {
        topic: [rewrite(kind, time_partition, files) for (kind, time_partition), files in sorted(found.items())]
        for topic, found in removed.items()
    }


def _report_rows(
    rewrites: Mapping[str, Iterable[TimePartitionRewrite]], commit_kind: CommitKind
) -> tuple[TimePartitionRow, ...]:
    """Returns the rows of a report on these rewrites, which are given by topic."""
    made = 1 if commit_kind is CommitKind.COMPACT else 0
    return tuple(
        TimePartitionRow(topic, one.kind, one.time_partition, len(one.replaced), one.records, one.bytes, made)
        for topic, found in rewrites.items()
        for one in found
    )


def _commit_removal(
    ports: RewritePorts, state: LoaderState, kind: CommitKind, chosen: Sequence[FileSelection], is_dry: bool
) -> RewriteReport:
    rewrites = _rewrites(chosen)
    if is_dry or not chosen:
        return RewriteReport(_report_rows(rewrites, kind))
    commits = {topic: topic_commit(state.topics[topic], found) for topic, found in rewrites.items()}
    return add_commit(ports, state, kind, ports.new_run_id(), commits)


def _merge_commits(
    state: LoaderState, groups: Sequence[FileSelection], results: Sequence[MergeResult]
) -> tuple[dict[str, TopicCommit], dict[str, tuple[str, ...]]]:
    """Returns the commits of the successful merges by topic, and sentences about the failed ones, also by topic.

    Args:
        state: the state of the commit log before the merges.
        groups: the files of each merge.
        results: the result of each merge, in the order of `groups`.
    """
    merged: list[FileSelection] = []
    new_files: dict[str, list[CommittedFile]] = defaultdict(list)
    problems: dict[str, list[str]] = defaultdict(list)
    for group, result in zip(groups, results, strict=True):
        topic, kind, time_partition, files = group
        if result.error:
            problems[topic].append(f"{time_partition} was not compacted: {result.error}")
            continue
        if not result.merged:
            continue
        merged.append((topic, kind, time_partition, tuple(files[index] for index in sorted(result.merged))))
        new_files[topic] += [committed_file(result.task, number, file) for number, file in enumerate(result.files)]
    commits = {
        topic: topic_commit(state.topics[topic], rewrites, new_files[topic])
        for topic, rewrites in _rewrites(merged).items()
    }
    return commits, {topic: tuple(sentences) for topic, sentences in problems.items()}


def committed_file(task: int, number: int, file: StagedFile) -> CommittedFile:
    return CommittedFile(
        kind=file.kind,
        time_partition=file.time_partition,
        name=f"{task}-{number}.avro",
        staged=file.path,
        length=file.length,
        checksum=file.checksum,
        records=file.records,
        ranges=file.ranges,
    )


def add_commit(
    ports: RewritePorts,
    state: LoaderState,
    kind: CommitKind,
    run_id: str,
    commits: Mapping[str, TopicCommit],
    reason: str = "",
) -> RewriteReport:
    """Commits a rewrite, in several commits if it is too large for one, and applies them. Returns a report of the
    committed changes, with the newest commit number. Its problems are the topics that another command rewrote first,
    and failures of appliers.

    Args:
        state: state that was read before the work began.
        kind: the kind of the rewrite.
        run_id: id of the run; the new files are in its staging directory.
        commits: the commit by topic.
        reason: the operator's reason, "" for none.
    """
    rows: tuple[TimePartitionRow, ...] = ()
    commit_number, problems = 0, dict[str, tuple[str, ...]]()
    proposal = Commit(
        0,
        kind,
        run_id,
        ports.now_ms(),
        ports.build,
        commits,
        frozenset(),
        reason=reason,
        planned_after=state.commit_number,
    )
    first, *others = split_commit(proposal, ports.new_run_id)
    for chunk in others:
        ports.staging.move(run_id, staged_files(chunk), chunk.run_id)
    for chunk in (first, *others) if commits else ():
        commit_result = ports.log.try_commit(chunk)
        if commit_result.commit is not None:
            commit_number = commit_result.commit.commit_number
            rows += _report_rows({topic: one.rewrites for topic, one in commit_result.commit.topics.items()}, kind)
        refused = dict(commit_result.refused)
        if commit_result.conflict is not None:
            # The conflict may concern the whole run and name no topic.
            refused = dict.fromkeys(chunk.topics, commit_result.conflict) | refused
        for topic, conflict in refused.items():
            problems[topic] = (f"not rewritten, because another command was faster ({conflict}); try again",)
    applied = ports.engine.apply_pending()
    recheck_findings(ports, commits.keys())
    failures = {topic: (failure.message,) for topic, failure in applied.failures.items()}
    return RewriteReport(rows, commit_number, merged_problems(problems, failures), tuple(applied.warnings))


def recheck_findings(ports: RewritePorts, topics: Iterable[str]) -> None:
    """Compares files of these topics that loads found missing or damaged again, since the rewrite may have replaced
    them. If that fails, the next load does it."""
    try:
        RollingCheck(ports.log, ports.files).recheck(frozenset(topics), ports.now_ms())
    except (CommitLogError, OSError) as error:
        logger.warning("findings_not_rechecked reason=%s", error)
