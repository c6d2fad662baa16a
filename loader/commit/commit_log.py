"""The log of commits in `<warehouse>/_headrace/`, from which everything else can be rebuilt.

    format.json                format number, least format that may read and that may write
    log/000000107.json         one commit: put if absent, never changed
    archive/000000100.jsonl    older ones, a hundred in a file, byte for byte
    head.json                  hint of the newest commit number
    checkpoint/000000100.json  the state folded up to there
    index/<directory>/<kind>/…    which files each time partition has, by day: hints
    cursor/<applier>.json     how far each applier has got: a hint (the audit's is in its own database)
    schemas/<id>.avsc          writer schemas met so far
    schemas/registry.json      which registry they were compared with: a hint
    complete.json              up to when the tables are complete: a hint
    staging/<run id>/         files of work in progress; plan.json in it is for people
    lease.json                 politeness between two loads
    tmp/                       files on their way to a name

Invariants: commit numbers have no holes, since an offer goes only to the commit number after one that was read; a
commit number that exists is whole; what a commit number says never changes. So the newest commit number is found by
probing whether names exist, and no directory is ever listed to learn what was committed. Commits are a chain, each
naming the checksum of the one before, and a checkpoint names its commit number's: an older copy of the log that was put
back, or files of two logs, are noticed.
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
from headrace.loader.commit.document import FORMAT, Document, FieldNotKnown, read_document, said_sha256, write_document
from headrace.loader.commit.json_values import canonical, from_json, to_json
from headrace.loader.commit.state import EMPTY, LoaderState, fold, place
from headrace.loader.errors import CorruptCommit, LogReplaced, StorageError, UnsupportedFormat
from headrace.loader.storage.protocols import CommitStorage

logger = logging.getLogger(__name__)

CHECKPOINT_EVERY = 100  # commit numbers; folding that many commits at start takes well under a second
CHECKPOINTS_KEPT = 2  # the newest may be damaged; older ones can be made again

FORMAT_PATH = "format.json"
HEAD_PATH = "head.json"
CHECKPOINT_DIRECTORY = "checkpoint"


@dataclass(frozen=True, slots=True)
class LogFormat:
    """`read_min` and `write_min` are the least formats a program must know to read from or write to this log."""

    format: int = FORMAT
    read_min: int = FORMAT
    write_min: int = FORMAT


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The answer to an offer: the commit as it stands in the log, or the conflict that refused all of it.

    `state` is the newest state read, with the commit in it. `refused` are the topics that were left out, with why.
    """

    state: LoaderState
    commit: Commit | None
    conflict: Conflict | None
    refused: Mapping[str, Conflict] = field(default_factory=dict)


def checkpoint_path(commit_number: int) -> str:
    return f"{CHECKPOINT_DIRECTORY}/{commit_number:09d}.json"


class CommitLog:
    """Reads and extends the log. Holds the newest state it has read, so that reading on is cheap.

    With `looks_only` nothing is written, not even to make what is read survive: for whoever acts on no commit, and
    may have to look where nothing can be written.
    """

    def __init__(self, storage: CommitStorage, *, looks_only: bool = False) -> None:
        self.storage = storage
        self._looks_only = looks_only
        self.commits = CommitFiles(storage)
        self._state = EMPTY
        self._newest: Document[Commit] | None = None
        self._kept = 0  # the newest commit number that is known to survive a loss of power

    @property
    def state(self) -> LoaderState:
        """The newest that was read."""
        return self._state

    def open(self) -> None:
        """Makes the log where there is none, and refuses one of a format this release does not know.

        Raises:
            UnwritableWarehouse, NoHardLinks, UnsupportedFormat, CorruptCommit.
        """
        self.storage.prepare()
        if self.storage.read(FORMAT_PATH) is None:
            self.storage.put_if_absent(FORMAT_PATH, canonical(to_json(LogFormat())) + b"\n")
        self.check_format(writing=True)

    def check_format(self, *, writing: bool) -> LogFormat:
        """The format of the log, that of this release where there is no log yet.

        Raises:
            UnsupportedFormat: a newer release is needed. CorruptCommit: the file cannot be read.
        """
        content = self.storage.read(FORMAT_PATH)
        if content is None:
            return LogFormat()
        path = self.storage.describe(FORMAT_PATH)
        try:
            found = from_json(json.loads(content), LogFormat)
        except ValueError as error:
            raise CorruptCommit(path, str(error)) from error
        needed = found.write_min if writing else found.read_min
        if needed > FORMAT:
            raise UnsupportedFormat(path, f"it asks for format {needed} and this release knows {FORMAT}")
        return found

    def head(self) -> int:
        """The newest commit number, 0 when nothing has been committed."""
        known = max(self._state.commit_number, self._hint())
        if not self._exists(known):
            known = self._state.commit_number
        step = 1
        while self._exists(known + step):
            known += step
            step *= 2
        # The first absent commit number is in (known, known + step]: halve what is left.
        absent = known + step
        while absent - known > 1:
            middle = (known + absent) // 2
            known, absent = (middle, absent) if self._exists(middle) else (known, middle)
        return known

    def commit(self, commit_number: int) -> Commit:
        """
        Raises:
            CorruptCommit, UnsupportedFormat: see `document`.
        """
        return self.document(commit_number).value

    def document(self, commit_number: int) -> Document[Commit]:
        """The commit of a commit number with its checksum; the newest one is read once.

        Raises:
            CorruptCommit: the commit number is missing, cut or changed.
            UnsupportedFormat: only a newer release can read it.
        """
        if self._newest is not None and self._newest.value.commit_number == commit_number:
            return self._newest
        content = self.commits.read(commit_number)
        if content is None:
            raise CorruptCommit(self.commits.path(commit_number), "the file is missing")
        return self._parse(commit_number, content)

    def back(self, topic: str, state: LoaderState, since: int = 0) -> Iterator[Document[Commit]]:
        """The commits that speak of a topic, from the newest back to the commit number after `since`; each is read when
        it is asked for.

        Raises:
            CorruptCommit, UnsupportedFormat: see `document`.
        """
        return self.back_of({topic: since}, state)

    def back_of(self, since: Mapping[str, int], state: LoaderState) -> Iterator[Document[Commit]]:
        """The commits of later commit numbers that speak of any of these topics, the newest first; each is read once,
        and no others are.

        Args:
            since: by topic, the commit number after which.
            state: as of the newest commit number.

        Raises:
            CorruptCommit, UnsupportedFormat: see `document`.
        """
        waiting: dict[int, list[str]] = defaultdict(list)
        for topic in since:
            waiting[state.topics[topic].commit_number].append(topic)
        heap = [-commit_number for commit_number in waiting]
        heapq.heapify(heap)
        # Follows the links of all topics together, from the newest commit back to the oldest.
        while heap:
            commit_number = -heapq.heappop(heap)
            topics = [topic for topic in waiting.pop(commit_number) if commit_number > since[topic]]
            if not topics:
                continue
            found = self.document(commit_number)
            for topic in topics:
                older = found.value.topics[topic].previous_commit_number
                if older not in waiting:
                    heapq.heappush(heap, -older)
                waiting[older].append(topic)
            yield found

    def read_state(self) -> LoaderState:
        """The state as of the newest commit number, which survives a loss of power. Leaves the checkpoints that are due
        behind. Neither is so with `looks_only`.

        Raises:
            CorruptCommit, UnsupportedFormat: see `document`.
            LogReplaced: another log stands there now.
            OSError: the newest commit number cannot be made to survive.
        """
        self._check_timeline()
        head = self.head()
        if self._state.commit_number == 0:
            self._state = self._newest_checkpoint(head)
        while self._state.commit_number < head:
            self._advance(self.document(self._state.commit_number + 1))
        if self._state.commit_number > self._kept and not self._looks_only:
            # Its writer may have been killed before its name was on the disk. Whoever acts on a commit that may yet
            # be lost publishes what nobody committed.
            self.commits.keep(self._state.commit_number)
            self._kept = self._state.commit_number
        return self._state

    def _check_timeline(self) -> None:
        """What was read before must still be there: a copy of the log that was put back may be shorter, or go on
        differently."""
        commit_number = self._state.commit_number
        if commit_number and self._said_sha256(commit_number) != self._state.sha256:
            raise LogReplaced(self.commits.path(commit_number))

    def sha256(self, commit_number: int) -> str:
        """The checksum that the commit of a commit number says it has, "" for none: enough to tell two logs apart."""
        return self._state.sha256 if commit_number == self._state.commit_number else self._said_sha256(commit_number)

    def _said_sha256(self, commit_number: int) -> str:
        content = self.commits.read(commit_number) if commit_number else None
        return said_sha256(content) if content is not None else ""

    def try_commit(self, proposal: Commit) -> CommitResult:
        """Puts a commit into the first free commit number, without the topics that conflict with what is committed
        before it.

        Raises:
            CorruptCommit: what came between cannot be read.
            StorageError: the storage neither takes the commit nor shows what refused it.
            OSError: the storage failed and it is not known whether the commit was taken; a later run will see.
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
            placed = place(proposal, state)
            content = write_document(placed)
            held = self.commits.put(placed.commit_number, content)
            self._kept = placed.commit_number
            ours = Document(placed, said_sha256(content), FORMAT, len(content))
            found = ours if held is content else self._parse(placed.commit_number, held)
            state = self._advance(found)
            if found.value.run_id == proposal.run_id:
                self._leave_hint(found.value.commit_number)
                return CommitResult(state, found.value, None, refused)

    def _advance(self, found: Document[Commit]) -> LoaderState:
        commit = found.value
        path = self.commits.path(commit.commit_number)
        if commit.previous != self._state.sha256:
            raise CorruptCommit(path, "it was made after another commit than the one that is before it now")
        conflict = find_conflict(self._state, commit)
        if conflict is not None:
            raise CorruptCommit(path, f"it does not follow from the commits before it: {conflict}")
        self._state = fold(self._state, commit, found.sha256)
        self._newest = found
        if self._state.commit_number % CHECKPOINT_EVERY == 0 and not self._looks_only:
            self._leave_checkpoint(self._state)
        return self._state

    def _parse(self, commit_number: int, content: bytes) -> Document[Commit]:
        path = self.commits.path(commit_number)
        try:
            found = read_document(content, Commit)
        except FieldNotKnown as error:
            raise UnsupportedFormat(path, str(error)) from error
        except ValueError as error:
            raise CorruptCommit(path, str(error)) from error
        if found.value.commit_number != commit_number:
            raise CorruptCommit(path, f"it says it is slot {found.value.commit_number}")
        return found

    def _newest_checkpoint(self, head: int) -> LoaderState:
        """A checkpoint can be rebuilt, so one that is damaged, or of another log, is passed over for an older one."""
        for commit_number in range(head - head % CHECKPOINT_EVERY, 0, -CHECKPOINT_EVERY):
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
            logger.warning("checkpoint_ignored path=%s reason=of another log", checkpoint_path(commit_number))
        return EMPTY

    def _exists(self, commit_number: int) -> bool:
        return commit_number == 0 or self.commits.exists(commit_number)

    def _hint(self) -> int:
        try:
            return max(0, int(json.loads(self.storage.read(HEAD_PATH) or b"{}")["commit_number"]))
        except (ValueError, KeyError, TypeError):
            return 0

    def _leave_checkpoint(self, state: LoaderState) -> None:
        try:
            # Not put if absent: one of this name that is of another log must give way.
            self.storage.replace(checkpoint_path(state.commit_number), write_document(state))
            for name in self.storage.children(CHECKPOINT_DIRECTORY):
                number = name.removesuffix(".json")
                if number.isdecimal() and int(number) <= state.commit_number - CHECKPOINTS_KEPT * CHECKPOINT_EVERY:
                    self.storage.remove(f"{CHECKPOINT_DIRECTORY}/{name}")
        except (OSError, StorageError) as error:
            logger.warning("checkpoint_not_written commit=%d error=%s", state.commit_number, error)

    def _leave_hint(self, commit_number: int) -> None:
        try:
            self.storage.replace(HEAD_PATH, canonical({"commit_number": commit_number}) + b"\n")
        except OSError as error:
            logger.warning("hint_not_written commit=%d error=%s", commit_number, error)
