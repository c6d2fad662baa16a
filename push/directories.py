"""Lists directories, finds the files of the rules in them, and waits for changes."""

from __future__ import annotations

import contextlib
import ctypes
import fnmatch
import logging
import os
import select
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Optional

from headrace.push.config import FileRule
from headrace.push.rules import original_names
from headrace.push.source import TailState, safe_text

logger = logging.getLogger(__name__)

SETTLED_NS = 2_000_000_000
"""Age of a directory's time of change from which an equal time means no change: file systems count in ticks."""


class ScannedFile(NamedTuple):
    """A path that a scan found, with its status. `number` is the device and the inode."""

    path: str
    rule: FileRule
    status: os.stat_result
    number: tuple[int, int]

    @property
    def version(self) -> tuple[int, int, int]:
        return self.status.st_size, self.status.st_mtime_ns, self.status.st_ctime_ns


class FileScanner:
    """Finds the files of the rules."""

    def __init__(self, rules: Sequence[FileRule]) -> None:
        self._rules = rules
        self._errors: dict[str, str] = {}
        self._unlisted: frozenset[str] = frozenset()
        self._listed: dict[str, tuple[int, dict[str, list[str]]]] = {}

    def find(self, states: Sequence[TailState]) -> Iterator[ScannedFile]:
        """Yields the regular files of the rules, each inode once: those that match a pattern, then rotated ones.

        Args:
            states: the known sources.
        """
        seen: set[tuple[int, int]] = set()
        for path, rule, changed_after_s in (*self._matching(), *self._rotated(states)):
            if rule.exclude and rule.excludes(os.path.basename(path)):
                continue
            try:
                status = os.stat(path)
            except OSError as error:
                if error.errno:
                    self.note_error(path, error)
                continue
            number = (status.st_dev, status.st_ino)
            if stat.S_ISREG(status.st_mode) and number not in seen and int(status.st_mtime) >= changed_after_s:
                seen.add(number)
                yield ScannedFile(path, rule, status, number)

    def _matching(self) -> Iterator[tuple[str, FileRule, int]]:
        unlisted: dict[str, OSError] = {}
        for rule in self._rules:
            for pattern in rule.paths:
                yield from ((path, rule, 0) for path in sorted(expand(pattern, unlisted)))
        for path in self._unlisted - unlisted.keys():
            self.note_success(path)
        for path, error in unlisted.items():
            self.note_error(path, error)
        self._unlisted = frozenset(unlisted)

    def _rotated(self, states: Sequence[TailState]) -> Iterator[tuple[str, FileRule, int]]:
        """Yields files with rotated names of known sources, also those that no pattern matches: a file may have been
        created and rotated while the client was down. Files that were last changed before the oldest known source of
        the name are history from before the client was installed.
        """
        olddirs = {rule.olddir for rule in self._rules if rule.olddir is not None}
        directories = olddirs.union(directory_of(state.path) for state in states)
        rotated = {one: self._rotated_names(one) for one in directories}
        if not any(rotated.values()):
            return
        oldest_s: dict[tuple[str, str], tuple[int, TailState]] = {}
        for state in states:
            place = (directory_of(state.path), state.name)
            found = oldest_s.get(place)
            if found is None or state.mtime_s < found[0]:
                oldest_s[place] = state.mtime_s, state
        for (directory, name), (mtime_s, state) in oldest_s.items():
            if not any(name in rotated[one] for one in (directory, *olddirs)):
                continue  # most have none, and need no rule
            rule = rule_of(self._rules, state)
            if rule is None:
                continue
            for one in {directory, rule.olddir or directory}:
                for other in rotated[one].get(name, ()):
                    yield os.path.join(one, other), rule, mtime_s

    def _rotated_names(self, directory: str) -> dict[str, list[str]]:
        """Returns the names in a directory that logrotate may have given, by each name that the file may have had
        before. Lists the directory only after a change."""
        try:
            changed_ns = os.stat(directory).st_mtime_ns
            known = self._listed.get(directory)
            if known is None or known[0] != changed_ns:
                names: dict[str, list[str]] = {}
                for name in os.listdir(directory):
                    for original in original_names(name) - {name}:
                        names.setdefault(original, []).append(name)
                is_settled = time.time_ns() - changed_ns > SETTLED_NS
                known = self._listed[directory] = changed_ns if is_settled else -1, names
        except OSError:
            return {}
        return known[1]

    def note_error(self, path: str, error: OSError) -> None:
        """Logs an error of a file once, not with each scan."""
        reason = error.strerror or str(error)
        if isinstance(error, FileNotFoundError) or self._errors.get(path) == reason:
            return
        self._errors[path] = reason
        logger.error("cannot read %s: %s; check its permissions", safe_text(path), reason)

    def note_success(self, path: str) -> None:
        self._errors.pop(path, None)


def rule_of(rules: Iterable[FileRule], state: TailState) -> Optional[FileRule]:
    """Returns the rule that had a source's file, by its first name."""
    path = os.path.join(os.path.dirname(state.path), state.name)
    for rule in rules:
        is_same = (rule.topic, rule.log_type) == (state.topic, state.log_type)
        if is_same and any(
            fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(state.name, os.path.basename(pattern))
            for pattern in rule.paths
        ):
            return rule
    return None


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


def expand(pattern: str, unlisted: dict[str, OSError]) -> Iterator[str]:
    """Yields the paths that match an absolute pattern. `*` and `?` match within a name, and no leading dot. Adds
    directories that cannot be listed to `unlisted`; missing ones are no error."""
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
                if is_last:
                    names = os.listdir(path)
                else:
                    with os.scandir(path) as entries:
                        names = [one.name for one in entries if fnmatch.fnmatchcase(one.name, part) and one.is_dir()]
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                unlisted[path] = error
                continue
            begin = os.path.join(path, "")
            matched += [begin + one for one in fnmatch.filter(names, part) if part[0] == "." or one[0] != "."]
        paths = matched
    yield from paths


def directory_of(path: str) -> str:
    """Returns the directory of an absolute path, in a fifth of the time of `os.path.dirname`."""
    return path.rpartition("/")[0] or "/"


def neighbours(path: str, rule: FileRule) -> Iterator[ScannedFile]:
    """Yields the files in the directory of a path, and in olddir."""
    directories = [os.path.dirname(path)]
    if rule.olddir is not None and rule.olddir not in directories:
        directories.append(rule.olddir)
    for directory in directories:
        for name in sorted(expand(os.path.join(_escaped(directory), "*"), {})):
            try:
                status = os.stat(name)
            except OSError:
                continue
            yield ScannedFile(name, rule, status, (status.st_dev, status.st_ino))


def _escaped(directory: str) -> str:
    return directory.replace("[", "[[]").replace("*", "[*]").replace("?", "[?]")
