"""A lease between loads of one commit log on one machine: a second load ends at once instead of doing the same work.

The lease is an exclusive `flock` on a file, which ends with its process. Correctness does not depend on it: without it,
two concurrent loads would do the same work, and the commit log would reject the second.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from headrace.loader.commit.json_values import canonical, from_json, to_json

HELD_LONG_FACTOR = 3  # a lease of more than this number of load intervals causes a warning


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    pid: int
    host: str
    since_ms: int

    def describe(self, now_ms: int, interval_ms: int) -> str:
        """Returns a line for the user of a second load: which load is running, and for how long, as of `now_ms`. If it
        runs much longer than `interval_ms`, the usual interval between loads, the line suggests checking it."""
        held_s = max(0, now_ms - self.since_ms) // 1000
        line = f"another load is running (pid {self.pid} on {self.host}, for {held_s} s)"
        if held_s * 1000 > HELD_LONG_FACTOR * interval_ms:
            line += ", much longer than the interval: check whether it is stuck"
        return line


class Lease:
    """The right of one load per commit log and machine to run, held from `acquire` to `release` or the end of the
    process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self, now_ms: int) -> LeaseHolder | None:
        """Takes the lease and returns None. If another process has the lease, returns its holder instead.

        Args:
            now_ms: stored in the lease as the time when it was taken.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(os.read(descriptor, 4096))
            os.close(descriptor)
            return holder
        # Written in place, because a new file of the same name would not be locked.
        os.ftruncate(descriptor, 0)
        os.write(descriptor, canonical(to_json(LeaseHolder(os.getpid(), socket.gethostname(), now_ms))) + b"\n")
        self._descriptor = descriptor
        return None

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def lease_holder(path: Path) -> LeaseHolder | None:
    """Returns the load that holds the lease at `path`; None if no load does.

    A load that begins in the microseconds in which this function holds a shared lock yields, as to another load.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _holder(os.read(descriptor, 4096))
    finally:
        os.close(descriptor)
    return None


def _holder(content: bytes) -> LeaseHolder:
    try:
        return from_json(json.loads(content), LeaseHolder)
    except ValueError:
        return LeaseHolder(0, "this machine", 0)  # the holder has the lock but has not written its data yet
