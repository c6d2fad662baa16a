"""Converts the body of a chunk to record batches on disk, which a transaction only has to send."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import BinaryIO, Final

from headrace.avro_schema.wire import PREFIX_BYTES
from headrace.gateway.encoding import Unencodable
from headrace.gateway.errors import GatewayError, Kind
from headrace.gateway.sessions.chunk_body import LINES, ChunkBody, MalformedChunk
from headrace.gateway.sessions.lane import BATCH_BYTES, LZ4, PART_HEADER, RECORD_OVERHEAD
from headrace.gateway.sessions.request import Encode
from headrace.gateway.transactions.spool import BATCHES, StoredChunk, sync, write_fields
from headrace.kafka_wire.record_batch import batch_of_records, encode_headers

RECORDS_MAX: Final = 1_000_000
CONVERTED_BYTES_MAX: Final = 256 * 1024 * 1024
"""Size of the records of a chunk before compression. Each has the host and the file, which may exceed its line."""
REJECTED_MAX: Final = 100
"""How many rejected records an error lists."""
PREFIXES_MAX: Final = 100
"""Records of further schemas count for the audit by their record timestamps."""
TRANSACTION_HEADER: Final = "hr.t"
"""Record header with the id of the transaction."""


class RecordsRejected(Exception):
    """Records of a chunk cannot be stored, so none is. `first` are the number and the reason of the first of them."""

    def __init__(self, first: list[tuple[int, str]], count: int) -> None:
        super().__init__(
            f"{count:,} records of the chunk are refused, the first is record {first[0][0]}: {first[0][1]}"
        )
        self.first = first
        self.count = count


def convert(
    chunk: StoredChunk, encode: Encode, record_bytes_max: int, now_ms: int, expires_ms: int, take: Callable[[int], None]
) -> StoredChunk:
    """Writes the record batches of a chunk to disk, and returns the converted chunk.

    Args:
        record_bytes_max: largest record that the topic accepts.
        now_ms: the time of the records.
        expires_ms: when the converted chunk expires.
        take: reserves bytes of the spool.

    Raises:
        RecordsRejected: records do not fit the schema, or are too large.
        GatewayError: the body is malformed or damaged, or takes too much space.
        OSError: the disk is full, or failed.
    """
    try:
        content = chunk.data.read_bytes()
    except FileNotFoundError:
        content = b""
    if (len(content), zlib.crc32(content)) != (chunk.length, chunk.crc32):
        raise GatewayError(Kind.TRANSACTION_UNKNOWN, "the chunk is damaged on disk; store it again with the same id")
    try:
        body = ChunkBody(chunk.media_type, content, 0 if chunk.media_type == LINES else None)
    except MalformedChunk as error:
        raise GatewayError(Kind.BAD_REQUEST, f"{error}; store a correct chunk") from None
    path = chunk.data.with_suffix(BATCHES)
    try:
        with path.open("wb") as file:
            writer = _BatchWriter(file, chunk, record_bytes_max, now_ms, take)
            for number, (_, record, part, _) in enumerate(body, 1):
                writer.add(number, record, part, encode)
            count, size = writer.end()
            sync(file)
        converted = replace(
            chunk,
            data=path,
            data_bytes=size,
            record_count=count,
            expires_ms=expires_ms,
            prefixes=tuple(prefix.hex() for prefix in writer.prefixes),
        )
        write_fields(converted)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return converted


class _BatchWriter:
    def __init__(
        self, file: BinaryIO, chunk: StoredChunk, record_bytes_max: int, now_ms: int, take: Callable[[int], None]
    ) -> None:
        self._file = file
        self._named = (*chunk.wanted.headers, (TRANSACTION_HEADER, chunk.transaction_id.encode()))
        self._headers = encode_headers(self._named)
        self._record_bytes_max = record_bytes_max
        self._now_ms = now_ms
        self._take = take
        self._records: list[tuple[None, bytes | None, bytes]] = []
        self._batch_bytes = self._total_bytes = self._written_bytes = self._count = self._rejected_count = 0
        self._rejected: list[tuple[int, str]] = []
        self.prefixes: set[bytes] = set()

    def add(self, number: int, content: bytes, part: str, encode: Encode) -> None:
        try:
            value = encode(content)
        except Unencodable as error:
            self._reject(number, str(error))
            return
        headers = self._headers if not part else encode_headers((*self._named, (PART_HEADER, part.encode())))
        size = len(value or b"") + len(headers) + RECORD_OVERHEAD
        if size > self._record_bytes_max:
            self._reject(number, f"the record has {size:,} bytes, the topic accepts {self._record_bytes_max:,}")
            return
        if self._batch_bytes + size > min(BATCH_BYTES, self._record_bytes_max):
            self._flush()
        if value is not None and len(self.prefixes) < PREFIXES_MAX:
            self.prefixes.add(value[:PREFIX_BYTES])
        self._records.append((None, value, headers))
        self._batch_bytes += size
        self._total_bytes += size
        self._count += 1
        if self._count > RECORDS_MAX or self._total_bytes > CONVERTED_BYTES_MAX:
            raise GatewayError(
                Kind.BODY_TOO_LARGE,
                f"the chunk has more than {RECORDS_MAX:,} records, or {CONVERTED_BYTES_MAX:,} bytes of records with "
                "their headers; store it as several chunks",
            )

    def end(self) -> tuple[int, int]:
        """Returns the number of records, and the size of the file."""
        if self._rejected:
            raise RecordsRejected(self._rejected, self._rejected_count)
        if not self._count:
            raise GatewayError(Kind.BAD_REQUEST, "the chunk has no records; store one with records")
        self._flush()
        return self._count, self._written_bytes

    def _reject(self, number: int, reason: str) -> None:
        self._rejected_count += 1
        if len(self._rejected) < REJECTED_MAX:
            self._rejected.append((number, reason))

    def _flush(self) -> None:
        if self._records and not self._rejected:
            batch = batch_of_records(self._records, self._now_ms, LZ4)
            self._take(len(batch))
            self._written_bytes += len(batch)
            self._file.write(batch)
        self._records, self._batch_bytes = [], 0
