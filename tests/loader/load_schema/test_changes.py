"""Changes of columns as text, derived from folds as loads make them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.avro_schema import parse_schema
from headrace.loader.load_schema import EMPTY, column_changes, fold


def folded(*versions: list[dict[str, Any]]) -> tuple[str, str]:
    """The text before the last version, and after it."""
    state, before = EMPTY, ""
    for number, fields in enumerate(versions, 1):
        before = state.text
        state = fold(state, number, parse_schema(json.dumps({"type": "record", "name": "O", "fields": fields})), number)
    return before, state.text


def f(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def nested(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "N", "fields": list(fields)}


ID = f("id", "long")
NULLABLE_NOTE = "note may be null"


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        ([ID], [ID, f("qty", "double", default=0)], ["+ qty double"]),
        ([ID, f("item", "string")], [ID, f("product", "string", aliases=["item"])], ["item → product"]),
        ([ID, f("note", "string")], [ID, f("note", "int")], [NULLABLE_NOTE, "+ note__int int"]),
        ([ID, f("total", "int")], [ID, f("total", "long")], ["total int → bigint"]),
        ([ID, f("note", "string")], [ID], [NULLABLE_NOTE]),
        ([ID, f("n", nested(ID))], [ID, f("n", nested(ID, f("x", "int", default=1)))], ["+ n.x int"]),
        (
            [f("a", {"type": "array", "items": nested(ID)})],
            [f("a", {"type": "array", "items": nested(ID, f("x", ["null", "string"], default=None))})],
            ["+ a[].x string"],
        ),
        (
            [f("m", {"type": "map", "values": nested(f("x", "int"))})],
            [f("m", {"type": "map", "values": nested(f("x", "long"))})],
            ["m{}.x int → bigint"],
        ),
        ([ID], [ID], []),
        (
            [f("e", {"type": "enum", "name": "E", "symbols": ["A"]})],
            [f("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]})],
            [],
        ),
        ([f("v", ["null", "int"])], [f("v", ["null", "int", "string"])], None),
    ],
)
def test_changes_of_columns_are_listed(before: list[Any], after: list[Any], changes: list[str] | None) -> None:
    found = list(column_changes(*folded(before, after)))
    assert found == (["+ v__union struct<int:int,string:string>"] if changes is None else changes)


def test_all_columns_of_the_first_schema_are_added() -> None:
    assert column_changes("", folded([ID, f("item", "string")])[1]) == ("+ id bigint", "+ item string")
