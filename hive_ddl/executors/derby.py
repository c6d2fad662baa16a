"""Who has an embedded Derby metastore open.

Derby has one owning JVM at a time. The lock that a live owner holds on its file tells who it is, so that an error can
name it before a JVM is started in vain; an owner that has just been killed is given a moment to vanish.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from headrace.hive_ddl.errors import MetastoreUnavailable
from headrace.hive_ddl.executors.jvm_errors import one_line

LOCK_FILE = "dbex.lck"  # Derby holds an exclusive lock of the system on it while it is open
WAIT_S = 8.0  # for an owner that is going away: a JVM notices the end of its Python within a second or two
COMMAND_CHARS_MAX = 100

FLOCK_FORMAT = "hhqqi4x"  # struct flock of 64-bit Linux: type, whence, start, length, pid


@dataclass(frozen=True, slots=True)
class DerbyOwner:
    """The process that has a Derby metastore open; pid 0 is one in another container or on another machine.

    `is_orphan`: no Python that started it is seen, so that it may be what is left of a command just killed.
    """

    pid: int
    command: str
    is_orphan: bool = False

    def __str__(self) -> str:
        if not self.pid:
            return "another process"
        return f"process {self.pid} ({self.command})" if self.command else f"process {self.pid}"


def wait_for_derby(database: Path, wait_s: float = WAIT_S) -> None:
    """Returns when no process has the Derby database open.

    Raises:
        MetastoreUnavailable: one still has after `wait_s`.
    """
    deadline = time.monotonic() + wait_s
    while (owner := find_derby_owner(database)) is not None:
        # An orphan is about to end by itself, as a rule; any other owner means to stay.
        if time.monotonic() > deadline or not owner.is_orphan:
            raise MetastoreUnavailable(
                str(database), f"{owner} has it open, and Derby serves one process at a time; end that one, or use "
                "`headrace up`, which serves everybody"
            )  # fmt: skip
        time.sleep(0.1)


def find_derby_owner(database: Path) -> DerbyOwner | None:
    """Who has the Derby database open, by the lock that Derby takes on a file of it; None when nobody has, and on
    systems whose locks we cannot ask, where Derby itself will say so later."""
    if sys.platform != "linux":
        return None
    try:
        descriptor = os.open(database / LOCK_FILE, os.O_RDWR)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise MetastoreUnavailable(str(database), f"{error.strerror}: {error.filename}") from error
    try:
        lock_query = struct.pack(FLOCK_FORMAT, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        lock_state = fcntl.fcntl(descriptor, fcntl.F_GETLK, lock_query)
    except OSError:  # a file system without locks
        return None
    finally:
        os.close(descriptor)
    kind, _, _, _, pid = struct.unpack(FLOCK_FORMAT, lock_state)
    if kind == fcntl.F_UNLCK:
        return None
    return _describe_owner(pid)


def _describe_owner(pid: int) -> DerbyOwner:
    """The process that a person would recognise and can end: for a session's JVM, the command that started it."""
    command = _words(pid)
    if not command:  # going away, or in another container
        return DerbyOwner(max(pid, 0), "", is_orphan=True)
    if Path(command[0]).name == "java":
        parent = _parent(pid)
        started_by = _words(parent) if parent is not None and parent > 1 else ()
        if not started_by or not Path(started_by[0]).name.startswith("python"):
            return DerbyOwner(pid, "java", is_orphan=True)
        pid, command = parent or pid, started_by
    start = command.index("-m") + 1 if "-m" in command else 0
    return DerbyOwner(max(pid, 0), one_line(" ".join(command[start : start + 4]))[:COMMAND_CHARS_MAX])


def _words(pid: int) -> tuple[str, ...]:
    """The command line of a process; empty where it cannot be seen."""
    try:
        return tuple(Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")[:-1])
    except OSError:
        return ()


def _parent(pid: int) -> int | None:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return None
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("PPid:")), None)
