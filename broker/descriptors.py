"""How many files and connections may be open at once, out of what the system lets the process have."""

from __future__ import annotations

import contextlib
import resource

FILES_MAX = 4096
"""Log files kept open: the others are opened again when they are used."""
CONNECTIONS_MAX = 4096
"""More are closed at once: each costs a descriptor and a buffer."""
ACCEPTED_AT_ONCE = 32
"""Connections taken up in one round of the event loop; one too many is closed some four rounds later."""
SPARE = 8 * ACCEPTED_AT_ONCE + 64  # and what is open for a moment: indexes, snapshots, the topic file
LEAST = 32


def shares() -> tuple[int, int]:
    """Raises the process's own limit as far as it may; returns the most files and the most connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 2 * (FILES_MAX + CONNECTIONS_MAX)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
        soft = max(soft, wanted)
    usable = max(soft - SPARE, LEAST)
    files = min(FILES_MAX, usable // 2)
    return files, min(CONNECTIONS_MAX, usable - files)
