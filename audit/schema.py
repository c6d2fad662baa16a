"""The Avro schema of the audit topic, and the conversion of rows to and from its messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from headrace.audit.count import FINGERPRINT_MASK, HASH
from headrace.audit.errors import BadAuditMessage
from headrace.audit.row import AuditOutcome, AuditRow, Tier
from headrace.audit.window import WINDOW_MS, known_window

AUDIT_SCHEMA: Final = """{
  "type": "record",
  "name": "AuditRow",
  "namespace": "headrace.audit",
  "doc": "Number of messages of one topic and window of message time that a tier counted. The rows of a tier are added \
up; rows with the same id count once.",
  "fields": [
    {"name": "id", "type": "string",
     "doc": "Identifies the counted messages: the same count sent again has the same id."},
    {"name": "tier", "type": "string",
     "doc": "Where the messages were counted: producer, broker, loader or consumer."},
    {"name": "outcome", "type": "string",
     "doc": "What happened to the messages in the tier: acknowledged, stored, written, quarantined or consumed."},
    {"name": "topic", "type": "string",
     "doc": "Topic of the messages."},
    {"name": "window_start", "type": {"type": "long", "logicalType": "timestamp-millis"},
     "doc": "Start of the window of message time, UTC, inclusive. 1969-12-31 23:50 stands for times out of range \
(before 1970, after 9999), 23:40 for times in too many windows."},
    {"name": "window_ms", "type": "long", "default": 600000,
     "doc": "Length of the window in milliseconds."},
    {"name": "count", "type": "long",
     "doc": "Messages with this outcome. Messages without a value (tombstones) are not counted."},
    {"name": "bytes", "type": "long",
     "doc": "Bytes of their keys and values, before compression."},
    {"name": "fingerprint", "type": "long",
     "doc": "Sum modulo 2^64 of one 64-bit hash per message, as a signed number; equal sums mean the same messages."},
    {"name": "hash", "type": "string", "default": "xxh64",
     "doc": "Name of the message hash that the fingerprint sums: xxh64."},
    {"name": "sent", "type": "long", "default": 0,
     "doc": "Producer rows: messages handed to the Kafka client, acknowledged or not."},
    {"name": "crashed", "type": "boolean", "default": false,
     "doc": "Producer rows: found in the spool of a process that ended without closing."},
    {"name": "partition", "type": "int", "default": -1,
     "doc": "Partition of the counted offsets, or -1."},
    {"name": "start", "type": "long", "default": -1,
     "doc": "First counted offset, or -1."},
    {"name": "end", "type": "long", "default": -1,
     "doc": "Offset after the last counted one, or -1."},
    {"name": "application", "type": "string", "default": "",
     "doc": "Name of the application that counted."},
    {"name": "host", "type": "string", "default": "",
     "doc": "Host of the application."},
    {"name": "instance", "type": "string", "default": "",
     "doc": "Unique id of the process that counted."},
    {"name": "emitted_at", "type": {"type": "long", "logicalType": "timestamp-millis"},
     "doc": "Creation time of the row, UTC."},
    {"name": "datacenter", "type": "string", "default": "",
     "doc": "Data centre of the process that counted."},
    {"name": "late", "type": "long", "default": 0,
     "doc": "Messages counted after the grace period that follows the end of their window."},
    {"name": "no_time", "type": "long", "default": 0,
     "doc": "Messages without a time in the time fields of their schema: their record timestamp is their time."},
    {"name": "errors", "type": "long", "default": 0,
     "doc": "Producer rows: messages that were not acknowledged. Other rows: messages that cannot be decoded."},
    {"name": "latency_mean_ms", "type": "long", "default": 0,
     "doc": "Mean time from message time to counting time; producer rows: from sending to acknowledgement. 0 if not \
measured."},
    {"name": "latency_p95_ms", "type": "long", "default": 0,
     "doc": "95th percentile of this time."},
    {"name": "latency_p99_ms", "type": "long", "default": 0,
     "doc": "99th percentile of this time."},
    {"name": "latency_max_ms", "type": "long", "default": 0,
     "doc": "Maximum of this time."}
  ]
}"""


def to_message(row: AuditRow) -> dict[str, Any]:
    """Returns the row as a datum of `AUDIT_SCHEMA`, with times in milliseconds."""
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
        "datacenter": row.datacenter,
        "late": row.late,
        "no_time": row.no_time,
        "errors": row.errors,
        "latency_mean_ms": row.latency_mean_ms,
        "latency_p95_ms": row.latency_p95_ms,
        "latency_p99_ms": row.latency_p99_ms,
        "latency_max_ms": row.latency_max_ms,
    }


def from_message(message: Mapping[str, Any]) -> AuditRow:
    """Returns the row of a decoded audit message with times in milliseconds (logical types not converted). Fields with
    a default in `AUDIT_SCHEMA` may be missing.

    Raises:
        BadAuditMessage: another field is missing, or a field has an invalid value.
    """
    try:
        return AuditRow(
            id=message["id"],
            tier=Tier(message["tier"]),
            outcome=AuditOutcome(message["outcome"]),
            topic=message["topic"],
            window_start_ms=known_window(message["window_start"]),
            window_ms=message.get("window_ms", WINDOW_MS),
            count=message["count"],
            bytes=message["bytes"],
            fingerprint=message["fingerprint"] & FINGERPRINT_MASK,
            hash=message.get("hash", HASH),
            sent=message.get("sent", 0),
            crashed=message.get("crashed", False),
            partition=message.get("partition", -1),
            start=message.get("start", -1),
            end=message.get("end", -1),
            application=message.get("application", ""),
            host=message.get("host", ""),
            instance=message.get("instance", ""),
            emitted_at_ms=message["emitted_at"],
            datacenter=message.get("datacenter", ""),
            late=message.get("late", 0),
            no_time=message.get("no_time", 0),
            errors=message.get("errors", 0),
            latency_mean_ms=message.get("latency_mean_ms", 0),
            latency_p95_ms=message.get("latency_p95_ms", 0),
            latency_p99_ms=message.get("latency_p99_ms", 0),
            latency_max_ms=message.get("latency_max_ms", 0),
        )
    except KeyError as error:
        raise BadAuditMessage(f"an audit message has no field {error.args[0]!r}") from error
    except (ValueError, TypeError) as error:
        raise BadAuditMessage(f"an audit message has an invalid value: {error}") from error


def signed64(number: int) -> int:
    """Returns an unsigned 64-bit number as the signed integer that Avro and SQLite store."""
    return number - (1 << 64) if number >> 63 else number
