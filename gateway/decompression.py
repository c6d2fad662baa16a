"""Decompresses bodies in parts of bounded size, so that a small body cannot take much memory at once."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import zstandard

PART_BYTES: Final = 256 * 1024
"""Maximum size of a decompressed part of gzip and deflate."""
ZSTD_SLICE_BYTES: Final = 256
"""zstandard returns all that its input contains: a slice of this size expands to at most 8 MiB."""
ZSTD_WINDOW_BYTES_MAX: Final = 8 * 2**20
"""The window that RFC 8878 requires of decoders of content encodings."""


class DamagedBody(ValueError):
    """A body is not what its content encoding states."""


class Decompressor(Protocol):
    """Decompresses the chunks of one body."""

    def parts(self, chunk: bytes) -> Iterator[bytes]:
        """Yields the decompressed parts of a chunk.

        Raises:
            DamagedBody: the chunk cannot be decompressed.
        """

    def end(self) -> None:
        """Ends the body.

        Raises:
            DamagedBody: the body is truncated.
        """


class _Members:
    """Decompresses the members of a body, such as those of `cat one.gz two.gz`, one after the other."""

    def __init__(self, create: Callable[[], Any]) -> None:
        self._create = create
        self._member = create()

    def parts(self, chunk: bytes) -> Iterator[bytes]:
        while chunk:
            if self._member.eof:
                self._member = self._create()
            try:
                yield from self._step(chunk)
            except (zlib.error, zstandard.ZstdError) as error:
                raise DamagedBody(f"the compressed body is damaged: {error}") from None
            chunk = self._member.unused_data if self._member.eof else b""

    def _step(self, chunk: bytes) -> Iterator[bytes]:
        raise NotImplementedError

    def end(self) -> None:
        if not self._member.eof:
            raise DamagedBody("the compressed body is truncated")


class _Zlib(_Members):
    def __init__(self, window_bits: int) -> None:
        super().__init__(lambda: zlib.decompressobj(window_bits))

    def _step(self, chunk: bytes) -> Iterator[bytes]:
        member = self._member
        while True:
            part = member.decompress(chunk, PART_BYTES)
            if part:
                yield part
            chunk = member.unconsumed_tail
            if member.eof or not chunk:
                return


class _Zstd(_Members):
    def __init__(self) -> None:
        context = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX)
        super().__init__(context.decompressobj)

    def parts(self, chunk: bytes) -> Iterator[bytes]:
        for at in range(0, len(chunk), ZSTD_SLICE_BYTES):
            yield from super().parts(chunk[at : at + ZSTD_SLICE_BYTES])

    def _step(self, chunk: bytes) -> Iterator[bytes]:
        part = self._member.decompress(chunk)
        if part:
            yield part


class _Identity:
    def parts(self, chunk: bytes) -> Iterator[bytes]:
        if chunk:
            yield chunk

    def end(self) -> None:
        return


DECOMPRESSORS: Final[dict[str, Callable[[], Decompressor]]] = {
    "identity": _Identity,
    "gzip": lambda: _Zlib(31),
    "x-gzip": lambda: _Zlib(31),
    "deflate": lambda: _Zlib(15),
    "zstd": _Zstd,
}
"""By the names of Content-Encoding."""
