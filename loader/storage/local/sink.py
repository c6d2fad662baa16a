"""Writes the blocks of a task to files of a local file system."""

from __future__ import annotations

import secrets
import tempfile
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from headrace.loader.storage.local.disk import fsync

OPEN_FILES_MAX = 64  # well below the usual limit of 1,024 descriptors, which other threads of the worker share
FSYNC_THREADS = 16  # concurrent fsyncs, which a journaling file system commits together


class LocalSink:
    """A `BlockSink` for one attempt of a task, or for the driver. Writes to a separate directory below `location`, with
    at most `OPEN_FILES_MAX` of its files open.

    Raises:
        OSError: the directory cannot be created.
    """

    def __init__(self, location: str, task: int) -> None:
        # A random token, so that attempts of one task never share a path.
        self.directory = f"task-{task:05d}-{secrets.token_hex(8)}"
        self._staging = Path(location)
        self._path = self._staging / self.directory
        self._handles: OrderedDict[str, IO[bytes]] = OrderedDict()
        self._path.mkdir(parents=True)

    def append(self, file: str, data: bytes) -> None:
        handle = self._handles.pop(file, None)
        if handle is None:
            if len(self._handles) >= OPEN_FILES_MAX:
                self._handles.popitem(last=False)[1].close()
            handle = (self._path / file).open("ab")
        self._handles[file] = handle
        handle.write(data)

    def finish(self, files: Sequence[str]) -> None:
        self.abandon()
        with ThreadPoolExecutor(FSYNC_THREADS) as pool:
            list(pool.map(fsync, [self._path / file for file in files]))

    def abandon(self) -> None:
        while self._handles:
            self._handles.popitem()[1].close()

    def scratch(self) -> IO[bytes]:
        return tempfile.TemporaryFile(dir=self._staging)
