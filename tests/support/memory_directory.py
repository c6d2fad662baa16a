"""A directory in memory, for servers and tables of tests that do not check durability.

An fsync on a disk takes milliseconds, and a metastore makes several for each statement.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEMORY = Path("/dev/shm")
FREE_BYTES_MIN = 2 * 1024**3


@contextmanager
def memory_directory(name: str) -> Iterator[Path]:
    """Creates an empty directory in memory, or on disk if the system has too little memory; deletes it at the end."""
    with tempfile.TemporaryDirectory(
        prefix=f"headrace-{name}-", dir=memory_parent(), ignore_cleanup_errors=True
    ) as path:
        yield Path(path)


def memory_parent() -> Path | None:
    """Returns a directory in memory, or None if the system has too little memory."""
    has_space = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= FREE_BYTES_MIN
    return MEMORY if has_space else None
