"""Finds the files with rows of an earlier log of the topic. Pure.

A re-created topic, or a log that was truncated and grew again, has other messages at the same offsets. The files of the
earlier log stay. They can be recognized only by their commits, which come before the commit that found the new log. A
file with copied rows, such as a merged file, is traced to its sources, and these to theirs, until every origin is
found.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from headrace.loader.commit.commit import CommitKind, CommittedFile, CommittedRange, TimePartitionRewrite, TopicCommit
from headrace.loader.commit.partition_index import day_of
from headrace.loader.rewrite.closure import FileKey, LiveFile

MESSAGES_LOST = "so the brokers no longer have their messages"


@dataclass(frozen=True, slots=True)
class ForeignRows:
    """The reason why a file cannot be recreated from the topic's present log. `has_only_foreign_rows` means that none
    of its rows come from the present log; otherwise some may, and it is unknown which."""

    reason: str
    has_only_foreign_rows: bool


def find_foreign_rows(
    files: Collection[LiveFile], commits: Iterable[tuple[int, CommitKind, TopicCommit]]
) -> dict[FileKey, ForeignRows]:
    """Returns those of `files` with rows that may not come from the topic's present log, each with the reason: the
    topic was re-created or a partition's log diverged after they were loaded, or no commit states where they came from.

    Args:
        commits: the topic's commits, newest first: number, kind, and the part for the topic. Consumed only as far back
            as needed.
    """
    search = _OriginSearch({one.key: one for one in files})
    for commit_number, kind, committed in commits:
        for file in committed.files:
            search.visit_file(file, kind, committed)
        for offsets in committed.ranges:
            search.visit_offsets(commit_number, offsets)
        if committed.starts_again:
            search.visit_recreation(commit_number)
        if not search.pending:
            break
    return search.finish()


class _OriginSearch:
    """A search through a topic's commits, from the newest back, that finds for each requested file the commits that
    first loaded its rows.

    A requested file may be a copy, such as a merged file; the search then continues with the files that it was copied
    from. `pending` are the files whose commit has not been reached yet, each with the keys of the requested files that
    contain its rows.
    """

    def __init__(self, requested: Mapping[FileKey, LiveFile]) -> None:
        self._requested = requested
        self._found: dict[FileKey, ForeignRows] = {}
        self._copied: set[FileKey] = set()
        self.pending: dict[FileKey, set[FileKey]] = {key: {key} for key in requested}

    def visit_file(self, file: CommittedFile, kind: CommitKind, committed: TopicCommit) -> None:
        requested_keys = self.pending.pop((file.kind, file.time_partition, file.name), None)
        # The rows of a backfill come from the brokers; every other rewrite copies them from the files that it replaces.
        if requested_keys is None or kind is CommitKind.BACKFILL:
            return
        for rewrite in committed.rewrites:
            if kind is CommitKind.REPLAY or _is_source(rewrite, file, kind):
                self._copied |= requested_keys
                for name in rewrite.replaced:
                    self.pending.setdefault((rewrite.kind, rewrite.time_partition, name), set()).update(requested_keys)

    def visit_offsets(self, commit_number: int, offsets: CommittedRange) -> None:
        if offsets.replaced is None:
            return
        start, end = offsets.replaced
        reason = (
            f"commit {commit_number} found that offsets {start} to {end - 1} of partition {offsets.partition} changed "
            f"since they were loaded, {MESSAGES_LOST}"
        )
        for key in self._pending_requested():
            spans = self._requested[key].spans()
            if any(number == offsets.partition and low < end and start < high for number, low, high in spans):
                self._found.setdefault(key, ForeignRows(reason, False))

    def visit_recreation(self, commit_number: int) -> None:
        for key in self._pending_requested():
            reason = f"commit {commit_number} found the topic re-created after they were loaded, {MESSAGES_LOST}"
            self._found.setdefault(key, ForeignRows(reason, key not in self._copied))
        self.pending.clear()

    def finish(self) -> dict[FileKey, ForeignRows]:
        """Ends the search through the topic's commits, after the oldest commit that is needed or exists. Returns the
        requested files with rows that may not come from the topic's present log, each with the reason; this includes
        files for which the commit that first loaded their rows was not found."""
        for key in self._pending_requested():
            self._found.setdefault(key, ForeignRows("no commit states which log their rows came from", False))
        return self._found

    def _pending_requested(self) -> set[FileKey]:
        return set().union(*self.pending.values())


def _is_source(rewrite: TimePartitionRewrite, file: CommittedFile, kind: CommitKind) -> bool:
    """Whether the rows of a file that a commit of this kind added may come from the files that `rewrite` replaced."""
    if kind is CommitKind.REPARTITION:
        return (rewrite.kind, day_of(rewrite.time_partition)) == (file.kind, day_of(file.time_partition))
    return (rewrite.kind, rewrite.time_partition) == (file.kind, file.time_partition)
