"""fastavro reads container files made of encoded rows, block by block."""

from __future__ import annotations

import io
import json
import zlib

import fastavro
import pytest

from headrace.avro_codec.encode import encode_bytes, encode_long
from headrace.loader.write.container import CODECS, ContainerFormat

SCHEMA = json.dumps(
    {"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}, {"name": "s", "type": "string"}]}
)
SYNC = bytes(range(16))


def row(n: int) -> bytes:
    return encode_long(n) + encode_bytes(b"text %d" % n)


@pytest.mark.parametrize("codec", CODECS)
def test_fastavro_reads_container_files(codec: str) -> None:
    container_format = ContainerFormat(SCHEMA, codec, SYNC)
    blocks = [container_format.block([row(n) for n in range(100)]), container_format.block([row(100)])]
    data = container_format.header({"headrace.run_id": "w", "headrace.task": "3"}) + b"".join(blocks)
    reader = fastavro.reader(io.BytesIO(data))
    assert [record["n"] for record in reader] == list(range(101))
    assert (reader.codec, reader.metadata["headrace.run_id"], reader.metadata["headrace.task"]) == (codec, "w", "3")
    assert [block.num_records for block in fastavro.block_reader(io.BytesIO(data))] == [100, 1]


def test_header_states_calendar_and_time_zone_for_hive() -> None:
    """HiveServer2 reads years 1 to 1582 right only with both; tests/component/hive shows that."""
    metadata = fastavro.reader(
        io.BytesIO(ContainerFormat(SCHEMA, "null", SYNC).header({"headrace.task": "3"}))
    ).metadata
    assert (metadata["writer.proleptic"], metadata["writer.time.zone"], metadata["headrace.task"]) == (
        "true",
        "UTC",
        "3",
    )


def test_a_file_without_blocks_is_empty() -> None:
    assert list(fastavro.reader(io.BytesIO(ContainerFormat(SCHEMA, "snappy", SYNC).header({})))) == []


def test_snappy_rows_carry_their_checksum() -> None:
    # fastavro ignores the checksum and Avro Java does not.
    block = ContainerFormat(SCHEMA, "snappy", SYNC).block([row(1), row(2)])
    assert block[-20:-16] == zlib.crc32(row(1) + row(2)).to_bytes(4, "big")


@pytest.mark.parametrize(("codec", "sync", "message"), [("lz4", SYNC, "lz4"), ("null", b"short", r"\b16\b")])
def test_container_formats_are_validated(codec: str, sync: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ContainerFormat(SCHEMA, codec, sync)
