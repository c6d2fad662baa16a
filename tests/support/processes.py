"""Reads process information from Linux's /proc, and stops or kills processes."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """Returns the process and all processes below it, depth first. The children of all of its threads count."""
    found = [pid]
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                for child in (thread / "children").read_text().split():
                    found += descendants(int(child))
    return found


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def is_running(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kill_with_children(pid: int, timeout_s: float = 60) -> None:
    """Kills a process and all processes below it with SIGKILL, as if all lost power at once.

    The process is stopped first. A stopped process neither starts a child that the list would miss nor reaps a child,
    so no process id of the list can be reused. The process is killed last, because its children could exit in an
    orderly way if they saw their parent end. The caller must still wait for it. Its children are dead when this
    returns, and have released their shared memory and addresses.
    """
    deadline = time.monotonic() + timeout_s
    stop(pid, timeout_s)
    others = descendants(pid)[1:]
    for other in others:
        os.kill(other, signal.SIGKILL)
    _wait_until(lambda: not any(map(is_running, others)), deadline)
    os.kill(pid, signal.SIGKILL)


def stop(pid: int, timeout_s: float = 60) -> None:
    """Stops a process with SIGSTOP, as if the system did not schedule it. No thread runs when this returns; sent data
    still arrives."""
    os.kill(pid, signal.SIGSTOP)
    # Signal delivery takes time, and a thread in a system call stops only at its end.
    _wait_until(lambda: _thread_states(pid) <= {"T", "Z"}, time.monotonic() + timeout_s)


def _thread_states(pid: int) -> set[str]:
    """Returns the states of all threads of a process."""
    states = set()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            states.add((thread / "stat").read_text().rpartition(")")[2].split()[0])
    return states


def _wait_until(condition: Callable[[], bool], deadline: float) -> None:
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("processes did not stop or end")
        time.sleep(0.001)


def start_ticks(pid: int) -> str:
    """Returns the start time of a process in ticks since boot, or "" if it does not exist. A reused process id has
    another start time."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def listening(pid: int) -> set[str]:
    """Returns the addresses on which the process and its descendants accept TCP connections."""
    inodes = set()
    for member in descendants(pid):
        with contextlib.suppress(OSError):
            for descriptor in Path(f"/proc/{member}/fd").iterdir():
                with contextlib.suppress(OSError):
                    inodes.update(re.findall(r"socket:\[(\d+)\]", str(descriptor.readlink())))
    found = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            columns = row.split()
            if columns[3] == "0A" and columns[9] in inodes:
                raw = bytes.fromhex(columns[1].split(":")[0])
                words = [raw[i : i + 4][::-1] for i in range(0, len(raw), 4)]
                found.add(socket.inet_ntop(family, b"".join(words)))
    return found


LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
