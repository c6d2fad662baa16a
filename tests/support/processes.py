"""What the kernel knows of a process and those that it started."""

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
    """The process, then those that any of its threads started, depth first."""
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
    """A zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kill_with_children(pid: int, within_s: float = 60) -> None:
    """`kill -9` of a process and of those below it, as when all of them lose power at once.

    The process is stopped first: then it starts none that the list would miss, and buries none, so that a number of the
    list is nobody else's. It is killed last, so that the others do not end by themselves because they lost it, and has
    not been waited for; of the others nothing is left then, memory that they share and addresses among it.
    """
    deadline = time.monotonic() + within_s
    stop(pid, within_s)
    others = descendants(pid)[1:]
    for other in others:
        os.kill(other, signal.SIGKILL)
    _wait_until(lambda: not any(map(is_running, others)), deadline)
    os.kill(pid, signal.SIGKILL)


def stop(pid: int, within_s: float = 60) -> None:
    """As if the system gave it no time: it does nothing more when this returns, and what it has sent still arrives."""
    os.kill(pid, signal.SIGSTOP)
    # A signal is on its way for a while, and a thread in a call of the kernel is stopped at its end.
    _wait_until(lambda: _states(pid) <= {"T", "Z"}, time.monotonic() + within_s)


def _states(pid: int) -> set[str]:
    """Of all threads of a process."""
    states = set()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            states.add((thread / "stat").read_text().rpartition(")")[2].split()[0])
    return states


def _wait_until(is_so: Callable[[], bool], deadline: float) -> None:
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError("processes did not stop or end")
        time.sleep(0.001)


def started(pid: int) -> str:
    """When it was started, in ticks since the machine was: with the number, nobody else's. "" where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def listening(pid: int) -> set[str]:
    """Addresses that the process and its descendants accept TCP connections on."""
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
