"""Finds the writer schema and the time of a message, and compiles the conversion of its body.

No I/O. A `TopicProjection` is created once per topic and task and compiles one projection per writer schema.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.avro_codec import CapturedTime
from headrace.avro_codec.program import Program
from headrace.avro_codec.readable import OldDay
from headrace.avro_schema import (
    AvroSchemaError,
    FramingError,
    Schema,
    TimeField,
    find_time_fields,
    parse_schema,
    unframe,
)
from headrace.kafka_wire.record_batch import NO_HEADERS, parse_headers
from headrace.loader.load_schema import StoredRoute
from headrace.loader.project.projection import Unconvertible, compile_projection, compile_time_capture
from headrace.loader.project.quarantine import BadMessage, QuarantineCode
from headrace.loader.work_unit import TopicPlan

RECORD_TIME = "record"
"""Name of a time source, by which messages are counted: the record's timestamp, because the writer schema has no time
field."""
OUT_OF_RANGE_TIME = "record (field out of range)"
"""Name of a time source: the record's timestamp, because the time in the field is before 1970 or after 9999."""
NO_TIME = "record (no time in the field)"
"""Name of a time source: the record's timestamp, because the time fields are null or have text that is not a time."""
FUTURE_TIME = "arrival (future time)"
"""Name of a time source: the time of arrival, because the message's own time is later than the policy allows."""


class UnknownSchema(Exception):
    """Raised for a message with a schema id that the plan does not know. Reading of the range stops before this
    message."""

    def __init__(self, schema_id: int) -> None:
        super().__init__(f"the plan does not know schema id {schema_id}")
        self.schema_id = schema_id


@dataclass(frozen=True, slots=True)
class WriterProjection:
    """The conversion of messages with one schema id.

    `project` converts a body; it is None if no message with this id can be converted, and `bad` is the reason then.
    `time_sources` are the names of the time fields, the preferred one first. After each conversion `captured_time`
    contains the time in one of them. `note_time` finds the time in a body that cannot be converted, or is None.
    `program` is `project` for the core, None if the core cannot do it. `project` sets `old_day`; the caller clears it.
    """

    schema_id: int | None
    project: Callable[[bytes], bytes] | None
    bad: BadMessage | None
    captured_time: CapturedTime
    time_sources: tuple[str, ...] = ()
    note_time: Callable[[bytes], None] | None = None
    program: Program | None = None
    old_day: OldDay = field(default_factory=OldDay)

    @property
    def timeless_source(self) -> str:
        """The name of the time source of messages without a time in their fields."""
        return NO_TIME if self.time_sources else RECORD_TIME

    @classmethod
    def unconvertible(cls, bad: BadMessage) -> WriterProjection:
        """Returns the `WriterProjection` for a message or schema id that cannot be converted, for the reason `bad`."""
        return cls(bad.schema_id, None, bad, CapturedTime())


class TopicProjection:
    """The projections of one topic by schema id.

    Args:
        plan: the topic's schemas, as the driver knows them.
        time_fields: names of fields that may hold the message time, from the settings.
    """

    def __init__(self, plan: TopicPlan, time_fields: tuple[str, ...]) -> None:
        self._plan = plan
        self._time_fields = time_fields
        self._load = parse_schema(plan.load_schema, source=f"load schema of {plan.topic}", strict=False)
        self._newest = _newest_schema(plan)
        self._writers: dict[int, WriterProjection] = {}

    def knows(self, schema_id: int) -> bool:
        """Whether the plan has the schema of this id, or states that the registry has none."""
        return schema_id in self._plan.writer_schemas or schema_id in self._plan.absent_ids

    def writer(self, schema_id: int) -> WriterProjection:
        """Returns the conversion of messages with this schema id to rows. It is compiled for the first message.

        Raises:
            UnknownSchema: the plan does not say whether the registry has the id.
        """
        found = self._writers.get(schema_id)
        if found is None:
            found = self._writers[schema_id] = self._compile(schema_id)
        return found

    def _compile(self, schema_id: int) -> WriterProjection:
        text = self._plan.writer_schemas.get(schema_id)
        if text is None:
            if schema_id in self._plan.absent_ids:
                return _unconvertible(
                    QuarantineCode.SCHEMA_NOT_FOUND, f"the registry has no usable schema {schema_id}", schema_id
                )
            raise UnknownSchema(schema_id)
        try:
            writer = parse_schema(text, source=f"schema id {schema_id}", strict=False)
        except AvroSchemaError as error:
            return _unconvertible(QuarantineCode.UNREADABLE_SCHEMA, str(error), schema_id)
        fields = find_time_fields(writer, self._plan.time_property, self._time_fields, self._newest)
        return _compile_writer(writer, self._load, fields, schema_id, self._plan.routes.get(schema_id))


def _newest_schema(plan: TopicPlan) -> Schema | None:
    """Returns the newest version of the topic's subject, None if it is unknown or cannot be parsed. Messages with an
    unreadable schema are quarantined when they are read."""
    text = plan.writer_schemas.get(plan.newest_id) if plan.newest_id is not None else None
    try:
        return None if text is None else parse_schema(text, source=f"schema id {plan.newest_id}", strict=False)
    except AvroSchemaError:
        return None


def _compile_writer(
    writer: Schema, load: Schema, fields: Sequence[TimeField], schema_id: int, route: StoredRoute | None
) -> WriterProjection:
    captured_time, old_day = CapturedTime(), OldDay()
    project = bad = note_time = program = None
    try:
        compiled = compile_projection(writer, load, fields, captured_time, route)
        project, program, old_day = compiled.convert, compiled.program, compiled.old_day
    except Unconvertible as error:
        bad = BadMessage(QuarantineCode.UNCONVERTIBLE, str(error), schema_id)
        # The producer counted the message by its own time, so the audit does too.
        note_time = compile_time_capture(writer, fields, captured_time) if fields else None
    sources = tuple(field.source for field in fields)
    return WriterProjection(schema_id, project, bad, captured_time, sources, note_time, program, old_day)


def _unconvertible(code: QuarantineCode, reason: str, schema_id: int) -> WriterProjection:
    return WriterProjection.unconvertible(BadMessage(code, reason, schema_id))


def unframe_message(value: bytes, headers: bytes) -> tuple[int, bytes] | BadMessage:
    """Returns the schema id and the body of a message. The id is in a header or before the body. Returns a `BadMessage`
    if the message has no valid id.

    Args:
        value: the message's value: the body, with or without the id before it.
        headers: the message's headers as stored in the log.
    """
    try:
        found = unframe(value, () if headers == NO_HEADERS else parse_headers(headers))
    except (FramingError, ValueError) as error:
        return BadMessage(QuarantineCode.FRAMING, str(error))
    return found.schema_id, found.body
