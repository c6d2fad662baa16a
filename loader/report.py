"""The result of a run, as values that the command line prints and from which it derives the exit code."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.loader.apply.engine import ApplyResult
from headrace.loader.commit.commit import Commit, TopicCommit
from headrace.loader.commit.commit_log import CommitResult
from headrace.loader.commit.conflict import Conflict
from headrace.loader.commit.reconcile import ReconciledTopic
from headrace.loader.commit.state import LoaderState, TopicState
from headrace.loader.load_schema import column_changes
from headrace.loader.plan.discover import DiscoveredTopic
from headrace.loader.plan.load_plan import LoadPlan, PlannedTopic
from headrace.loader.work_unit import FileKind, UnitResult


@dataclass(frozen=True, slots=True)
class LoadedTopic:
    """The effect of one commit on one topic. `bytes_read` were fetched from the brokers, `bytes_written` went to files.
    `files` and `partitions` count data files and their time partitions only. `gaps` counts missing offsets and offsets
    of skipped corrupt batches. `changes` describe changed columns of an existing table. `by_reference` counts messages
    that the C core left to Python."""

    topic: str
    table: str
    rows: int
    files: int
    partitions: int
    quarantined: int
    tombstones: int
    gaps: int
    offsets: int
    bytes_read: int
    bytes_written: int
    new: bool
    schema_changed: bool
    changes: tuple[str, ...] = ()
    by_reference: int = 0


class TaskTime(NamedTuple):
    """One task of a run: its number, its start by the clock of its host in milliseconds since 1970, its duration, the
    bytes of record batches that it read, and the rows that it wrote, which may be in no commit."""

    task: int
    started_at_ms: int
    duration_ms: int
    bytes_read: int
    rows: int


@dataclass(frozen=True, slots=True)
class RunReport:
    """The result of one run.

    `commit_number` is the newest commit of the run, 0 for none. `conflict` is the reason why the run's work was
    discarded, or the work of one of its commits. `waiting` are topics that cannot be loaded yet, with the reason: no
    schema is registered, or none is cached and the registry cannot be used. `problems` are sentences by topic that need
    action; `notes` need none. `registry_outage` is the reason why the registry could not be used; topics with cached
    schemas were loaded anyway. `is_registry_refused` means that it rejected the loader's credentials. `read_ms` is the
    time of the slowest task, summed over the rounds of tasks. `held_back` counts the offsets that existed on the
    brokers when the run started and that no commit contains.

    `imbalance_planned` and `imbalance_measured` state how unevenly the work is divided: the largest value of a task
    divided by the mean over the tasks. The planned one compares estimated bytes and a constant per range, the measured
    one times of the first round. `task_times` has all tasks, of all rounds.
    """

    commit_number: int = 0
    run_id: str = ""
    conflict: str = ""
    loaded: tuple[LoadedTopic, ...] = ()
    waiting: Mapping[str, str] = field(default_factory=dict)
    problems: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    registry_outage: str = ""
    is_registry_refused: bool = False
    applied: tuple[str, ...] = ()
    tasks: int = 0
    imbalance_planned: float = 1.0
    imbalance_measured: float = 1.0
    read_ms: int = 0
    duration_ms: int = 0
    held_back: int = 0
    task_times: tuple[TaskTime, ...] = ()

    @property
    def has_findings(self) -> bool:
        return bool(self.problems)


def with_commits(
    report: RunReport, plan: LoadPlan, reconciled: Mapping[str, ReconciledTopic], commit_results: Sequence[CommitResult]
) -> RunReport:
    """Returns the report with the commits of the run, or with the conflicts that rejected them.

    Args:
        plan: the plan of the run.
        reconciled: by topic, the part of its work that passed the checks before the commit.
        commit_results: one for each commit that the run tried to make.
    """
    for commit_result in commit_results:
        report = _with_commit(report, plan, reconciled, commit_result)
    return report


def _with_commit(
    report: RunReport, plan: LoadPlan, reconciled: Mapping[str, ReconciledTopic], commit_result: CommitResult
) -> RunReport:
    if commit_result.commit is None:
        return dataclasses.replace(report, conflict=str(commit_result.conflict))
    commit = commit_result.commit
    loaded = tuple(
        _topic_loaded(topic, committed, plan.planned_topics[topic], reconciled.get(topic, ReconciledTopic()))
        for topic, committed in sorted(commit.topics.items())
    )
    return dataclasses.replace(
        report,
        commit_number=commit.commit_number,
        loaded=(*report.loaded, *loaded),
        notes=(*report.notes, *_commit_notes(commit, plan, commit_result.refused)),
    )


def _commit_notes(commit: Commit, plan: LoadPlan, refused: Mapping[str, Conflict]) -> list[str]:
    notes = [
        f"{topic}: stopped before messages of schema id {', '.join(map(str, sorted(committed.foreign_ids)))}, "
        "which was registered during this load; the next load reads them"
        for topic, committed in sorted(commit.topics.items())
        if committed.foreign_ids
    ]
    notes += [
        f"{topic}: another load was faster ({conflict}); this load's rows of it are discarded"
        for topic, conflict in sorted(refused.items())
    ]
    notes += [
        f"{topic}: the new topic's offsets begin again, so (partition, offset) may come twice in {committed.table}; "
        f"its rows are in files from 0-{commit.commit_number}- on"
        for topic, committed in sorted(commit.topics.items())
        if committed.starts_again
    ]
    notes += [
        f"{topic}: {_replaced_note(committed.table, commit.commit_number, offsets.partition, *offsets.replaced)}"
        for topic, committed in sorted(commit.topics.items())
        for offsets in committed.ranges
        if offsets.replaced is not None
        and _had_rows(plan.planned_topics[topic].known, offsets.partition, offsets.replaced[0])
    ]
    return notes


def _had_rows(topic_state: TopicState | None, partition: int, offset: int) -> bool:
    return topic_state is not None and topic_state.partitions[partition].has_rows_from(offset)


def _replaced_note(table: str, commit_number: int, partition: int, start: int, end: int) -> str:
    return (
        f"the log of partition {partition} diverged at offset {start}: the rows of its offsets {start} to "
        f"{end - 1} in files of {table} before 0-{commit_number}- were read from the former log, and stay; "
        f"the rows of the present log are in files from 0-{commit_number}- on"
    )


def _topic_loaded(
    topic: str, committed: TopicCommit, planned_topic: PlannedTopic, reconciled: ReconciledTopic
) -> LoadedTopic:
    before = planned_topic.known.load_schema.text if planned_topic.known is not None else ""
    data = [file for file in committed.files if file.kind is FileKind.DATA]
    counts = reconciled.counts
    return LoadedTopic(
        topic=topic,
        table=committed.table,
        rows=counts.records,
        files=len(data),
        partitions=len({file.time_partition for file in data}),
        quarantined=counts.quarantined,
        tombstones=counts.tombstones,
        gaps=sum(end - start for offsets in committed.ranges for start, end in offsets.gaps) + counts.corrupt,
        offsets=sum(offsets.end - offsets.start for offsets in committed.ranges),
        bytes_read=sum(offsets.bytes_read for offsets in committed.ranges),
        bytes_written=sum(file.length for file in committed.files),
        new=planned_topic.known is None,
        schema_changed=planned_topic.known is not None and committed.load_schema is not None,
        changes=column_changes(before, committed.load_schema.text) if before and committed.load_schema else (),
        by_reference=reconciled.by_reference,
    )


def with_applied(report: RunReport, *applied: ApplyResult) -> RunReport:
    """Returns the report with the results of the appliers.

    The appliers run before the load and after it. Failures are reported from their last pass only, because it may have
    resolved failures of the earlier one; warnings are reported from all passes.

    Args:
        applied: the results of each pass, newest first.
    """
    failures = {topic: (str(failure.message),) for topic, failure in applied[0].failures.items()}
    warnings = {warning: None for one in applied for warning in one.warnings}
    return dataclasses.replace(
        report,
        problems=merged_problems(report.problems, failures),
        notes=(*report.notes, *warnings),
        applied=tuple(sorted({topic for one in applied for topic in one.topics})),
    )


def held_back(discovered: Mapping[str, DiscoveredTopic], state: LoaderState) -> dict[str, int]:
    """Returns, by topic, the number of offsets that the brokers had when the topics were fetched and that are in no
    commit; without topics that have none.

    Args:
        discovered: topics and offsets on the brokers.
        state: the state of the commit log.
    """
    held: dict[str, int] = {}
    for name, found in discovered.items():
        partitions = state.topics[name].partitions if name in state.topics else {}
        for one in found.partitions:
            begin = partitions[one.partition].next_offset if one.partition in partitions else one.start
            held[name] = held.get(name, 0) + max(0, max(one.end, one.high_watermark) - max(begin, one.start))
    return {name: number for name, number in held.items() if number}


def merged_problems(
    first: Mapping[str, tuple[str, ...]], second: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Merges two mappings from topics to sentences, without duplicates. Omits topics without sentences."""
    topics = sorted({*first, *second})
    merged = {topic: tuple(dict.fromkeys((*first.get(topic, ()), *second.get(topic, ())))) for topic in topics}
    return {topic: sentences for topic, sentences in merged.items() if sentences}


def task_times(results: Sequence[UnitResult]) -> tuple[TaskTime, ...]:
    """Returns the times of the tasks of a run, ordered by their start."""
    times = (
        TaskTime(
            result.task,
            result.started_at_ms,
            result.duration_ms,
            sum(one.bytes_read for one in result.ranges),
            sum(one.counts.records for one in result.ranges),
        )
        for result in results
    )
    return tuple(sorted(times, key=lambda one: (one.started_at_ms, one.task)))


def imbalance(results: Sequence[UnitResult]) -> float:
    """Returns the slowest task's time divided by the mean time of the tasks; 1.0 without measured times."""
    times = [result.duration_ms for result in results]
    return max(times) * len(times) / sum(times) if times and sum(times) else 1.0
