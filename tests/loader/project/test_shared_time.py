"""Producer, consumer and loader find the same time in each message, so that the audit compares the same windows."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from headrace.avro_schema import Schema, parse_schema
from headrace.clients.decoding import Decoder, FetchedRecord
from headrace.clients.encoding import Encoding
from headrace.loader.load_schema import EMPTY, fold
from headrace.loader.project.topic_projection import TopicProjection
from headrace.loader.work_unit import TopicPlan
from headrace.registry.client import RegisteredSchema
from headrace.settings import LoaderSettings, TopicTable
from support.loader.loader_samples import POLICY

TIME_FIELDS = ("header.time", "timestamp", "day")
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
PREFIX_BYTES = 5


def schema_text(header: str, time: str, timestamp: str, *aliases: str) -> str:
    inner = {"type": "record", "name": "H", "fields": [{"name": time, "type": ["string", "null"]}]}
    fields = [
        {"name": timestamp, "type": ["null", "double", MICROS, "string"], "aliases": list(aliases[:1])},
        {"name": header, "type": ["null", inner], "aliases": list(aliases[1:])},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": ["null", "string"], "default": None},
    ]
    return json.dumps({"type": "record", "name": "Event", "fields": fields})


OLD, NEW = schema_text("head", "time", "ts"), schema_text("header", "time", "timestamp", "ts", "head")


class Registry:
    """A registry with two versions, of which the second renames fields."""

    def __init__(self, time_property: str) -> None:
        self.metadata = {"headrace.time": time_property} if time_property else {}

    def schema_by_id(self, schema_id: int) -> RegisteredSchema:
        return RegisteredSchema(schema_id, [OLD, NEW][schema_id - 1], metadata=self.metadata)

    def version(self, subject: str, version: str) -> RegisteredSchema:
        return self.schema_by_id(2)

    def parsed(self, registered: RegisteredSchema) -> Schema:
        return parse_schema(registered.text)


texts = st.sampled_from(
    ["2013-01-01T01:30:00Z", "2013-01-01 03:30:00.5+02:00", "2013-01-01T01:30:00", "", "1356998400"]
)
numbers = st.integers(-(10**9), 10**15)
headers = st.none() | st.fixed_dictionaries({"time": st.none() | texts})
tagged = numbers.map(lambda number: ("long", number)) | st.floats(0, 1e9).map(lambda number: ("double", number))


@given(
    st.sampled_from([1, 2]), st.sampled_from(["", "at", "gone"]), headers, st.none() | texts | tagged, st.none() | texts
)
@example(1, "", {"time": "2013-01-01T01:30:00Z"}, ("long", 5_000), None)
@example(1, "", None, ("long", 5_000), None)
@example(2, "at", None, ("long", 5_000), "2013-01-01T01:30:00Z")
def test_every_tier_finds_the_same_time(
    schema_id: int, time_property: str, header: Any, timestamp: Any, at: str | None
) -> None:
    names = [("head", "ts"), ("header", "timestamp")][schema_id - 1]
    value = {names[0]: header, names[1]: timestamp, "day": 15_706, "at": at}
    registry, newest = Registry(time_property), parse_schema(NEW)
    writer = parse_schema([OLD, NEW][schema_id - 1])
    encoding = Encoding(
        "t", "t-value", schema_id, writer, time_property=time_property, time_fields=TIME_FIELDS, newest=newest
    )
    encoded = encoding.encode(value)
    assert encoding.read_time is not None
    produced = encoding.read_time(value, encoded)

    loader = LoaderSettings(topic=(TopicTable("t", {"time_fields": TIME_FIELDS}),))
    for reader in (None, newest):
        decoder = Decoder(registry, reader, loader)  # type: ignore[arg-type]
        assert decoder.decode(FetchedRecord("t", 0, 0, 0, None, encoded, ()))[2] == produced

    state = fold(fold(EMPTY, 1, parse_schema(OLD), 1), 2, newest, 2)
    plan = TopicPlan(
        "t", state.text, {1: OLD, 2: NEW}, POLICY, routes=state.routes, time_property=time_property, newest_id=2
    )
    projection = TopicProjection(plan, TIME_FIELDS).writer(schema_id)
    assert projection.project is not None
    projection.project(encoded[PREFIX_BYTES:])
    captured = projection.captured_time
    assert (None if captured.value is None else captured.time_ms) == produced
