"""Counters of several processes in memory that all of them see.

Made before the worker processes are forked, so that they and those that replace dead ones share it. Each process takes
a slot and is the only one that writes there, from one thread: adding is two steps, and needs no lock that way. A slot
is held by a record lock, which the system gives back when its process ends, however it ends. Whoever takes the slot
next goes on counting in it, so sums never fall.

A slot is `ROWS_MAX` rows of `LABEL_BYTES` for a text, its length first and written last, and a 64-bit number for each
column. The last row takes what finds no free one.
"""

from __future__ import annotations

import fcntl
import mmap
import struct
import tempfile
from collections.abc import Iterator, Mapping
from typing import Final

LABEL_BYTES: Final = 160
ROWS_MAX: Final = 1024  # of one slot; some hundred are used, since labels are routes and statuses and no client's words
OTHER: Final = "other"
WORD_BYTES: Final = 8


class SharedCounts:
    """Counts under texts."""

    def __init__(self, slots: int, columns: int) -> None:
        """
        Args:
            slots: most processes that count at once.
            columns: how many numbers each text has.
        """
        self._slots = slots
        self._columns = columns
        self._row_bytes = LABEL_BYTES + columns * WORD_BYTES
        self._slot_bytes = self._row_bytes * ROWS_MAX
        # Nameless from the start, so that nothing is left behind.
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as this)
        self._file.truncate(slots * self._slot_bytes)
        self._memory = mmap.mmap(self._file.fileno(), slots * self._slot_bytes)
        self._slot: int | None = None
        self._rows: dict[str, int] = {}

    def claim(self) -> bool:
        """Takes a slot for this process; False when all are taken."""
        self._slot = next((slot for slot in range(self._slots) if self._lock(slot)), None)
        if self._slot is None:
            return False
        self._rows = {label: place for place, label in self._labels(self._slot)}
        return True

    def numbers(self) -> memoryview:
        """All numbers of this process's slot; a row's begin at its `place`."""
        assert self._slot is not None, "a process counts in a slot of its own"
        start = self._slot * self._slot_bytes
        return memoryview(self._memory)[start : start + self._slot_bytes].cast("Q")

    def place(self, label: str) -> int:
        """Where in `numbers` the row of a text begins."""
        found = self._rows.get(label)
        return self._new_row(label) if found is None else found

    def totals(self) -> Mapping[str, tuple[int, ...]]:
        """The sums over all processes, of those that are gone too."""
        found: dict[str, tuple[int, ...]] = {}
        for slot in range(self._slots):
            numbers = memoryview(self._memory)[slot * self._slot_bytes : (slot + 1) * self._slot_bytes].cast("Q")
            for place, label in self._labels(slot):
                row = numbers[place : place + self._columns].tolist()
                before = found.get(label, (0,) * self._columns)
                found[label] = tuple(map(sum, zip(before, row, strict=True)))
        return found

    def live(self) -> int:
        """How many processes count."""
        return sum(slot == self._slot or self._is_held(slot) for slot in range(self._slots))

    def close(self) -> None:
        self._file.close()

    def _new_row(self, label: str) -> int:
        assert self._slot is not None, "a process counts in a slot of its own"
        row = len(self._rows)
        encoded = label.encode()
        if row >= ROWS_MAX - 1 or len(encoded) > LABEL_BYTES - 2:
            label, row, encoded = OTHER, ROWS_MAX - 1, OTHER.encode()
            if OTHER in self._rows:
                return self._rows[OTHER]
        start = self._slot * self._slot_bytes + row * self._row_bytes
        self._memory[start + 2 : start + 2 + len(encoded)] = encoded
        # The length makes the row valid for those who read meanwhile.
        self._memory[start : start + 2] = struct.pack("=H", len(encoded))
        place = self._rows[label] = (row * self._row_bytes + LABEL_BYTES) // WORD_BYTES
        return place

    def _labels(self, slot: int) -> Iterator[tuple[int, str]]:
        for row in range(ROWS_MAX):
            start = slot * self._slot_bytes + row * self._row_bytes
            (length,) = struct.unpack("=H", self._memory[start : start + 2])
            if length:
                label = self._memory[start + 2 : start + 2 + length].decode()
                yield (row * self._row_bytes + LABEL_BYTES) // WORD_BYTES, label

    def _lock(self, slot: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot)
        except OSError:
            return False
        return True

    def _is_held(self, slot: int) -> bool:
        if not self._lock(slot):
            return True
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, slot)
        return False
