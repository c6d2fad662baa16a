"""Record batches as a broker stores them, including kinds that no producer sends."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import crc32c
from kafka.record.default_records import DefaultRecordBatchBuilder


def make_batch(
    offsets: Sequence[int],
    *,
    base: int | None = None,
    next_offset: int | None = None,
    codec: int = 0,
    producer_id: int = -1,
    transactional: bool = False,
    control: int | None = None,
    value: Callable[[int], bytes | None] = lambda offset: b"value %d" % offset,
    headers: Sequence[tuple[str, bytes]] = (),
) -> bytes:
    """Returns a record batch as a broker stores it, whose records have these offsets.

    Args:
        base: base offset of the batch, by default the first record's.
        next_offset: offset after the batch, by default after the last record. It is larger if compaction has removed
            the last records.
        control: type of the transaction marker (0 abort, 1 commit); None for a batch of messages.
        value: returns the value of the record at an offset.
    """
    base = offsets[0] if base is None else base
    builder = DefaultRecordBatchBuilder(2, codec, transactional, producer_id, 0, 0, 1 << 24)
    for offset in offsets:
        key = struct.pack(">hh", 0, control) if control is not None else b"k%d" % offset
        builder.append(offset - base, 1000 + offset, key, value(offset), list(headers))
    data = bytearray(builder.build())
    last = (next_offset if next_offset is not None else (offsets[-1] + 1 if offsets else base + 1)) - 1
    struct.pack_into(">q", data, 0, base)
    struct.pack_into(">i", data, 23, last - base)
    if control is not None:
        struct.pack_into(">h", data, 21, struct.unpack_from(">h", data, 21)[0] | 0x20)
    return reseal(data)


def reseal(data: bytearray) -> bytes:
    struct.pack_into(">I", data, 17, crc32c.crc32c(bytes(data[21:])))
    return bytes(data)
