"""Finds the source of a file: by its key, or by the content of a rotated copy."""

from __future__ import annotations

import os
from typing import Optional

from headrace.push.contents import Content, matches
from headrace.push.directories import ScannedFile
from headrace.push.identity import FileKey
from headrace.push.rules import FINGERPRINT_BYTES, CopyCandidate, Fingerprint, may_be_copy, unrotated_name
from headrace.push.source import Shared, TailedFile, TailState

SEEN_LATE_S = 2
"""How much later a file may have changed than the last scan saw."""


class SourceFinder:
    """Searches the sources of `shared`.

    Args:
        files: the open files, by device and inode; the tailer changes them.
    """

    def __init__(self, shared: Shared, files: dict[tuple[int, int], TailedFile]) -> None:
        self._shared = shared
        self._files = files
        self._by_inode: dict[int, list[TailState]] = {}

    def index_states(self) -> None:
        self._by_inode = {}
        for state in self._shared.states():
            for key in (state.file, *state.copies):
                if key is not None:
                    self._by_inode.setdefault(key.inode, []).append(state)

    def add(self, state: TailState) -> None:
        """Adds a state to the index."""
        if state.file is not None:
            self._by_inode.setdefault(state.file.inode, []).append(state)

    def has_inode(self, inode: int) -> bool:
        """Whether a source has or had a file with this inode."""
        return inode in self._by_inode

    def state_of(self, key: FileKey) -> Optional[TailState]:
        for state in self._by_inode.get(key.inode, ()):
            if state.file is not None and key.is_same_file(state.file):
                return state
        return None

    def copied_by_key(self, key: FileKey) -> Optional[TailState]:
        """Returns the source that an earlier scan matched with a copy."""
        for state in self._by_inode.get(key.inode, ()):
            if any(key.is_same_file(copy) for copy in state.copies):
                return state
        return None

    def has_file(self, state: TailState) -> bool:
        """Whether a file with the content of a source is open or at its path."""
        return (state.file is not None and state.gone_at_s is None) or self.is_open(state)

    def is_open(self, state: TailState) -> bool:
        return any(file.source.state is state for file in self._files.values())

    def copied(self, found: ScannedFile, content: Content, key: FileKey) -> Optional[TailState]:
        """Returns the source that a file is a rotated copy of."""
        name = os.path.basename(found.path)
        directory = os.path.dirname(found.path)
        candidates = []
        for state in self._shared.states():
            if not state.head.length:
                continue
            candidate = CopyCandidate(
                state.name,
                state.mtime_s,
                file_is_present=self.has_file(state) and state.file is not None,
                is_renamed=os.path.basename(state.path) != state.name,
                has_copy=bool(state.copies),
                was_truncated=state.file is None,
                is_older=state.born_ns is None or key.birth_ns is None or state.born_ns < key.birth_ns,
            )
            own = os.path.dirname(state.path) == directory or (found.rule.olddir == directory)
            if own and may_be_copy(name, int(found.status.st_mtime), candidate):
                candidates.append(state)
        # The longest match is the surest.
        for state in sorted(candidates, key=lambda one: -one.position):
            if self._equals(state, found, content):
                return state
        return None

    def _equals(self, state: TailState, found: ScannedFile, content: Content) -> bool:
        """Whether a file begins like a source, as far as the source was read."""
        source = self._shared.sources.get(state.id)
        is_known = source is not None and not source.needs_cursor
        position = source.cursor.position if source is not None and is_known else state.position
        anchor = source.cursor.anchor if source is not None and is_known else state.anchor
        size = found.status.st_size
        if content.is_compressed:
            if matches(content, state.head, anchor, position):
                return self._is_rest(state, found, content, position)
            is_truncated = state.file is None or self._is_replaced(state, anchor, position)
            return is_truncated and _is_shorter_copy(state, found, content, position)
        if state.file is None or self._is_replaced(state, anchor, position):
            if position <= size:
                return matches(content, state.head, anchor, position)
            # The copy was made before the last lines that were read, between copy and truncation.
            return state.begins_like(content, size)
        if is_known and position <= size:
            return position > 0 and matches(content, state.head, anchor, position)
        return self._begins_like(state, content, size)

    def _is_replaced(self, state: TailState, anchor: Fingerprint, position: int) -> bool:
        """Whether the open file of a source was truncated, and the reader has not noticed it yet."""
        return any(
            not matches(file.content, state.head, anchor, position)
            for file in self._files.values()
            if file.source.state is state and not file.is_copy
        )

    def _is_rest(self, state: TailState, found: ScannedFile, content: Content, position: int) -> bool:
        """Whether a compressed file with equal bytes up to a position is that file: it has its time of change, or more
        bytes, which were written after the last look at the file; or it replaces the file, as a compressor that sets no
        times makes it."""
        if not content.is_compressed or state.file is None or int(found.status.st_mtime) == state.mtime_s:
            return True
        return bool(content.read(position, 1)) or (not state.copies and self._is_deleted(state))

    def _is_deleted(self, state: TailState) -> bool:
        """Whether the own file of a source has no name any more."""
        own = (file for file in self._files.values() if file.source.state is state and not file.is_copy)
        return state.gone_at_s is not None or any(not os.fstat(file.content.descriptor).st_nlink for file in own)

    def _begins_like(self, state: TailState, content: Content, size: int) -> bool:
        """Whether a file that is smaller than the position of a source begins like that source's file: a copy that is
        just being written."""
        for file in self._files.values():
            if file.source.state is state and not file.is_copy:
                size = min(size, file.content.size())
                length = min(size, FINGERPRINT_BYTES)
                mine = (content.read(0, length), content.read(size - length, length))
                return mine == (file.content.read(0, length), file.content.read(size - length, length))
        return False

    def add_copy(self, state: TailState, key: FileKey) -> None:
        if not any(key.is_same_file(copy) for copy in state.copies):
            state.copies.append(key)
            self._by_inode.setdefault(key.inode, []).append(state)
            self._shared.state_is_dirty = True


def _is_shorter_copy(state: TailState, found: ScannedFile, content: Content, position: int) -> bool:
    """Whether a compressed file is a copy of a truncated file that was made before the last lines that were read,
    between copy and truncation. Then it is not younger than these lines."""
    if int(found.status.st_mtime) > state.mtime_s + SEEN_LATE_S:
        return False
    content.read(position, 1)  # a compressed file has a size after it was read
    return content.size() < position and state.begins_like(content, content.size())


def may_be_rotated(path: str, state: TailState) -> bool:
    name = os.path.basename(path)
    return name != state.name and unrotated_name(name) == unrotated_name(state.name)
