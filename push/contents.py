"""Reads the content of plain and of compressed files by position."""

from __future__ import annotations

import os
import stat
import zlib
from typing import Optional, Union

from headrace.push.rules import FINGERPRINT_BYTES, Fingerprint

INFLATE_STEP_BYTES = 65_536
LINE_END = 10


class PlainContent:
    """The bytes of an open file."""

    is_compressed = False

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def read(self, position: int, length: int) -> bytes:
        """Returns up to `length` bytes from a position; fewer at the end of the file."""
        data = os.pread(self.descriptor, length, position)
        while data and len(data) < length:  # a signal or a file system with small reads
            more = os.pread(self.descriptor, length - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    def next_data(self, position: int) -> int:
        """Returns the position of the first byte from `position` on that is not in a hole of the file."""
        try:
            return os.lseek(self.descriptor, position, os.SEEK_DATA)
        except OSError:
            return position


class GzipContent:
    """The inflated bytes of an open gzip file, of one or several members. Reading backwards restarts at the
    begin, so read in rising order of positions."""

    is_compressed = True

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._restart()

    def _restart(self) -> None:
        self._inflater = zlib.decompressobj(31)
        self._file_position = 0
        self._start = 0  # position of the first byte of `_buffer`
        self._buffer = b""
        self.is_at_end = False

    def read(self, position: int, length: int) -> bytes:
        """Returns up to `length` bytes from a position; fewer at the end.

        Raises:
            OSError: the file is damaged.
        """
        if position < self._start:
            self._restart()
        while self._start + len(self._buffer) < position + length:
            data = self._inflate()
            if not data and self.is_at_end:
                break
            keep = max(0, position - self._start)
            if keep:
                dropped = min(keep, len(self._buffer))
                self._start += dropped
                self._buffer = self._buffer[dropped:]
            self._buffer += data
        at = position - self._start
        return self._buffer[at : at + length] if at >= 0 else b""

    def _inflate(self) -> bytes:
        if self._inflater.eof:
            rest = self._inflater.unused_data
            if not rest.strip(b"\0"):
                rest = os.pread(self.descriptor, INFLATE_STEP_BYTES, self._file_position)
                self._file_position += len(rest)
            if not rest.strip(b"\0"):
                self.is_at_end = True
                return b""
            self._inflater = zlib.decompressobj(31)
            return self._decompress(rest)
        tail = self._inflater.unconsumed_tail
        if not tail:
            tail = os.pread(self.descriptor, INFLATE_STEP_BYTES, self._file_position)
            self._file_position += len(tail)
            if not tail:
                data = self._decompress(b"")  # zlib may still hold output
                self.is_at_end = not data and not self._inflater.eof
                return data
        return self._decompress(tail)

    def _decompress(self, data: bytes) -> bytes:
        try:
            return self._inflater.decompress(data, 4 * INFLATE_STEP_BYTES)
        except zlib.error as error:
            raise OSError(f"not a valid gzip file: {error}") from error

    def size(self) -> int:
        """Returns a number that is not less than the size; the size itself is known at the end only."""
        return self._start + len(self._buffer) if self.is_at_end else 1 << 62

    def next_data(self, position: int) -> int:
        return position

    def is_complete(self) -> bool:
        """Whether the file ends with the end of a gzip member, so that it is completely written."""
        self._restart()
        while not self.is_at_end:
            self._buffer = b""
            self._inflate()
        complete = self._inflater.eof
        self._restart()
        return complete


Content = Union[PlainContent, GzipContent]


def head_of(content: Content) -> Fingerprint:
    """Returns the fingerprint of the first bytes."""
    return fingerprint(content.read(0, FINGERPRINT_BYTES))


def line_heads_of(content: Content) -> list[Fingerprint]:
    """Returns the fingerprints of the first line, of the first two lines and so on, as far as the head reaches."""
    data = content.read(0, FINGERPRINT_BYTES)
    return [fingerprint(data[: at + 1]) for at, byte in enumerate(data) if byte == LINE_END]


def anchor_of(content: Content, position: int) -> Fingerprint:
    """Returns the fingerprint of the bytes before a position."""
    length = min(position, FINGERPRINT_BYTES)
    return fingerprint(content.read(position - length, length))


def fingerprint(data: bytes) -> Fingerprint:
    return Fingerprint(len(data), zlib.crc32(data))


def matches(content: Content, head: Fingerprint, anchor: Fingerprint, position: int) -> bool:
    """Whether a content begins with the head, and has the anchor before the position."""
    if fingerprint(content.read(0, head.length)) != head:
        return False
    return fingerprint(content.read(position - anchor.length, anchor.length)) == anchor


def line_start_before(content: Content, position: int) -> int:
    """Returns where the line begins that contains the byte before `position`; `position` itself at a line's begin."""
    end = position
    while end > 0:
        begin = max(0, end - INFLATE_STEP_BYTES)
        found = content.read(begin, end - begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0


def open_content(path: str) -> Optional[Content]:
    """Opens a regular file. Returns None for other types, such as pipes, because opening a pipe blocks."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    return GzipContent(descriptor) if path.endswith(".gz") else PlainContent(descriptor)
