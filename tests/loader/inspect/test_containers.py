"""Container files are counted by their block headers, and truncated files are detected."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable
from typing import IO

import pytest

from headrace.avro_codec.encode import encode_bytes, encode_long
from headrace.loader.inspect.containers import count_rows, positions
from headrace.loader.inspect.quarantine import read_rows
from headrace.loader.write.container import MAGIC
from support.loader.shelf import container, quarantine_container

SYNC = bytes(range(16))


def counted(content: bytes) -> int:
    return count_rows(io.BytesIO(content), len(content))


def block(rows: int, size: int) -> bytes:
    return encode_long(rows) + encode_long(size) + bytes(size) + SYNC


def test_rows_of_all_blocks_are_counted_whatever_their_sizes() -> None:
    start = MAGIC + b"\x00" + SYNC
    for rows, size in ((1, 0), (63, 1), (64, 64), (8191, 200), (8192, 9_000), (2**40, 3)):
        assert counted(start + block(rows, size)) == rows
        assert counted(start + block(rows, size) + block(5, 70)) == rows + 5
    assert counted(start) == 0
    assert counted(container([(0, n) for n in range(7)])) == 7


def test_metadata_is_skipped_with_and_without_its_size() -> None:
    pair = encode_bytes(b"avro.codec") + encode_bytes(b"null" * 40)
    sized = encode_long(-1) + encode_long(len(pair)) + pair
    for metadata in (encode_long(1) + pair, sized, encode_long(1) + pair + sized, encode_long(2) + 2 * pair):
        assert counted(MAGIC + metadata + b"\x00" + SYNC + block(3, 9)) == 3


def test_a_file_truncated_at_any_byte_is_detected() -> None:
    whole = container([(0, n) for n in range(4)])
    ends = {whole.index(SYNC) + 16}
    while (end := whole.find(SYNC, max(ends)) + 16) > 16:
        ends.add(end)
    for length in range(len(whole)):
        if length in ends:
            assert counted(whole[:length]) < 4
        else:
            with pytest.raises(ValueError):
                counted(whole[:length])


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"Obj\x02\x00" + SYNC, ""),
        (MAGIC + b"\x00" + SYNC[:15], ""),
        (MAGIC, r"\b4\b"),
        (MAGIC + b"\x00" + SYNC + b"\xff" * 11, r"\b31\b"),
        (MAGIC + b"\x00" + SYNC + block(0, 4), ""),
        (MAGIC + b"\x00" + SYNC + encode_long(1) + encode_long(-1) + SYNC, ""),
        (MAGIC + b"\x00" + SYNC + block(1, 4)[:-1] + b"x", ""),
    ],
)
def test_damaged_container_is_refused(content: bytes, place: str) -> None:
    with pytest.raises(ValueError) as refused:
        counted(content)
    assert re.search(place, str(refused.value))


@pytest.mark.parametrize(
    ("whole", "read"),
    [
        (container([(0, n) for n in range(4)]), lambda file: list(positions(file) or ())),
        (quarantine_container([(0, n) for n in range(4)]), lambda file: list(read_rows(file))),
        (container([(0, n) for n in range(4)]), lambda file: counted(file.read())),
    ],
    ids=["positions", "read_rows", "count_rows"],
)
def test_reading_a_damaged_file_raises_no_other_error_than_valueerror(
    whole: bytes, read: Callable[[IO[bytes]], object]
) -> None:
    for at, byte in enumerate(whole):
        for damaged in (whole[:at], *(whole[:at] + bytes([byte ^ bit]) + whole[at + 1 :] for bit in (1, 0x40, 0x80))):
            with contextlib.suppress(ValueError):
                read(io.BytesIO(damaged))


def test_a_file_without_the_kafka_column_has_no_positions() -> None:
    assert positions(io.BytesIO(container([(0, 1)], "none"))) is None
    found = positions(io.BytesIO(container([(3, 2**40), (0, 0)], "full")))
    assert found is not None
    assert list(found) == [(3, 2**40), (0, 0)]
