"""Describes the changes of a table's columns between two load schemas. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.avro_schema import Array, Field, Map, Record, Schema, Type
from headrace.hive_ddl.types import hive_type
from headrace.loader.load_schema.text import load_record
from headrace.loader.load_schema.types import split


def column_changes(before: str, after: str) -> tuple[str, ...]:
    """Describes the differences between the columns of two load schemas, in column order: `+ qty double`, `item →
    product`, `total int → bigint`, `note may be null`. Names in a nested column are dotted, with `[]` for array items
    and `{}` for map values.

    Args:
        before: the old load schema as Avro schema text; "" if there was none, so that every column is new.
        after: the new load schema as Avro schema text.
    """
    columns = load_record(before).fields if before else ()
    return tuple(_of_fields(columns, load_record(after).fields, ""))


def _of_fields(before: tuple[Field, ...], after: tuple[Field, ...], path: str) -> Iterator[str]:
    columns_before = {field.name: field for field in before}
    names_after = {field.name for field in after}
    for field in after:
        old = columns_before.get(field.name)
        if old is None:
            # A renamed column has the old name as its first alias, and no column has the old name.
            old = next(
                (columns_before[name] for name in field.aliases if name in columns_before and name not in names_after),
                None,
            )
            if old is None:
                yield f"+ {path}{field.name} {_hive_type_text(field.type)}"
                continue
            yield f"{path}{old.name} → {field.name}"
        yield from _of_types(old.type, field.type, f"{path}{field.name}")


def _of_types(before: Type, after: Type, path: str) -> Iterator[str]:
    (old, was_nullable), (new, is_nullable) = split(before), split(after)
    if is_nullable and not was_nullable:
        yield f"{path} may be null"
    if isinstance(old, Record) and isinstance(new, Record):
        yield from _of_fields(old.fields, new.fields, f"{path}.")
    elif isinstance(old, Array) and isinstance(new, Array):
        yield from _of_types(old.items, new.items, f"{path}[]")
    elif isinstance(old, Map) and isinstance(new, Map):
        yield from _of_types(old.values, new.values, f"{path}{{}}")
    elif _hive_type_text(old) != _hive_type_text(new):
        yield f"{path} {_hive_type_text(old)} → {_hive_type_text(new)}"


def _hive_type_text(node: Type) -> str:
    return hive_type(Schema(node), node)
