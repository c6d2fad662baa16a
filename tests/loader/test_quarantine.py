"""Quarantined messages come back whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from loader.container import ContainerFormat
from loader.native.encode import encode_bytes
from loader.quarantine import SCHEMA, BadMessage, QuarantineCode, encode_row, read_rows
from loader.read import NO_HEADERS

FORMAT = ContainerFormat(SCHEMA, "deflate", bytes(range(16)))


def test_rows_come_back_whole(tmp_path: Path) -> None:
    headers = b"\x04" + encode_bytes(b"trace") + encode_bytes(b"\xff\x00") + encode_bytes(b"empty") + b"\x01"
    bad = BadMessage(QuarantineCode.MALFORMED, "a boolean is the byte 2", 7)
    unframed = BadMessage(QuarantineCode.FRAMING, "no magic byte")
    rows = [
        encode_row(3, 1 << 40, -1, b"key", b"\x00\x00value", headers, bad),
        encode_row(3, 5, 1 << 62, None, b"", NO_HEADERS, unframed),
    ]
    path = tmp_path / "q.avro"
    path.write_bytes(FORMAT.header({}) + FORMAT.block(rows))
    first, second = read_rows(path)
    assert (first.partition, first.offset, first.timestamp_ms) == (3, 1 << 40, -1)
    assert (first.code, first.reason, first.schema_id) == ("malformed", "a boolean is the byte 2", 7)
    assert (first.key, first.value) == (b"key", b"\x00\x00value")
    assert first.headers == (("trace", b"\xff\x00"), ("empty", None))
    assert (second.timestamp_ms, second.key, second.value, second.schema_id, second.headers) == (
        1 << 62,
        None,
        b"",
        None,
        (),
    )


def test_headers_that_cannot_be_read_are_kept_raw(tmp_path: Path) -> None:
    row = encode_row(0, 1, 2, None, b"v", b"\x08broken", BadMessage(QuarantineCode.FRAMING, "r"))
    path = tmp_path / "q.avro"
    path.write_bytes(FORMAT.header({}) + FORMAT.block([row]))
    assert next(read_rows(path)).headers == (("headrace.unreadable_headers", b"\x08broken"),)


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "q.avro"
    path.write_bytes(b"not avro at all")
    with pytest.raises(ValueError, match="avro"):
        list(read_rows(path))
