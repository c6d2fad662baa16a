"""Wire format of messages, which identifies the schema of a value.

    value:                       magic 0 (1 byte) | schema id (4 bytes, big-endian) | Avro binary
    header `__value_schema_id`:  magic 0 (1 byte) | schema id (4 bytes, big-endian)

With a header, the value is Avro binary only. The header takes precedence, as in the serializers that write it. Magic 1
in a header means a GUID, which only a registry can map to an id; it is refused with its own reason.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.avro_schema.errors import FramingError

MAGIC_ID = 0
MAGIC_GUID = 1
VALUE_HEADER = "__value_schema_id"
PREFIX_BYTES = 5

_PREFIX = struct.Struct(">Bi")


@dataclass(frozen=True, slots=True)
class Framed:
    """A message body in Avro binary and the global id of its writer schema."""

    schema_id: int
    body: bytes


def frame(schema_id: int, body: bytes) -> bytes:
    """Returns the framed value of a body written with the schema `schema_id`.

    Raises:
        FramingError: the id is negative or has more than 31 bits.
    """
    if not 0 <= schema_id < 2**31:
        raise FramingError(f"schema id {schema_id} is outside 0 … 2^31-1", "bad-id")
    return _PREFIX.pack(MAGIC_ID, schema_id) + body


def unframe(value: bytes, headers: Iterable[tuple[str, bytes | None]] = ()) -> Framed:
    """Returns the schema id and body of a message value.

    Raises:
        FramingError: the value or header is too short, has another magic byte or a negative id, or the header
            has a GUID.
    """
    for name, header in headers:
        if name == VALUE_HEADER and header is not None:
            return Framed(_schema_id(header, "the header"), value)
    return Framed(_schema_id(value, "the value"), value[PREFIX_BYTES:])


def _schema_id(data: bytes, where: str) -> int:
    if len(data) < PREFIX_BYTES:
        magic = data[:1]
        if magic not in (b"", b"\x00"):
            raise FramingError(f"{where} begins with byte {magic[0]}, expected the magic byte 0", "bad-magic")
        raise FramingError(
            f"{where} has {len(data)} bytes, expected at least {PREFIX_BYTES}: the magic byte 0 and a 4-byte schema id",
            "too-short",
        )
    magic, schema_id = _PREFIX.unpack_from(data)
    if magic == MAGIC_GUID and where == "the header":
        raise FramingError("the header carries a schema GUID, which is not supported; expected a schema id", "guid")
    if magic != MAGIC_ID:
        raise FramingError(f"{where} begins with byte {magic}, expected the magic byte 0", "bad-magic")
    if schema_id < 0:
        raise FramingError(f"{where} carries the negative schema id {schema_id}", "bad-id")
    return int(schema_id)
