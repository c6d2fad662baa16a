"""Lists directories, and waits for changes in them."""

from __future__ import annotations

import contextlib
import ctypes
import fnmatch
import logging
import os
import select
import time
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.push.config import FileRule

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ScannedFile:
    """A path that a scan found, with its status."""

    path: str
    rule: FileRule
    status: os.stat_result

    @property
    def number(self) -> tuple[int, int]:
        return self.status.st_dev, self.status.st_ino

    @property
    def version(self) -> tuple[int, int, int]:
        return self.status.st_size, self.status.st_mtime_ns, self.status.st_ctime_ns


class ChangeWatch:
    """Waits for changes in directories by inotify, to read them sooner than the next poll. Polling does not depend on
    it: a network's file system does not notify, and the number of watches is limited."""

    MODIFY_CREATE_MOVE = 0x2 | 0x100 | 0x80

    def __init__(self) -> None:
        self._directories: set[str] = set()
        self._descriptor = -1
        try:
            self._library = ctypes.CDLL(None, use_errno=True)
            self._descriptor = self._library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        except (AttributeError, OSError):
            logger.debug("inotify is not available")

    def watch(self, directories: set[str]) -> None:
        if self._descriptor >= 0:
            for directory in directories - self._directories:
                self._library.inotify_add_watch(self._descriptor, os.fsencode(directory), self.MODIFY_CREATE_MOVE)
            self._directories |= directories

    def wait(self, timeout_s: float) -> bool:
        """Waits for a change, and returns whether there was one."""
        if self._descriptor < 0:
            time.sleep(timeout_s)
            return False
        if not select.select([self._descriptor], [], [], timeout_s)[0]:
            return False
        with contextlib.suppress(OSError):
            os.read(self._descriptor, 65_536)
        return True

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def expand(pattern: str) -> Iterator[str]:
    """Yields the paths that match an absolute pattern. `*` and `?` match within a name, and no leading dot."""
    parts = pattern.split("/")
    paths = ["/"]
    for at, part in enumerate(parts[1:], 1):
        is_last = at == len(parts) - 1
        if not part:
            continue
        if not any(letter in part for letter in "*?["):
            paths = [os.path.join(path, part) for path in paths]
            continue
        matched = []
        for path in paths:
            try:
                with os.scandir(path) as entries:
                    names = [
                        entry.name
                        for entry in entries
                        if (part[0] == "." or entry.name[0] != ".")
                        and fnmatch.fnmatchcase(entry.name, part)
                        and (is_last or entry.is_dir())
                    ]
            except OSError:
                continue
            matched += [os.path.join(path, name) for name in names]
        paths = matched
    yield from paths


def neighbours(path: str, rule: FileRule) -> Iterator[ScannedFile]:
    """Yields the files in the directory of a path, and in olddir."""
    directories = [os.path.dirname(path)]
    if rule.olddir is not None and rule.olddir not in directories:
        directories.append(rule.olddir)
    for directory in directories:
        for name in sorted(expand(os.path.join(_escaped(directory), "*"))):
            try:
                yield ScannedFile(name, rule, os.stat(name))
            except OSError:
                continue


def _escaped(directory: str) -> str:
    return directory.replace("[", "[[]").replace("*", "[*]").replace("?", "[?]")
