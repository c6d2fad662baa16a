"""The docs of fields become the comments of the table's columns."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.avro_schema import Schema, parse_schema
from headrace.hive_ddl.types import COMMENT_CHARS_MAX, column_comment, table_columns
from headrace.loader.load_schema import EMPTY, LoadState, commented_table_schema, fold, table_comment, table_schema

LITERAL_CHARS_MAX = 30_000


def record(*fields: dict[str, Any]) -> Schema:
    return parse_schema(json.dumps({"type": "record", "name": "Sale", "fields": list(fields)}))


def field(name: str, kind: Any, doc: str | None = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **({} if doc is None else {"doc": doc}), **more}


def folded(*versions: Schema) -> LoadState:
    state = EMPTY
    for number, schema in enumerate(versions, 1):
        state = fold(state, number, schema, number)
    return state


def comments(state: LoadState, literal_chars_max: int = LITERAL_CHARS_MAX) -> dict[str, str]:
    text = commented_table_schema(state.text, "position", json.dumps(state.to_json()), literal_chars_max)
    columns = table_columns(parse_schema(text))
    return {column.name: column.comment for column in columns if column.comment and column.name != "kafka"}


def test_comment_of_a_column_is_the_doc_of_the_newest_version() -> None:
    first = record(field("id", "long", "number of the sale"), field("item", "string", "what was sold"))
    second = record(field("id", "long", "number of the sale, from 1"), field("item", "string", "what was sold"))
    assert comments(folded(first)) == {"id": "number of the sale", "item": "what was sold"}
    assert comments(folded(first, second)) == {"id": "number of the sale, from 1", "item": "what was sold"}


def test_comment_stays_without_the_field_and_is_removed_with_its_doc() -> None:
    first = record(field("id", "long", "number"), field("note", "string", "by hand", default=""))
    assert comments(folded(first, record(field("id", "long")))) == {"note": "by hand"}


def test_siblings_and_renamed_columns_have_comments_of_their_own() -> None:
    first = record(field("note", "string", "a text"), field("item", "string", "what was sold"))
    second = record(field("note", "int", "a number"), field("product", "string", aliases=["item"]))
    assert comments(folded(first, second)) == {"note": "a text", "note__int": "a number"}
    third = record(field("note", "int", "a number"), field("product", "string", "sold", aliases=["item"]))
    assert comments(folded(first, second, third)) == {"note": "a text", "note__int": "a number", "product": "sold"}


def test_comments_are_left_out_of_a_schema_that_would_be_too_long_for_a_property() -> None:
    state = folded(record(field("id", "long", "d" * 200)))
    plain = table_schema(state.text, "position")
    assert comments(state, len(plain) + 100) == {}
    # Even the plain schema is too long for the property, so it is stored in a file with comments.
    assert comments(state, len(plain) - 1) == {"id": "d" * 200}


def test_the_kafka_column_has_a_comment() -> None:
    state = folded(record(field("id", "long")))
    text = commented_table_schema(state.text, "position", json.dumps(state.to_json()), LITERAL_CHARS_MAX)
    *_, kafka = table_columns(parse_schema(text))
    assert (kafka.name, "offset" in kafka.comment) == ("kafka", True)
    text = commented_table_schema(state.text, "none", json.dumps(state.to_json()), LITERAL_CHARS_MAX)
    assert [column.name for column in table_columns(parse_schema(text))] == ["id"]


def test_the_table_comment_is_the_doc_of_the_newest_record() -> None:
    def documented(doc: str | None) -> Schema:
        doc_json = {} if doc is None else {"doc": doc}
        return parse_schema(json.dumps({"type": "record", "name": "Sale", "fields": [field("id", "long")], **doc_json}))

    first, second, third = documented("a sale\n'in a shop'"), documented("a sale"), documented(None)
    assert table_comment(json.dumps(folded(first).to_json())) == "a sale 'in a shop'"
    assert table_comment(json.dumps(folded(first, second).to_json())) == "a sale"
    assert table_comment(json.dumps(folded(first, second, third).to_json())) == ""


def test_files_are_written_without_comments() -> None:
    commented, plain = folded(record(field("id", "long", "number"))), folded(record(field("id", "long")))
    assert commented.text == plain.text
    assert table_schema(commented.text, "full") == table_schema(plain.text, "full")


def test_a_fold_without_docs_is_written_as_by_releases_without_comments() -> None:
    assert set(fold(EMPTY, 1, record(field("id", "long"))).to_json()) == {"text", "versions", "applied", "routes"}


def test_a_fold_with_comments_survives_json() -> None:
    state = folded(record(field("id", "long", 'it\'s \\ "${x}"')))
    assert LoadState.from_json(json.loads(json.dumps(state.to_json()))) == state
    assert comments(state) == {"id": 'it\'s \\ "${x}"'}


@given(st.text(st.characters(codec=None), max_size=400))
def test_a_comment_is_one_line_that_a_metastore_can_hold(doc: str) -> None:
    comment = column_comment(doc)
    assert len(comment.encode("utf-16-le")) <= 2 * COMMENT_CHARS_MAX
    assert comment.isprintable()
    assert column_comment(comment) == comment.strip()


def test_a_long_doc_is_cut_between_characters() -> None:
    assert column_comment("x" * 300) == "x" * 256
    assert column_comment("x" + "😀" * 200) == "x" + "😀" * 127
    assert column_comment("two\n\tlines\0") == "two lines"
    assert column_comment(None) == ""
