"""Avro 1.12 schemas as immutable values: parsing with positions, texts, fingerprints, message framing and message time.

`quick_json`, `json_reader` and `parse` convert a schema text to the `model`, which the other modules use.
"""

from headrace.avro_schema.defaults import default_datum, default_problem
from headrace.avro_schema.errors import AvroSchemaError, FramingError, SchemaParseError
from headrace.avro_schema.fingerprint import (
    crc64_avro,
    fingerprint_crc64,
    fingerprint_md5,
    fingerprint_sha256,
    parsing_canonical_form,
)
from headrace.avro_schema.json_reader import blank_out_comments
from headrace.avro_schema.message_time import TimeField, find_time_fields, read_time
from headrace.avro_schema.model import (
    NO_DEFAULT,
    NO_POSITION,
    Array,
    Enum,
    Field,
    Fixed,
    JsonValue,
    LogicalType,
    Map,
    Name,
    NamedType,
    Order,
    Position,
    Primitive,
    PrimitiveType,
    Props,
    Record,
    Reference,
    Schema,
    Type,
    Union,
)
from headrace.avro_schema.names import branch_name
from headrace.avro_schema.parse import parse_schema
from headrace.avro_schema.text import canonical_text, normalized_text, schema_to_json, self_contained_text
from headrace.avro_schema.walk import children, defined_names, walk, walk_type
from headrace.avro_schema.wire import Framed, frame, unframe

__all__ = [
    "NO_DEFAULT",
    "NO_POSITION",
    "Array",
    "AvroSchemaError",
    "Enum",
    "Field",
    "Fixed",
    "Framed",
    "FramingError",
    "JsonValue",
    "LogicalType",
    "Map",
    "Name",
    "NamedType",
    "Order",
    "Position",
    "Primitive",
    "PrimitiveType",
    "Props",
    "Record",
    "Reference",
    "Schema",
    "SchemaParseError",
    "TimeField",
    "Type",
    "Union",
    "blank_out_comments",
    "branch_name",
    "canonical_text",
    "children",
    "crc64_avro",
    "default_datum",
    "default_problem",
    "defined_names",
    "find_time_fields",
    "fingerprint_crc64",
    "fingerprint_md5",
    "fingerprint_sha256",
    "frame",
    "normalized_text",
    "parse_schema",
    "parsing_canonical_form",
    "read_time",
    "schema_to_json",
    "self_contained_text",
    "unframe",
    "walk",
    "walk_type",
]
