"""Batches of many gzip members or lz4 frames: all are decompressed, up to the limit."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import lz4.frame
import pytest
from zlib_ng import zlib_ng

from headrace.kafka_wire.codecs import PIECE_BYTES, DecompressionError, compress, decompress

GZIP, LZ4 = 1, 3
DECODERS = {GZIP: (zlib_ng, "decompressobj"), LZ4: (lz4.frame, "LZ4FrameDecompressor")}

NOISE = random.Random(1).randbytes(40 * PIECE_BYTES)
SIZES = (0, 1, 90, PIECE_BYTES - 30, PIECE_BYTES, 3 * PIECE_BYTES, len(NOISE))


@pytest.mark.parametrize("codec", DECODERS)
def test_members_of_all_sizes_are_decompressed(codec: int) -> None:
    for sizes in itertools.permutations(SIZES, 3):
        data = memoryview(b"".join(compress(codec, NOISE[:size]) for size in sizes))
        whole = b"".join(NOISE[:size] for size in sizes)
        assert decompress(codec, data, len(whole)) == whole
        for bytes_max in {0, len(whole) // 2, len(whole) - 1} - {len(whole)}:
            with pytest.raises(DecompressionError, match=f"{bytes_max}"):
                decompress(codec, data, bytes_max)


@pytest.mark.parametrize("codec", DECODERS)
def test_truncated_members_are_an_error(codec: int) -> None:
    first, second = compress(codec, NOISE[:90]), compress(codec, NOISE[: 3 * PIECE_BYTES])
    data = memoryview(first + second)
    for length in range(1, len(data)):
        if length != len(first):
            with pytest.raises(DecompressionError):
                decompress(codec, data[:length], 1 << 20)
    assert decompress(codec, data[: len(first)], 1 << 20) == NOISE[:90]


@pytest.mark.parametrize("codec", DECODERS)
def test_input_of_all_decoders_is_linear_in_the_batch_size(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoders copy the input after their end, so the sum of inputs is the cost of thousands of members."""
    given = 0
    module, name = DECODERS[codec]
    real: Callable[..., Any] = getattr(module, name)

    class Counting:
        def __init__(self, **options: int) -> None:
            self._real = real(**options)

        def decompress(self, data: memoryview, *capacity: int, **named: int) -> bytes:
            nonlocal given
            given += len(data)
            return bytes(self._real.decompress(data, *capacity, **named))

        def __getattr__(self, attribute: str) -> Any:
            return getattr(self._real, attribute)

    monkeypatch.setattr(module, name, Counting)
    for members, size in ((4_000, 2), (400, 3 * PIECE_BYTES), (1, len(NOISE))):
        data = memoryview(compress(codec, NOISE[:size]) * members)
        given = 0
        assert decompress(codec, data, 1 << 24) == NOISE[:size] * members
        assert given <= 3 * len(data) + members * PIECE_BYTES


def test_lz4_blocks_are_independent() -> None:
    """Java clients and brokers refuse frames of several blocks that depend on each other ("Dependent block stream")."""
    data = 30 * NOISE  # several blocks of 64 KiB
    frame = compress(LZ4, data)
    assert not lz4.frame.get_frame_info(frame)["block_linked"]
    assert lz4.frame.decompress(frame) == data
