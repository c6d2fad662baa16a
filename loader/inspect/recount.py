"""Compares the rows in a topic's files with the commits and with the audit, by window of message time.

Three counts of a window are compared: the rows that its files have now (`recount_file` counts them), the rows that the
commits state were written, and the rows that the audit's database has counted. The files of a time partition are listed
too, so that missing, changed and foreign files are named.

Rows that a later command added or removed explain a difference, because the counts of a window do not change then: rows
that were replayed from the quarantine, and rows that `headrace expire` or `headrace accept-missing` removed.

Safe while loads run: only files of applied commits are expected, and the counts of later commits are left out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from headrace.audit.facts import WindowFacts
from headrace.audit.verdict import ALL_TIME, Period
from headrace.audit.window import SCATTERED_MS, count_text, known_window
from headrace.loader.commit.commit import Commit, CommitKind, TopicCommit
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.errors import StorageUnavailable
from headrace.loader.inspect.commit_chain import CommitChain, read_chain
from headrace.loader.inspect.compare_files import ExpectedTimePartition, compare_listing
from headrace.loader.inspect.findings import ConsistencyCheck, VerifyFinding
from headrace.loader.inspect.published_files import applied_commit_number
from headrace.loader.inspect.recount_file import NO_ROWS, FileRows, RecountUnit, WindowRows, is_covered
from headrace.loader.inspect.verify import expected_time_partitions
from headrace.loader.project.topic_projection import FUTURE_TIME
from headrace.loader.rewrite.choose import end_of_time_partition_ms
from headrace.loader.rewrite.row_hours import TimeSource
from headrace.loader.storage.protocols import WarehouseFiles
from headrace.loader.work_unit import FileKind
from headrace.loader.write.time_partitions import PERIOD_MS

WRITTEN: Final = "written"  # the outcome of a count series


class RecountVerdict(StrEnum):
    EQUAL = "equal"
    MISSING = "missing"  # the files have fewer rows than the commits
    EXTRA = "extra"  # the files have more rows than the commits
    MISCOUNTED = "miscounted"  # the audit's database has counted another number of rows than the commits


@dataclass(frozen=True, slots=True)
class RecountedWindow:
    """The rows of one window.

    Attributes:
        rows: rows in the files.
        fingerprint: of the positions of their messages (see `recount_file`).
        committed: rows that loads wrote, by the commits.
        loaded: rows that loads wrote, by the audit; None if it has no counts of this window.
        stored: messages in the log, by the audit; None if it has not counted them.
        reason: the explanation of a difference; "" without one.
    """

    window_start_ms: int
    rows: int
    fingerprint: int
    committed: int
    loaded: int | None
    stored: int | None
    verdict: RecountVerdict
    reason: str = ""

    @property
    def difference(self) -> int:
        """Extra (positive) or missing (negative) rows in the files."""
        return self.rows - self.committed


@dataclass(frozen=True, slots=True)
class RecountReport:
    """The result for a topic. `commit_number` is the newest commit that it considers; `rows` and `bytes` are those of
    the data and quarantine files that were read. `notes` need no action."""

    topic: str
    commit_number: int
    files: int
    rows: int
    bytes: int
    windows: tuple[RecountedWindow, ...]
    findings: tuple[VerifyFinding, ...]
    notes: tuple[str, ...] = ()

    @property
    def differing(self) -> tuple[RecountedWindow, ...]:
        return tuple(one for one in self.windows if one.verdict is not RecountVerdict.EQUAL)


@dataclass(slots=True)
class _Removal:
    """Rows that a command removed from a time partition, which is the interval [start_ms, end_ms) of message time."""

    start_ms: int
    end_ms: int
    rows: int


@dataclass(slots=True)
class CommittedRows:
    """The counts of a topic's commits for the windows of a period.

    Attributes:
        written: rows written by window.
        replayed: rows replayed from the quarantine, of any window.
        removed: rows removed from the table.
        elsewhere: offsets (partition, start, end) of loads that filed some messages of these windows in other time
            partitions, because their times were too far in the future.
        time_properties: the values of the subject's property `headrace.time` in the topic's history.
        newest: the newest commit with counts.
    """

    period: Period = ALL_TIME
    written: Counter[int] = field(default_factory=Counter)
    replayed: int = 0
    removed: list[_Removal] = field(default_factory=list)
    elsewhere: list[tuple[int, int, int]] = field(default_factory=list)
    time_properties: set[str] = field(default_factory=set)
    newest: int = 0

    def add(self, commit: Commit, committed: TopicCommit) -> None:
        is_counted = False
        for series in committed.audit:
            for window in series.windows:
                start_ms = known_window(window.window_start_ms)
                if series.outcome == WRITTEN and is_covered(start_ms, self.period.since_ms, self.period.until_ms):
                    self.written[start_ms] += window.messages
                    is_counted = True
        if is_counted and committed.time_sources.get(FUTURE_TIME):
            self.elsewhere += [(one.partition, one.start, one.end) for one in committed.ranges]
        self.newest = max(self.newest, commit.commit_number)
        if committed.load_schema is not None:
            self.time_properties.add(committed.load_schema.time_property)
        if commit.kind is CommitKind.REPLAY:
            self.replayed += sum(file.records for file in committed.files if file.kind is FileKind.DATA)
        if commit.kind is CommitKind.EXPIRE:
            self.removed += [
                _Removal(*_interval(one.time_partition), one.records)
                for one in committed.rewrites
                if one.kind is FileKind.DATA
            ]


@dataclass(frozen=True, slots=True)
class RecountPlan:
    """The files to count, with the findings of their directories' listings. `commit_number` is the newest commit of the
    topic that is considered; no commit after it up to `state_number` concerns the topic."""

    topic: str
    commit_number: int
    state_number: int
    committed: CommittedRows
    units: tuple[RecountUnit, ...]
    findings: tuple[VerifyFinding, ...]


def plan_recount(
    log: CommitLog, files: WarehouseFiles, topic: str, times: TimeSource, period: Period = ALL_TIME
) -> RecountPlan:
    """Reads the commits of a topic and lists the directories of the time partitions that a period overlaps.

    Args:
        log: the commit log, after a call of `read_state`.
        files: the warehouse's files.
        times: the time fields of the topic.
        period: limits the windows.

    Raises:
        StorageUnavailable: the warehouse is unavailable.
    """
    commit_number = applied_commit_number(log, topic)
    committed = CommittedRows(period)
    chain = read_chain(log, topic, commit_number, committed.add)
    findings = list(chain.findings)
    units: list[RecountUnit] = []
    further = _time_partitions_of(chain, committed.elsewhere)
    for expected in expected_time_partitions(log, topic, chain):
        if not (_is_in_period(expected.time_partition, period) or expected.time_partition in further):
            continue
        found, lengths = _list(expected, files, log.state.commit_number)
        findings += found
        units += _units(expected, lengths, files.root, times, period)
    is_newest = commit_number == log.state.topics[topic].commit_number
    state_number = log.state.commit_number if is_newest else commit_number
    return RecountPlan(topic, commit_number, state_number, committed, tuple(units), tuple(findings))


def report_of(
    plan: RecountPlan, counted: Iterable[FileRows], trail: Mapping[int, WindowFacts], notes: Sequence[str] = ()
) -> RecountReport:
    """Returns the report of a topic.

    Args:
        counted: the rows of all files of the plan, in any order.
        trail: the audit's counts by window, of the same commits; empty if they are not available.
        notes: notes for the report.
    """
    windows: dict[int, WindowRows] = defaultdict(lambda: NO_ROWS)
    problems: dict[str, VerifyFinding] = {}
    unplaced: dict[str, str] = {}
    files = rows = size = 0
    for one in counted:
        files, rows, size = files + 1, rows + one.rows, size + one.unit.length
        for start_ms, found in one.windows.items():
            windows[start_ms] = windows[start_ms].plus(found)
        if one.check is not None:
            unit = one.unit
            problems[unit.path] = VerifyFinding(
                plan.topic, one.check, unit.path, one.problem, unit.kind, unit.time_partition
            )
        if one.unplaced:
            unplaced[one.unit.time_partition] = one.unplaced
    # A file with another length has another number of rows, or another checksum, which says more.
    listed = [one for one in plan.findings if one.where not in problems or one.check is ConsistencyCheck.FOREIGN]
    compared = tuple(_compare(windows, plan.committed, trail, tuple(map(_interval, unplaced))))
    return RecountReport(
        plan.topic,
        plan.commit_number,
        files,
        rows,
        size,
        compared,
        (*listed, *problems.values()),
        (*notes, *_notes(plan, compared, unplaced, has_findings=bool(plan.findings or problems))),
    )


def _notes(
    plan: RecountPlan, windows: Sequence[RecountedWindow], unplaced: Mapping[str, str], *, has_findings: bool
) -> Iterator[str]:
    if unplaced:
        reason = next(iter(unplaced.values()))
        yield f"the windows of {count_text(len(unplaced), 'time partition')} were not compared: {reason}"
    if len(plan.committed.time_properties) > 1:
        yield (
            "the time field of the topic (headrace.time) has changed: rows of earlier loads are counted here by the "
            "present one, so their windows may differ"
        )
    if not has_findings and any(one.difference for one in windows if one.verdict is not RecountVerdict.EQUAL):
        yield (
            "all files are as committed: no row was lost or added since; the rows that differ have other times than "
            "when they were counted, for example because loader.time_fields changed"
        )


def _compare(
    windows: Mapping[int, WindowRows],
    committed: CommittedRows,
    trail: Mapping[int, WindowFacts],
    unplaced: Sequence[tuple[int, int]],
) -> Iterator[RecountedWindow]:
    removed = [_Removal(one.start_ms, one.end_ms, one.rows) for one in committed.removed]
    surplus = committed.replayed + committed.written.get(SCATTERED_MS, 0)
    for start_ms in sorted({*windows, *committed.written}):
        if start_ms == SCATTERED_MS or any(start <= start_ms < end for start, end in unplaced):
            continue
        found, expected, facts = windows.get(start_ms, NO_ROWS), committed.written[start_ms], trail.get(start_ms)
        difference = found.rows - expected
        verdict, reason = RecountVerdict.EQUAL, ""
        if difference < 0:
            explained = _take(removed, start_ms, -difference)
            reason = f"{count_text(explained, 'row')} removed by a later command" if explained else ""
            if explained < -difference:
                verdict = RecountVerdict.MISSING
        elif 0 < difference <= surplus:
            surplus -= difference
            reason = f"{count_text(difference, 'row')} replayed from the quarantine, or of implausible times"
        elif difference:
            verdict = RecountVerdict.EXTRA
        loaded = None if facts is None else facts.written.count if facts.written is not None else 0
        if verdict is RecountVerdict.EQUAL and loaded is not None and loaded != expected:
            verdict, reason = RecountVerdict.MISCOUNTED, "the audit and the commits state other numbers of written rows"
        yield RecountedWindow(
            start_ms,
            found.rows,
            found.fingerprint,
            expected,
            loaded,
            None if facts is None or facts.stored is None else facts.stored.count,
            verdict,
            reason,
        )


def _take(removed: Iterable[_Removal], start_ms: int, missing: int) -> int:
    """Subtracts the missing rows of a window from those that were removed from its time partition. Returns their
    number."""
    taken = 0
    for one in removed:
        if one.start_ms <= start_ms < one.end_ms:
            part = min(one.rows, missing - taken)
            one.rows -= part
            taken += part
    return taken


def _list(
    expected: ExpectedTimePartition, files: WarehouseFiles, newest_commit: int
) -> tuple[list[VerifyFinding], dict[str, int]]:
    """Lists the directory of a time partition. Returns the findings, and the lengths of the files that queries read."""
    try:
        lengths = files.lengths(expected.directory)
    except StorageUnavailable:
        raise
    except OSError as error:
        message = f"cannot be listed: {error.strerror or error}"
        return [expected.finding(ConsistencyCheck.LISTING, expected.directory, message)], {}
    findings = [
        one
        for one in compare_listing(expected, lengths)
        if one.check is not ConsistencyCheck.FOREIGN or not _is_of_later_commit(one.where, newest_commit)
    ]
    names = {file.name for file in expected.files}
    names |= {one.where.rpartition("/")[2] for one in findings if one.check is ConsistencyCheck.FOREIGN}
    return findings, {name: length for name in names if (length := lengths.get(name)) is not None}


def _is_of_later_commit(path: str, newest_commit: int) -> bool:
    """Returns whether a file belongs to a commit that another command made after this one had read the commits."""
    number = path.rpartition("/")[2].split("-")[1:2]
    return bool(number) and number[0].isdecimal() and int(number[0]) > newest_commit


def _units(
    expected: ExpectedTimePartition, lengths: Mapping[str, int], warehouse: str, times: TimeSource, period: Period
) -> Iterator[RecountUnit]:
    committed = {file.name: file for file in expected.files}
    for name, length in sorted(lengths.items()):
        yield RecountUnit(
            kind=expected.kind,
            time_partition=expected.time_partition,
            path=expected.path(name),
            length=length,
            warehouse=warehouse,
            expected=committed.get(name),
            times=times,
            since_ms=period.since_ms,
            until_ms=period.until_ms,
        )


def _time_partitions_of(chain: CommitChain, offsets: Sequence[tuple[int, int, int]]) -> frozenset[str]:
    """Returns the time partitions with files that may have messages of these offsets."""
    return frozenset(
        one.file.time_partition
        for one in chain.live
        if any(
            partition == span.partition and start <= span.last and span.first < end
            for span in one.file.ranges
            for partition, start, end in offsets
        )
    )


def _is_in_period(time_partition: str, period: Period) -> bool:
    start_ms, end_ms = _interval(time_partition)
    after_start = period.since_ms is None or end_ms > period.since_ms
    return after_start and (period.until_ms is None or start_ms < period.until_ms)


def _interval(time_partition: str) -> tuple[int, int]:
    end_ms = end_of_time_partition_ms(time_partition)
    return end_ms - PERIOD_MS["hour" if "/hr=" in time_partition else "day"], end_ms
