"""From which log the rows of a file were read. Pure.

A topic that was re-created, or a log that was cut back and grew again, has other messages at the same offsets. The
files of before stay, and only the commits tell which they are: those made before the one that met the new log. So
these are followed back, from a file that was merged to those that it was merged of, until each was found.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from headrace.loader.commit.commit import CommitKind, CommittedFile, CommittedRange, TimePartitionRewrite, TopicCommit
from headrace.loader.rewrite.closure import FileKey, LiveFile

COPIES = frozenset({CommitKind.COMPACT, CommitKind.REPLAY})
"""Commits whose files hold rows of the files that they replaced; a backfill reads its rows from the brokers."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """Why a file cannot be made again of the topic's present log. One that is not `is_whole` may hold rows of the
    present log too, so that nobody can tell which of its offsets those are."""

    why: str
    is_whole: bool


def foreign(
    files: Collection[LiveFile], commits: Iterable[tuple[int, CommitKind, TopicCommit]]
) -> dict[FileKey, Foreign]:
    """The files with rows of a log that is no more.

    Args:
        commits: those of the topic with their commit numbers, newest first; read only as far back as the oldest origin.
    """
    walk = _Walk({one.key: one for one in files})
    for commit_number, kind, committed in commits:
        for file in committed.files:
            walk.meet(file, kind, committed)
        for offsets in committed.ranges:
            walk.diverged(commit_number, offsets)
        if committed.starts_again:
            walk.recreated(commit_number)
        if not walk.waiting:
            break
    return walk.unknown()


class _Walk:
    """`waiting` are the files whose commits are still to come, each with those of the asked ones that have rows of
    it."""

    def __init__(self, asked: Mapping[FileKey, LiveFile]) -> None:
        self._asked = asked
        self._found: dict[FileKey, Foreign] = {}
        self._copied: set[FileKey] = set()
        self.waiting: dict[FileKey, set[FileKey]] = {key: {key} for key in asked}

    def meet(self, file: CommittedFile, kind: CommitKind, committed: TopicCommit) -> None:
        heirs = self.waiting.pop((file.kind, file.time_partition, file.name), None)
        if heirs is None or kind not in COPIES:
            return
        self._copied |= heirs
        for rewrite in committed.rewrites:
            if kind is CommitKind.REPLAY or _is_beside(rewrite, file):
                for name in rewrite.replaced:
                    self.waiting.setdefault((rewrite.kind, rewrite.time_partition, name), set()).update(heirs)

    def diverged(self, commit_number: int, offsets: CommittedRange) -> None:
        if offsets.replaced is None:
            return
        start, end = offsets.replaced
        why = (
            f"commit {commit_number} found offsets {start} to {end - 1} of partition {offsets.partition} to be "
            f"others than "
            "those that were loaded"
        )
        for key in self._heirs():
            spans = self._asked[key].spans()
            if any(number == offsets.partition and low < end and start < high for number, low, high in spans):
                self._found.setdefault(key, Foreign(why, False))

    def recreated(self, commit_number: int) -> None:
        for key in self._heirs():
            why = f"commit {commit_number} found the topic re-created after they were loaded"
            self._found.setdefault(key, Foreign(why, key not in self._copied))
        self.waiting.clear()

    def unknown(self) -> dict[FileKey, Foreign]:
        """What was found, with the files that no commit tells of."""
        for key in self._heirs():
            self._found.setdefault(key, Foreign("no commit tells where their rows are from", False))
        return self._found

    def _heirs(self) -> set[FileKey]:
        return set().union(*self.waiting.values())


def _is_beside(rewrite: TimePartitionRewrite, file: CommittedFile) -> bool:
    return (rewrite.kind, rewrite.time_partition) == (file.kind, file.time_partition)
