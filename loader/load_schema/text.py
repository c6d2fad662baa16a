"""Load schemas as text and back, and the record that a message is."""

from __future__ import annotations

from functools import lru_cache

from headrace.avro_schema import Field, Name, Record, Schema, parse_schema, self_contained_text


def root_record(schema: Schema) -> Record:
    """The record that a message is: the root itself, else a record of one field "" that is the whole message."""
    root = schema.resolve(schema.root)
    return root if isinstance(root, Record) else Record(Name("Message"), (Field("", schema.root),))


def load_text(record: Record) -> str:
    """The self-contained text of a load record."""
    return self_contained_text(Schema(record))


@lru_cache(maxsize=64)
def load_record(text: str) -> Record:
    """The record of a load schema's text."""
    root = parse_schema(text, source="load schema").root
    assert isinstance(root, Record)
    return root
