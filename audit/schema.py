"""The audit message: the Avro schema of the audit topic, and rows to and from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from headrace.audit.count import FINGERPRINT_MASK, HASH_BEFORE
from headrace.audit.errors import BadAuditMessage
from headrace.audit.row import AuditRow, Outcome, Tier
from headrace.audit.window import WINDOW_MS, known_window

AUDIT_SCHEMA: Final = """{
  "type": "record",
  "name": "AuditRow",
  "namespace": "headrace.audit",
  "doc": "How many messages of one topic and window of message time a tier counted. The rows of a tier add up; a row \
seen twice has the same id and counts once.",
  "fields": [
    {"name": "id", "type": "string",
     "doc": "Names what was counted: the same counts sent again carry the same id."},
    {"name": "tier", "type": "string",
     "doc": "Where it was counted: producer, broker, loader or consumer."},
    {"name": "outcome", "type": "string",
     "doc": "What the tier did with the messages: acknowledged, stored, written, quarantined or consumed."},
    {"name": "topic", "type": "string",
     "doc": "The topic whose messages were counted."},
    {"name": "window_start", "type": {"type": "long", "logicalType": "timestamp-millis"},
     "doc": "Start of the window of message time, UTC, inclusive. 1969-12-31 23:50 is times out of range (before 1970, \
after 9999), 23:40 is times in too many windows to count apart."},
    {"name": "window_ms", "type": "long", "default": 600000,
     "doc": "Length of the window in milliseconds."},
    {"name": "count", "type": "long",
     "doc": "Messages with this outcome. Messages without a value (tombstones) are not counted."},
    {"name": "bytes", "type": "long",
     "doc": "Bytes of their keys and values, before compression."},
    {"name": "fingerprint", "type": "long",
     "doc": "Sum modulo 2^64 of one 64-bit hash per message, as a signed number; equal sums mean the same messages."},
    {"name": "hash", "type": "string", "default": "blake2b-64",
     "doc": "The hash of messages that the fingerprint is a sum of: xxh64; blake2b-64 in rows of before it was named."},
    {"name": "sent", "type": "long", "default": 0,
     "doc": "Producer rows: messages handed to the Kafka client, acknowledged or not."},
    {"name": "crashed", "type": "boolean", "default": false,
     "doc": "Producer rows: found in the spool of a process that ended without closing."},
    {"name": "partition", "type": "int", "default": -1,
     "doc": "The partition whose offsets were counted, or -1."},
    {"name": "start", "type": "long", "default": -1,
     "doc": "First offset of the range that was counted, or -1."},
    {"name": "end", "type": "long", "default": -1,
     "doc": "Offset after the last of the range, or -1."},
    {"name": "application", "type": "string", "default": "",
     "doc": "The application that counted, as it names itself."},
    {"name": "host", "type": "string", "default": "",
     "doc": "The machine it ran on."},
    {"name": "instance", "type": "string", "default": "",
     "doc": "The process that counted: new for each."},
    {"name": "emitted_at", "type": {"type": "long", "logicalType": "timestamp-millis"},
     "doc": "When the row was made, UTC."}
  ]
}"""


def to_message(row: AuditRow) -> dict[str, Any]:
    """The row as a datum of `AUDIT_SCHEMA`; times stay milliseconds."""
    return {
        "id": row.id,
        "tier": row.tier.value,
        "outcome": row.outcome.value,
        "topic": row.topic,
        "window_start": row.window_start_ms,
        "window_ms": row.window_ms,
        "count": row.count,
        "bytes": row.bytes,
        "fingerprint": signed64(row.fingerprint),
        "hash": row.hash,
        "sent": row.sent,
        "crashed": row.crashed,
        "partition": row.partition,
        "start": row.start,
        "end": row.end,
        "application": row.application,
        "host": row.host,
        "instance": row.instance,
        "emitted_at": row.emitted_at_ms,
    }


def from_message(message: Mapping[str, Any]) -> AuditRow:
    """The row of a decoded audit message whose times are milliseconds (logical types not converted).

    Raises:
        BadAuditMessage: a field is missing or holds what no row can.
    """
    try:
        return AuditRow(
            id=message["id"],
            tier=Tier(message["tier"]),
            outcome=Outcome(message["outcome"]),
            topic=message["topic"],
            window_start_ms=known_window(message["window_start"]),
            window_ms=message.get("window_ms", WINDOW_MS),
            count=message["count"],
            bytes=message["bytes"],
            fingerprint=message["fingerprint"] & FINGERPRINT_MASK,
            hash=message.get("hash", HASH_BEFORE),
            sent=message.get("sent", 0),
            crashed=message.get("crashed", False),
            partition=message.get("partition", -1),
            start=message.get("start", -1),
            end=message.get("end", -1),
            application=message.get("application", ""),
            host=message.get("host", ""),
            instance=message.get("instance", ""),
            emitted_at_ms=message["emitted_at"],
        )
    except KeyError as error:
        raise BadAuditMessage(f"an audit message has no field {error.args[0]!r}") from error
    except (ValueError, TypeError) as error:
        raise BadAuditMessage(f"an audit message is not a row: {error}") from error


def signed64(number: int) -> int:
    """A 64-bit number as Avro's and SQLite's signed integers hold it."""
    return number - (1 << 64) if number >> 63 else number
