"""Messages that could not be loaded, kept whole so that they can be replayed.

They go to container files of their own beside the topic's, filed by record timestamp, because a message that cannot
be decoded has no other time. `code` groups reasons for counting, `reason` is a sentence for people.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum

from headrace.avro_codec.encode import encode_bytes, encode_long
from headrace.kafka_wire.record_batch import parse_headers


class QuarantineCode(StrEnum):
    FRAMING = "framing"  # no magic byte, too short, a schema GUID
    ABSENT_SCHEMA = "absent_schema"  # the registry has no schema of that id
    UNREADABLE_SCHEMA = "unreadable_schema"  # it has one that is no Avro schema
    MALFORMED = "malformed"  # the bytes are no value of their schema
    UNREADABLE = "unreadable"  # a row of the value would make queries of the table fail
    UNCONVERTIBLE = "unconvertible"  # the load schema has no place for the value
    CORRUPT_BATCH = "corrupt_batch"  # the row's value is a whole record batch as the log has it, and no message


SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Quarantined",
        "namespace": "headrace",
        "fields": [
            {"name": "partition", "type": "int"},
            {"name": "offset", "type": "long"},
            {"name": "timestamp", "type": "long", "doc": "milliseconds, as the record said, however absurd"},
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
"""Of the quarantine's files and tables. It only ever gains fields with a default."""


@dataclass(frozen=True, slots=True)
class BadMessage:
    """Why a message cannot be loaded; `schema_id` is None when it carries none."""

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
    """The Avro binary of one row in `SCHEMA`; `headers` are as the log holds them."""
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
    """The binary of `["null", "bytes"]`."""
    return b"\x00" if data is None else b"\x02" + encode_bytes(data)


def encode_headers(raw: bytes) -> bytes:
    """The binary of an array of (key, nullable value); headers that cannot be read are one header of that name."""
    try:
        headers = parse_headers(raw)
    except ValueError:
        headers = [("headrace.unreadable_headers", raw)]
    if not headers:
        return b"\x00"
    items = [encode_bytes(key.encode()) + encode_optional(value) for key, value in headers]
    return b"".join((encode_long(len(items)), *items, b"\x00"))
