"""The log of decisions in `<warehouse>/_headrace/`, from which everything else can be rebuilt.

    format.json                format number, least format that may read and that may write
    log/000000107.json         one decision: put if absent, never changed, never deleted
    head.json                  hint of the newest slot
    checkpoint/000000100.json  the state folded up to there
    cursor/<follower>.json     how far each follower has got: a hint
    schemas/<id>.avsc          writer schemas met so far
    staging/<work id>/         files of work in progress; plan.json in it is for people
    lease.json                 politeness between two loads
    tmp/                       files on their way to a name

Invariants: slots have no holes, since an offer goes only to the slot after one that was read; a slot that exists
is whole; what a slot says never changes. So the newest slot is found by probing whether names exist, and no folder
is ever listed to learn what was decided.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.loader.decide.conflict import Conflict, find_conflict
from headrace.loader.decide.decision import Decision
from headrace.loader.decide.json_values import canonical, checksummed, from_checksummed, from_json, to_json
from headrace.loader.decide.state import EMPTY, LoaderState, fold
from headrace.loader.decide.storage import LocalStorage
from headrace.loader.errors import BadDecision, StorageError, UnsupportedFormat

logger = logging.getLogger(__name__)

FORMAT = 1
CHECKPOINT_EVERY = 100  # slots; folding that many decisions at start takes well under a second
PUT_ATTEMPTS_MAX = 3  # on one slot, when the storage refuses the put and then shows no file there

FORMAT_PATH = "format.json"
HEAD_PATH = "head.json"
STAGING_FOLDER = "staging"


@dataclass(frozen=True, slots=True)
class LogFormat:
    """`read_min` and `write_min` are the least formats a program must know to read from or write to this log."""

    format: int = FORMAT
    read_min: int = FORMAT
    write_min: int = FORMAT


@dataclass(frozen=True, slots=True)
class Offered:
    """The answer to an offer: the decision as it stands in the log, or the conflict that refused it.

    `state` is the newest state read, with the decision in it.
    """

    state: LoaderState
    decision: Decision | None
    conflict: Conflict | None


def slot_path(slot: int) -> str:
    return f"log/{slot:09d}.json"


def checkpoint_path(slot: int) -> str:
    return f"checkpoint/{slot:09d}.json"


def staging_path(work_id: str) -> str:
    return f"{STAGING_FOLDER}/{work_id}"


class DecisionLog:
    """Reads and extends the log. Holds the newest state it has read, so that reading on is cheap."""

    def __init__(self, storage: LocalStorage) -> None:
        self.storage = storage
        self._state = EMPTY

    def open(self) -> None:
        """Makes the log where there is none, and refuses one of a format this release does not know.

        Raises:
            UnwritableWarehouse, NoHardLinks, UnsupportedFormat, BadDecision.
        """
        self.storage.prepare()
        if self.storage.read(FORMAT_PATH) is None:
            self.storage.put_if_absent(FORMAT_PATH, canonical(to_json(LogFormat())) + b"\n")
        self.check_format(writing=True)

    def check_format(self, *, writing: bool) -> None:
        """
        Raises:
            UnsupportedFormat: a newer release is needed. BadDecision: the file cannot be read.
        """
        content = self.storage.read(FORMAT_PATH)
        if content is None:
            return
        path = str(self.storage.path(FORMAT_PATH))
        try:
            found = from_json(json.loads(content), LogFormat)
        except ValueError as error:
            raise BadDecision(path, str(error)) from error
        needed = found.write_min if writing else found.read_min
        if needed > FORMAT:
            raise UnsupportedFormat(path, needed, FORMAT)

    def head(self) -> int:
        """The newest slot, 0 when nothing has been decided."""
        known = max(self._state.slot, self._hint())
        if not self._exists(known):
            known = self._state.slot
        step = 1
        while self._exists(known + step):
            known += step
            step *= 2
        # The first absent slot is in (known, known + step]: halve what is left.
        absent = known + step
        while absent - known > 1:
            middle = (known + absent) // 2
            known, absent = (middle, absent) if self._exists(middle) else (known, middle)
        return known

    def decision(self, slot: int) -> Decision:
        """
        Raises:
            BadDecision: the slot is missing, cut, changed or not what this release writes.
        """
        path = slot_path(slot)
        content = self.storage.read(path)
        if content is None:
            raise BadDecision(str(self.storage.path(path)), "the file is missing")
        return self._parse(slot, content)

    def decisions(self, after: int, upto: int) -> Iterator[Decision]:
        """The decisions of the slots (after, upto], oldest first."""
        for slot in range(after + 1, upto + 1):
            yield self.decision(slot)

    def read_state(self) -> LoaderState:
        """The state as of the newest slot. Leaves the checkpoints that are due behind.

        Raises:
            BadDecision: see `decision`.
        """
        head = self.head()
        if self._state.slot == 0:
            self._state = self._newest_checkpoint(head)
        while self._state.slot < head:
            self._advance(self.decision(self._state.slot + 1))
        return self._state

    def offer(self, proposal: Decision) -> Offered:
        """Puts a decision into the first free slot, unless it conflicts with what is decided before it.

        Raises:
            BadDecision: what came between cannot be read.
            StorageError: the storage neither takes the decision nor shows what refused it.
            OSError: the storage failed and it is not known whether the decision was taken; a later run will see.
        """
        state = self.read_state()
        while True:
            conflict = find_conflict(state, proposal)
            if conflict is not None:
                return Offered(state, None, conflict)
            found = self._put(proposal.at(state.slot + 1))
            state = self._advance(found)
            if found.work_id == proposal.work_id:
                self._leave_hint(found.slot)
                return Offered(state, found, None)

    def _put(self, decision: Decision) -> Decision:
        """The decision that the slot now holds: this one, or that of a faster writer."""
        path = slot_path(decision.slot)
        content = checksummed(decision)
        failure: OSError | None = None
        for _ in range(PUT_ATTEMPTS_MAX):
            try:
                if self.storage.put_if_absent(path, content):
                    return decision
                failure = None
            except OSError as error:
                # The link may have been made although the call failed: only the slot itself can tell.
                failure = error
            found = self.storage.read(path)
            if found is not None:
                return self._parse(decision.slot, found)
        if failure is not None:
            raise failure
        raise StorageError(f"{self.storage.path(path)} is refused as taken but cannot be found")

    def _advance(self, decision: Decision) -> LoaderState:
        conflict = find_conflict(self._state, decision)
        if conflict is not None:
            path = str(self.storage.path(slot_path(decision.slot)))
            raise BadDecision(path, f"it does not follow from the decisions before it: {conflict}")
        self._state = fold(self._state, decision)
        if self._state.slot % CHECKPOINT_EVERY == 0:
            self._leave_checkpoint(self._state)
        return self._state

    def _parse(self, slot: int, content: bytes) -> Decision:
        try:
            decision = from_checksummed(content, Decision)
        except ValueError as error:
            raise BadDecision(str(self.storage.path(slot_path(slot))), str(error)) from error
        if decision.slot != slot:
            raise BadDecision(str(self.storage.path(slot_path(slot))), f"it says it is slot {decision.slot}")
        return decision

    def _newest_checkpoint(self, head: int) -> LoaderState:
        """A checkpoint can be rebuilt, so a damaged one is passed over for an older one."""
        for slot in range(head - head % CHECKPOINT_EVERY, 0, -CHECKPOINT_EVERY):
            content = self.storage.read(checkpoint_path(slot))
            if content is None:
                continue
            try:
                state = from_checksummed(content, LoaderState)
            except ValueError as error:
                logger.warning("checkpoint_ignored path=%s reason=%s", checkpoint_path(slot), error)
                continue
            if state.slot == slot:
                return state
        return EMPTY

    def _exists(self, slot: int) -> bool:
        return slot == 0 or self.storage.exists(slot_path(slot))

    def _hint(self) -> int:
        try:
            return max(0, int(json.loads(self.storage.read(HEAD_PATH) or b"{}")["slot"]))
        except (ValueError, KeyError, TypeError):
            return 0

    def _leave_checkpoint(self, state: LoaderState) -> None:
        try:
            self.storage.put_if_absent(checkpoint_path(state.slot), checksummed(state))
        except (OSError, StorageError) as error:
            logger.warning("checkpoint_not_written slot=%d error=%s", state.slot, error)

    def _leave_hint(self, slot: int) -> None:
        try:
            self.storage.replace(HEAD_PATH, canonical({"slot": slot}) + b"\n")
        except OSError as error:
            logger.warning("hint_not_written slot=%d error=%s", slot, error)
