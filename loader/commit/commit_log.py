"""The log of commits in `<warehouse>/_headrace/`, or in the directory `loader.state`. Checkpoints, cursors, indexes and
tables can be rebuilt from it.

    format.json                format number, and the lowest formats that a release must know to read and to write
    log/000000107.json         one commit, written by put-if-absent and never changed
    archive/000000100.jsonl    older commits, a hundred per file, byte for byte
    head.json                  hint: the newest commit number
    checkpoint/000000100.json  the state after that commit
    index/<directory>/<kind>/… hint: the files of each time partition, by day
    cursor/<applier>.json      hint: the newest commit that the applier has applied (the audit's is in its database)
    schemas/<id>.avsc          writer schemas seen so far
    schemas/registry.json      hint: the registry that they were compared with
    complete.json              hint: the time up to which the tables are complete
    staging/<run id>/          files of running loads, and plan.json, which only operators read
    lease.json                 local logs only: lets a second load end at once; not needed for correctness
    tmp/                       files before their rename

A hint may be lost or old: it saves time, and is restored from the commits or by the next loads. Staging is in the
warehouse even if `loader.state` is set.

Invariants: commit numbers have no holes, because a commit is only written with the number after one that was read; a
commit file is complete; its content never changes. The newest commit is therefore found by probing names, and no
directory is listed. Each commit holds the checksum of its predecessor, and a checkpoint that of its commit. This
detects an older copy of the log restored from a backup, and a mixture of files of two logs.
"""

from __future__ import annotations

import dataclasses
import heapq
import json
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from headrace.loader.commit.commit import Commit
from headrace.loader.commit.commit_files import CommitFiles
from headrace.loader.commit.conflict import Conflict, find_conflict, run_conflict, topic_conflicts
from headrace.loader.commit.document import (
    FORMAT,
    Document,
    UnknownFields,
    read_document,
    stated_sha256,
    write_document,
)
from headrace.loader.commit.json_values import canonical, from_json, to_json
from headrace.loader.commit.state import EMPTY, LoaderState, as_next_commit, fold
from headrace.loader.errors import CorruptCommit, LogReplaced, StorageError, UnsupportedFormat
from headrace.loader.storage.protocols import CommitStorage

logger = logging.getLogger(__name__)

CHECKPOINT_INTERVAL_COMMITS = 100  # commits; reading that many after a checkpoint takes well under a second
CHECKPOINTS_RETAINED = 2  # the newest may be damaged; older ones can be rebuilt

FORMAT_PATH = "format.json"
HEAD_PATH = "head.json"
CHECKPOINT_DIRECTORY = "checkpoint"


@dataclass(frozen=True, slots=True)
class LogFormat:
    """The content of `format.json`: the log's format, and the lowest format that a release must know to read the log
    (`read_min`) and to write it (`write_min`)."""

    format: int = FORMAT
    read_min: int = FORMAT
    write_min: int = FORMAT


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The result of `CommitLog.try_commit`: the commit as written to the log, or the conflict that rejected all of it.

    `state` is the newest state read, including the commit. `refused` are the topics that conflicts excluded from the
    commit, with the reasons.
    """

    state: LoaderState
    commit: Commit | None
    conflict: Conflict | None
    refused: Mapping[str, Conflict] = field(default_factory=dict)


def checkpoint_path(commit_number: int) -> str:
    return f"{CHECKPOINT_DIRECTORY}/{commit_number:09d}.json"


class CommitLog:
    """Reads and extends the commit log. Caches the newest state that it has read, so that reading further commits is
    cheap.

    Args:
        read_only: if set, the log is neither written nor fsynced, for commands that may lack write permission.
    """

    def __init__(self, storage: CommitStorage, *, read_only: bool = False) -> None:
        self.storage = storage
        self._read_only = read_only
        self.commits = CommitFiles(storage)
        self._state = EMPTY
        self._newest: Document[Commit] | None = None
        self._fsynced_number = 0  # the newest commit number that is known to be fsynced

    @property
    def state(self) -> LoaderState:
        """The loader's state after the newest commit that this object has read. `read_state` first reads the later
        commits."""
        return self._state

    def open(self) -> None:
        """Creates the log if it is missing.

        Raises:
            UnwritableWarehouse: the directory of the log cannot be created or written.
            NoPutIfAbsent: the storage has no put-if-absent, such as a local file system without hard links.
            CorruptCommit: `format.json` cannot be read.
            UnsupportedFormat: only a newer release can write the log.
            OSError: the storage failed.
        """
        self.storage.prepare()
        if self.storage.read(FORMAT_PATH) is None:
            self.storage.put_if_absent(FORMAT_PATH, canonical(to_json(LogFormat())) + b"\n")
        self.check_format(writing=True)

    def check_format(self, *, writing: bool) -> LogFormat:
        """Returns the format of the commit log, or this release's format if there is no log yet.

        Args:
            writing: whether this release must also be able to write the log, not only to read it.

        Raises:
            UnsupportedFormat: a newer release is needed.
            CorruptCommit: `format.json` cannot be read.
        """
        content = self.storage.read(FORMAT_PATH)
        if content is None:
            return LogFormat()
        path = self.storage.describe(FORMAT_PATH)
        try:
            found = from_json(json.loads(content), LogFormat)
        except ValueError as error:
            raise CorruptCommit(path, str(error)) from error
        format_min = found.write_min if writing else found.read_min
        if format_min > FORMAT:
            raise UnsupportedFormat(
                path, f"the commit log needs format {format_min}, and this release knows only format {FORMAT}"
            )
        return found

    def head(self) -> int:
        """Returns the newest commit number, 0 if nothing has been committed."""
        known = max(self._state.commit_number, self._hint())
        if not self._exists(known):
            known = self._state.commit_number
        step = 1
        while self._exists(known + step):
            known += step
            step *= 2
        # The first absent number is in (known, known + step]: binary search.
        absent = known + step
        while absent - known > 1:
            middle = (known + absent) // 2
            known, absent = (middle, absent) if self._exists(middle) else (known, middle)
        return known

    def commit(self, commit_number: int) -> Commit:
        """Returns the commit with this number.

        Raises:
            CorruptCommit: the commit is missing, truncated or changed.
            UnsupportedFormat: only a newer release can read the commit.
        """
        return self.document(commit_number).value

    def document(self, commit_number: int) -> Document[Commit]:
        """Returns the commit with this number, as a `Document`, which includes its checksum. The newest commit is
        cached.

        Raises:
            CorruptCommit: the commit is missing, truncated or changed.
            UnsupportedFormat: only a newer release can read it.
        """
        if self._newest is not None and self._newest.value.commit_number == commit_number:
            return self._newest
        content = self.commits.read(commit_number)
        if content is None:
            raise CorruptCommit(self.commits.path(commit_number), "the file is missing")
        return self._parse(commit_number, content)

    def history(self, topic: str, state: LoaderState, since: int = 0) -> Iterator[Document[Commit]]:
        """Yields the commits of one topic after `since`, a commit number, from the newest to the oldest. Reads each
        commit only when the caller requests it.

        Args:
            state: the loader's state after the newest commit.

        Raises:
            CorruptCommit: a commit is missing, truncated or changed.
            UnsupportedFormat: only a newer release can read a commit.
        """
        return self.merged_history({topic: since}, state)

    def merged_history(self, since: Mapping[str, int], state: LoaderState) -> Iterator[Document[Commit]]:
        """Yields the commits that concern any of the topics in `since`, newest first. Reads each of these commits once,
        and no others.

        Args:
            since: by topic, a commit number; only later commits of the topic are needed.
            state: the loader's state after the newest commit.

        Raises:
            CorruptCommit: a commit is missing, truncated or changed.
            UnsupportedFormat: only a newer release can read a commit.
        """
        topics_by_commit: dict[int, list[str]] = defaultdict(list)
        for topic in since:
            topics_by_commit[state.topics[topic].commit_number].append(topic)
        heap = [-commit_number for commit_number in topics_by_commit]
        heapq.heapify(heap)
        # Follows the links (previous_commit_number) of all topics together, from the newest commit back to the oldest.
        while heap:
            commit_number = -heapq.heappop(heap)
            topics = [topic for topic in topics_by_commit.pop(commit_number) if commit_number > since[topic]]
            if not topics:
                continue
            found = self.document(commit_number)
            for topic in topics:
                older = found.value.topics[topic].previous_commit_number
                if older not in topics_by_commit:
                    heapq.heappush(heap, -older)
                topics_by_commit[older].append(topic)
            yield found

    def read_state(self) -> LoaderState:
        """Returns the state as of the newest commit, after fsyncing that commit. Writes the checkpoints that are due. A
        log that was opened with `read_only` is neither fsynced nor written.

        Raises:
            CorruptCommit, UnsupportedFormat: a commit cannot be read.
            LogReplaced: the log is another one than the log that was read before.
            OSError: the newest commit cannot be fsynced.
        """
        self._check_timeline()
        head = self.head()
        if self._state.commit_number == 0:
            self._state = self._newest_checkpoint(head)
        while self._state.commit_number < head:
            self._advance(self.document(self._state.commit_number + 1))
        if self._state.commit_number > self._fsynced_number and not self._read_only:
            # The writer may have been killed before it fsynced the directory, so the commit can still be lost in a
            # power failure. An applier that carries it out would publish uncommitted files.
            self.commits.persist(self._state.commit_number)
            self._fsynced_number = self._state.commit_number
        return self._state

    def _check_timeline(self) -> None:
        """Raises `LogReplaced` if the newest commit that this object has read is missing or changed: then a copy of the
        log was restored, which may be shorter or continue differently."""
        commit_number = self._state.commit_number
        if commit_number and self._stated_sha256(commit_number) != self._state.sha256:
            raise LogReplaced(self.commits.path(commit_number))

    def sha256(self, commit_number: int) -> str:
        """Returns the checksum that is written at the end of a commit, "" if there is no such commit. Does not verify
        the commit. A checkpoint, cursor or index file that holds the same checksum was derived from this log."""
        return self._state.sha256 if commit_number == self._state.commit_number else self._stated_sha256(commit_number)

    def _stated_sha256(self, commit_number: int) -> str:
        content = self.commits.read(commit_number) if commit_number else None
        return stated_sha256(content) if content is not None else ""

    def try_commit(self, proposal: Commit) -> CommitResult:
        """Writes the commit `proposal` with the first free number. Topics that conflict with earlier commits are left
        out. Returns the commit as written, or the conflict that rejected all of it.

        Raises:
            CorruptCommit, UnsupportedFormat: a commit cannot be read.
            LogReplaced: the log is another one than the log that was read before.
            StorageError: the storage reports that the file exists, but it cannot be read.
            OSError: the storage failed, and it is unknown whether the commit was written. The next run finds out.
        """
        state = self.read_state()
        refused: dict[str, Conflict] = {}
        while True:
            conflict = run_conflict(state, proposal)
            if conflict is not None:
                return CommitResult(state, None, conflict, refused)
            refused |= (conflicts := topic_conflicts(state, proposal))
            if conflicts:
                left = {topic: committed for topic, committed in proposal.topics.items() if topic not in conflicts}
                starts = tuple(start for start in proposal.starts if start.topic not in conflicts)
                proposal = dataclasses.replace(proposal, topics=left, starts=starts)
                if not (left or starts):
                    return CommitResult(state, None, next(iter(refused.values())), refused)
            numbered = as_next_commit(proposal, state)
            content = write_document(numbered)
            stored_content = self.commits.put(numbered.commit_number, content)
            self._fsynced_number = numbered.commit_number
            written = Document(numbered, stated_sha256(content), FORMAT, len(content))
            found = written if stored_content is content else self._parse(numbered.commit_number, stored_content)
            state = self._advance(found)
            if found.value.run_id == proposal.run_id:
                self._write_hint(found.value.commit_number)
                return CommitResult(state, found.value, None, refused)

    def _advance(self, found: Document[Commit]) -> LoaderState:
        commit = found.value
        path = self.commits.path(commit.commit_number)
        if commit.previous != self._state.sha256:
            raise CorruptCommit(path, "the commit states a predecessor that is not the commit before it in this log")
        conflict = find_conflict(self._state, commit)
        if conflict is not None:
            raise CorruptCommit(path, f"the commit conflicts with earlier commits: {conflict}")
        self._state = fold(self._state, commit, found.sha256)
        self._newest = found
        if self._state.commit_number % CHECKPOINT_INTERVAL_COMMITS == 0 and not self._read_only:
            self._write_checkpoint(self._state)
        return self._state

    def _parse(self, commit_number: int, content: bytes) -> Document[Commit]:
        path = self.commits.path(commit_number)
        try:
            found = read_document(content, Commit)
        except UnknownFields as error:
            raise UnsupportedFormat(path, str(error)) from error
        except ValueError as error:
            raise CorruptCommit(path, str(error)) from error
        if found.value.commit_number != commit_number:
            raise CorruptCommit(
                path, f"the file states commit number {found.value.commit_number} instead of {commit_number}"
            )
        return found

    def _newest_checkpoint(self, head: int) -> LoaderState:
        """Returns the state in the newest valid checkpoint up to commit `head`, `EMPTY` if there is none. Ignores
        damaged checkpoints and checkpoints of another log, because the state can be computed from the commits."""
        for commit_number in range(head - head % CHECKPOINT_INTERVAL_COMMITS, 0, -CHECKPOINT_INTERVAL_COMMITS):
            content = self.storage.read(checkpoint_path(commit_number))
            if content is None:
                continue
            try:
                state = read_document(content, LoaderState).value
            except ValueError as error:
                logger.warning("checkpoint_ignored path=%s reason=%s", checkpoint_path(commit_number), error)
                continue
            if state.commit_number == commit_number and state.sha256 == self.sha256(commit_number):
                return state
            path = checkpoint_path(commit_number)
            logger.warning("checkpoint_ignored path=%s reason=belongs to another commit log", path)
        return EMPTY

    def _exists(self, commit_number: int) -> bool:
        return commit_number == 0 or self.commits.exists(commit_number)

    def _hint(self) -> int:
        try:
            return max(0, int(json.loads(self.storage.read(HEAD_PATH) or b"{}")["commit_number"]))
        except (ValueError, KeyError, TypeError):
            return 0

    def _write_checkpoint(self, state: LoaderState) -> None:
        try:
            # Replaces the file: a checkpoint of another log may have this name.
            self.storage.replace(checkpoint_path(state.commit_number), write_document(state))
            for name in self.storage.children(CHECKPOINT_DIRECTORY):
                number = name.removesuffix(".json")
                if (
                    number.isdecimal()
                    and int(number) <= state.commit_number - CHECKPOINTS_RETAINED * CHECKPOINT_INTERVAL_COMMITS
                ):
                    self.storage.remove(f"{CHECKPOINT_DIRECTORY}/{name}")
        except (OSError, StorageError) as error:
            logger.warning("checkpoint_not_written commit=%d error=%s", state.commit_number, error)

    def _write_hint(self, commit_number: int) -> None:
        try:
            self.storage.replace(HEAD_PATH, canonical({"commit_number": commit_number}) + b"\n")
        except OSError as error:
            logger.warning("head_not_written path=%s commit=%d error=%s", HEAD_PATH, commit_number, error)
