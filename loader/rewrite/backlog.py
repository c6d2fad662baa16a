"""Compaction of the files that loads have added, without a search of the history: `headrace compact` without topics,
and the turns after the loads of `headrace up`.

`compaction.json` in the directory of the commit log lists the days that loads have changed since they were last
examined, each with the time from which it is examined again. It is a hint: if it is missing, damaged or of another log,
every day of every topic is examined once. Of two concurrent writers the last one wins, which is safe, because each
version lists all changed days up to its own commit number.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from headrace.loader.commit.commit import Commit, CommitKind
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.commit.document import read_document, write_document
from headrace.loader.commit.partition_index import day_key, day_of
from headrace.loader.rewrite.choose import end_of_time_partition_ms
from headrace.loader.rewrite.run import (
    CompactSettings,
    FileSelection,
    RewritePorts,
    RewriteReport,
    catch_up,
    groups_of_day,
    is_full,
    merge_files,
    merged_reports,
    planned,
)
from headrace.loader.work_unit import FileKind

logger = logging.getLogger(__name__)

BACKLOG_PATH = "compaction.json"
COMMITS_READ_MAX = 1_000
"""Commits that are read to update the backlog: a week of loads. After more commits every day of every topic is examined
instead, which is cheaper."""
COMMITS_UNREAD_MAX = 20
"""Commits after which a turn updates the backlog even if no listed day is due."""
RETRY_MS = 6 * 3_600_000
"""Time after which a day is examined again if its files could not be merged, such as a damaged file."""

DelayOf = Callable[[str], int | None]
"""Returns how long after its end, and after late messages, a time partition of a topic is compacted, in ms; None for a
topic that is not compacted."""


@dataclass(frozen=True, slots=True)
class CompactionBacklog:
    """The days to examine, as of commit `commit_number`, whose checksum is `sha256`.

    `days` are by topic the changed days of table and quarantine (`data/dt=2026-01-31`), each with the time in ms from
    which it is examined. All days of the topics in `unlisted` are to be examined: the topic is not compacted now, or
    its changes are unknown.
    """

    commit_number: int = 0
    sha256: str = ""
    days: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    unlisted: frozenset[str] = frozenset()


def with_commit(backlog: CompactionBacklog, commit: Commit, sha256: str, delay_ms_of: DelayOf) -> CompactionBacklog:
    """Returns the backlog after one more commit. Files of a compaction need no examination. Pure.

    Args:
        sha256: checksum of the commit.
    """
    days, unlisted = dict(backlog.days), set(backlog.unlisted)
    for topic, committed in commit.topics.items() if commit.kind is not CommitKind.COMPACT else ():
        delay_ms = delay_ms_of(topic)
        if not committed.files or topic in unlisted:
            continue
        if delay_ms is None:
            unlisted.add(topic)
            days.pop(topic, None)
            continue
        of_topic = dict(days.get(topic, {}))
        for kind, time_partition in {(file.kind, file.time_partition) for file in committed.files}:
            key = day_key(kind, day_of(time_partition))
            due_ms = max(end_of_time_partition_ms(time_partition), commit.committed_at_ms) + delay_ms
            of_topic[key] = min(due_ms, of_topic.get(key, due_ms))
        days[topic] = of_topic
    return CompactionBacklog(commit.commit_number, sha256, days, frozenset(unlisted))


def read_backlog(log: CommitLog, delay_ms_of: DelayOf) -> CompactionBacklog:
    """Returns the backlog as of the newest state that the log has read. Writes nothing.

    Raises:
        CorruptCommit, UnsupportedFormat: a commit cannot be read.
    """
    state = log.state
    backlog = _stored(log)
    if backlog is None or state.commit_number - backlog.commit_number > COMMITS_READ_MAX:
        return CompactionBacklog(state.commit_number, state.sha256, {}, frozenset(state.topics))
    for commit_number in range(backlog.commit_number + 1, state.commit_number + 1):
        found = log.document(commit_number)
        backlog = with_commit(backlog, found.value, found.sha256, delay_ms_of)
    return backlog


def _stored(log: CommitLog) -> CompactionBacklog | None:
    backlog = _content(log)
    if backlog is None or backlog.commit_number > log.state.commit_number:
        return None
    return backlog if backlog.sha256 == log.sha256(backlog.commit_number) else None


def _content(log: CommitLog) -> CompactionBacklog | None:
    content = log.storage.read(BACKLOG_PATH)
    try:
        return None if content is None else read_document(content, CompactionBacklog).value
    except ValueError as error:
        logger.warning("compaction_backlog_ignored reason=%s", error)
        return None


def is_turn_due(log: CommitLog, delay_ms_of: DelayOf, now_ms: int) -> bool:
    """Whether a turn should examine days now, or bring the backlog up to date. Does not read the log's state."""
    backlog = _content(log)
    if backlog is None or any(delay_ms_of(topic) is not None for topic in backlog.unlisted):
        return True
    for topic, days in backlog.days.items():
        if delay_ms_of(topic) is not None and any(due_ms <= now_ms for due_ms in days.values()):
            return True
    return log.head() - backlog.commit_number >= COMMITS_UNREAD_MAX


def compact_backlog(
    ports: RewritePorts,
    settings: CompactSettings,
    delay_ms_of: DelayOf,
    *,
    waits: bool,
    is_dry: bool = False,
    is_stopped: Callable[[], bool] = lambda: False,
) -> RewriteReport:
    """Merges the small files of the days that loads have changed, with a commit for each portion. Returns a report of
    the replaced files.

    Args:
        delay_ms_of: for the topics that are compacted, the same as `settings.closed_ms_of`.
        waits: whether days with late messages are left out until the delay after these messages has passed.
        is_dry: only report the files that would be merged.
        is_stopped: called between days and portions; True ends the work after the present portion. The rest stays in
            the backlog.
    """
    _, notes = catch_up(ports, is_dry)
    work = _Work(ports, settings, delay_ms_of, read_backlog(ports.log, delay_ms_of), waits=waits, is_dry=is_dry)
    for topic, key in work.due_days():
        if is_stopped() or not work.examine(topic, key, is_stopped):
            break
    work.finish()
    return dataclasses.replace(work.report, notes=(*notes, *work.report.notes))


class _Work:
    """The examination of the days in a backlog, one after another."""

    def __init__(
        self,
        ports: RewritePorts,
        settings: CompactSettings,
        delay_ms_of: DelayOf,
        backlog: CompactionBacklog,
        *,
        waits: bool,
        is_dry: bool,
    ) -> None:
        self.report = RewriteReport()
        self._ports = ports
        self._settings = settings
        self._delay_ms_of = delay_ms_of
        self._backlog = backlog
        self._days = {topic: dict(days) for topic, days in backlog.days.items()}
        self._unlisted = set(backlog.unlisted)
        self._waits = waits
        self._is_dry = is_dry
        self._portion: list[FileSelection] = []
        self._next_due: dict[tuple[str, str], int | None] = {}
        """The examined days, each with the time of its next examination, None for never."""

    def due_days(self) -> Iterator[tuple[str, str]]:
        """Yields topic and day (`data/dt=2026-01-31`) of the days to examine: first the listed ones, by time, then all
        days of the topics without a list."""
        now_ms = self._ports.now_ms()
        listed = sorted((due, topic, key) for topic, days in self._days.items() for key, due in days.items())
        for due, topic, key in listed:
            if self._delay_ms_of(topic) is not None and (due <= now_ms or not self._waits):
                yield topic, key
        for topic in sorted(self._unlisted):
            if self._delay_ms_of(topic) is None:
                continue
            keys = [day_key(kind, day) for kind in FileKind for day in self._ports.index.days(topic, kind)]
            self._unlisted.discard(topic)
            self._days[topic] = dict.fromkeys(keys, now_ms)
            yield from ((topic, key) for key in keys)

    def examine(self, topic: str, key: str, is_stopped: Callable[[], bool]) -> bool:
        """Adds the files to merge of a day to the portion, and merges the portion whenever it is full. Returns False if
        it was stopped before the end of the day."""
        kind, _, day = key.partition("/")
        groups, next_due_ms = groups_of_day(self._ports, topic, FileKind(kind), day, self._settings)
        self._next_due[topic, key] = next_due_ms
        for group in groups:
            self._portion.append(group)
            if is_full(self._portion):
                self._merge()
                if is_stopped():
                    self._next_due[topic, key] = self._ports.now_ms()
                    return False
        return True

    def finish(self) -> None:
        """Merges the rest, and stores the backlog without the examined days."""
        self._merge()
        for (topic, key), due_ms in self._next_due.items():
            if due_ms is None:
                del self._days[topic][key]
            else:
                self._days[topic][key] = due_ms
        left = {topic: days for topic, days in self._days.items() if days}
        backlog = dataclasses.replace(self._backlog, days=left, unlisted=frozenset(self._unlisted))
        if not self._is_dry:
            self._ports.log.storage.replace(BACKLOG_PATH, write_document(backlog), fsynced=False)

    def _merge(self) -> None:
        portion, self._portion = self._portion, []
        report = planned(portion) if self._is_dry else merge_files(self._ports, portion, self._settings)
        self.report = merged_reports(self.report, report)
        retry_ms = self._ports.now_ms() + RETRY_MS
        self._next_due |= {day: retry_ms for day in self._next_due if day[0] in report.problems}
