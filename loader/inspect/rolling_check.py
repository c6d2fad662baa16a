"""The share of a load in comparing all published files with the commits.

Each load compares, in this order: the time partitions with open findings; the time partitions that commits since the
last check have changed; then all others, beginning where the last load stopped (`checks.json`). A time partition costs
one listing of its directory. The content of some files is compared by checksum, in the same order. `CheckBudget` limits
the share, so that the time of a load does not depend on the size of the warehouse: a small warehouse is compared
completely by each load, a large one by many.

Safe while other commands run: only files of applied commits are expected, and a problem is a finding only if a second
comparison, with the newest commits, finds it too. The directory is listed before these commits are read, so that a file
that another load publishes meanwhile is known to be committed.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import itertools
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from headrace.loader.apply.engine import FILES, read_cursor
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.commit.file_index import FileIndex, days_path
from headrace.loader.commit.partition_index import IndexedTimePartition
from headrace.loader.commit.state import LoaderState
from headrace.loader.errors import CommitLogError, StorageUnavailable
from headrace.loader.inspect.compare_files import (
    ExpectedFile,
    ExpectedTimePartition,
    compare_content,
    compare_listing,
    expected_of_index,
)
from headrace.loader.inspect.findings import ConsistencyCheck, VerifyFinding
from headrace.loader.inspect.open_findings import (
    CONTENT_CHECKS,
    FILE_CHECKS,
    START,
    CheckPosition,
    CheckProgress,
    FindingSet,
    WarehouseChecks,
    read_checks,
    write_checks,
)
from headrace.loader.storage.protocols import WarehouseFiles
from headrace.loader.work_unit import FileKind

logger = logging.getLogger(__name__)

PARTITION_CALLS_MAX = 20  # requests to the metastore per load, each for the partitions of one table
RECENT_COMMITS_MAX = 3  # a load compares the time partitions of at most this many newer commits first


@dataclass(frozen=True, slots=True)
class CheckBudget:
    """Limits of the share of one load, in files listed and bytes read. Both parts also end after `part_seconds`. Each
    part compares at least one time partition or file, so that it always comes forward."""

    files: int = 20_000
    bytes: int = 256 * 1024 * 1024
    part_seconds: float = 0.5


REMOTE_BUDGET = CheckBudget(part_seconds=2.0)
"""Limits for HDFS and S3, where each listing and each file needs one or more round trips."""


Visit = Callable[[ExpectedTimePartition, CheckPosition, "_Share"], CheckPosition]


@dataclass(frozen=True, slots=True)
class ComparedTables:
    """The tables that a load has compared with the commits: their topics, and the reasons why some of them are not as
    they must be. `share_end` is the topic that ended their share, None if they are no share. `restore` adds missing
    partitions for time partitions of a topic, and moves those with a wrong location; it is called for a share of them,
    at most `partitions_max` at once."""

    topics: Collection[str]
    problems: Mapping[str, str]
    share_end: str | None
    restore: Callable[[str, FileKind, Sequence[str], int], None]
    partitions_max: int


class _Share:
    """The rest of a budget of one part of a load's share, in files or bytes."""

    def __init__(self, amount: int, seconds: float, now_s: Callable[[], float]) -> None:
        self._amount = amount
        self._now_s = now_s
        self._deadline_s = now_s() + seconds

    def spend(self, amount: int) -> None:
        self._amount -= amount

    @property
    def is_spent(self) -> bool:
        return self._amount <= 0 or self._now_s() >= self._deadline_s


@dataclass(frozen=True, slots=True)
class RollingCheck:
    """Compares a share of the warehouse's files with the commits. `now_s` is a monotonic clock, in seconds."""

    log: CommitLog
    files: WarehouseFiles
    budget: CheckBudget = CheckBudget()
    now_s: Callable[[], float] = time.monotonic

    def check(self, now_ms: int, tables: ComparedTables | None = None) -> WarehouseChecks:
        """Compares the next share, stores the result in `checks.json` and returns it. All earlier findings are compared
        again.

        Args:
            now_ms: the time, for the findings.
            tables: the tables that this load has compared with the commits, None if it compared none.

        Raises:
            CommitLogError: the commits cannot be read.
            OSError: the storage failed.
        """
        before = read_checks(self.log.storage)
        state = self.log.read_state()
        found = FindingSet(before, now_ms)
        run = _CheckRun(self, state, found)
        run.recheck()
        run.list_recent(before.commit_number, before.listed.position.topic)
        listed = run.list_next(before.listed, now_ms)
        read = run.read_next(before.read, now_ms)
        partitions = before.partitions
        if tables is not None:
            for topic in tables.topics:
                found.replace_topic(topic, [ConsistencyCheck.TABLE], _table_finding(topic, tables))
            partitions = run.restore_partitions(partitions, now_ms, tables)
        share_end = None if tables is None else tables.share_end
        after = dataclasses.replace(
            before,
            checked_at_ms=now_ms,
            commit_number=state.commit_number,
            listed=listed,
            read=read,
            partitions=partitions,
            tables_at_ms=before.tables_at_ms if share_end is None else now_ms,
            tables_after=before.tables_after if share_end is None else share_end,
            open=tuple(found),
            more=found.more,
        )
        write_checks(self.log.storage, after)
        return after

    def recheck(self, topics: frozenset[str], now_ms: int) -> None:
        """Compares the files with open findings of these topics again, after a command that may have repaired them."""
        before = read_checks(self.log.storage)
        if not topics & before.topics():
            return
        found = FindingSet(before, now_ms)
        _CheckRun(self, self.log.read_state(), found).recheck(topics)
        write_checks(self.log.storage, dataclasses.replace(before, open=tuple(found), more=found.more))

    def first_damage(self, topics: Sequence[str], seconds: float) -> VerifyFinding | None:
        """Returns the first missing, foreign or changed file of these topics, None if there is none or it is not found
        within the time. Stores nothing.

        Raises:
            CommitLogError: the commits cannot be read.
            OSError: the storage failed.
        """
        deadline_s = self.now_s() + seconds
        found = FindingSet(WarehouseChecks(), 0)
        run = _CheckRun(self, self.log.read_state(), found)
        for visit in (run._visit_listing, run._visit_content):
            for topic in topics:
                for expected in run._time_partitions_of(topic, CheckPosition(topic)):
                    visit(expected, START, _Share(1 << 62, seconds, self.now_s))
                    if (first := next(iter(found), None)) is not None:
                        return first.finding
                    if self.now_s() >= deadline_s:
                        return None
        return None


class _CheckRun:
    """One run of the check.

    Attributes:
        listed: the findings of the time partitions that this run has already listed.
        unreadable: topics with commits that cannot be read, as far as known.
        names: listings of directories that are not compared yet.
    """

    def __init__(self, check: RollingCheck, state: LoaderState, found: FindingSet) -> None:
        self.log, self.files, self.budget, self.now_s = check.log, check.files, check.budget, check.now_s
        self.state = state
        self.found = found
        self.cursor = read_cursor(self.log.storage, FILES)
        self.sha256s: dict[int, str] = {}
        self.index = FileIndex(self.log, self.sha256s)
        self.listed: dict[CheckPosition, list[VerifyFinding]] = {}
        self.names: dict[str, Mapping[str, int | None]] = {}
        self.unreadable = {one.finding.topic for one in found if one.finding.check is ConsistencyCheck.COMMITS}

    def recheck(self, topics: frozenset[str] | None = None) -> None:
        """Compares everything with an open finding again.

        Args:
            topics: limits this to these topics; None for all.
        """
        share = self._share(self.budget.bytes // 2)
        for one in self.found:
            finding = one.finding
            if finding.check not in FILE_CHECKS or (topics is not None and finding.topic not in topics):
                continue
            expected = self._expected(finding.topic, finding.kind, finding.time_partition)
            if expected is None:
                self.found.replace_topic(finding.topic, FILE_CHECKS)
                continue
            if _position(expected) not in self.listed:
                self._list(expected)
            file = next((file for file in expected.files if expected.path(file.name) == finding.where), None)
            if finding.check in CONTENT_CHECKS and file is not None and not share.is_spent:
                self._read(expected, file)
                share.spend(file.length)

    def list_recent(self, since: int, first_topic: str) -> None:
        """Compares the time partitions that commits after `since` have changed, for half of the share.

        Args:
            first_topic: the topic to begin with, so that not always the same ones fit into the share.
        """
        share = self._share(self.budget.files // 2, self.budget.part_seconds / 2)
        recent = (
            self._expected(one.topic, FileKind(one.kind), one.time_partition)
            for one in self._recent(since, first_topic)
        )
        for expected in self._with_listings(one for one in recent if one is not None):
            if _position(expected) not in self.listed:
                share.spend(self._list(expected))
            if share.is_spent and not self.names:
                return

    def list_next(self, before: CheckProgress, now_ms: int) -> CheckProgress:
        """Compares further time partitions until the share is spent."""
        share = self._share(self.budget.files)
        return self._walk(before, now_ms, share, self._visit_listing, self._with_listings)

    def read_next(self, before: CheckProgress, now_ms: int) -> CheckProgress:
        """Compares the content of further files until the share is spent."""
        return self._walk(before, now_ms, self._share(self.budget.bytes), self._visit_content)

    def restore_partitions(self, before: CheckProgress, now_ms: int, tables: ComparedTables) -> CheckProgress:
        """Restores the partitions of further time partitions in the metastore until the share is spent.

        Args:
            tables: its `restore` is called with a topic, the kind of its files, its time partitions, and the commit up
                to which all files of the topic are published.
        """
        share = self._share(PARTITION_CALLS_MAX)
        batch: list[ExpectedTimePartition] = []

        def flush() -> None:
            if batch:
                topic = batch[0].topic
                applied = min(self.cursor.position(topic), self.state.topics[topic].commit_number)
                tables.restore(topic, batch[0].kind, [one.time_partition for one in batch], applied)
                share.spend(1)
                batch.clear()

        def visit(expected: ExpectedTimePartition, after: CheckPosition, _: _Share) -> CheckPosition:
            position = _position(expected)
            if position == after:
                return position
            is_same_table = batch and (batch[0].topic, batch[0].kind) == (expected.topic, expected.kind)
            if not is_same_table or len(batch) >= tables.partitions_max:
                flush()
            batch.append(expected)
            return position

        progress = self._walk(before, now_ms, share, visit)
        flush()
        return progress

    def _share(self, amount: int, seconds: float | None = None) -> _Share:
        return _Share(amount, self.budget.part_seconds if seconds is None else seconds, self.now_s)

    def _recent(self, since: int, first_topic: str) -> list[CheckPosition]:
        newest = self.state.commit_number
        found: set[CheckPosition] = set()
        try:
            for commit_number in range(max(since, newest - RECENT_COMMITS_MAX) + 1, newest + 1) if since else ():
                for topic, committed in self.log.commit(commit_number).topics.items():
                    found |= {CheckPosition(topic, one.kind, one.time_partition) for one in committed.files}
                    found |= {CheckPosition(topic, one.kind, one.time_partition) for one in committed.rewrites}
        except CommitLogError as error:
            logger.warning("recent_commits_not_checked reason=%s", error)
        ordered = sorted(found)
        first = bisect.bisect_left(ordered, CheckPosition(first_topic))
        return ordered[first:] + ordered[:first]

    def _walk(
        self,
        before: CheckProgress,
        now_ms: int,
        share: _Share,
        visit: Visit,
        prepared: Callable[[Iterator[ExpectedTimePartition]], Iterator[ExpectedTimePartition]] = iter,
    ) -> CheckProgress:
        """Visits time partitions from the position of `before` on, at most once around, until the share is spent and
        all listings are compared. Returns the new progress.

        Args:
            visit: compares a time partition from a position on, and returns the new position.
            prepared: yields the same time partitions after preparing them.
        """
        position, started_ms = before.position, before.round_started_ms or now_ms
        for expected in prepared(self._time_partitions(position)):
            earlier, position = position, visit(expected, position, share)
            if share.is_spent and not self.names and position != earlier:
                return CheckProgress(position, started_ms, before.complete_since_ms)
        position = START
        rest = itertools.takewhile(lambda one: _position(one) <= before.position, self._time_partitions(START))
        for expected in prepared(rest):
            position = visit(expected, position, share)
            if share.is_spent and not self.names:
                return CheckProgress(position, now_ms, started_ms)
        return CheckProgress(START, now_ms, now_ms)

    def _time_partitions(self, first: CheckPosition) -> Iterator[ExpectedTimePartition]:
        """Yields the time partitions with published files in the order of their positions, from that of `first` on. If
        the files of a topic cannot be determined, that is a finding, and the other topics follow."""
        topics = sorted(self.state.topics)
        for topic in topics[bisect.bisect_left(topics, first.topic) :]:
            try:
                yield from self._time_partitions_of(topic, first if topic == first.topic else CheckPosition(topic))
            except StorageUnavailable:
                raise
            except (CommitLogError, OSError) as error:
                self._set_unreadable(topic, str(error))
            else:
                self._set_unreadable(topic, "")

    def _time_partitions_of(self, topic: str, first: CheckPosition) -> Iterator[ExpectedTimePartition]:
        index = FileIndex(self.log, self.sha256s)  # released after the topic
        if not self.log.storage.exists(days_path(self.state.topics[topic].directory)):
            with contextlib.suppress(OSError):
                index.update_files(topic)  # stored, so that not each load reads all commits of the topic
        for kind in FileKind:
            for day in index.days(topic, kind):
                if CheckPosition(topic, kind, f"{day}/~") < first:
                    continue  # the days before the position are not read
                for time_partition, indexed in sorted(index.day_uncached(topic, kind, day).time_partitions.items()):
                    expected = self._expected_of(topic, kind, time_partition, indexed)
                    if expected.files and _position(expected) >= first[:3]:
                        yield expected

    def _set_unreadable(self, topic: str, reason: str) -> None:
        if reason:
            self.unreadable.add(topic)
            message = f"its files cannot be compared: {reason}"
            self.found.replace_topic(
                topic, [ConsistencyCheck.COMMITS], [VerifyFinding(topic, ConsistencyCheck.COMMITS, "", message)]
            )
        elif topic in self.unreadable:
            self.unreadable.remove(topic)
            self.found.replace_topic(topic, [ConsistencyCheck.COMMITS])

    def _expected(self, topic: str, kind: FileKind, time_partition: str) -> ExpectedTimePartition | None:
        """Returns the files that a time partition must have; None if its topic has no commits, or these cannot be
        read."""
        if topic not in self.state.topics:
            return None
        try:
            indexed = self.index.time_partition(topic, kind, time_partition)
            return self._expected_of(topic, kind, time_partition, indexed)
        except CommitLogError as error:
            self._set_unreadable(topic, str(error))
            return None

    def _expected_of(
        self, topic: str, kind: FileKind, time_partition: str, indexed: IndexedTimePartition
    ) -> ExpectedTimePartition:
        known = self.state.topics[topic]
        applied = min(self.cursor.position(topic), known.commit_number)
        return expected_of_index(topic, known.directory, kind, time_partition, indexed, applied)

    def _with_listings(self, expected: Iterator[ExpectedTimePartition]) -> Iterator[ExpectedTimePartition]:
        """Yields the same time partitions, after listing the directories of several at once if that is faster."""
        at_once = self.files.listings_at_once
        if at_once == 1:
            yield from expected
            return
        with ThreadPoolExecutor(at_once) as threads:
            while batch := tuple(itertools.islice(expected, at_once)):
                for _ in threads.map(self._list_ahead, batch):
                    pass
                for one in batch:
                    yield one
                    self.names.pop(one.directory, None)

    def _list_ahead(self, expected: ExpectedTimePartition) -> None:
        if _position(expected) in self.listed:
            return
        try:
            self.names[expected.directory] = self.files.lengths(expected.directory)
        except StorageUnavailable:
            raise
        except OSError as error:  # `_compare` lists it again, and reports the failure
            logger.debug("not_listed_ahead directory=%s error=%s", expected.directory, error)

    def _visit_listing(self, expected: ExpectedTimePartition, after: CheckPosition, share: _Share) -> CheckPosition:
        position = _position(expected)
        if position == after:
            return position
        if expected.topic != after.topic:
            self.found.begin_topic(expected.topic)
        if position in self.listed:
            self.found.replace_listed(expected, self.listed[position], is_counted=True)
        else:
            share.spend(self._list(expected, is_counted=True))
        return position

    def _list(self, expected: ExpectedTimePartition, *, is_counted: bool = False) -> int:
        """Lists a time partition and replaces its findings. Returns the number of files, at least 1."""
        found, number = self._compare(expected)
        if found:
            expected, found = self._confirmed(expected, found)
        self.listed[_position(expected)] = found
        self.found.replace_listed(expected, found, is_counted=is_counted)
        return number

    def _compare(self, expected: ExpectedTimePartition) -> tuple[list[VerifyFinding], int]:
        """Lists a time partition and returns its findings, and the number of files, at least 1."""
        try:
            listed = self.names.pop(expected.directory, None)
            names = self.files.lengths(expected.directory) if listed is None else listed
        except StorageUnavailable:
            raise
        except OSError as error:
            message = f"cannot be listed: {error.strerror or error}"
            return [expected.finding(ConsistencyCheck.LISTING, expected.directory, message)], 1
        return list(compare_listing(expected, names)), max(1, len(names), len(expected.files))

    def _confirmed(
        self, expected: ExpectedTimePartition, found: list[VerifyFinding]
    ) -> tuple[ExpectedTimePartition, list[VerifyFinding]]:
        """Compares a time partition with findings a second time, with the newest commits, because other commands may
        have committed and published files meanwhile. Returns what is expected now, and the findings of both times.

        A file that was published after the first listing is missing only there. A file that is in the second listing
        was committed before it, and therefore in the commits that are read after it.
        """
        wanted = {(one.check, one.where) for one in found}
        try:
            names = self.files.lengths(expected.directory)
        except StorageUnavailable:
            raise
        except OSError:
            return expected, found
        self.state = self.log.read_state()
        self.cursor = read_cursor(self.log.storage, FILES)
        current = self._expected(expected.topic, expected.kind, expected.time_partition)
        if current is None:
            return expected, found
        again = compare_listing(current, names) if current.directory == expected.directory else ()
        return current, [one for one in again if (one.check, one.where) in wanted]

    def _visit_content(self, expected: ExpectedTimePartition, after: CheckPosition, share: _Share) -> CheckPosition:
        position = after
        for file in sorted(expected.files, key=lambda file: file.name):
            if _position(expected, file.name) <= after:
                continue
            position = _position(expected, file.name)
            self._read(expected, file)
            share.spend(max(1, file.length))
            if share.is_spent:
                break
        return position

    def _read(self, expected: ExpectedTimePartition, file: ExpectedFile) -> None:
        """Compares the content of a file and replaces the finding about it. A file that is missing or has another
        length is left to the listing."""
        path = expected.path(file.name)
        try:
            if self.files.length(path) == file.length:
                found = compare_content(expected, file, self.files, [ConsistencyCheck.CHECKSUM])
                self.found.replace_read(expected, path, found, is_counted=False)
        except FileNotFoundError:
            return


def _position(expected: ExpectedTimePartition, file: str = "") -> CheckPosition:
    return CheckPosition(expected.topic, expected.kind, expected.time_partition, file)


def _table_finding(topic: str, tables: ComparedTables) -> list[VerifyFinding]:
    problem = tables.problems.get(topic)
    return [] if problem is None else [VerifyFinding(topic, ConsistencyCheck.TABLE, "", problem)]
