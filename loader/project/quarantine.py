"""Messages that could not be loaded, stored completely so that they can be replayed, and corrupt batches.

They are written to container files separate from the topic's data, in the time partition of the record timestamp,
because a message that cannot be decoded has no other time. `code` groups reasons for counting, `reason` is a sentence.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum

from headrace.avro_codec.encode import encode_bytes, encode_long
from headrace.kafka_wire.record_batch import parse_headers


class QuarantineCode(StrEnum):
    FRAMING = "framing"  # no magic byte, too short, a schema GUID
    SCHEMA_NOT_FOUND = "schema_not_found"  # the registry has no schema of that id
    UNREADABLE_SCHEMA = "unreadable_schema"  # the registry's schema is not an Avro schema
    MALFORMED = "malformed"  # the bytes are not a value of their schema
    UNREADABLE = "unreadable"  # queries of the table would fail on the value, or show null
    UNCONVERTIBLE = "unconvertible"  # the load schema has no column for the value
    CORRUPT_BATCH = "corrupt_batch"  # the row's value is a whole record batch from the log, not a message


SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Quarantined",
        "namespace": "headrace",
        "fields": [
            {"name": "partition", "type": "int"},
            {"name": "offset", "type": "long"},
            {"name": "timestamp", "type": "long", "doc": "milliseconds, as stated by the record"},
            {"name": "code", "type": "string"},
            {"name": "reason", "type": "string"},
            {"name": "schema_id", "type": ["null", "int"], "default": None},
            {"name": "key", "type": ["null", "bytes"], "default": None},
            {"name": "value", "type": ["null", "bytes"], "default": None},
            {
                "name": "headers",
                "type": {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": "Header",
                        "fields": [
                            {"name": "key", "type": "string"},
                            {"name": "value", "type": ["null", "bytes"], "default": None},
                        ],
                    },
                },
                "default": [],
            },
        ],
    },
    separators=(",", ":"),
)
"""Schema of the quarantine's files and tables. Fields are only added, with a default."""


@dataclass(frozen=True, slots=True)
class BadMessage:
    """The reason why a message cannot be loaded, with the message's schema id (None if it has none)."""

    code: QuarantineCode
    reason: str
    schema_id: int | None = None


def encode_row(
    partition: int,
    offset: int,
    timestamp_ms: int,
    key: bytes | None,
    value: bytes | None,
    headers: bytes,
    bad: BadMessage,
) -> bytes:
    """Encodes one row of the quarantine (`SCHEMA`) from the parts of a message.

    Args:
        timestamp_ms: the record's timestamp.
        headers: the message's headers as stored in the log.
        bad: the reason for the quarantine.
    """
    return b"".join(
        (
            encode_long(partition),
            encode_long(offset),
            encode_long(timestamp_ms),
            encode_bytes(bad.code.value.encode()),
            encode_bytes(bad.reason.encode("utf-8", "replace")),
            b"\x00" if bad.schema_id is None else b"\x02" + encode_long(bad.schema_id),
            encode_optional(key),
            encode_optional(value),
            encode_headers(headers),
        )
    )


def encode_optional(data: bytes | None) -> bytes:
    """Encodes bytes or None as a value of the Avro union `["null", "bytes"]`."""
    return b"\x00" if data is None else b"\x02" + encode_bytes(data)


def encode_headers(raw: bytes) -> bytes:
    """Encodes a record's headers as an array of (key, nullable value). Headers that cannot be parsed become one header,
    `headrace.unreadable_headers`, with their bytes.

    Args:
        raw: the headers as stored in the log.
    """
    try:
        headers = parse_headers(raw)
    except ValueError:
        headers = [("headrace.unreadable_headers", raw)]
    if not headers:
        return b"\x00"
    items = [encode_bytes(key.encode()) + encode_optional(value) for key, value in headers]
    return b"".join((encode_long(len(items)), *items, b"\x00"))
