"""Finds the process that has an embedded Derby metastore open.

Derby allows one JVM at a time. The lock on its lock file identifies the owner, so that an error can name it before a
JVM is started. An owner that was just killed is given time to exit.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from headrace.hive_ddl.errors import MetastoreMisconfigured, MetastoreUnavailable
from headrace.hive_ddl.executors.jvm_errors import one_line

LOCK_FILE = "dbex.lck"  # Derby holds an exclusive file lock on it while open
WAIT_S = 8.0  # for an owner that is exiting: a JVM notices the end of its Python within a second or two
COMMAND_CHARS_MAX = 100

FLOCK_FORMAT = "hhqqi4x"  # struct flock of 64-bit Linux: type, whence, start, length, pid


@dataclass(frozen=True, slots=True)
class DerbyOwner:
    """The process that has a Derby metastore open; for a JVM that a Python process started, that Python process.
    `pid` 0 is a process in another container or on another machine.

    `is_orphan`: the process may exit soon. It is a JVM without a Python parent, such as that of a command that was just
    killed, or its command line cannot be read.
    """

    pid: int
    command: str
    is_orphan: bool = False

    def __str__(self) -> str:
        if not self.pid:
            return "another process"
        return f"process {self.pid} ({self.command})" if self.command else f"process {self.pid}"


def wait_for_derby(database: Path, wait_s: float = WAIT_S) -> None:
    """Waits until no process has the Derby database open. Waits only for an owner that may exit soon, see
    `DerbyOwner.is_orphan`.

    Raises:
        MetastoreUnavailable: another owner has it open, or such an owner still has it open after `wait_s`; or the lock
            file cannot be opened.
    """
    deadline = time.monotonic() + wait_s
    while (owner := find_derby_owner(database)) is not None:
        # An orphan usually exits soon; any other owner keeps the database open.
        if time.monotonic() > deadline or not owner.is_orphan:
            raise MetastoreUnavailable(
                str(database),
                f"{owner} has its Derby database open, which only one process can open; stop that process; "
                "with `headrace up` running, several processes can use the metastore",
            )
        time.sleep(0.1)


def find_derby_owner(database: Path) -> DerbyOwner | None:
    """Returns the process that holds the lock of the Derby database; None if no process holds it.

    Also returns None on systems and file systems without such locks, where Derby itself reports the conflict later.

    Raises:
        MetastoreMisconfigured: the lock file cannot be opened.
    """
    if sys.platform != "linux":
        return None
    try:
        descriptor = os.open(database / LOCK_FILE, os.O_RDWR)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise MetastoreMisconfigured(str(database), f"{error.strerror}: {error.filename}") from error
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
    """Returns the owner of a Derby database, given the process id that has the lock, as a process that a user
    recognises and can stop: for the JVM of a Spark session, the Python command that started it."""
    command = _words(pid)
    if not command:  # exiting, or in another container
        return DerbyOwner(max(pid, 0), "", is_orphan=True)
    if Path(command[0]).name == "java":
        parent = _parent(pid)
        parent_command = _words(parent) if parent is not None and parent > 1 else ()
        if not parent_command or not Path(parent_command[0]).name.startswith("python"):
            return DerbyOwner(pid, "java", is_orphan=True)
        pid, command = parent or pid, parent_command
    start = command.index("-m") + 1 if "-m" in command else 0
    return DerbyOwner(max(pid, 0), one_line(" ".join(command[start : start + 4]))[:COMMAND_CHARS_MAX])


def _words(pid: int) -> tuple[str, ...]:
    """Returns the command line of a process; empty if it cannot be read."""
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
