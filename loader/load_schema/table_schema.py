"""The schema that a topic's table declares: that of its files, with a type wherever they have none."""

from __future__ import annotations

from dataclasses import replace

from headrace.avro_schema import Array, Map, Primitive, PrimitiveType, Record, Type, Union
from headrace.loader.load_schema.kafka_record import load_schema_with_kafka
from headrace.loader.load_schema.text import load_record, load_text
from headrace.loader.load_schema.types import NULL, nullable

OF_NO_TYPE = nullable(Primitive(PrimitiveType.STRING))
"""What a table has for a field that every version says is null. HiveServer2 4.0 refuses each query of a table with a
column of no type, wherever in it. The files go on without one, and so read as whatever type a later version gives."""


def table_schema(text: str, kafka_column: str) -> str:
    """
    Args:
        text: a load schema, as `LoadState.text`.
        kafka_column: as of `load_schema_with_kafka`, by which the files are written.
    """
    of_files = load_schema_with_kafka(text, kafka_column)
    load = load_record(of_files)
    typed = _typed(load)
    assert isinstance(typed, Record)
    return of_files if typed == load else load_text(typed)


def _typed(node: Type) -> Type:
    match node:
        case Primitive() if node == NULL:
            return OF_NO_TYPE
        case Union(branches=branches):
            return replace(node, branches=tuple(one if one == NULL else _typed(one) for one in branches))
        case Array(items=items):
            return replace(node, items=_typed(items))
        case Map(values=values):
            return replace(node, values=_typed(values))
        case Record(fields=fields):
            return replace(node, fields=tuple(replace(field, type=_typed(field.type)) for field in fields))
    return node
