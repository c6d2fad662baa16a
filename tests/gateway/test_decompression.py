"""Decompression of bodies: any chunks, members, damage, and parts of bounded size."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from headrace.gateway.decompression import DECOMPRESSORS, PART_BYTES, DamagedBody

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "identity": bytes,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstandard.compress,
}
CODINGS = [name for name in COMPRESS if name != "identity"]
TEXT = b'{"records":[{"value":"abcdefgh"}]}' * 3000


def decompressed(coding: str, body: bytes, size: int) -> bytes:
    """Decompresses a body that arrives in chunks of a size."""
    decompressor = DECOMPRESSORS[coding]()
    found = [part for at in range(0, len(body), size) for part in decompressor.parts(body[at : at + size])]
    decompressor.end()
    return b"".join(found)


@given(st.sampled_from([*COMPRESS]), st.binary(max_size=2000), st.integers(1, 3000))
def test_any_body_in_any_chunks_is_restored(coding: str, body: bytes, size: int) -> None:
    assert decompressed(coding, COMPRESS[coding](body), size) == body


@given(st.sampled_from(CODINGS), st.lists(st.binary(max_size=500), min_size=1, max_size=4), st.integers(1, 3000))
def test_members_are_joined(coding: str, bodies: list[bytes], size: int) -> None:
    assert decompressed(coding, b"".join(map(COMPRESS[coding], bodies)), size) == b"".join(bodies)


@pytest.mark.parametrize("coding", CODINGS)
def test_truncated_body_is_damaged(coding: str) -> None:
    body = COMPRESS[coding](TEXT)
    for end in (0, 1, len(body) // 2, len(body) - 1):
        with pytest.raises(DamagedBody):
            decompressed(coding, body[:end], 100)


@pytest.mark.parametrize("coding", CODINGS)
def test_data_after_the_end_is_damaged(coding: str) -> None:
    with pytest.raises(DamagedBody):
        decompressed(coding, COMPRESS[coding](TEXT) + b"more than nothing", 100)


@pytest.mark.parametrize("coding", CODINGS)
def test_parts_of_a_bomb_are_bounded(coding: str) -> None:
    body = COMPRESS[coding](bytes(64 * 2**20))
    parts = [len(part) for part in DECOMPRESSORS[coding]().parts(body)]
    assert sum(parts) == 64 * 2**20
    assert max(parts) <= (8 * 2**20 if coding == "zstd" else PART_BYTES)
