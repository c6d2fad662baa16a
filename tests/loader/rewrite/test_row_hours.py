"""Rows of a day are divided among its hours by the time that a load would use, and never leave the day."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest

from headrace.loader.load_schema.kafka_record import load_schema_with_kafka
from headrace.loader.project.quarantine import SCHEMA, BadMessage, QuarantineCode, encode_row
from headrace.loader.rewrite.row_hours import RowHours, RowsUnplaced, TimeSource
from headrace.loader.work_unit import FileKind

DAY, DAY_MS, HOUR_MS = "dt=2026-01-01", 1_767_225_600_000, 3_600_000
TIMES = TimeSource("", ("at", "header.time"))
FIELDS: list[dict[str, Any]] = [
    {"name": "header", "type": {"type": "record", "name": "Header", "fields": [{"name": "time", "type": "long"}]}},
    {"name": "at", "type": ["null", "long", "string"], "default": None},
    {"name": "tags", "type": {"type": "map", "values": "string"}},
]
LOAD = json.dumps({"type": "record", "name": "Order", "fields": FIELDS})


def block_of(schema: str, *rows: dict[str, Any]) -> bytes:
    parsed = fastavro.parse_schema(json.loads(schema))
    block = io.BytesIO()
    for row in rows:
        fastavro.schemaless_writer(block, parsed, row)
    return block.getvalue()


def hours(kafka_column: str, *rows: tuple[Any, int, int | None]) -> list[tuple[str, int, int]]:
    """Returns the hour, partition and offset of rows, given the time in both fields and in the `kafka` column."""
    schema = load_schema_with_kafka(LOAD, kafka_column)
    more = {"key": b"k", "headers": [{"key": "h", "value": None}]} if kafka_column == "full" else {}
    block = block_of(
        schema,
        *(
            {
                "header": {"time": time_ms},
                "at": at,
                "tags": {"a": "b"},
                "kafka": {"partition": 7, "offset": offset, "timestamp": timestamp_ms, **more},
            }
            for offset, (at, time_ms, timestamp_ms) in enumerate(rows)
        ),
    )
    found = list(RowHours(schema, FileKind.DATA, DAY, TIMES).rows(block))
    assert b"".join(one.row for one in found) == block, "rows are copied unchanged"
    return [(one.time_partition.removeprefix(f"{DAY}/hr="), one.partition, one.offset) for one in found]


@pytest.mark.parametrize("kafka_column", ["position", "full"])
def test_hour_is_that_of_the_preferred_time_on_the_day_of_the_file(kafka_column: str) -> None:
    five = DAY_MS + 5 * HOUR_MS
    assert hours(
        kafka_column,
        (five, DAY_MS, DAY_MS),
        ("2026-01-01T23:59:59Z", DAY_MS, DAY_MS),
        (None, five, DAY_MS),
        (five + 86_400_000, DAY_MS, five),  # the day of the file is that of the arrival
        (-1, DAY_MS, None),
        (0, 0, 0),
    ) == [("05", 7, 0), ("23", 7, 1), ("05", 7, 2), ("05", 7, 3), ("00", 7, 4), ("00", 7, 5)]


def test_hour_of_a_quarantined_message_is_that_of_its_record() -> None:
    bad = BadMessage(QuarantineCode.FRAMING, "no magic byte")
    block = b"".join(
        encode_row(3, offset, DAY_MS + offset * HOUR_MS, b"k", b"v", b"\x00", bad) for offset in (0, 23, 24)
    )
    found = list(RowHours(SCHEMA, FileKind.QUARANTINE, DAY, TIMES).rows(block))
    assert [one[:3] for one in found] == [(f"{DAY}/hr=00", 3, 0), (f"{DAY}/hr=23", 3, 23), (f"{DAY}/hr=00", 3, 24)]
    assert b"".join(one.row for one in found) == block


def test_rows_without_offsets_and_damaged_blocks_are_refused() -> None:
    with pytest.raises(RowsUnplaced, match="kafka_column"):
        RowHours(LOAD, FileKind.DATA, DAY, TIMES)
    schema = load_schema_with_kafka(LOAD, "position")
    row = {"header": {"time": 1}, "at": 1, "tags": {}, "kafka": {"partition": 1, "offset": 1, "timestamp": 1}}
    block = block_of(schema, row)
    for damaged in (block[:-1], block + b"\xff", block_of(schema, {**row, "kafka": None})):
        with pytest.raises(RowsUnplaced):
            list(RowHours(schema, FileKind.DATA, DAY, TIMES).rows(damaged))


def test_limits_of_a_body_apply_to_each_row() -> None:
    fields = [{"name": "holes", "type": {"type": "array", "items": "null"}}]
    schema = load_schema_with_kafka(json.dumps({"type": "record", "name": "Order", "fields": fields}), "position")
    kafka = {"partition": 1, "offset": 1, "timestamp": DAY_MS}
    block = block_of(schema, *({"holes": [None] * 40_000, "kafka": kafka} for _ in range(2)))
    assert len(list(RowHours(schema, FileKind.DATA, DAY, TIMES).rows(block))) == 2
