"""Processes and connections of this machine, from `/proc`. Without it, as on macOS, none are known."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

STOPPED: Final = frozenset("Tt")
"""States of a process that SIGSTOP or a debugger has stopped (proc(5))."""

GROUP_FIELD, RESIDENT_PAGES_FIELD = 2, 21
"""Places of fields of `/proc/PID/stat` after the name of the program (proc(5))."""

ESTABLISHED, LISTENING = "01", "0A"
"""States of a socket in `/proc/net/tcp` (proc(5))."""

_PROC: Final = Path("/proc")


def stopped_processes(process_group: int) -> tuple[int, ...]:
    """Returns the processes of a process group that are stopped."""
    found = []
    for path in _PROC.iterdir() if _PROC.is_dir() else ():
        if path.name.isdecimal():
            state, group = _state_and_group(int(path.name))
            if group == process_group and state in STOPPED:
                found.append(int(path.name))
    return tuple(sorted(found))


def resident_bytes(process_groups: Collection[int]) -> Mapping[int, int]:
    """Returns the resident memory of the processes of each process group that has any. Memory that processes share
    counts for each of them."""
    pages: Counter[int] = Counter()
    for path in _PROC.iterdir() if _PROC.is_dir() else ():
        if path.name.isdecimal():
            fields = _fields_after_name(int(path.name))
            if len(fields) > RESIDENT_PAGES_FIELD and int(fields[GROUP_FIELD]) in process_groups:
                pages[int(fields[GROUP_FIELD])] += int(fields[RESIDENT_PAGES_FIELD])
    return {group: number * os.sysconf("SC_PAGE_SIZE") for group, number in pages.items()}


def connections_by_port() -> Mapping[int, int]:
    """Returns the numbers of established TCP connections to ports of this machine's servers."""
    found: Counter[int] = Counter()
    for name in ("tcp", "tcp6"):
        try:
            lines = (_PROC / "net" / name).read_text(encoding="ascii", errors="replace").splitlines()[1:]
        except OSError:
            continue
        sockets = [(fields[1].rpartition(":")[2], fields[3]) for fields in map(str.split, lines) if len(fields) > 3]
        listening = {port for port, state in sockets if state == LISTENING}
        found.update(int(port, 16) for port, state in sockets if state == ESTABLISHED and port in listening)
    return found


def is_stopped(pid: int) -> bool:
    return _state_and_group(pid)[0] in STOPPED


def _state_and_group(pid: int) -> tuple[str, int]:
    """Returns the state letter and the process group; "" and 0 if the process has ended."""
    fields = _fields_after_name(pid)
    return (fields[0], int(fields[GROUP_FIELD])) if len(fields) > GROUP_FIELD else ("", 0)


def _fields_after_name(pid: int) -> list[str]:
    """Returns the fields of `/proc/PID/stat` from the state on; none if the process has ended."""
    try:
        # The name of the program, in parentheses, may contain blanks and parentheses.
        return (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
