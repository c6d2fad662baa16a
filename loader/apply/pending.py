"""The decisions that followers have yet to apply, some at a time, oldest first.

Mostly these are the few of the last run, read once for all followers. But a cursor that is lost, or the audit's
database, begins again with the first decision of all, and those of a year do not fit into memory together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from headrace.loader.commit.decision import Decision
from headrace.loader.commit.decision_log import DecisionLog
from headrace.loader.commit.document import Document
from headrace.loader.commit.state import LoaderState

BYTES_TOGETHER = 64 * 1024 * 1024
"""Of decisions in their files, that are in memory at a time; there they take some ten times as much."""


class PendingDecisions:
    """Those that speak of the topics given to `add`, as of `state`.

    Raises:
        BadDecision, UnsupportedFormat: one cannot be read; so in all methods.
    """

    def __init__(self, log: DecisionLog, state: LoaderState, since: Mapping[str, int]) -> None:
        self._log = log
        self._state = state
        self._slots: set[int] = set()
        self._kept: dict[int, Document[Decision]] = {}
        self._kept_bytes = 0
        self.add(since)

    def add(self, since: Mapping[str, int]) -> None:
        """Those of the slots after the given ones, by topic."""
        for found in self._log.back_of(since, self._state):
            slot = found.value.slot
            self._slots.add(slot)
            if slot not in self._kept and self._kept_bytes + found.length <= BYTES_TOGETHER:
                self._kept[slot] = found
                self._kept_bytes += found.length

    def after(self, slot: int) -> Iterator[Sequence[Decision]]:
        """Those of later slots, in portions that fit into memory."""
        portion: list[Decision] = []
        size = 0
        for later in sorted(one for one in self._slots if one > slot):
            found = self._kept.get(later) or self._log.document(later)
            if portion and size + found.length > BYTES_TOGETHER:
                yield portion
                portion, size = [], 0
            portion.append(found.value)
            size += found.length
        if portion:
            yield portion
