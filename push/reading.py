"""Reads chunks of open files into the memory of their sources."""

from __future__ import annotations

import logging
import os
import time

from headrace.push.config import PushConfig
from headrace.push.contents import anchor_of, line_start_before, matches
from headrace.push.cutting import ContentReplaced, CutStep, PushChunk, TailCursor, next_rest, next_step
from headrace.push.rules import FINGERPRINT_BYTES
from headrace.push.source import Shared, TailedFile, TailSource, safe_text

logger = logging.getLogger(__name__)

PENDING_MAX = 2
"""Chunks of a source in memory: one is sent while the next one is read."""


class FileReader:
    """Reads one chunk at a time. The caller has `shared.lock`."""

    def __init__(self, config: PushConfig, shared: Shared) -> None:
        self._config = config
        self._shared = shared

    def read(self, file: TailedFile) -> bool:
        """Reads the next chunk of a file, if there is one and memory for it. Returns whether the file has unread bytes.

        Raises:
            ContentReplaced: the file is not the continuation of what was read.
            OSError: it cannot be read.
        """
        source = file.source
        size = file.content.size()
        source.size = size
        if size != file.last_size:
            file.last_size = size
            file.grown_at = time.monotonic()
        if source.state.stopped is not None:
            return False
        if size < source.cursor.position and not source.needs_cursor:
            if file.is_copy:
                return False  # it lacks the lines that were read between copy and truncation
            raise ContentReplaced
        if not source.is_open:
            return False
        if source.needs_cursor:
            self._set_cursor(file)
        if size == source.cursor.position or (source.pending and time.monotonic() < source.retry_at):
            return False
        if self.is_full(source):
            return True
        return self._read_chunk(file)

    def _set_cursor(self, file: TailedFile) -> None:
        """Prepares to read at the position that the gateway returned."""
        source = file.source
        state = source.state
        position = source.cursor.position
        if not matches(file.content, state.head, state.anchor, state.position):
            raise ContentReplaced
        anchor = anchor_of(file.content, position)
        if anchor.length < min(position, FINGERPRINT_BYTES):
            raise ContentReplaced  # the gateway has more than the file
        start = line_start_before(file.content, position)
        source.cursor = TailCursor(position, anchor, None if start == position else start)
        state.position, state.anchor = position, anchor
        source.needs_cursor = False

    def is_full(self, source: TailSource) -> bool:
        """Whether no memory is left for a chunk of a source. Sources that wait for a retry do not count: they cannot
        stop others."""
        if len(source.pending) >= PENDING_MAX:
            return True
        now = time.monotonic()
        used = sum(one.pending_bytes for one in self._shared.sources.values() if one.retry_at <= now)
        return used >= self._config.buffer_bytes

    def _read_chunk(self, file: TailedFile) -> bool:
        source = file.source
        state = source.state
        resting_s = time.monotonic() - file.grown_at
        if source.cursor.scanned_to == source.size and not self._is_final(file, resting_s):
            return False  # half a line, which has been searched for its end
        at_end = file.content.is_compressed or resting_s >= self._config.multiline_after_s
        step = next_step(file.content, source.cursor, source.cut, at_end)
        if step.chunk is None and self._is_final(file, resting_s):
            step = next_rest(file.content, source.cursor, source.cut)
        if step.chunk is None:
            source.cursor.scanned_to = step.scanned_to
            return False
        if state.head.length < FINGERPRINT_BYTES and not file.is_copy:
            state.note_head(file.content)
        self._take(source, step, step.chunk)
        return source.cursor.position < source.size

    def _is_final(self, file: TailedFile, resting_s: float) -> bool:
        """Whether the last line will get no line end any more."""
        if file.content.is_compressed or file.is_copy:
            return True
        if self._config.partial_after_s and resting_s >= self._config.partial_after_s:
            return True
        return resting_s >= self._config.deleted_after_s and not os.fstat(file.content.descriptor).st_nlink

    def _take(self, source: TailSource, step: CutStep, chunk: PushChunk) -> None:
        if step.nul_bytes:
            self._shared.skipped_nul_bytes += step.nul_bytes
            logger.warning(
                "NUL bytes skipped file=%s position=%d bytes=%d",
                safe_text(source.state.path),
                chunk.begin,
                step.nul_bytes,
            )
        source.pending.append(chunk)
        source.cursor = TailCursor(chunk.end, chunk.anchor, chunk.line_start)
        self._shared.changed.notify_all()
