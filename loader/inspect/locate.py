"""Finds the file and the commit of the message at one offset, from the commits and, if necessary, from the files.

A load reads offsets in order but distributes the rows to files by event time, so several files may span an offset. In
that case the files are read, which takes longer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from headrace.loader.apply.layout import time_partition_directory
from headrace.loader.commit.commit import Commit, CommittedRange
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.commit.file_index import FileIndex
from headrace.loader.inspect.containers import positions
from headrace.loader.inspect.published_files import applied_commit_number, published_files
from headrace.loader.inspect.quarantine import read_rows
from headrace.loader.storage.protocols import WarehouseFiles
from headrace.loader.work_unit import FileKind, FileRange, RangeCounts


class OffsetStatus(StrEnum):
    """Whether the message at an offset is in the table, and if not, the reason."""

    ROW = "a row"
    QUARANTINED = "in quarantine"
    GAP = "a gap"
    SKIPPED = "skipped"
    NO_ROW = "no row"
    REMOVED = "removed"
    NOT_LOADED = "not loaded yet"
    NEVER_LOADED = "never loaded"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class LocatedMessage:
    """The result of `locate`: where the message at an offset is.

    `files` are paths below the warehouse: the file with the message, or the files that may have it. `detail` is a
    sentence. `commit_number` is the commit that loaded or omitted this offset, 0 for none. `[start, end)` are the
    offsets of the partition that it loaded; an omitted offset may be outside of them.
    """

    topic: str
    partition: int
    offset: int
    status: OffsetStatus
    detail: str
    files: tuple[str, ...] = ()
    commit_number: int = 0
    run_id: str = ""
    committed_at_ms: int = 0
    start: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A file with an offset range that includes the wanted offset. `is_certain` means that the file must have the
    message at the offset: it has as many messages as its range has offsets."""

    kind: FileKind
    path: str
    is_certain: bool


def locate(
    log: CommitLog, index: FileIndex, files: WarehouseFiles, topic: str, partition: int, offset: int
) -> LocatedMessage:
    """Returns the file and the commit of the message at an offset, or the reason why it has no row.

    Args:
        index: the index of the files that belong to each topic.
        files: the warehouse's files, which are read if the commits do not determine the file.
        topic: a topic with a commit.

    Raises:
        CorruptCommit, UnsupportedFormat: a commit cannot be read.
        OSError, ValueError: a file that must be read cannot be read.
    """
    partition_state = log.state.topics[topic].partitions.get(partition)
    result = LocatedMessage(
        topic, partition, offset, OffsetStatus.NOT_LOADED, "nothing of this partition has been committed"
    )
    if partition_state is None:
        return result
    if offset >= partition_state.next_offset:
        return replace(result, detail=f"the next offset to load is {partition_state.next_offset}")
    found = _find_commit(log, topic, partition, offset)
    if found is None:
        return replace(
            result, status=OffsetStatus.NEVER_LOADED, detail="the first load of the partition began after this offset"
        )
    commit, offsets, later = found
    result = replace(
        result,
        commit_number=commit.commit_number,
        run_id=commit.run_id,
        committed_at_ms=commit.committed_at_ms,
        start=offsets.start,
        end=offsets.end,
    )
    skipped = next((one for one in offsets.skipped if one.start <= offset < one.end), None)
    if skipped is not None and not skipped.is_quarantined:
        return replace(result, status=OffsetStatus.SKIPPED, detail=skipped.reason)
    if skipped is not None and offset != skipped.start:
        # The bytes of the whole batch are one row, at its first offset.
        first = locate(log, index, files, topic, partition, skipped.start)
        return replace(first, offset=offset)
    if any(start <= offset < end for start, end in offsets.gaps):
        return replace(result, status=OffsetStatus.GAP, detail="the brokers had deleted it before it was read")
    time_partitions = later | _time_partitions(commit, topic, partition, offset)
    candidates = list(_candidates(log, index, topic, commit, time_partitions, partition, offset))
    if not candidates and time_partitions:
        return replace(result, status=OffsetStatus.REMOVED, detail="a later commit removed its file")
    return _search_candidates(result, candidates, files, offsets.counts)


TimePartition = tuple[FileKind, str]


def _find_commit(
    log: CommitLog, topic: str, partition: int, offset: int
) -> tuple[Commit, CommittedRange, set[TimePartition]] | None:
    """Returns the newest commit that read or omitted the offset, its range with the offset, and time partitions of
    later files. None if there is no such commit. Ignores commits before a re-creation of the topic.

    The time partitions are those in which newer commits added files with an offset range that includes the offset: a
    replay moves rows from the quarantine to other time partitions.

    Args:
        log: the commit log, after a call of `read_state`.
    """
    state = log.state
    later: set[TimePartition] = set()
    for document in log.history(topic, state):
        committed = document.value.topics[topic]
        for offsets in committed.ranges:
            if offsets.partition == partition:
                if _covers(offsets, offset):
                    return document.value, offsets, later
                if offsets.previous is None:
                    return None
        if committed.starts_again:
            return None
        later |= _time_partitions(document.value, topic, partition, offset)
    return None


def _covers(offsets: CommittedRange, offset: int) -> bool:
    skipped = ((one.start, one.end) for one in offsets.skipped)
    spans = ((offsets.start, offsets.end), *offsets.gaps, *skipped)
    return any(start <= offset < end for start, end in spans)


def _spans(ranges: Iterable[FileRange], partition: int, offset: int) -> FileRange | None:
    return next((one for one in ranges if one.partition == partition and one.first <= offset <= one.last), None)


def _time_partitions(commit: Commit, topic: str, partition: int, offset: int) -> set[TimePartition]:
    """Returns the time partitions in which a commit added files with an offset range that includes the offset."""
    files = commit.topics[topic].files
    return {(file.kind, file.time_partition) for file in files if _spans(file.ranges, partition, offset)}


def _candidates(
    log: CommitLog,
    index: FileIndex,
    topic: str,
    commit: Commit,
    time_partitions: Collection[TimePartition],
    partition: int,
    offset: int,
) -> Iterator[_Candidate]:
    """Yields the files that belong to the topic now and have an offset range that includes the offset: files of the
    commit, or files that replaced them.

    Args:
        index: the index of the files that belong to each topic; used if the topic was ever rewritten.
        commit: the commit that read the offset.
        time_partitions: the time partitions to search.
    """
    state = log.state.topics[topic]
    if not state.generation:
        for file in commit.topics[topic].files:
            if _spans(file.ranges, partition, offset):
                path = f"{time_partition_directory(state.directory, file.kind, file.time_partition, 0)}/{file.name}"
                yield _Candidate(file.kind, path, _is_dense(file.ranges, partition, offset))
        return
    # A file that is not published yet is still in the directory of the previous generation.
    commit_number = max(commit.commit_number, applied_commit_number(log, topic))
    for kind in FileKind:
        wanted = {time_partition for file_kind, time_partition in time_partitions if file_kind is kind}
        for published in published_files(index, log, topic, kind, commit_number, wanted.__contains__) if wanted else ():
            if published.file.since >= commit.commit_number and _spans(published.file.ranges, partition, offset):
                # A merged file may have rows of several logs, so its offset range does not prove that it has the row.
                is_new = published.file.since == commit.commit_number
                is_certain = is_new and _is_dense(published.file.ranges, partition, offset)
                yield _Candidate(kind, published.path, is_certain)


def _is_dense(ranges: Sequence[FileRange], partition: int, offset: int) -> bool:
    span = _spans(ranges, partition, offset)
    return span is not None and span.records == span.last - span.first + 1


def _search_candidates(
    result: LocatedMessage, candidates: Sequence[_Candidate], files: WarehouseFiles, counts: RangeCounts
) -> LocatedMessage:
    certain = [candidate for candidate in candidates if candidate.is_certain][:1]
    undetermined: list[str] = []
    for candidate in certain or candidates:
        detail = _search_file(result, candidate, files)
        if detail is None and not candidate.is_certain:
            undetermined.append(candidate.path)
        elif detail or candidate.is_certain:
            status = OffsetStatus.QUARANTINED if candidate.kind is FileKind.QUARANTINE else OffsetStatus.ROW
            return replace(result, status=status, detail=detail or "", files=(candidate.path,))
    if undetermined:
        detail = (
            "one of these files may contain the message: they are missing or not published yet, or their rows have no "
            "kafka column"
        )
        return replace(result, status=OffsetStatus.UNKNOWN, detail=detail, files=tuple(undetermined))
    return _without_row(result, counts)


def _search_file(result: LocatedMessage, candidate: _Candidate, files: WarehouseFiles) -> str | None:
    """Checks whether a file has the message at an offset. Does not open a data file that must have it (`is_certain`).

    Args:
        result: the result so far, with partition and offset of the message.
        candidate: the file.
        files: the warehouse's files.

    Returns:
        A remark for the report if the message was found in the file, "" if it was not found, and also "" for a data
        file that was not opened. None if the file is missing or its rows have no offsets.
    """
    wanted = (result.partition, result.offset)
    if candidate.is_certain and candidate.kind is FileKind.DATA:
        return "" if files.length(candidate.path) is not None else None
    try:
        with files.open(candidate.path) as file:
            if candidate.kind is FileKind.QUARANTINE:
                rows = (row for row in read_rows(file) if (row.partition, row.offset) == wanted)
                return next((f"{row.code}: {row.reason}" for row in rows), "")
            row_positions = positions(file)
            if row_positions is None:
                return None
            return "found in it" if wanted in row_positions else ""
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"{files.describe(candidate.path)}: {error}") from error


def _without_row(result: LocatedMessage, counts: RangeCounts) -> LocatedMessage:
    """Returns `result`, the result so far, with the reason why the offset has no row.

    Args:
        counts: the offsets of the committed range around the offset, counted by kind. They show which kinds occur in
            the range, not the kind of this offset.
    """
    counts_by_kind = {
        "tombstones (no value)": counts.tombstones,
        "transaction markers": counts.control,
        "messages of aborted transactions": counts.aborted,
        "offsets without a message": counts.gaps,
        "offsets of batches that could not be read": counts.corrupt,
    }
    kinds = " and ".join(f"{number:,} {kind}" for kind, number in counts_by_kind.items() if number)
    if not kinds:
        return replace(
            result, status=OffsetStatus.UNKNOWN, detail="no file of its commit has it: run `headrace verify`"
        )
    return replace(
        result,
        status=OffsetStatus.NO_ROW,
        detail=f"its range [{result.start}, {result.end}) contains {kinds}",
    )
