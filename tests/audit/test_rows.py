"""Audit rows, their ids and their messages."""

from __future__ import annotations

import dataclasses
import io
import json

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.audit.errors import BadAuditMessage
from headrace.audit.ingest import RowDecoder
from headrace.audit.row import AuditOutcome, AuditRow, Tier, range_row_id
from headrace.audit.row_encoder import RowEncoder
from headrace.audit.schema import AUDIT_SCHEMA, from_message, signed64, to_message
from headrace.audit.window import OUT_OF_RANGE_MS, SPECIAL_WINDOWS
from headrace.avro_schema import parse_schema

ROW = AuditRow(
    id="i-1",
    tier=Tier.PRODUCER,
    outcome=AuditOutcome.ACKNOWLEDGED,
    topic="orders",
    window_start_ms=600_000,
    count=3,
    bytes=40,
    fingerprint=2**64 - 1,
    application="shop",
    host="h",
    instance="i",
    emitted_at_ms=1_700_000_000_000,
    sent=4,
    crashed=True,
)


@pytest.mark.parametrize(
    "wrong",
    [
        {"outcome": AuditOutcome.WRITTEN},
        {"window_start_ms": 1},
        {"fingerprint": 2**64},
        {"count": -1},
    ],
)
def test_invalid_row_is_an_error(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        dataclasses.replace(ROW, **wrong)


@pytest.mark.parametrize("start_ms", sorted(SPECIAL_WINDOWS))
def test_row_of_a_special_window_survives_encoding(start_ms: int) -> None:
    row = dataclasses.replace(ROW, window_start_ms=start_ms)
    assert RowDecoder(lambda schema_id: AUDIT_SCHEMA).decode(RowEncoder(7).encode(row)) == row


def test_message_without_hash_has_the_default_hash() -> None:
    message = to_message(ROW)
    assert (message.pop("hash"), from_message(message).hash) == ("xxh64", "xxh64")


def test_window_start_out_of_range_is_read_as_out_of_range() -> None:
    message = {**to_message(ROW), "window_start": 1_356_998_400_000_000_000 // 600_000 * 600_000}
    assert from_message(message).window_start_ms == OUT_OF_RANGE_MS


def test_range_row_id_depends_on_all_its_parts() -> None:
    base = {"partition": 0, "start": 0, "end": 5, "window_start_ms": 0}
    ids = {
        range_row_id(Tier.BROKER, AuditOutcome.STORED, "t", **base),
        range_row_id(Tier.LOADER, AuditOutcome.WRITTEN, "t", **base),
        range_row_id(Tier.LOADER, AuditOutcome.QUARANTINED, "t", **base),
        range_row_id(Tier.BROKER, AuditOutcome.STORED, "t0", **base),
        range_row_id(Tier.BROKER, AuditOutcome.STORED, "t", **{**base, "end": 6}),
        range_row_id(Tier.BROKER, AuditOutcome.STORED, "t", **base, topic_id="second"),
        range_row_id(Tier.BROKER, AuditOutcome.STORED, "t", **base, application="a"),
    }
    assert len(ids) == 7
    assert range_row_id(Tier.BROKER, AuditOutcome.STORED, "t", **base) in ids


def test_audit_schema_is_valid_and_documents_every_field() -> None:
    parse_schema(AUDIT_SCHEMA)
    document = json.loads(AUDIT_SCHEMA)
    assert all(field["doc"] for field in document["fields"])
    assert [field["name"] for field in document["fields"]] == list(to_message(ROW))


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**62), st.booleans())
def test_row_survives_encoding(fingerprint: int, count: int, crashed: bool) -> None:
    row = dataclasses.replace(ROW, fingerprint=fingerprint, count=count, crashed=crashed)
    assert RowDecoder(lambda schema_id: AUDIT_SCHEMA).decode(RowEncoder(7).encode(row)) == row


def test_message_with_an_older_schema_gets_defaults() -> None:
    older_schema = json.loads(AUDIT_SCHEMA)
    older_schema["fields"] = [
        field for field in older_schema["fields"] if field["name"] not in ("sent", "crashed", "host")
    ]
    body = io.BytesIO(b"\0\0\0\0\x05")
    body.seek(5)
    schema = fastavro.parse_schema(older_schema)
    fastavro.schemaless_writer(body, schema, to_message(ROW))
    found = RowDecoder({5: json.dumps(older_schema)}.__getitem__).decode(body.getvalue())
    assert found == dataclasses.replace(ROW, sent=0, crashed=False, host="")


@pytest.mark.parametrize("value", [b"", b"\x01\0\0\0\x05", b"\0\0\0\0\x05", b"\0\0\0\0\x05\xff\xff\xff"])
def test_message_that_is_not_a_row_is_an_error(value: bytes) -> None:
    with pytest.raises(BadAuditMessage):
        RowDecoder(lambda schema_id: AUDIT_SCHEMA).decode(value)


def test_message_with_invalid_values_is_an_error() -> None:
    with pytest.raises(BadAuditMessage, match=r"\bTier\b"):
        from_message({**to_message(ROW), "tier": "toaster"})
    with pytest.raises(BadAuditMessage, match="'topic'"):
        from_message({key: value for key, value in to_message(ROW).items() if key != "topic"})


def test_signed64_maps_to_signed_integers() -> None:
    assert [signed64(n) for n in (0, 2**63 - 1, 2**63, 2**64 - 1)] == [0, 2**63 - 1, -(2**63), -1]
