"""`up.json`: the addresses of a running `headrace up`.

The process holds a `flock` on the file from start to end, so that at most one `headrace up` runs per data directory,
and a file left by a killed process is known to be stale. It contains addresses once the servers are ready (the SQL
server only if `sql.listen` is set); restarted parts keep theirs, and get a new process id. The content is padded with
blanks to one size, so that a reader never sees a part of an older content, and a full disk prevents no update.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import logging
import os
import re
from pathlib import Path
from typing import Final

from headrace.pipeline.up.part import UpError, disk_full_note
from headrace.settings.addresses import LiveAddresses

logger = logging.getLogger(__name__)

CONTENT_BYTES: Final = 4096


class UpFile:
    """The file `up.json` with the addresses of this `headrace up`. While the context is open, the file is open and
    locked, so that no second `headrace up` runs in the same data directory."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> UpFile:
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = re.search(rb'"pid": (\d+)', os.read(self._descriptor, 65536))
            os.close(self._descriptor)
            process_text = f" (process {holder[1].decode()})" if holder else ""
            raise UpError(
                f"another `headrace up` runs on {self._path.parent}{process_text}; stop it or name another --data-dir"
            ) from error
        self.clear()
        return self

    def publish(self, addresses: LiveAddresses) -> None:
        content = json.dumps(dataclasses.asdict(addresses), indent=2).encode().ljust(CONTENT_BYTES)
        try:
            if os.pwrite(self._descriptor, content, 0) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise UpError(f"cannot write {self._path}: {error.strerror}{disk_full_note(self._path)}") from error

    def republish(self, addresses: LiveAddresses) -> None:
        """Replaces the content. A failure is logged: the old content still has the addresses, which do not change."""
        try:
            self.publish(addresses)
        except UpError as error:
            logger.warning("up_file_not_updated reason=%s", error)

    def clear(self) -> None:
        os.ftruncate(self._descriptor, 0)

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
