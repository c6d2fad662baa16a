"""Divides the process's limit of open files among log files and connections."""

from __future__ import annotations

import contextlib
import resource

FILES_MAX = 4096
"""Open log files; further files are closed and reopened on use."""
CONNECTIONS_MAX = 4096
"""Further connections are closed immediately: each needs a descriptor and a buffer."""
ACCEPTED_AT_ONCE = 32
"""Connections accepted per iteration of the event loop; one too many is closed about four iterations later."""
RESERVED = 8 * ACCEPTED_AT_ONCE + 64  # reserve for short-lived files such as indexes, snapshots and the topics file
USABLE_MIN = 32


def descriptor_limits() -> tuple[int, int]:
    """Raises the process's soft limit as far as possible; returns the maximum numbers of files and connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = hard if hard != resource.RLIM_INFINITY else 2 * (FILES_MAX + CONNECTIONS_MAX)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, target), hard))
        soft = max(soft, target)
    usable = max(soft - RESERVED, USABLE_MIN)
    files = min(FILES_MAX, usable // 2)
    return files, min(CONNECTIONS_MAX, usable - files)
