"""The messages of the loader's benchmark. A shape has a schema, which determines the size, number of fields and nesting
of its messages, and a generator of values."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import fastavro

START_MS = 1_357_000_000_000
SPAN_MS = 2 * 3_600_000
"""Message time of a topic: about twelve loads, two or three hourly time partitions."""
DISTINCT = 50_000
"""Number of generated bodies; a topic repeats them with later times."""

Schema = dict[str, Any]
Value = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """A kind of messages: its schema and a generator of values.

    Attributes:
        schema: begins with a record `header` whose first field is `time`, a long, so that a body begins with its time.
        fields: number of fields, for the table.
        value: generates a value without its header.
        later: the later version of the schema with which messages are read; None if they are read with `schema`.
    """

    name: str
    schema: Schema
    fields: int
    value: Callable[[random.Random], Value]
    later: Schema | None = None

    def bodies(self, count: int) -> Iterator[bytes]:
        """Yields `count` Avro bodies, in the order of their times."""
        parsed = fastavro.parse_schema(self.schema)
        rng = random.Random(7)
        tails = []
        for _ in range(min(DISTINCT, count)):
            out = io.BytesIO()
            fastavro.schemaless_writer(out, parsed, {"header": {"time": START_MS}, **self.value(rng)})
            tails.append(out.getvalue()[len(_long(START_MS)) :])
        for number in range(count):
            yield _long(START_MS + SPAN_MS * number // count) + tails[number % len(tails)]

    def text(self, *, is_later: bool = False) -> str:
        return json.dumps(self.later if is_later else self.schema)


def _long(value: int) -> bytes:
    """Encodes a positive Avro long."""
    n = value << 1
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


HEADER = {"name": "header", "type": {"type": "record", "name": "Header", "fields": [{"name": "time", "type": "long"}]}}
LOCATION = {
    "type": "record",
    "name": "Place",
    "fields": [{"name": "country", "type": "string"}, {"name": "zone", "type": "int"}],
}
DEVICES = {"type": "enum", "name": "Device", "symbols": ["DESKTOP", "PHONE", "TABLET", "OTHER"]}


def _page_fields(location: Schema) -> list[Schema]:
    return [
        HEADER,
        {"name": "member", "type": "int"},
        {"name": "page", "type": "string"},
        {"name": "session", "type": "string"},
        {"name": "referrer", "type": ["null", "string"], "default": None},
        {"name": "device", "type": DEVICES},
        {"name": "labels", "type": {"type": "map", "values": "string"}},
        {"name": "items", "type": {"type": "array", "items": "long"}},
        {"name": "dwell", "type": "double"},
        {"name": "score", "type": "double"},
        {"name": "is_bot", "type": "boolean"},
        {"name": "place", "type": location},
    ]


def _later_page() -> Schema:
    """Returns a later version: a field added, one widened, one renamed, a record grown."""
    fields = _page_fields(
        {**LOCATION, "fields": [*LOCATION["fields"], {"name": "city", "type": "string", "default": ""}]}
    )
    for field in fields:
        if field["name"] == "session":
            field.update(name="visit", aliases=["session"])
        if field["name"] == "member":
            field["type"] = "long"
    fields.insert(3, {"name": "region", "type": ["null", "string"], "default": None})
    return {"type": "record", "name": "PageView", "fields": fields}


def _page(rng: random.Random) -> Value:
    return {
        "member": rng.randrange(10_000_000),
        "page": f"/product/{rng.randrange(100_000)}/reviews",
        "session": f"{rng.getrandbits(128):032x}",
        "referrer": None if rng.random() < 0.3 else "https://www.example.org/search?q=shoes",
        "device": rng.choice(DEVICES["symbols"]),
        "labels": {"campaign": "spring", "test": f"b{rng.randrange(10)}"},
        "items": [rng.randrange(1_000_000) for _ in range(rng.randrange(4))],
        "dwell": rng.random() * 100,
        "score": rng.random(),
        "is_bot": False,
        "place": {"country": rng.choice(("DE", "FR", "JP", "US")), "zone": rng.randrange(24)},
    }


PAGE = Shape(
    "page",
    {"type": "record", "name": "PageView", "fields": _page_fields(LOCATION)},
    12,
    _page,
    _later_page(),
)

SMALL = Shape(
    "small",
    {
        "type": "record",
        "name": "Tick",
        "fields": [
            HEADER,
            {"name": "sensor", "type": "string"},
            {"name": "count", "type": "int"},
            {"name": "value", "type": "double"},
        ],
    },
    4,
    lambda rng: {
        "sensor": f"s-{rng.randrange(10_000):07}",
        "count": rng.randrange(10_000),
        "value": rng.random(),
    },
)


def _part(level: int, number: int) -> Schema:
    """Returns the schema of a record of five fields. Above level 1 the last field is such a record of the next lower
    level."""
    fields: list[Schema] = [
        {"name": "id", "type": "long"},
        {"name": "name", "type": "string"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "share", "type": "double"},
    ]
    if level > 1:
        fields.append({"name": "part", "type": _part(level - 1, number)})
    else:
        fields.append({"name": "count", "type": "int"})
    return {"type": "record", "name": f"Part{number}L{level}", "fields": fields}


def _part_value(rng: random.Random, level: int) -> Value:
    value: Value = {
        "id": rng.getrandbits(48),
        "name": f"{rng.getrandbits(160):040x}",
        "note": None if rng.random() < 0.5 else "left at the door of the neighbours, as was said on the telephone",
        "share": rng.random(),
    }
    value |= {"part": _part_value(rng, level - 1)} if level > 1 else {"count": rng.randrange(1000)}
    return value


NESTED_PARTS = 4
NESTED = Shape(
    "nested",
    {
        "type": "record",
        "name": "Order",
        "fields": [HEADER, *({"name": f"part{number}", "type": _part(3, number)} for number in range(NESTED_PARTS))],
    },
    1 + NESTED_PARTS * 15,
    lambda rng: {f"part{number}": _part_value(rng, 3) for number in range(NESTED_PARTS)},
)

SHAPES = {one.name: one for one in (PAGE, SMALL, NESTED)}
