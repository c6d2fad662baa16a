"""The log of decisions in `<warehouse>/_headrace/`, from which everything else can be rebuilt.

    format.json                format number, least format that may read and that may write
    log/000000107.json         one decision: put if absent, never changed
    archive/000000100.jsonl    older ones, a hundred in a file, byte for byte
    head.json                  hint of the newest slot
    checkpoint/000000100.json  the state folded up to there
    index/<folder>/<kind>/…    which files each bucket has, by day: hints
    cursor/<follower>.json     how far each follower has got: a hint (the audit's is in its own database)
    schemas/<id>.avsc          writer schemas met so far
    schemas/registry.json      which registry they were compared with: a hint
    complete.json              up to when the tables are complete: a hint
    staging/<work id>/         files of work in progress; plan.json in it is for people
    lease.json                 politeness between two loads
    tmp/                       files on their way to a name

Invariants: slots have no holes, since an offer goes only to the slot after one that was read; a slot that exists
is whole; what a slot says never changes. So the newest slot is found by probing whether names exist, and no folder
is ever listed to learn what was decided. Decisions are a chain, each naming the checksum of the one before, and a
checkpoint names its slot's: an older copy of the log that was put back, or files of two logs, are noticed.
"""

from __future__ import annotations

import dataclasses
import heapq
import json
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from headrace.loader.commit.conflict import Conflict, find_conflict, topic_conflicts, work_conflict
from headrace.loader.commit.decision import Decision, TopicDecision
from headrace.loader.commit.document import FORMAT, Document, FieldNotKnown, read_document, said_sha256, write_document
from headrace.loader.commit.json_values import canonical, from_json, to_json
from headrace.loader.commit.slots import Slots
from headrace.loader.commit.state import EMPTY, LoaderState, fold, place
from headrace.loader.errors import BadDecision, LogReplaced, StorageError, UnsupportedFormat
from headrace.loader.storage.protocols import SlotStorage

logger = logging.getLogger(__name__)

CHECKPOINT_EVERY = 100  # slots; folding that many decisions at start takes well under a second
CHECKPOINTS_KEPT = 2  # the newest may be damaged; older ones can be made again

FORMAT_PATH = "format.json"
HEAD_PATH = "head.json"
CHECKPOINT_FOLDER = "checkpoint"


@dataclass(frozen=True, slots=True)
class LogFormat:
    """`read_min` and `write_min` are the least formats a program must know to read from or write to this log."""

    format: int = FORMAT
    read_min: int = FORMAT
    write_min: int = FORMAT


@dataclass(frozen=True, slots=True)
class Offered:
    """The answer to an offer: the decision as it stands in the log, or the conflict that refused all of it.

    `state` is the newest state read, with the decision in it. `refused` are the topics that were left out, with why.
    """

    state: LoaderState
    decision: Decision | None
    conflict: Conflict | None
    refused: Mapping[str, Conflict] = field(default_factory=dict)


def checkpoint_path(slot: int) -> str:
    return f"{CHECKPOINT_FOLDER}/{slot:09d}.json"


class DecisionLog:
    """Reads and extends the log. Holds the newest state it has read, so that reading on is cheap.

    With `looks_only` nothing is written, not even to make what is read survive: for whoever acts on no decision, and
    may have to look where nothing can be written.
    """

    def __init__(self, storage: SlotStorage, *, looks_only: bool = False) -> None:
        self.storage = storage
        self._looks_only = looks_only
        self.slots = Slots(storage)
        self._state = EMPTY
        self._newest: Document[Decision] | None = None
        self._kept = 0  # the newest slot that is known to survive a loss of power

    @property
    def state(self) -> LoaderState:
        """The newest that was read."""
        return self._state

    def open(self) -> None:
        """Makes the log where there is none, and refuses one of a format this release does not know.

        Raises:
            UnwritableWarehouse, NoHardLinks, UnsupportedFormat, BadDecision.
        """
        self.storage.prepare()
        if self.storage.read(FORMAT_PATH) is None:
            self.storage.put_if_absent(FORMAT_PATH, canonical(to_json(LogFormat())) + b"\n")
        if self.check_format(writing=True).format < FORMAT:
            # Before anything of this format is written, so that an older release says what it lacks.
            self.storage.replace(FORMAT_PATH, canonical(to_json(LogFormat())) + b"\n")

    def check_format(self, *, writing: bool) -> LogFormat:
        """The format of the log, that of this release where there is no log yet.

        Raises:
            UnsupportedFormat: a newer release is needed. BadDecision: the file cannot be read.
        """
        content = self.storage.read(FORMAT_PATH)
        if content is None:
            return LogFormat()
        path = self.storage.describe(FORMAT_PATH)
        try:
            found = from_json(json.loads(content), LogFormat)
        except ValueError as error:
            raise BadDecision(path, str(error)) from error
        needed = found.write_min if writing else found.read_min
        if needed > FORMAT:
            raise UnsupportedFormat(path, f"it asks for format {needed} and this release knows {FORMAT}")
        return found

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
            BadDecision, UnsupportedFormat: see `document`.
        """
        return self.document(slot).value

    def document(self, slot: int) -> Document[Decision]:
        """The decision of a slot with its checksum; the newest one is read once.

        Raises:
            BadDecision: the slot is missing, cut or changed.
            UnsupportedFormat: only a newer release can read it.
        """
        if self._newest is not None and self._newest.value.slot == slot:
            return self._newest
        content = self.slots.read(slot)
        if content is None:
            raise BadDecision(self.slots.path(slot), "the file is missing")
        return self._parse(slot, content)

    def back(self, topic: str, state: LoaderState, since: int = 0) -> Iterator[Document[Decision]]:
        """The decisions that speak of a topic, from the newest back to the slot after `since`; each is read when it is
        asked for.

        Raises:
            BadDecision, UnsupportedFormat: see `document`.
        """
        return self.back_of({topic: since}, state)

    def back_of(self, since: Mapping[str, int], state: LoaderState) -> Iterator[Document[Decision]]:
        """The decisions of later slots that speak of any of these topics, the newest first; each is read once, and no
        others are.

        Args:
            since: by topic, the slot after which.
            state: as of the newest slot.

        Raises:
            BadDecision, UnsupportedFormat: see `document`.
        """
        waiting: dict[int, list[str]] = defaultdict(list)
        for topic in since:
            waiting[state.topics[topic].slot].append(topic)
        slots = [-slot for slot in waiting]
        heapq.heapify(slots)
        # Back by the links from the newest slot to the oldest of all topics together.
        while slots:
            slot = -heapq.heappop(slots)
            topics = [topic for topic in waiting.pop(slot) if slot > since[topic]]
            if not topics:
                continue
            found = self.document(slot)
            for topic in topics:
                older = _older(slot, found.value.topics.get(topic))
                if older not in waiting:
                    heapq.heappush(slots, -older)
                waiting[older].append(topic)
            if not found.value.topics.keys().isdisjoint(topics):
                yield found

    def read_state(self) -> LoaderState:
        """The state as of the newest slot, which survives a loss of power. Leaves the checkpoints that are due behind.
        Neither is so with `looks_only`.

        Raises:
            BadDecision, UnsupportedFormat: see `document`.
            LogReplaced: another log stands there now.
            OSError: the newest slot cannot be made to survive.
        """
        self._check_timeline()
        head = self.head()
        if self._state.slot == 0:
            self._state = self._newest_checkpoint(head)
        while self._state.slot < head:
            self._advance(self.document(self._state.slot + 1))
        if self._state.slot > self._kept and not self._looks_only:
            # Its writer may have been killed before its name was on the disk. Whoever acts on a decision that may yet
            # be lost publishes what nobody decided.
            self.slots.keep(self._state.slot)
            self._kept = self._state.slot
        return self._state

    def _check_timeline(self) -> None:
        """What was read before must still be there: a copy of the log that was put back may be shorter, or go on
        differently."""
        slot = self._state.slot
        if slot and self._said_sha256(slot) != self._state.sha256:
            raise LogReplaced(self.slots.path(slot))

    def sha256(self, slot: int) -> str:
        """The checksum that the decision of a slot says it has, "" for none: enough to tell two logs apart."""
        return self._state.sha256 if slot == self._state.slot else self._said_sha256(slot)

    def _said_sha256(self, slot: int) -> str:
        content = self.slots.read(slot) if slot else None
        return said_sha256(content) if content is not None else ""

    def offer(self, proposal: Decision) -> Offered:
        """Puts a decision into the first free slot, without the topics that conflict with what is decided before it.

        Raises:
            BadDecision: what came between cannot be read.
            StorageError: the storage neither takes the decision nor shows what refused it.
            OSError: the storage failed and it is not known whether the decision was taken; a later run will see.
        """
        state = self.read_state()
        refused: dict[str, Conflict] = {}
        while True:
            conflict = work_conflict(state, proposal)
            if conflict is not None:
                return Offered(state, None, conflict, refused)
            refused |= (conflicts := topic_conflicts(state, proposal))
            if conflicts:
                left = {topic: decided for topic, decided in proposal.topics.items() if topic not in conflicts}
                starts = tuple(start for start in proposal.starts if start.topic not in conflicts)
                proposal = dataclasses.replace(proposal, topics=left, starts=starts)
                if not (left or starts):
                    return Offered(state, None, next(iter(refused.values())), refused)
            placed = place(proposal, state)
            content = write_document(placed)
            held = self.slots.put(placed.slot, content)
            self._kept = placed.slot
            ours = Document(placed, said_sha256(content), FORMAT, len(content))
            found = ours if held is content else self._parse(placed.slot, held)
            state = self._advance(found)
            if found.value.work_id == proposal.work_id:
                self._leave_hint(found.value.slot)
                return Offered(state, found.value, None, refused)

    def _advance(self, found: Document[Decision]) -> LoaderState:
        decision = found.value
        path = self.slots.path(decision.slot)
        if found.format > 1 and decision.previous != self._state.sha256:
            raise BadDecision(path, "it was made after another decision than the one that is before it now")
        conflict = find_conflict(self._state, decision)
        if conflict is not None:
            raise BadDecision(path, f"it does not follow from the decisions before it: {conflict}")
        self._state = fold(self._state, decision, found.sha256)
        self._newest = found
        if self._state.slot % CHECKPOINT_EVERY == 0 and not self._looks_only:
            self._leave_checkpoint(self._state)
        return self._state

    def _parse(self, slot: int, content: bytes) -> Document[Decision]:
        path = self.slots.path(slot)
        try:
            found = read_document(content, Decision)
        except FieldNotKnown as error:
            raise UnsupportedFormat(path, str(error)) from error
        except ValueError as error:
            raise BadDecision(path, str(error)) from error
        if found.value.slot != slot:
            raise BadDecision(path, f"it says it is slot {found.value.slot}")
        return found

    def _newest_checkpoint(self, head: int) -> LoaderState:
        """A checkpoint can be rebuilt, so one that is damaged, or of another log, is passed over for an older one."""
        for slot in range(head - head % CHECKPOINT_EVERY, 0, -CHECKPOINT_EVERY):
            content = self.storage.read(checkpoint_path(slot))
            if content is None:
                continue
            try:
                state = read_document(content, LoaderState).value
            except ValueError as error:
                logger.warning("checkpoint_ignored path=%s reason=%s", checkpoint_path(slot), error)
                continue
            if state.slot == slot and state.sha256 == self.sha256(slot):
                return state
            logger.warning("checkpoint_ignored path=%s reason=of another log", checkpoint_path(slot))
        return EMPTY

    def _exists(self, slot: int) -> bool:
        return slot == 0 or self.slots.exists(slot)

    def _hint(self) -> int:
        try:
            return max(0, int(json.loads(self.storage.read(HEAD_PATH) or b"{}")["slot"]))
        except (ValueError, KeyError, TypeError):
            return 0

    def _leave_checkpoint(self, state: LoaderState) -> None:
        try:
            # Not put if absent: one of this name that is of another log must give way.
            self.storage.replace(checkpoint_path(state.slot), write_document(state))
            for name in self.storage.children(CHECKPOINT_FOLDER):
                number = name.removesuffix(".json")
                if number.isdecimal() and int(number) <= state.slot - CHECKPOINTS_KEPT * CHECKPOINT_EVERY:
                    self.storage.remove(f"{CHECKPOINT_FOLDER}/{name}")
        except (OSError, StorageError) as error:
            logger.warning("checkpoint_not_written slot=%d error=%s", state.slot, error)

    def _leave_hint(self, slot: int) -> None:
        try:
            self.storage.replace(HEAD_PATH, canonical({"slot": slot}) + b"\n")
        except OSError as error:
            logger.warning("hint_not_written slot=%d error=%s", slot, error)


def _older(slot: int, decided: TopicDecision | None) -> int:
    """Where the topic spoke before; what format 1 does not tell is looked for one by one."""
    link = decided.slot_before if decided is not None else None
    return slot - 1 if link is None else link
