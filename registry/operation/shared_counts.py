"""Counters of several processes in shared memory.

The memory is created before the worker processes are forked, so that all workers and their replacements share it. It is
divided into slots. Each process claims a slot and is the only one that writes to it, from one thread, so increments
need no lock. A record lock marks a slot as claimed; the system releases it when the process ends, however it ends. The
next process that claims the slot continues its counts, so totals never decrease.

A slot has `ROWS_MAX` rows. A row is a label of `LABEL_BYTES` (its length, which is written last, and its text) and one
64-bit number per column. The last row counts labels that are too long or for which no row is free.
"""

from __future__ import annotations

import fcntl
import mmap
import struct
import tempfile
from collections.abc import Iterator, Mapping
from typing import Final

LABEL_BYTES: Final = 160
ROWS_MAX: Final = 1024  # per slot; a few hundred are used: labels are routes and statuses, never text from clients
OTHER: Final = "other"
WORD_BYTES: Final = 8


class SharedCounts:
    """Counters by label, in memory that several processes share."""

    def __init__(self, slots: int, columns: int) -> None:
        """Allocates the memory.

        Args:
            slots: maximum number of processes that count at the same time.
            columns: numbers per label.
        """
        self._slots = slots
        self._columns = columns
        self._row_bytes = LABEL_BYTES + columns * WORD_BYTES
        self._slot_bytes = self._row_bytes * ROWS_MAX
        # The file has no name, so nothing remains after a crash.
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as this)
        self._file.truncate(slots * self._slot_bytes)
        self._memory = mmap.mmap(self._file.fileno(), slots * self._slot_bytes)
        self._slot: int | None = None
        self._rows: dict[str, int] = {}

    def claim(self) -> bool:
        """Claims a slot (a part of the memory that only one process writes); False when all slots are claimed."""
        self._slot = next((slot for slot in range(self._slots) if self._lock(slot)), None)
        if self._slot is None:
            return False
        self._rows = {label: offset for offset, label in self._labels(self._slot)}
        return True

    def numbers(self) -> memoryview:
        """All counters that this process writes, of all labels in one sequence. The counters of a label begin at its
        `row_offset`."""
        assert self._slot is not None, "claim() must succeed first"
        start = self._slot * self._slot_bytes
        return memoryview(self._memory)[start : start + self._slot_bytes].cast("Q")

    def row_offset(self, label: str) -> int:
        """Returns the index of the label's first counter in `numbers`. Adds a new label, or counts it as `OTHER` if no
        row is free or the label is too long."""
        found = self._rows.get(label)
        return self._new_row(label) if found is None else found

    def totals(self) -> Mapping[str, tuple[int, ...]]:
        """Returns the counters of each label, summed over all processes, including ended ones."""
        found: dict[str, tuple[int, ...]] = {}
        for slot in range(self._slots):
            numbers = memoryview(self._memory)[slot * self._slot_bytes : (slot + 1) * self._slot_bytes].cast("Q")
            for offset, label in self._labels(slot):
                row = numbers[offset : offset + self._columns].tolist()
                previous = found.get(label, (0,) * self._columns)
                found[label] = tuple(map(sum, zip(previous, row, strict=True)))
        return found

    def process_count(self) -> int:
        """Number of running processes that count here."""
        return sum(slot == self._slot or self._is_held(slot) for slot in range(self._slots))

    def close(self) -> None:
        self._file.close()

    def _new_row(self, label: str) -> int:
        assert self._slot is not None, "claim() must succeed first"
        row = len(self._rows)
        encoded = label.encode()
        if row >= ROWS_MAX - 1 or len(encoded) > LABEL_BYTES - 2:
            label, row, encoded = OTHER, ROWS_MAX - 1, OTHER.encode()
            if OTHER in self._rows:
                return self._rows[OTHER]
        start = self._slot * self._slot_bytes + row * self._row_bytes
        self._memory[start + 2 : start + 2 + len(encoded)] = encoded
        # The length is written last: until then other processes ignore the row.
        self._memory[start : start + 2] = struct.pack("=H", len(encoded))
        offset = self._rows[label] = (row * self._row_bytes + LABEL_BYTES) // WORD_BYTES
        return offset

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
