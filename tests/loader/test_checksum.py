"""Checksums of files agree with those of the libraries, also for commits of earlier releases with SHA-256."""

from __future__ import annotations

import hashlib
import io

import pytest
import xxhash

from headrace.loader.checksum import READ_BYTES, Checksum, checksum_as


@pytest.mark.parametrize("size", [0, 1, READ_BYTES - 1, READ_BYTES, READ_BYTES + 1, 3 * READ_BYTES + 7])
def test_file_is_checked_with_the_algorithm_of_its_committed_checksum(size: int) -> None:
    content = bytes(number * 7 % 251 for number in range(1000)) * (size // 1000 + 1)
    content = content[:size]
    checksum = f"xxh3-128:{xxhash.xxh3_128_hexdigest(content)}"
    assert checksum_as(checksum, io.BytesIO(content)) == checksum
    assert checksum_as("xxh3-128:0", io.BytesIO(content)) == checksum
    older = hashlib.sha256(content).hexdigest()
    assert checksum_as(older, io.BytesIO(content)) == older


def test_checksum_does_not_depend_on_pieces() -> None:
    checksum = Checksum()
    for piece in (b"a", b"", memoryview(b"bcd")):
        checksum.update(piece)
    assert str(checksum) == checksum_as("xxh3-128:", io.BytesIO(b"abcd")) == "xxh3-128:8d6b60383dfa90c21be79eecd1b1353d"
