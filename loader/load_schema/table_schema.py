"""The schema that a topic's Hive table declares: the schema of its files, but with a type for columns that are always
null, and with comments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

from headrace.avro_schema import Array, Map, Primitive, PrimitiveType, Record, Type, Union
from headrace.avro_schema.json_reader import TEXT_CHARS_MAX
from headrace.loader.load_schema.fold import LoadState
from headrace.loader.load_schema.kafka_record import KAFKA_COLUMN_COMMENT, load_schema_with_kafka, record_with_kafka
from headrace.loader.load_schema.text import load_record, load_text
from headrace.loader.load_schema.types import NULL, nullable

UNTYPED = nullable(Primitive(PrimitiveType.STRING))
"""The table's type of a field that has the type null in every version. HiveServer2 4.0 refuses every query of a table
with a column of type null, at any depth. The files have type null for it, which every type of a later version can read.
"""


def table_schema(text: str, kafka_column: str, comments: Mapping[int, str] = MappingProxyType({})) -> str:
    """Returns the schema that a topic's Hive table declares.

    Args:
        text: a load schema as Avro schema text.
        kafka_column: variant of the `kafka` column in the files: none, position or full.
        comments: the comment of each column, by the column's position. It becomes the field's doc, which Hive's
            deserializer and Spark use as the column's comment.
    """
    load = record_with_kafka(text, kafka_column)
    typed = _typed(load)
    assert isinstance(typed, Record)
    fields = (replace(field, doc=comments.get(position)) for position, field in enumerate(typed.fields))
    commented = replace(typed, fields=tuple(fields))
    return load_schema_with_kafka(text, kafka_column) if commented == load else load_text(commented)


@lru_cache(maxsize=64)  # several steps of an applier need the schema of the same topic
def commented_table_schema(text: str, kafka_column: str, fold: str, literal_chars_max: int) -> str:
    """Returns the table's schema with the comments of a fold. Omits the comments if they would make the schema too long
    for a table property or for the parser.

    Args:
        text: a load schema as Avro schema text.
        kafka_column: variant of the `kafka` column in the files: none, position or full.
        fold: a `LoadState` as JSON text.
        literal_chars_max: maximum length of a schema in a table property; a longer one is stored in a file.
    """
    comments = _comments(fold)
    if kafka_column != "none":
        comments = {**comments, len(load_record(text).fields): KAFKA_COLUMN_COMMENT}
    commented = table_schema(text, kafka_column, comments)
    if len(commented) <= literal_chars_max:
        return commented
    uncommented = table_schema(text, kafka_column)
    is_literal = len(uncommented) <= literal_chars_max
    return uncommented if is_literal or len(commented) > TEXT_CHARS_MAX else commented


def table_comment(fold: str) -> str:
    """Returns the comment of a topic's table: the documentation of the newest version's record, one line; "" without
    one.

    Args:
        fold: a `LoadState` as JSON text.
    """
    return str(json.loads(fold).get("doc", ""))


def table_owner(fold: str) -> str:
    """Returns the owner of a topic by its newest schema version, "" if unknown.

    Args:
        fold: a `LoadState` as JSON text.
    """
    return str(json.loads(fold).get("owner", ""))


@lru_cache(maxsize=64)
def _comments(fold: str) -> Mapping[int, str]:
    return LoadState.from_json(json.loads(fold)).comments


def _typed(node: Type) -> Type:
    match node:
        case Primitive() if node == NULL:
            return UNTYPED
        case Union(branches=branches):
            return replace(node, branches=tuple(one if one == NULL else _typed(one) for one in branches))
        case Array(items=items):
            return replace(node, items=_typed(items))
        case Map(values=values):
            return replace(node, values=_typed(values))
        case Record(fields=fields):
            return replace(node, fields=tuple(replace(field, type=_typed(field.type)) for field in fields))
    return node
