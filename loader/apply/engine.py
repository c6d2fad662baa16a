"""Runs the appliers until all have applied the newest commit, topic by topic.

Their order ensures safety: index, table schema, files, partitions, audit, group offsets. A file becomes visible only
when its table can read it. A topic stops at the first applier that fails for it, unless that is advisory, and continues
there in the next run; other topics are not affected. The positions of an applier (for each topic, the newest commit
that it has applied) are in `cursor/<applier>.json`: if a cursor file is lost or old, commits are applied again, which
changes nothing. Some appliers have results that can be lost separately from the log. They store their positions
together with the results (`PositionStore`).

If the storage as a whole is unavailable, the run stops at once: a thousand topics would each wait for Hadoop's retries.
The remaining topics are held back with the same reason, and the cursors of the run are not written.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.loader.apply.base import (
    AppliedCommit,
    Applier,
    MultiTopicApplier,
    PositionStore,
    PreparingApplier,
    Step,
)
from headrace.loader.apply.pending import PendingCommits
from headrace.loader.commit.commit import Commit
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.commit.document import read_document, write_document
from headrace.loader.commit.state import LoaderState
from headrace.loader.errors import LoaderError, StorageUnavailable
from headrace.loader.storage.protocols import CommitStorage, Staging

logger = logging.getLogger(__name__)

SCHEMA = "schema"
"""Name of the applier that can also compare a table when no commit is pending, because others may have altered it."""

STEPS_PER_PREPARATION = 100
"""Topics that an applier prepares at once. More make the values that it reads older when they are used, which leads to
more refused changes if another process changes tables."""

FILES = "files"
"""Name of the applier that publishes files. After it, the staging directory of a run is no longer needed."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The positions of one applier: all commits up to `commit_number` are applied, except for the topics in `lagging`,
    which have the commit numbers given there.

    `sha256` is the checksum of commit `commit_number`. If the log was restored from a backup, it may have other commits
    with these numbers; the differing checksum shows that they are not applied yet.
    """

    commit_number: int = 0
    lagging: Mapping[str, int] = field(default_factory=dict)
    sha256: str = ""

    def position(self, topic: str) -> int:
        return self.lagging.get(topic, self.commit_number)

    @property
    def oldest(self) -> int:
        return min((self.commit_number, *self.lagging.values()))


@dataclass(frozen=True, slots=True)
class TopicFailure:
    applier: str
    message: str


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """The result of a run of the appliers. `topics` are the topics that had commits to apply. `failures` are, by topic,
    the reasons why the topic's commits were not applied or its table could not be compared; `warnings` are sentences.
    `outage` is the error that stopped the whole run, None if every topic was tried."""

    commit_number: int
    topics: tuple[str, ...]
    failures: Mapping[str, TopicFailure]
    warnings: tuple[str, ...]
    outage: StorageUnavailable | None = None


def cursor_path(applier: str) -> str:
    return f"cursor/{applier}.json"


def read_cursor(storage: CommitStorage, applier: str) -> Cursor:
    """Returns the stored cursor of an applier. If the file is lost or damaged, returns a cursor without applied
    commits."""
    content = storage.read(cursor_path(applier))
    if content is None:
        return Cursor()
    try:
        return read_document(content, Cursor).value
    except ValueError as error:
        logger.warning("cursor_ignored applier=%s reason=%s", applier, error)
        return Cursor()


def cursor_of(positions: Mapping[str, AppliedCommit], topics: Iterable[str]) -> Cursor:
    """Returns a cursor with the positions of an applier that stores them itself (`PositionStore`).

    Args:
        positions: by topic, the newest commit that is applied.
        topics: all topics with commits; no commit is applied to those without a position.
    """
    newest = max(positions.values(), default=AppliedCommit(0, ""))
    lagging = {topic: positions[topic].commit_number if topic in positions else 0 for topic in topics}
    return Cursor(newest.commit_number, lagging, newest.sha256)


class ApplierEngine:
    def __init__(self, log: CommitLog, staging: Staging, appliers: Sequence[Applier | MultiTopicApplier]) -> None:
        self._log = log
        self._staging = staging
        self._appliers = appliers

    def apply_pending(self, *, topics_to_compare: Sequence[str] = ()) -> ApplyResult:
        """Lets every applier apply its pending commits. Returns the failures, the warnings, and the topics that had
        such commits.

        Args:
            topics_to_compare: topics to compare with their tables even if no commit is pending.
        """
        state = self._log.read_state()
        cursors, position_errors = self._cursors(state)
        positions = {topic: min(cursor.position(topic) for cursor in cursors.values()) for topic in state.topics}
        lagging = {
            topic: commit_number
            for topic, commit_number in positions.items()
            if commit_number < state.topics[topic].commit_number
        }
        run = _ApplierPass(
            self._log,
            state,
            cursors,
            PendingCommits(self._log, state, lagging),
            {*lagging, *topics_to_compare},
            position_errors,
        )
        for applier in self._appliers:
            run.apply(
                applier, topics_to_compare=frozenset(topics_to_compare) if applier.name == SCHEMA else frozenset()
            )
        if run.outage is None:
            self._remove_staging(run)
            run.save(applier.name for applier in self._appliers if not isinstance(applier, PositionStore))
        return ApplyResult(state.commit_number, tuple(sorted(lagging)), run.failures, tuple(run.warnings), run.outage)

    def _cursors(self, state: LoaderState) -> tuple[dict[str, Cursor], dict[str, str]]:
        """Returns two dictionaries by applier: the cursors, and the reasons why a cursor could not be read. Only
        appliers that store the position of each topic themselves (`PositionStore`), such as in a database, can have
        such a reason."""
        cursors: dict[str, Cursor] = {}
        position_errors: dict[str, str] = {}
        for applier in self._appliers:
            if not isinstance(applier, PositionStore):
                cursors[applier.name] = self._cursor(applier.name, state)
                continue
            try:
                cursors[applier.name] = self._cursor_from_applier(applier.name, applier, state)
            except LoaderError:
                raise  # the log itself cannot be read
            except Exception as error:
                cursors[applier.name] = Cursor(state.commit_number)
                position_errors[applier.name] = _error_text(error)
        return cursors, position_errors

    def _cursor(self, name: str, state: LoaderState) -> Cursor:
        cursor = read_cursor(self._log.storage, name)
        # The cursor is ahead of the state if another process has committed since: then everything up to the state is
        # applied.
        if self._belongs_to_log(cursor):
            return cursor
        logger.warning("cursor_ignored applier=%s reason=belongs to another commit log", name)
        return Cursor()  # applying again is always safe

    def _cursor_from_applier(self, name: str, applier: PositionStore, state: LoaderState) -> Cursor:
        if not state.topics:
            return Cursor()
        cursor = cursor_of(applier.positions(), state.topics)
        # Commits are a chain: if the newest position belongs to this log, so do the older ones. A position is ahead of
        # the state if another process has committed since.
        if self._belongs_to_log(cursor):
            return cursor
        logger.warning("applier_positions_deleted applier=%s reason=belong to another commit log", name)
        applier.delete_positions()  # before applying: if this process dies now, no position of the other log remains
        return Cursor()

    def _belongs_to_log(self, cursor: Cursor) -> bool:
        if not cursor.commit_number:
            return True
        return bool(cursor.sha256) and cursor.sha256 == self._log.sha256(cursor.commit_number)

    def _remove_staging(self, run: _ApplierPass) -> None:
        """Deletes the staging directories of runs whose files are all published. The cursors are written only after
        that: otherwise a power loss could restore a staging directory although no pending commit leads to it any more.

        Args:
            run: the pass over the appliers, with the commits that may have files in staging.
        """
        if FILES not in run.cursors:
            return
        published = {
            run_id
            for run_id, topics in run.staged_topics.items()
            if all(run.is_applied(FILES, topic) for topic in topics)
        }
        if all(run.is_applied(FILES, topic) for topic in run.state.topics):
            # A power loss may restore a staging directory if the cursor file was written before the deletion was
            # durable.
            published |= self._staging.run_ids() & run.state.staged_runs
        for run_id in sorted(published):
            self._staging.drop(run_id)


def _error_text(error: Exception) -> str:
    if isinstance(error, OSError):
        prefix = "the storage cannot be used: " if isinstance(error, StorageUnavailable) else ""
        return f"{prefix}{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
    return str(error) or type(error).__name__


def _try_apply(applier: Applier, step: Step) -> Exception | None:
    """Applies the commits in `step`, which are of one topic. Returns the exception that stops the topic, None on
    success."""
    try:
        applier.apply(step)
    except Exception as error:
        logger.debug("applier_failed applier=%s topic=%s", applier.name, step.topic, exc_info=True)
        return error
    return None


def _try_prepare(applier: PreparingApplier, steps: Sequence[Step]) -> StorageUnavailable | None:
    """Prepares steps. Returns the error of an outage of the storage, for which the calls for each topic need not wait
    again."""
    try:
        applier.prepare(steps)
    except StorageUnavailable as error:
        return error
    except Exception:  # `apply` does the same for each topic and reports the failures
        logger.debug("preparation_failed topics=%d", len(steps), exc_info=True)
    return None


def _with_remedy(message: str) -> str:
    """Returns an applier's error message, extended by the remedy (the next load continues) unless it ends with "load
    again"."""
    if message.endswith("load again"):
        return message
    return f"{message}; the messages are committed, and the next load continues"


def _pending_by_topic(commits: Sequence[Commit], positions: Mapping[str, int]) -> dict[str, list[Commit]]:
    """Returns, by topic in the order of names, the commits that are not applied yet.

    Args:
        commits: oldest first.
        positions: by topic, the newest commit that is applied. Other topics are left out.
    """
    pending: dict[str, list[Commit]] = defaultdict(list)
    for commit in commits:
        for topic in commit.topics:
            if topic in positions and commit.commit_number > positions[topic]:
                pending[topic].append(commit)
    return dict(sorted(pending.items()))


class _ApplierPass:
    """One pass over the appliers.

    `topics` have pending commits for any applier, or a table to compare. `staged_topics` has the pending commits that
    may have files in staging: by run id, the topics of the commit. `outage` is the error that made the storage
    unavailable.
    """

    def __init__(
        self,
        log: CommitLog,
        state: LoaderState,
        cursors: dict[str, Cursor],
        pending: PendingCommits,
        topics: set[str],
        position_errors: Mapping[str, str],
    ) -> None:
        self.log = log
        self.state = state
        self.cursors = cursors
        self.pending = pending
        self.topics = topics
        self.position_errors = position_errors
        self.staged_topics: dict[str, tuple[str, ...]] = {}
        self.failures: dict[str, TopicFailure] = {}
        self.warnings: list[str] = []
        self.outage: StorageUnavailable | None = None
        self._lagging: dict[str, dict[str, int]] = {name: {} for name in cursors}

    def apply(self, applier: Applier | MultiTopicApplier, *, topics_to_compare: frozenset[str]) -> None:
        if applier.name in self.position_errors:
            # The positions could not be read, so every topic is reported as not applied.
            for topic in sorted(self.state.topics.keys() - self.failures.keys()):
                self._fail(applier, topic, self.position_errors[applier.name])
            return
        cursor, lagging = self.cursors[applier.name], self._lagging[applier.name]
        positions = {topic: cursor.position(topic) for topic in self.topics}
        if self.outage is not None:
            self._hold_back(applier, positions, self.outage)
            return
        lagging.update({topic: since for topic, since in positions.items() if topic in self.failures})
        to_compare = set(topics_to_compare)
        oldest = min(
            (position for topic, position in positions.items() if topic not in lagging),
            default=self.state.commit_number,
        )
        for commits in self.pending.after(oldest):
            pending_by_topic = _pending_by_topic(
                commits, {topic: position for topic, position in positions.items() if topic not in lagging}
            )
            if pending_by_topic:
                last = commits[-1].commit_number
                logger.info(
                    "phase_started phase=apply:%s commit=%d topics=%d", applier.name, last, len(pending_by_topic)
                )
            steps = [self._step(topic, pending, positions[topic]) for topic, pending in pending_by_topic.items()]
            self._apply_steps(applier, steps)
            positions |= {topic: pending[-1].commit_number for topic, pending in pending_by_topic.items()}
            to_compare -= pending_by_topic.keys()
            unpublished = (commit for commit in commits if commit.run_id in self.state.staged_runs)
            self.staged_topics |= {commit.run_id: tuple(commit.topics) for commit in unpublished}
            if self.outage is not None:
                self._hold_back(applier, positions, self.outage)
                return
        self._apply_steps(
            applier, [self._step(topic, (), positions[topic]) for topic in sorted(to_compare - lagging.keys())]
        )

    def _step(self, topic: str, pending: Sequence[Commit], since: int) -> Step:
        return Step(
            topic=topic,
            state=self.state.topics[topic],
            commits=pending,
            since=since,
            commit_number=self.state.commit_number,
            staged_runs=self.state.staged_runs,
            rewind=functools.partial(self.rewind, topic=topic),
            warn=self.warnings.append,
        )

    def _apply_steps(self, applier: Applier | MultiTopicApplier, steps: Sequence[Step]) -> None:
        """Calls the applier with the steps, each of which has commits of one topic. Records failures for the report."""
        errors: Mapping[str, str] = {}
        if isinstance(applier, MultiTopicApplier):
            try:
                errors = applier.apply_topics(steps) if steps else {}
            except Exception as error:
                logger.debug("applier_failed applier=%s topics=%d", applier.name, len(steps), exc_info=True)
                errors = {step.topic: _error_text(error) for step in steps}
                self.outage = error if isinstance(error, StorageUnavailable) else None
        else:
            errors = self._apply_each(applier, steps)
        for step in steps:
            if step.topic in errors:
                self._lagging[applier.name][step.topic] = step.since
                self._fail(applier, step.topic, errors[step.topic])

    def _apply_each(self, applier: Applier, steps: Sequence[Step]) -> Mapping[str, str]:
        """Calls the applier once per step; a step has commits of one topic. Returns, by topic, the error messages of
        the topics that failed.

        After an outage of the storage (`outage`) the applier is not called again: all remaining steps with commits fail
        with the same error."""
        errors = {}
        for number, step in enumerate(steps):
            if isinstance(applier, PreparingApplier) and number % STEPS_PER_PREPARATION == 0 and self.outage is None:
                self.outage = _try_prepare(applier, steps[number : number + STEPS_PER_PREPARATION])
            if self.outage is not None and not step.commits:
                continue  # no commit is pending; the run only compares the table of the topic
            error = self.outage or _try_apply(applier, step)
            if isinstance(error, StorageUnavailable):
                self.outage = error
            if error is not None:
                errors[step.topic] = _error_text(error)
        return errors

    def _hold_back(
        self, applier: Applier | MultiTopicApplier, positions: Mapping[str, int], outage: StorageUnavailable
    ) -> None:
        """Reports an outage of the storage for each topic that still has commits for this applier. Reports nothing for
        an advisory applier. After an outage no cursor is written.

        Args:
            positions: by topic, the newest commit that the applier has applied.
        """
        for topic, position in sorted(positions.items()):
            if (
                not applier.is_advisory
                and topic not in self.failures
                and position < self.state.topics[topic].commit_number
            ):
                self._fail(applier, topic, _error_text(outage))

    def _fail(self, applier: Applier | MultiTopicApplier, topic: str, message: str) -> None:
        if applier.is_advisory:
            self.warnings.append(f"applier {applier.name}, topic {topic}: {message}")
        else:
            self.failures[topic] = TopicFailure(applier.name, _with_remedy(message))

    def rewind(self, name: str, topic: str) -> None:
        cursor = self.cursors[name]
        cursor = dataclasses.replace(cursor, lagging={**cursor.lagging, topic: 0})
        self.log.storage.replace(cursor_path(name), write_document(cursor))
        self.cursors[name] = cursor
        self.pending.add({topic: 0})

    def is_applied(self, name: str, topic: str) -> bool:
        return topic not in self._lagging[name]

    def save(self, names: Iterable[str]) -> None:
        for name in names:
            before = self.cursors[name]
            after = Cursor(self.state.commit_number, self._lagging[name], self.state.sha256)
            # A driver that resumes late must not overwrite a newer cursor.
            if after == before or read_cursor(self.log.storage, name).commit_number > after.commit_number:
                continue
            try:
                self.log.storage.replace(cursor_path(name), write_document(after))
            except OSError as error:
                logger.warning("cursor_not_written applier=%s error=%s", name, error)
