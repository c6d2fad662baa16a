"""Checksums of files, beside those of the libraries, and those of commits from before."""

from __future__ import annotations

import hashlib
import io

import pytest
import xxhash

from headrace.loader.checksum import READ_BYTES, Checksum, checksum_as


@pytest.mark.parametrize("size", [0, 1, READ_BYTES - 1, READ_BYTES, READ_BYTES + 1, 3 * READ_BYTES + 7])
def test_a_file_has_the_checksum_of_its_bytes_by_the_algorithm_that_was_decided(size: int) -> None:
    content = bytes(number * 7 % 251 for number in range(1000)) * (size // 1000 + 1)
    content = content[:size]
    ours = f"xxh3-128:{xxhash.xxh3_128_hexdigest(content)}"
    assert checksum_as(ours, io.BytesIO(content)) == ours
    assert checksum_as("xxh3-128:0", io.BytesIO(content)) == ours
    older = hashlib.sha256(content).hexdigest()
    assert checksum_as(older, io.BytesIO(content)) == older


def test_pieces_have_the_checksum_of_the_whole() -> None:
    checksum = Checksum()
    for piece in (b"a", b"", memoryview(b"bcd")):
        checksum.update(piece)
    assert str(checksum) == checksum_as("xxh3-128:", io.BytesIO(b"abcd")) == "xxh3-128:8d6b60383dfa90c21be79eecd1b1353d"
