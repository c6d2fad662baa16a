"""Divides the process's limit of open files among log files and connections."""

from __future__ import annotations

import contextlib
import resource

FILES_MAX = 4096
"""Maximum number of open log files. To open another one, the least recently used file is closed; it is reopened on use.
"""
CONNECTIONS_MAX = 4096
"""Maximum number of connections; further ones are closed immediately. Each needs a descriptor and a buffer."""
ACCEPTED_AT_ONCE = 32
"""Connections accepted per iteration of the event loop. A connection above CONNECTIONS_MAX occupies a descriptor for
about four iterations until it is closed; RESERVED leaves space for these."""
RESERVED = 8 * ACCEPTED_AT_ONCE + 64  # descriptors for refused connections and short-lived files such as indexes
USABLE_MIN = 32


def descriptor_limits() -> tuple[int, int]:
    """Raises the process's soft limit of open files to the hard limit, or to twice the sum of FILES_MAX and
    CONNECTIONS_MAX if there is no hard limit. The limit stays unchanged if the system refuses this. Returns how many
    log files and how many connections may be open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = hard if hard != resource.RLIM_INFINITY else 2 * (FILES_MAX + CONNECTIONS_MAX)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, target), hard))
        soft = max(soft, target)
    usable = max(soft - RESERVED, USABLE_MIN)
    files = min(FILES_MAX, usable // 2)
    return files, min(CONNECTIONS_MAX, usable - files)
