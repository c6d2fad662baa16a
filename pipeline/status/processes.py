"""States of processes on this machine, from `/proc`. Without it, as on macOS, no state is known."""

from __future__ import annotations

from pathlib import Path
from typing import Final

STOPPED: Final = frozenset("Tt")
"""States of a process that SIGSTOP or a debugger has stopped (proc(5))."""

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


def is_stopped(pid: int) -> bool:
    return _state_and_group(pid)[0] in STOPPED


def _state_and_group(pid: int) -> tuple[str, int]:
    """Returns the state letter and the process group; "" and 0 if the process has ended."""
    try:
        # The name of the program, in parentheses, may contain blanks and parentheses.
        fields = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return fields[0], int(fields[2])
    except (OSError, IndexError, ValueError):
        return "", 0
