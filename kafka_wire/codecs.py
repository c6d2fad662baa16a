"""Compresses the records of a batch, and decompresses them up to a size limit.

A batch of a few kilobytes can decompress to gigabytes, so every codec stops at the limit. The codec numbers are
Kafka's: attribute bits 0-2 of a batch.
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
"""Compressed bytes that a decoder gets at first, for each gzip member or lz4 frame of a batch except the first one; see
`_decompress_members`."""


class DecompressionError(Exception):
    """Compressed records are invalid, or decompress to more bytes than the limit."""


def decompress(codec: int, data: memoryview, bytes_max: int) -> bytes | memoryview:
    """Returns the decompressed records of a batch; uncompressed `data` is returned as it is.

    Raises:
        DecompressionError: an unknown codec, corrupt data, or more than `bytes_max` bytes.
    """
    try:
        codec_function = _CODECS[codec]
    except KeyError:
        supported = ", ".join(CODEC_NAMES.values())
        raise DecompressionError(f"unknown compression codec {codec}; supported are {supported}") from None
    try:
        decompressed = codec_function(data, bytes_max)
    except _LIBRARY_ERRORS as error:
        raise DecompressionError(f"{CODEC_NAMES[codec]}: {error}") from error
    if len(decompressed) > bytes_max:
        raise DecompressionError(f"{CODEC_NAMES[codec]}: the decompressed data has more than {bytes_max} bytes")
    return decompressed


def _none(data: memoryview, bytes_max: int) -> memoryview:
    return data


def _gzip(data: memoryview, bytes_max: int) -> bytes:
    return _decompress_members(
        data, bytes_max, lambda: zlib_ng.decompressobj(wbits=31), "gzip: the stream is truncated"
    )


def _snappy(data: memoryview, bytes_max: int) -> bytes:
    """Decompresses raw snappy, or the Java client's format (xerial): a header, then blocks of length and raw snappy.

    Args:
        bytes_max: size limit of the decompressed data.

    Raises:
        DecompressionError: the data exceeds the limit, or a block is truncated.
    """
    if bytes(data[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
        return _raw_snappy(data, bytes_max, bytes_max)
    parts: list[bytes] = []
    capacity = bytes_max
    position = XERIAL_HEADER_BYTES
    while position < len(data):
        (length,) = struct.unpack_from(">i", data, position)
        position += 4
        if not 0 <= length <= len(data) - position:
            raise DecompressionError("snappy: a block of the compressed data is truncated")
        parts.append(_raw_snappy(data[position : position + length], capacity, bytes_max))
        capacity -= len(parts[-1])
        position += length
    return b"".join(parts)


def _raw_snappy(data: memoryview, capacity: int, bytes_max: int) -> bytes:
    length = shift = 0
    for byte in data[:5]:
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if length > capacity:
        raise DecompressionError(f"snappy: the decompressed data has more than {bytes_max} bytes")
    return bytes(cramjam.snappy.decompress_raw(bytes(data)))


def _lz4(data: memoryview, bytes_max: int) -> bytes:
    return _decompress_members(data, bytes_max, lz4.frame.LZ4FrameDecompressor, "lz4: the frame is truncated")


def _zstd(data: memoryview, bytes_max: int) -> bytes:
    reader = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True)
    parts: list[bytes] = []
    capacity = bytes_max + 1
    while capacity > 0 and (part := reader.read(min(capacity, 1 << 20))):
        parts.append(part)
        capacity -= len(part)
    return b"".join(parts)


class _Decoder(Protocol):
    """Decoder of one gzip member or lz4 frame. `unused_data` is the input after its end."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes | None: ...

    def decompress(self, data: memoryview, max_length: int, /) -> bytes: ...


def _decompress_members(data: memoryview, bytes_max: int, decoder: Callable[[], _Decoder], truncated: str) -> bytes:
    """Decompresses consecutive gzip members or lz4 frames, up to one byte more than `bytes_max`.

    The first decoder gets all data, because there is usually one member only. A decoder copies the input after the end
    of its member, so thousands of members would take quadratic time. Each further decoder therefore gets its input in
    pieces of doubling size.

    Args:
        data: the members or frames.
        bytes_max: size limit of the decompressed data.
        decoder: creates the decoder of one member or frame.
        truncated: message of the error for data that ends inside a member or frame.
    """
    parts: list[bytes] = []
    capacity = bytes_max + 1
    position, piece_bytes = 0, len(data)
    while position < len(data) and capacity > 0:
        member = decoder()
        while not member.eof and capacity > 0:
            if position == len(data):
                raise DecompressionError(truncated)
            piece = data[position : position + piece_bytes]
            parts.append(member.decompress(piece, capacity))
            capacity -= len(parts[-1])
            position += len(piece) - len(member.unused_data or b"")
            piece_bytes *= 2
        piece_bytes = PIECE_BYTES
    return b"".join(parts)


def compress(codec: int, data: bytes) -> bytes:
    """Returns the records `data` of a batch, compressed with Kafka's codec number 1 (gzip), 2 (snappy, in the format
    that Java clients require), 3 (lz4) or 4 (zstd); unchanged for another number."""
    if codec == 1:
        return zlib_ng.compress(data, wbits=31)
    if codec == 2:
        blocks = (data[at : at + XERIAL_BLOCK_BYTES] for at in range(0, len(data), XERIAL_BLOCK_BYTES))
        raw = (bytes(cramjam.snappy.compress_raw(block)) for block in blocks)
        return b"".join(
            [XERIAL_MAGIC, struct.pack(">ii", 1, 1), *(struct.pack(">i", len(each)) + each for each in raw)]
        )
    if codec == 3:
        # Java clients and brokers refuse frames of several blocks that depend on each other.
        return bytes(lz4.frame.compress(data, block_linked=False))
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
    zlib_ng.error,  # type: ignore[assignment]  # its stub declares the class wrongly
    struct.error,
    cramjam.DecompressionError,
    RuntimeError,
    EOFError,
    zstandard.ZstdError,
)
