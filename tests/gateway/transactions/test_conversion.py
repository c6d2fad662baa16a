"""The conversion of chunks to record batches on disk."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

import pytest

from headrace.gateway.encoding import Unencodable
from headrace.gateway.errors import GatewayError, Kind
from headrace.gateway.sessions.chunk_body import FRAMED, LINES
from headrace.gateway.sessions.routes import OpenRequest
from headrace.gateway.transactions import conversion, ledger
from headrace.gateway.transactions.conversion import REJECTED_MAX, RecordsRejected, convert
from headrace.gateway.transactions.identity import transaction_key
from headrace.gateway.transactions.spool import StoredChunk
from headrace.kafka_wire.record_batch import parse_headers

NOW_MS, EXPIRES_MS = 1_700_000_000_000, 1_700_000_000_001
ID = "018bcfe56800-0000000000000000"


def stored(directory: Path, body: bytes, media_type: str = LINES) -> StoredChunk:
    path = directory / "chunk.raw"
    path.write_bytes(body)
    wanted = OpenRequest("topic", ID, host="h", format="binary")
    key = transaction_key("", ID)
    return StoredChunk(key, "user a", wanted, 1, media_type, len(body), zlib.crc32(body), 0, path, len(body))


def encode(content: Any) -> bytes:
    if content.startswith(b"bad"):
        raise Unencodable("it is bad")
    return bytes(content)


def run(chunk: StoredChunk, record_bytes_max: int = 1000, taken: list[int] | None = None) -> StoredChunk:
    take = (lambda size: None) if taken is None else taken.append
    return convert(chunk, encode, record_bytes_max, NOW_MS, EXPIRES_MS, take)


def batches(chunk: StoredChunk) -> list[Any]:
    return [ledger._records(content, chunk) for content in ledger._batches(chunk)]


def test_records_keep_their_order_in_batches_of_bounded_size(tmp_path: Path) -> None:
    values = [b"%05d" % number + b"x" * 95 for number in range(25)]
    taken: list[int] = []
    found = run(stored(tmp_path, b"".join(value + b"\n" for value in values)), 1000, taken)
    records = [record for batch in batches(found) for record in batch]
    assert [value for _, _, _, value, _ in records] == values
    assert {(time_ms, key) for _, time_ms, key, _, _ in records} == {(NOW_MS, None)}
    assert [parse_headers(headers) for *_, headers in records] == [[("host", b"h"), ("hr.t", ID.encode())]] * 25
    assert [len(batch) for batch in batches(found)] == [4, 4, 4, 4, 4, 4, 1]
    assert (found.record_count, found.expires_ms, found.data.suffix) == (25, EXPIRES_MS, ".batches")
    assert found.data_bytes == found.data.stat().st_size == sum(taken)
    assert set(found.prefixes) == {value[:5].hex() for value in values}
    assert StoredChunk.of_json(tmp_path, found.fields.read_bytes()) == found


def test_batches_are_on_disk_before_the_fields_that_name_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(Path(f"/proc/self/fd/{descriptor}").readlink()))
    run(stored(tmp_path, b"a\n"))
    assert synced == [tmp_path / "chunk.batches", tmp_path / "chunk.new", tmp_path]


def test_part_of_a_cut_record_is_a_header(tmp_path: Path) -> None:
    found = run(stored(tmp_path, b"1 1 1/2\na\n2 1\nb\n", FRAMED))
    (batch,) = batches(found)
    assert [dict(parse_headers(headers)).get("hr.part") for *_, headers in batch] == [b"1/2", None]


def test_chunk_with_refused_records_is_not_converted(tmp_path: Path) -> None:
    body = b"good\n" + b"bad\n" * (REJECTED_MAX + 1) + b"y" * 1000 + b"\n"
    with pytest.raises(RecordsRejected) as caught:
        run(stored(tmp_path, body))
    assert caught.value.count == REJECTED_MAX + 2
    assert caught.value.first == [(number, "it is bad") for number in range(2, REJECTED_MAX + 2)]
    assert [path.name for path in tmp_path.iterdir()] == ["chunk.raw"]


def test_largest_record_that_the_topic_accepts_is_converted(tmp_path: Path) -> None:
    overhead = conversion.RECORD_OVERHEAD + len(conversion.encode_headers([("host", b"h"), ("hr.t", ID.encode())]))
    assert run(stored(tmp_path, b"x" * (1000 - overhead) + b"\n")).record_count == 1
    with pytest.raises(RecordsRejected, match="1,001 bytes"):
        run(stored(tmp_path, b"x" * (1001 - overhead) + b"\n"))


@pytest.mark.parametrize(("limit", "value"), [("RECORDS_MAX", 2), ("CONVERTED_BYTES_MAX", 300)])
def test_chunk_of_too_many_records_or_bytes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(conversion, limit, value)
    assert run(stored(tmp_path, b"a\n" * 2)).record_count == 2
    with pytest.raises(GatewayError) as caught:
        run(stored(tmp_path, b"a\n" * 3))
    assert caught.value.kind is Kind.BODY_TOO_LARGE


@pytest.mark.parametrize(
    ("body", "kind"), [(b"", Kind.BAD_REQUEST), (b"no end", Kind.BAD_REQUEST), (None, Kind.TRANSACTION_UNKNOWN)]
)
def test_chunk_that_is_malformed_empty_or_damaged_is_refused(tmp_path: Path, body: bytes | None, kind: Kind) -> None:
    chunk = stored(tmp_path, b"body\n" if body is None else body)
    if body is None:
        chunk.data.write_bytes(b"Body\n")
    with pytest.raises(GatewayError) as caught:
        run(chunk)
    assert caught.value.kind is kind
    assert [path.name for path in tmp_path.iterdir()] == ["chunk.raw"]


def test_deleted_chunk_is_missing(tmp_path: Path) -> None:
    chunk = stored(tmp_path, b"body\n")
    chunk.data.unlink()
    with pytest.raises(GatewayError) as caught:
        run(chunk)
    assert caught.value.kind is Kind.TRANSACTION_UNKNOWN


def test_full_spool_leaves_the_chunk_as_it_was(tmp_path: Path) -> None:
    def refuse(size: int) -> None:
        raise GatewayError(Kind.TOO_MANY_REQUESTS, "full")

    with pytest.raises(GatewayError):
        convert(stored(tmp_path, b"body\n"), encode, 1000, NOW_MS, EXPIRES_MS, refuse)
    assert [path.name for path in tmp_path.iterdir()] == ["chunk.raw"]
