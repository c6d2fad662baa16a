"""Stores unpublished counts in a file, so that they survive a crash of the process.

Each process has one file, mapped into memory. Its content survives `kill -9`, because the page cache belongs to the
kernel, and costs one memory write per message instead of a system call. It does not survive a crash of the machine.

    header   4096 bytes: JSON (format, instance, application, host, hash, datacenter), padded with NUL
    slot     320 bytes each: state | sequence | window start | sent | count | bytes | fingerprint (8 bytes each, in the
             byte order of the machine, each stored at once) | topic length (2) | topic (UTF-8)

A slot is filled before its state changes to OPEN, and its `sent` is increased before a message is handed to the Kafka
client. So `count <= messages in the log <= sent` holds for every window, whenever the process ends, unless a count of
the window got no slot.

A write to a hole of a mapped file kills the process (SIGBUS) if the disk is full. Slots are therefore allocated with
`pwrite`, which can fail with an error, before they are used.

The process holds an exclusive `flock` on its file while it runs. A file that can be locked belongs to an ended process.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import mmap
import os
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Final

from headrace.audit.count import HASH
from headrace.audit.row import AuditOutcome, AuditRow, Tier, counted_row_id
from headrace.audit.window import known_window

logger = logging.getLogger(__name__)

FORMAT: Final = 1
SLOTS: Final = 65_536
"""Maximum number of rows in a spool, those being published included: more than a year of ten-minute windows of one
topic, for a producer that sends old events. The file is sparse and grows in steps to at most 21 MB."""

STEP_SLOTS: Final = 256
"""Slots that are allocated on disk together (80 KiB)."""

SPOOL_DIRECTORY: Final = "audit-spool"
"""Name of the directory of spools in a data directory."""

_SUFFIX: Final = ".spool"
_HEADER_BYTES: Final = 4096
_SLOT_BYTES: Final = 320
_SLOT: Final = struct.Struct("=QQqQQQQH254s")
_STATE: Final = struct.Struct("=Q")
_WORD_BYTES: Final = 8
_SENT_OFFSET: Final = 24

SUM_WORDS: Final = 4
"""Numbers of a slot that change while messages are counted: sent, count, bytes, fingerprint."""


def sums_index(slot: int) -> int:
    """Returns the index in `Spool.words` of the first of the `SUM_WORDS` of a slot."""
    return (_HEADER_BYTES + slot * _SLOT_BYTES + _SENT_OFFSET) // _WORD_BYTES


class SlotState(IntEnum):
    FREE = 0
    OPEN = 1  # still counting
    FINAL = 2  # being published: the row does not change


class Spool:
    """The spool of this process: a file with its unpublished counts, which survive a crash of the process. Not
    thread-safe. `words` is the file as 64-bit numbers."""

    def __init__(self, directory: Path, instance: str, application: str, host: str, datacenter: str = "") -> None:
        """Creates the spool file of this process in `directory`.

        Args:
            instance: unique id of the process; names the file, and is part of the ids of its rows.
            application: name of the application, stored for the rows.
            host: name of the machine, stored for the rows.
            datacenter: name of the data centre, stored for the rows.

        Raises:
            OSError: the directory is not writable, or the disk is full.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / f"{instance}{_SUFFIX}"
        header = json.dumps(
            {
                "format": FORMAT,
                "instance": instance,
                "application": application[:512],
                "host": host[:512],
                "hash": HASH,
                "datacenter": datacenter[:64],
            }
        ).encode("utf-8")
        # The file is locked before the rename, so that no process mistakes it for a leftover.
        temporary = directory / f".{instance}.new"
        self._descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._descriptor, _HEADER_BYTES + SLOTS * _SLOT_BYTES)
            self._allocated = 0
            self._write(header.ljust(_HEADER_BYTES, b"\0"), 0)
            self._allocate_step()
            self._map = mmap.mmap(self._descriptor, _HEADER_BYTES + SLOTS * _SLOT_BYTES)
            self.words = memoryview(self._map).cast("Q")
            temporary.rename(self.path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            os.close(self._descriptor)
            raise
        self._free = list(range(SLOTS - 1, -1, -1))

    @property
    def used(self) -> int:
        return SLOTS - len(self._free)

    def open_slot(self, sequence: int, topic: str, window_start_ms: int) -> int:
        """Takes a free slot of the spool file for the count of a topic and window. Returns the number of the slot, or
        -1 if all slots are in use.

        Args:
            sequence: number of the count among those of this process; part of the id of its row.

        Raises:
            OSError: the disk has no space for more slots.
        """
        if not self._free:
            return -1
        if self._free[-1] >= self._allocated:
            self._allocate_step()
        slot = self._free.pop()
        name = topic.encode("utf-8", "surrogatepass")[:254]
        position = _HEADER_BYTES + slot * _SLOT_BYTES
        _SLOT.pack_into(self._map, position, SlotState.FREE, sequence, window_start_ms, 0, 0, 0, 0, len(name), name)
        _STATE.pack_into(self._map, position, SlotState.OPEN)
        return slot

    def set_final(self, slot: int) -> None:
        _STATE.pack_into(self._map, _HEADER_BYTES + slot * _SLOT_BYTES, SlotState.FINAL)

    def free_slot(self, slot: int) -> None:
        _STATE.pack_into(self._map, _HEADER_BYTES + slot * _SLOT_BYTES, SlotState.FREE)
        self._free.append(slot)

    def close(self) -> None:
        """Closes the spool file, and deletes it if it contains no unpublished row."""
        if self.used == 0:
            self.path.unlink(missing_ok=True)
        self.detach()

    def detach(self) -> None:
        """Closes the spool file without changing it. A forked child does this with the spool of its parent process."""
        self.words.release()
        self._map.close()
        os.close(self._descriptor)

    def _allocate_step(self) -> None:
        """Allocates disk space for the next slots of the spool file. Slots are first used in ascending order."""
        self._write(bytes(STEP_SLOTS * _SLOT_BYTES), _HEADER_BYTES + self._allocated * _SLOT_BYTES)
        self._allocated += STEP_SLOTS

    def _write(self, content: bytes, position: int) -> None:
        if os.pwrite(self._descriptor, content, position) < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))


@dataclass(frozen=True, slots=True)
class LeftoverSpool:
    """The spool (file of unpublished counts) that an ended process left. This process locks it until it is closed."""

    path: Path
    rows: tuple[AuditRow, ...]
    descriptor: int

    def __enter__(self) -> LeftoverSpool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.descriptor)

    def delete(self) -> None:
        self.path.unlink(missing_ok=True)


class LeftoverSpools:
    """The spools (files of unpublished counts) of ended processes in a directory. Each is deleted when this process has
    published its rows; one without rows is deleted at once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._is_read = False
        self._waiting: dict[str, LeftoverSpool] = {}
        self._unpublished: dict[Path, int] = {}

    def rows(self) -> list[AuditRow]:
        """Returns the unpublished audit rows in the spools of ended processes. Only the first call finds them; later
        calls return nothing."""
        with self._lock:
            if self._is_read:
                return []
            self._is_read = True
            rows: list[AuditRow] = []
            for spool in leftover_spools(self._directory):
                if not spool.rows:
                    with spool:
                        spool.delete()
                self._waiting.update((row.id, spool) for row in spool.rows)
                self._unpublished[spool.path] = len(spool.rows)
                rows.extend(spool.rows)
            if rows:
                logger.info("audit spools found directory=%s rows=%d", self._directory, len(rows))
            return rows

    def mark_published(self, row_id: str) -> None:
        """Records that a row of a spool was published, and deletes the spool if all its rows are."""
        with self._lock:
            spool = self._waiting.pop(row_id, None)
            if spool is None:
                return
            self._unpublished[spool.path] -= 1
            if self._unpublished[spool.path] == 0:
                with spool:
                    spool.delete()

    def abandon_after_fork(self) -> None:
        """Gives up the spools of ended processes in a forked child; they stay with the parent process."""
        self._lock = threading.Lock()
        self._is_read = True
        self.close()

    def close(self) -> None:
        """Unlocks the spools with unpublished rows, so that the next process can take them over."""
        with self._lock:
            for spool in {spool.path: spool for spool in self._waiting.values()}.values():
                with spool:
                    pass
            self._waiting.clear()


def leftover_spools(directory: Path) -> Iterator[LeftoverSpool]:
    """Yields the spools (files of unpublished counts) of ended processes in the directory. Spools that cannot be read
    are logged and omitted. The caller must close each one (a context manager)."""
    try:
        paths = sorted(directory.glob(f"*{_SUFFIX}"))
    except OSError:
        return
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            rows = tuple(_read(descriptor))
        except (OSError, ValueError, KeyError, struct.error) as error:
            os.close(descriptor)
            if not isinstance(error, BlockingIOError):
                logger.warning(
                    "audit spool unreadable, its counts are missing in the audit; delete it if the error persists "
                    "path=%s error=%s",
                    path,
                    error,
                )
            continue
        yield LeftoverSpool(path, rows, descriptor)


def _read(descriptor: int) -> Iterator[AuditRow]:
    header = json.loads(os.pread(descriptor, _HEADER_BYTES, 0).rstrip(b"\0"))
    if header["format"] != FORMAT:
        raise ValueError(f"the spool has format {header['format']}, but this release reads format {FORMAT}")
    ended_at_ms = os.fstat(descriptor).st_mtime_ns // 1_000_000
    content = os.pread(descriptor, SLOTS * _SLOT_BYTES, _HEADER_BYTES)
    for position in range(0, len(content) - _SLOT_BYTES + 1, _SLOT_BYTES):
        state, sequence, window_start_ms, sent, count, size_bytes, fingerprint, length, name = _SLOT.unpack_from(
            content, position
        )
        if state == SlotState.FREE or not (sent or count):
            continue
        yield AuditRow(
            id=counted_row_id(header["instance"], sequence),
            tier=Tier.PRODUCER,
            outcome=AuditOutcome.ACKNOWLEDGED,
            topic=name[:length].decode("utf-8", "surrogatepass"),
            window_start_ms=known_window(window_start_ms),
            count=count,
            bytes=size_bytes,
            fingerprint=fingerprint,
            application=header["application"],
            host=header["host"],
            instance=header["instance"],
            emitted_at_ms=ended_at_ms,
            hash=header["hash"],
            sent=sent,
            crashed=state == SlotState.OPEN,
            datacenter=header.get("datacenter", ""),
        )
