"""Converts load schemas to text and back, and returns the root record of a writer's schema."""

from __future__ import annotations

from functools import lru_cache

from headrace.avro_schema import Field, Name, Record, Schema, parse_schema, self_contained_text


def root_record(schema: Schema) -> Record:
    """Returns the root record of a schema. A schema that is no record is wrapped in a record with one field ""."""
    root = schema.resolve(schema.root)
    return root if isinstance(root, Record) else Record(Name("Message"), (Field("", schema.root),))


def load_text(record: Record) -> str:
    """Returns the text of a load schema, `record`, with the definitions of all types that it uses."""
    return self_contained_text(Schema(record))


@lru_cache(maxsize=64)
def load_record(text: str) -> Record:
    """Parses the text of a load schema and returns its root record, which has a field per column."""
    root = parse_schema(text, source="load schema").root
    assert isinstance(root, Record)
    return root
