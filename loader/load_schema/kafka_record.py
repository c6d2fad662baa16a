"""The `kafka` column, the last column of a load schema: topic partition, offset and timestamp of the row's message, and
in the variant `full` its key and headers. `loader.project.kafka_column` encodes its values."""

from __future__ import annotations

from headrace.avro_schema import Array, Field, LogicalType, Name, Primitive, PrimitiveType, Record, Union
from headrace.loader.load_schema.text import load_record, load_text
from headrace.loader.load_schema.types import type_names

KAFKA_COLUMNS = ("none", "position", "full")
"""Values of the setting `loader.kafka_column`, from narrow to wide. Each variant includes the fields of the one before,
and files with it can be read with the schema of a wider one."""

KAFKA_COLUMN_COMMENT = "Kafka partition, offset and timestamp of the row's message"


def wider_column(one: str, other: str) -> str:
    """Returns the wider of two variants of the `kafka` column: none, position or full. "" (no variant) is narrower than
    all."""
    return max(one, other, key=("", *KAFKA_COLUMNS).index)


def load_schema_with_kafka(text: str, kafka_column: str) -> str:
    """Returns the load schema with the `kafka` column: the schema of the files.

    Args:
        text: a load schema as Avro schema text.
        kafka_column: none, position, or full (position with key and headers).
    """
    return text if kafka_column == "none" else load_text(record_with_kafka(text, kafka_column))


def record_with_kafka(text: str, kafka_column: str) -> Record:
    """Returns the record of the load schema `text`, with the `kafka` column unless `kafka_column` is "none"."""
    load = load_record(text)
    if kafka_column == "none":
        return load
    where = _position_record(_free_name(type_names(load)), is_full=kafka_column == "full")
    column = Field(kafka_name(load), Union((Primitive(PrimitiveType.NULL), where)), None)
    return Record(load.name, (*load.fields, column))


def kafka_name(load: Record) -> str:
    """Returns the name of the `kafka` column of the load schema `load`. No other column of it has or had this name, so
    the name never changes."""
    used_names = {name.lower() for field in load.fields for name in (field.name, *field.aliases)}
    name = "kafka" if "kafka" not in used_names else "kafka__position"
    while name in used_names:
        name += "_"
    return name


def _position_record(name: Name, *, is_full: bool) -> Record:
    null, long = Primitive(PrimitiveType.NULL), PrimitiveType.LONG
    millis = Primitive(long, LogicalType("timestamp-millis"), (("logicalType", "timestamp-millis"),))
    fields = [
        Field("partition", Primitive(PrimitiveType.INT)),
        Field("offset", Primitive(long)),
        # Null if the record's time is implausible, because it would overflow in readers of timestamps.
        Field("timestamp", Union((null, millis)), None),
    ]
    if is_full:
        optional_bytes = Union((null, Primitive(PrimitiveType.BYTES)))
        header = Record(
            Name(f"{name.name}_header", name.namespace),
            (Field("key", Primitive(PrimitiveType.STRING)), Field("value", optional_bytes)),
        )
        # Nullable with a default: files from before the setting was widened lack both.
        fields.append(Field("key", optional_bytes, None))
        fields.append(Field("headers", Union((null, Array(header))), None))
    return Record(name, tuple(fields))


def _free_name(used_names: set[str]) -> Name:
    name = Name("kafka_position", "headrace.load")
    while name.full in used_names or f"{name.full}_header" in used_names:
        name = Name(f"{name.name}_", name.namespace)
    return name
