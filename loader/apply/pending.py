"""Reads the commits that appliers have yet to apply, in portions, oldest first.

Usually these are the few commits of the last run, read once for all appliers. But after a cursor or the audit database
was lost, an applier begins with the first commit, and the commits of a year do not fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from headrace.loader.commit.commit import Commit
from headrace.loader.commit.commit_log import CommitLog
from headrace.loader.commit.document import Document
from headrace.loader.commit.state import LoaderState

PORTION_BYTES_MAX = 8 * 1024 * 1024
"""Limit of a portion: the size of its commit files. A single larger commit is a portion of its own. Two portions and
the cache are in memory at once, and parsed commits need several times the size of their files: after a lost cursor of
20,000 commits (172 MB), an applier takes 50 MB more than without pending commits, and 330 MB more with portions of 64
MiB, in the same time."""


class PendingCommits:
    """Reads the pending commits of the topics that are passed to `add`: those that are not applied yet, up to the
    newest commit of `state`.

    Raises:
        CorruptCommit, UnsupportedFormat: a commit cannot be read. Applies to all methods.
    """

    def __init__(self, log: CommitLog, state: LoaderState, since: Mapping[str, int]) -> None:
        self._log = log
        self._state = state
        self._commits: set[int] = set()
        self._cached: dict[int, Document[Commit]] = {}
        self._cached_bytes = 0
        self.add(since)

    def add(self, since: Mapping[str, int]) -> None:
        """Adds topics whose pending commits are to be read: all commits after the one that `since` has for the topic,
        the last that was applied."""
        for document in self._log.merged_history(since, self._state):
            commit_number = document.value.commit_number
            self._commits.add(commit_number)
            if commit_number not in self._cached and self._cached_bytes + document.length <= PORTION_BYTES_MAX:
                self._cached[commit_number] = document
                self._cached_bytes += document.length

    def after(self, commit_number: int) -> Iterator[Sequence[Commit]]:
        """Yields the pending commits with higher numbers than `commit_number`, oldest first, in lists that fit into
        memory."""
        portion: list[Commit] = []
        size = 0
        for number in sorted(one for one in self._commits if one > commit_number):
            document = self._cached.get(number) or self._log.document(number)
            if portion and size + document.length > PORTION_BYTES_MAX:
                yield portion
                portion, size = [], 0
            portion.append(document.value)
            size += document.length
        if portion:
            yield portion
