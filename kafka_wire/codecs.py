"""Decompresses the records of a batch, never beyond a given size, and compresses them.

A batch of a few kilobytes can claim to hold gigabytes, so every codec here stops at the cap instead of trusting the
sender. The table is Kafka's: attribute bits 0-2 of a batch.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Protocol

import cramjam
import lz4.frame
import zstandard
from zlib_ng import zlib_ng

XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_BLOCK_BYTES = 32 * 1024
XERIAL_HEADER_BYTES = 16  # magic, version, least compatible version

PIECE_BYTES = 256
"""The first piece of a gzip member or lz4 frame that is not a batch's first."""


class DecompressionError(Exception):
    """The bytes are not what the codec expects, or unfold to more than the cap."""


def decompress(codec: int, data: memoryview, bytes_max: int) -> bytes | memoryview:
    """Returns the records of a batch whose attributes name `codec`; `data` itself where it is as they are.

    Raises:
        DecompressionError: an unknown codec, damaged data, or more than `bytes_max` bytes.
    """
    try:
        unfold = _CODECS[codec]
    except KeyError:
        raise DecompressionError(f"codec {codec} is not one of {sorted(_CODECS)}") from None
    try:
        unfolded = unfold(data, bytes_max)
    except _LIBRARY_ERRORS as error:
        raise DecompressionError(f"{CODEC_NAMES[codec]}: {error}") from error
    if len(unfolded) > bytes_max:
        raise DecompressionError(f"{CODEC_NAMES[codec]}: it unfolds to more than {bytes_max} bytes")
    return unfolded


def _none(data: memoryview, bytes_max: int) -> memoryview:
    return data


def _gzip(data: memoryview, bytes_max: int) -> bytes:
    return _unfolded(data, bytes_max, lambda: zlib_ng.decompressobj(wbits=31), "gzip: the stream is cut")


def _snappy(data: memoryview, bytes_max: int) -> bytes:
    """Raw snappy, or the framing of the Java client (xerial): a header, then blocks of length and raw snappy."""
    if bytes(data[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
        return _raw_snappy(data, bytes_max, bytes_max)
    parts: list[bytes] = []
    room = bytes_max
    position = XERIAL_HEADER_BYTES
    while position < len(data):
        (length,) = struct.unpack_from(">i", data, position)
        position += 4
        if not 0 <= length <= len(data) - position:
            raise DecompressionError("snappy: a block is cut")
        parts.append(_raw_snappy(data[position : position + length], room, bytes_max))
        room -= len(parts[-1])
        position += length
    return b"".join(parts)


def _raw_snappy(data: memoryview, room: int, bytes_max: int) -> bytes:
    length = shift = 0
    for byte in data[:5]:
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if length > room:
        raise DecompressionError(f"snappy: it unfolds to more than {bytes_max} bytes")
    return bytes(cramjam.snappy.decompress_raw(bytes(data)))


def _lz4(data: memoryview, bytes_max: int) -> bytes:
    return _unfolded(data, bytes_max, lz4.frame.LZ4FrameDecompressor, "lz4: the frame is cut")


def _zstd(data: memoryview, bytes_max: int) -> bytes:
    reader = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True)
    parts: list[bytes] = []
    room = bytes_max + 1
    while room > 0 and (part := reader.read(min(room, 1 << 20))):
        parts.append(part)
        room -= len(part)
    return b"".join(parts)


class _Decoder(Protocol):
    """Of one gzip member or lz4 frame; `unused_data` is what it was given beyond its end."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes | None: ...

    def decompress(self, data: memoryview, max_length: int, /) -> bytes: ...


def _unfolded(data: memoryview, bytes_max: int, decoder: Callable[[], _Decoder], cut: str) -> bytes:
    """What members or frames that follow each other hold, as far as one byte beyond `bytes_max`.

    A decoder copies what it is given beyond its end, so only the first, which is usually all there is, is given
    everything. Each further one gets pieces that double in size, and thousands of them take time by their bytes.
    """
    parts: list[bytes] = []
    room = bytes_max + 1
    position, piece_bytes = 0, len(data)
    while position < len(data) and room > 0:
        member = decoder()
        while not member.eof and room > 0:
            if position == len(data):
                raise DecompressionError(cut)
            piece = data[position : position + piece_bytes]
            parts.append(member.decompress(piece, room))
            room -= len(parts[-1])
            position += len(piece) - len(member.unused_data or b"")
            piece_bytes *= 2
        piece_bytes = PIECE_BYTES
    return b"".join(parts)


def compress(codec: int, data: bytes) -> bytes:
    """The records of a batch as its attributes say; snappy in the framing that Java clients need."""
    if codec == 1:
        return zlib_ng.compress(data, wbits=31)
    if codec == 2:
        blocks = (data[at : at + XERIAL_BLOCK_BYTES] for at in range(0, len(data), XERIAL_BLOCK_BYTES))
        raw = (bytes(cramjam.snappy.compress_raw(block)) for block in blocks)
        return b"".join(
            [XERIAL_MAGIC, struct.pack(">ii", 1, 1), *(struct.pack(">i", len(each)) + each for each in raw)]
        )
    if codec == 3:
        return bytes(lz4.frame.compress(data))
    return zstandard.ZstdCompressor().compress(data) if codec == 4 else data


CODEC_NAMES = {0: "none", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}

_CODECS: dict[int, Callable[[memoryview, int], bytes | memoryview]] = {
    0: _none,
    1: _gzip,
    2: _snappy,
    3: _lz4,
    4: _zstd,
}

_LIBRARY_ERRORS: tuple[type[Exception], ...] = (
    zlib_ng.error,  # type: ignore[assignment]  # its stub takes the class for one of its errors
    struct.error,
    cramjam.DecompressionError,
    RuntimeError,
    EOFError,
    zstandard.ZstdError,
)
