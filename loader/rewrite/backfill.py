"""Recreates files by reading their offsets again from the brokers, with the topic's present schema and policy: files
that were damaged or deleted, or that were written with a policy or projection that has been corrected since.

Exactly once: the commit that adds the new files removes all old files of the present log that share an offset with the
range read again, and of two concurrent rewrites of a topic only one is committed. Files are replaced only if exactly as
many messages were read as they hold. A period is processed in pieces, each in a separate commit: if the command is
killed between them, nothing is lost or duplicated, and a second run repeats everything. The audit is unchanged, because
the first load of the messages counted them.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from headrace.audit.window import count_text
from headrace.kafka_wire.errors import KafkaError
from headrace.loader.commit.alarms import AlarmKind
from headrace.loader.commit.commit import CommitKind, CommittedFile, TopicCommit
from headrace.loader.commit.partition_index import live_at
from headrace.loader.commit.reconcile import ReconciledTopic, reconcile
from headrace.loader.commit.revalidate import fetch_changes
from headrace.loader.commit.state import LoaderState, TopicState
from headrace.loader.errors import LoaderError
from headrace.loader.inspect.alarms import withdraw
from headrace.loader.plan.discover import Cluster, DiscoveredTopic, discover
from headrace.loader.plan.load_plan import LoadPlan, PlannedTopic, PlanSettings, plan_summary, work_units
from headrace.loader.plan.packing import pack
from headrace.loader.plan.schemas import TopicSchemas, WriterSchemas
from headrace.loader.policy import TopicPolicy
from headrace.loader.read.units import ReadResult, read_units
from headrace.loader.rewrite.backfill_report import (
    BackfillPeriod,
    BackfillReport,
    files_of,
    offsets_read,
    time_partition_rows,
)
from headrace.loader.rewrite.choose import rewrite, topic_commit
from headrace.loader.rewrite.closure import Component, LiveFile, offset_closure, pieces
from headrace.loader.rewrite.origin import find_foreign_rows
from headrace.loader.rewrite.replay import schema_problem
from headrace.loader.rewrite.reread import (
    RETRY_ADVICE,
    count_differences,
    failure_sentences,
    offset_ranges,
    planned_ranges,
    recreatable_components,
    refusal_sentences,
    unreadable_ranges,
)
from headrace.loader.rewrite.run import RewritePorts, add_commit, catch_up
from headrace.loader.storage.protocols import FinishedFile
from headrace.loader.work_unit import FileKind, RangeResult, TaskSettings, UnitResult, WorkUnit

logger = logging.getLogger(__name__)

PIECE_BYTES_MAX = 4 * 1024**3
"""Maximum size of the files that one commit replaces, except for a single component (files that must be replaced
together) that is larger. A few tasks read their offsets again in some minutes, which is the work lost if the command is
killed."""

CONTINUE_ADVICE = "run this command again for the rest"


@dataclass(frozen=True, slots=True)
class BackfillPorts:
    """The interfaces that a backfill uses. `run_units` runs work units as parallel tasks. `report_progress` is called
    with a line of progress after each commit."""

    rewrites: RewritePorts
    cluster: Cluster
    schemas: WriterSchemas
    run_units: Callable[[Sequence[WorkUnit]], Sequence[UnitResult]]
    report_progress: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BackfillSettings:
    """Settings of a backfill. `plan` and `task` are as for a load. `piece_bytes_max` is the maximum size of the files
    that one commit replaces, in bytes; a single component may exceed it."""

    plan: PlanSettings
    task: TaskSettings
    piece_bytes_max: int = PIECE_BYTES_MAX


def backfill(
    ports: BackfillPorts, topic: str, period: BackfillPeriod, settings: BackfillSettings, *, is_dry: bool
) -> BackfillReport:
    """Recreates the files of a topic in the time partitions of a period, and all files that share offsets with them.
    Returns a report of the replaced files.

    To find the files that share offsets, it reads the index of the topic's files: the days of the period, then every
    day, and a day again if files on it may share offsets with files found later. Memory is needed for the entries of
    the replaced files, and for one offset range per day and partition. A year of loads every ten minutes, 105,000 files
    of ten partitions, took 10 s and little memory. The topic's commits are read from the newest back to the oldest that
    wrote one of the files, or a file from which one was copied.

    Args:
        topic: a topic with a commit.
        period: the time partitions to recreate.
        is_dry: only report the files that would be replaced.

    Raises:
        KafkaUnavailable: no broker answers.
        LoaderError: the tasks could not run.
        OSError: the disk failed. All three are raised only before the first commit; later failures are in the report.
    """
    return _Backfill(ports, topic, settings).run(period, is_dry=is_dry)


class _Stopped(Exception):
    """Raised to end a backfill for a reason that is reported. The pieces that were committed before stay committed."""

    def __init__(self, *sentences: str) -> None:
        super().__init__("; ".join(sentences))
        self.sentences = sentences


@dataclass(frozen=True, slots=True)
class _Read:
    """The result of reading the offsets of a piece (the files that one commit of a backfill replaces): the plan of the
    read, the tasks' results, and the results reconciled with the plan."""

    plan: LoadPlan
    reading: ReadResult
    reconciled: ReconciledTopic

    def results(self) -> list[RangeResult]:
        return [one for result in self.reading.results for one in result.ranges]


class _Backfill:
    """One run of `headrace backfill`, for one topic."""

    def __init__(self, ports: BackfillPorts, topic: str, settings: BackfillSettings) -> None:
        self._ports = ports
        self._rewrites = ports.rewrites
        self._topic = topic
        self._settings = settings
        self._new_foreign_ids: frozenset[int] = frozenset()
        self._replaced: list[Component] = []
        self._problems: list[str] = []
        self._report = BackfillReport()

    def run(self, period: BackfillPeriod, *, is_dry: bool) -> BackfillReport:
        state, notes = catch_up(self._rewrites, is_dry)
        self._report = BackfillReport(notes=notes)
        self._initial_state = state.topics[self._topic]
        requested = [one for day in self._days() if period.overlaps_day(day[1]) for one in self._live_files_of(day)]
        requested = [one for one in requested if period.contains(one.time_partition)]
        if not requested:
            return self._report
        self._report = dataclasses.replace(self._report, files_requested=len(requested))
        try:
            components = self._find_components(state, requested)
            self._schemas = self._fetch_schemas(self._initial_state)
            readable = self._readable(components, self._discovered(state), self._initial_state)
            if is_dry:
                self._replaced = readable
            else:
                self._execute(readable)
        except _Stopped as stopped:
            self._problems += stopped.sentences
        except (KafkaError, LoaderError, OSError) as error:
            if not self._report.commits:
                raise
            self._problems.append(f"{error}; {CONTINUE_ADVICE}")
        return self._final_report()

    def _days(self) -> list[tuple[FileKind, str]]:
        return [(kind, day) for kind in FileKind for day in self._rewrites.index.days(self._topic, kind)]

    def _live_files_of(self, kind_and_day: tuple[FileKind, str]) -> list[LiveFile]:
        kind, day = kind_and_day
        commit_number = self._rewrites.log.state.commit_number
        time_partitions = self._rewrites.index.day_uncached(self._topic, kind, day).time_partitions
        return [
            LiveFile(kind, name, file)
            for name, time_partition in time_partitions.items()
            for file in live_at(time_partition, commit_number)
        ]

    def _find_components(self, state: LoaderState, requested: Sequence[LiveFile]) -> list[Component]:
        """Finds the files to replace: the requested files, and the files that share offsets with them.
        Returns them as components (files that are replaced together).

        Leaves out files with messages that the brokers may no longer have, because the topic was re-created or a
        partition's log diverged, or because no commit states their origin. If requested files are left out, adds
        sentences to the problems that the backfill reports.

        Args:
            state: the state of the commit log; its newest commit is the first one searched.
        """
        files = offset_closure(requested, self._days(), self._live_files_of)
        topic_commits = self._rewrites.log.history(self._topic, state)
        commits = ((one.value.commit_number, one.value.kind, one.value.topics[self._topic]) for one in topic_commits)
        found, problems = recreatable_components(
            files, find_foreign_rows(files, commits), {one.key for one in requested}
        )
        self._problems += problems
        return found

    def _fetch_schemas(self, topic_state: TopicState) -> TopicSchemas:
        topic_state = dataclasses.replace(topic_state, foreign_ids=topic_state.foreign_ids | self._new_foreign_ids)
        topic_schemas = self._ports.schemas.of_topic(self._topic, topic_state)
        if not isinstance(topic_schemas, TopicSchemas):
            raise _Stopped(topic_schemas.reason)
        if problem := schema_problem(self._ports.schemas, self._topic, topic_schemas):
            raise _Stopped(problem)
        return topic_schemas

    def _discovered(self, state: LoaderState) -> DiscoveredTopic:
        discovery = discover(self._ports.cluster, (re.escape(self._topic),), (), state)
        found = discovery.topics.get(self._topic)
        if found is None:
            raise _Stopped(discovery.unusable.get(self._topic, "the brokers do not have the topic"))
        if found.topic_id and self._initial_state.topic_id not in ("", found.topic_id):
            raise _Stopped(
                f"the topic was re-created on the brokers (topic id {found.topic_id}, was "
                f"{self._initial_state.topic_id}) and no longer has the messages of the loaded files"
            )
        return found

    def _readable(
        self, found: Sequence[Component], discovered: DiscoveredTopic, topic_state: TopicState
    ) -> list[Component]:
        component_refusals = [unreadable_ranges(one, discovered, topic_state) for one in found]
        self._problems += refusal_sentences(refused for refusals in component_refusals for refused in refusals)
        return [one for one, refusals in zip(found, component_refusals, strict=True) if not refusals]

    def _execute(self, found: Sequence[Component]) -> None:
        pending = deque(pieces(found, self._settings.piece_bytes_max))
        number, count = 0, len(pending)
        while pending:
            piece = pending.popleft()
            number += 1
            remaining = self._replace_piece(piece, f"piece {number} of {count}")
            if remaining:
                pending.appendleft(remaining)
                count += 1

    def _replace_piece(self, piece: Sequence[Component], name: str) -> tuple[Component, ...]:
        """Reads again the offsets of the components `piece`, which one commit is to replace, and commits the new files.
        Returns the components to try again, none if all are done.

        If the number of messages read differs from that in the files of some components, nothing is committed, and the
        remaining components are returned.

        Args:
            name: the piece's number, for the line of progress.
        """
        state, topic_state = self._checked_state()
        piece = self._readable(piece, self._discovered(state), topic_state)
        if not piece:
            return ()
        read = self._read(piece, state, topic_state)
        try:
            differences = count_differences(piece, read.results())
            if differences:
                self._problems += refusal_sentences(
                    refused for refusals in differences.values() for refused in refusals
                )
                self._rewrites.staging.drop(read.plan.run_id)
                return tuple(one for at, one in enumerate(piece) if at not in differences)
            staged = [FinishedFile(file.staged, file.length) for file in read.reconciled.files]
            self._rewrites.staging.persist(read.plan.run_id, staged)
        except BaseException:
            self._rewrites.staging.drop(read.plan.run_id)  # no commit will contain its files
            raise
        self._commit_piece(piece, read, state, name)
        return ()

    def _checked_state(self) -> tuple[LoaderState, TopicState]:
        """Returns the newest state of the commit log and the topic's state in it, after checking that the plan of the
        backfill still holds.

        Raises:
            _Stopped: another command rewrote the topic's files, or a load recorded another topic id or that the log of
                a partition was replaced, or folded in a version of the schema.
        """
        state = self._rewrites.log.read_state()
        topic_state = state.topics[self._topic]
        initial = self._initial_state
        is_unchanged = (topic_state.topic_id, topic_state.generation, topic_state.load_schema.revision) == (
            initial.topic_id,
            initial.generation + len(self._report.commits),
            initial.load_schema.revision,
        )
        if not is_unchanged or _incarnations(topic_state, initial) != _incarnations(initial, initial):
            raise _Stopped(
                f"another command changed the files, schema or log of the topic meanwhile; {CONTINUE_ADVICE}"
            )
        return state, topic_state

    def _read(self, piece: Sequence[Component], state: LoaderState, topic_state: TopicState) -> _Read:
        """Reads the offsets of a piece (the components that one commit replaces) as a load does, and returns the plan
        with its results. If messages have registered schema ids that no load has seen, fetches these schemas and reads
        the piece again.

        Args:
            state: the newest state of the commit log.
            topic_state: the topic's state in it.

        Raises:
            _Stopped: not everything could be read, the log changed meanwhile, or the schemas cannot be used now.
        """
        while True:
            discovered = self._discovered(state)
            plan = self._plan(piece, state, topic_state, discovered)
            run_id = plan.run_id
            try:
                self._rewrites.staging.write_file(run_id, "plan.json", plan_summary(plan))
                logger.info("phase_started phase=read run_id=%s tasks=%d", run_id, len(plan.units))
                reading = read_units(plan.units, self._ports.run_units, self._ports.schemas)
                registered = (
                    reading.registered_ids.get(self._topic, frozenset())
                    - topic_state.foreign_ids
                    - self._new_foreign_ids
                )
                if registered:
                    self._new_foreign_ids |= registered
                    self._schemas = self._fetch_schemas(topic_state)
                    self._rewrites.staging.drop(run_id)
                    continue
                return _Read(plan, reading, self._reconciled(plan, reading, piece))
            except BaseException:
                self._rewrites.staging.drop(run_id)  # no commit will contain its files
                raise

    def _plan(
        self, piece: Sequence[Component], state: LoaderState, topic_state: TopicState, discovered: DiscoveredTopic
    ) -> LoadPlan:
        settings, now_ms = self._settings.plan, self._rewrites.now_ms()
        run_id = self._rewrites.new_run_id()
        ranges = planned_ranges(discovered, topic_state, piece)
        planned_topic = PlannedTopic(
            self._topic,
            topic_state,
            ranges,
            self._schemas,
            topic_state.table,
            topic_state.directory,
            self._policy(topic_state),
        )
        packing = pack(
            offset_ranges(self._topic, topic_state, ranges, piece),
            tasks=settings.tasks,
            file_bytes_target=settings.file_bytes_target,
        )
        # A piece is committed as a whole or not at all, so its ranges may share files.
        tasks = [
            [dataclasses.replace(one, follows_another=False) for one in ranges_of_task]
            for ranges_of_task in packing.tasks
        ]
        task = dataclasses.replace(self._settings.task, staging=self._rewrites.staging.location(run_id), now_ms=now_ms)
        planned_topics = {self._topic: planned_topic}
        return LoadPlan(
            run_id=run_id,
            commit_number=state.commit_number,
            planned_topics=planned_topics,
            units=work_units(tasks, planned_topics, run_id, settings.build, task),
            imbalance=packing.imbalance,
            waiting={},
            problems={},
            notes=(),
            registry_outage="",
            discovered={self._topic: discovered},
            discovery_start_ms=now_ms,
        )

    def _policy(self, topic_state: TopicState) -> TopicPolicy:
        return self._settings.plan.policy_of(self._topic).with_table(topic_state.partition_by, topic_state.kafka_column)

    def _reconciled(self, plan: LoadPlan, reading: ReadResult, piece: Sequence[Component]) -> ReconciledTopic:
        """Returns the results of reading a piece (the components that one commit replaces), reconciled with the plan.
        Checks that every offset was read, and that the partitions had the same log and leader throughout.

        Raises:
            _Stopped: an offset was not read, a file could not be written, or the log or leader changed.
        """
        sentences = failure_sentences(reading.results) + list(reading.problems.get(self._topic, ()))
        if sentences:
            raise _Stopped(*sentences)
        changes = fetch_changes(plan, self._ports.cluster)
        if changes.recreated:
            raise _Stopped(f"the topic was re-created while it was read; {RETRY_ADVICE}")
        if moved := changes.new_leaders.get(self._topic):
            raise _Stopped(f"the leader of {_partitions(moved)} changed during the read; {RETRY_ADVICE}")
        planned = {self._topic: plan.planned_topics[self._topic].ranges}
        reconciled = reconcile(planned, reading.units, reading.results, {})[self._topic]
        offsets_expected = sum(one.end - one.start for component in piece for one in component.intervals)
        if reconciled.problems:
            raise _Stopped(*reconciled.problems)
        if reconciled.counts.total != offsets_expected:
            outage = self._ports.schemas.outage or "the registry has no response for the schemas of some messages"
            raise _Stopped(f"{outage}; {RETRY_ADVICE}")
        return reconciled

    def _commit_piece(self, piece: Sequence[Component], read: _Read, state: LoaderState, name: str) -> None:
        topic_state = state.topics[self._topic]
        committed = dataclasses.replace(
            _commit(topic_state, piece, read.reconciled),
            foreign_ids=self._new_foreign_ids,
            kafka_column=self._policy(topic_state).kafka_column,
        )
        withdrawn = self._withdraw_acceptance(piece, committed)  # before the commit, for a kill between the two
        rewrite_report = add_commit(
            self._rewrites, state, CommitKind.BACKFILL, read.plan.run_id, {self._topic: committed}
        )
        problems = rewrite_report.problems.get(self._topic, ())
        if not rewrite_report.commit_number:
            raise _Stopped(*problems)
        counts = read.reconciled.counts
        quarantined_batches = sum(one.is_quarantined for offsets in read.reconciled.ranges for one in offsets.skipped)
        report = self._report
        self._replaced += piece
        self._report = dataclasses.replace(
            report,
            commits=(*report.commits, rewrite_report.commit_number),
            files_written=report.files_written + len(committed.files),
            rows=report.rows + counts.records,
            quarantined=report.quarantined + counts.quarantined + quarantined_batches,
            notes=(*_current_notes(report.notes, committed), *read.reading.notes, *rewrite_report.notes, *withdrawn),
        )
        files = sum(len(component.files) for component in piece)
        self._ports.report_progress(
            f"{name}: {files:,} files replaced by {len(committed.files):,} (commit {rewrite_report.commit_number})"
        )
        if problems:
            raise _Stopped(*problems)

    def _withdraw_acceptance(self, piece: Sequence[Component], committed: TopicCommit) -> tuple[str, ...]:
        """Withdraws the acceptance of the topic's quarantined messages if the commit `committed`, which replaces
        `piece`, has more of them. Returns a note if there was an acceptance."""
        before = sum(one.file.records for component in piece for one in component.files if _is_quarantine(one))
        if sum(file.records for file in committed.files if _is_quarantine(file)) <= before:
            return ()
        if not withdraw(self._rewrites.log, [self._topic], [AlarmKind.QUARANTINED]):
            return ()
        return ("the acceptance of quarantined messages is withdrawn; see `headrace accept`",)

    def _final_report(self) -> BackfillReport:
        quarantined_before = sum(
            one.file.records for component in self._replaced for one in component.files if _is_quarantine(one)
        )
        report = dataclasses.replace(
            self._report,
            time_partitions=time_partition_rows(self._topic, self._replaced),
            offsets=offsets_read(self._replaced),
            quarantined_before=quarantined_before,
        )
        if report.quarantined > quarantined_before:
            self._problems.append(
                f"the topic's quarantine has {count_text(report.quarantined - quarantined_before, 'message')} more "
                "than before, which cannot be loaded with the present schema: see "
                f"`headrace quarantine list {self._topic}`"
            )
        return dataclasses.replace(
            report, problems=tuple(dict.fromkeys(self._problems)), notes=tuple(dict.fromkeys(report.notes))
        )


def _is_quarantine(file: LiveFile | CommittedFile) -> bool:
    return file.kind is FileKind.QUARANTINE


def _incarnations(topic_state: TopicState, initial: TopicState) -> dict[int, int]:
    return {
        number: topic_state.partitions[number].incarnation
        for number in initial.partitions
        if number in topic_state.partitions
    }


def _partitions(numbers: frozenset[int]) -> str:
    return f"partition{'s' if len(numbers) > 1 else ''} {', '.join(map(str, sorted(numbers)))}"


def _current_notes(notes: Sequence[str], committed: TopicCommit) -> Iterator[str]:
    """Yields the notes of a backfill's earlier commits that its present commit does not make obsolete. A note that
    names a time partition is dropped if the present commit rewrites that time partition again.

    Args:
        notes: the notes of the earlier commits, sentences.
        committed: the topic's part of the present commit.
    """
    time_partitions = {one.time_partition for one in committed.rewrites}
    for note in notes:
        if not time_partitions & set(note.split()):
            yield note


def _commit(topic_state: TopicState, piece: Sequence[Component], reconciled: ReconciledTopic) -> TopicCommit:
    replaced: dict[tuple[FileKind, str], list[LiveFile]] = defaultdict(list)
    for one in files_of(piece):
        replaced[one.kind, one.time_partition].append(one)
    rewrites = [
        rewrite(kind, time_partition, [one.file for one in files])
        for (kind, time_partition), files in sorted(replaced.items())
    ]
    return topic_commit(topic_state, rewrites, reconciled.files)
