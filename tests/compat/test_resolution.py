"""Details of the comparison of one pair beyond Avro Java's verdict, and its limits."""

from __future__ import annotations

import json
from typing import Any

import pytest

import headrace.compat.resolution
from headrace.avro_schema import parse_schema
from headrace.compat import ComparisonTooLarge, Incompatibility, IncompatibilityType, check_reader_writer


def record(name: str, *fields: tuple[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": key, "type": node} for key, node in fields], **more}


def check(reader: Any, writer: Any) -> tuple[Incompatibility, ...]:
    return check_reader_writer(parse_schema(json.dumps(reader)), parse_schema(json.dumps(writer)))


def test_paths_use_field_names_of_each_side() -> None:
    reader = record("A", ("x", "int"))
    reader["fields"][0]["aliases"] = ["y"]
    (problem,) = check(
        record("R", ("l", {"type": "array", "items": reader})),
        record("R", ("l", {"type": "array", "items": record("A", ("y", "long"))})),
    )
    assert problem.reader_side.path == ("l", "[]", "x")
    assert problem.writer_side.path == ("l", "[]", "y")
    assert problem.reader_side.position.pointer == "/fields/0/type/items/fields/0/type"


def test_missing_branch_has_causes_inside_intended_branch() -> None:
    reader = record("R", ("a", ["null", record("A", ("x", "int"), ("u", ["null", record("B", ("y", "int"))]))]))
    writer = record("R", ("a", ["null", record("A", ("x", "string"), ("u", ["null", record("B")]))]))
    (problem,) = check(reader, writer)
    assert problem.type is IncompatibilityType.MISSING_UNION_BRANCH
    assert problem.location == "/fields/0/type/1"
    assert [(cause.type.name, cause.reader_side.path, cause.causes) for cause in problem.causes] == [
        ("TYPE_MISMATCH", ("a", "x"), ()),
        ("READER_FIELD_MISSING_DEFAULT_VALUE", ("a", "u", "y"), ()),
    ]


def test_renamed_branch_is_the_intended_branch() -> None:
    (problem,) = check(["null", record("A")], ["null", record("B")])
    assert [cause.type.name for cause in problem.causes] == ["NAME_MISMATCH"]
    (problem,) = check(["null", record("A"), record("C")], ["null", record("B")])
    assert problem.causes == ()


def test_positions_are_in_referring_text() -> None:
    address = '{"type": "record", "name": "Address", "fields": [{"name": "zip", "type": "string"}]}'
    text = '{"type": "record", "name": "R", "fields": [\n  {"name": "to", "type": "Address"}]}'
    reader = parse_schema(text, references=[parse_schema(address)])
    writer = parse_schema(text, references=[parse_schema(address.replace('"zip"', '"city"'))])
    (problem,) = check_reader_writer(reader, writer)
    assert problem.field is not None
    assert (problem.reader_side.position.line, problem.reader_side.position.pointer) == (2, "/fields/0/type")
    assert problem.reader_side.path == ("to", "zip")


def test_problem_of_named_type_is_at_its_definition() -> None:
    def text(size: int) -> Any:
        return record("R", ("a", {"type": "fixed", "name": "F", "size": size}), ("b", "F"))

    first, second = check(text(1), text(2))
    assert first.reader_side.position.pointer == "/fields/0/type"
    assert second == first


def cycle(length: int, last: str) -> Any:
    """Returns nested records with the same short name; the last one refers to the first and has a value."""
    inner: Any = record("N", ("next", "s0.N"), ("value", last), namespace=f"s{length - 1}")
    for i in reversed(range(length - 1)):
        inner = record("N", ("next", inner), namespace=f"s{i}")
    return inner


def test_cycles_of_two_lengths_nest_deeper_than_recursion_limit() -> None:
    """Every record of one cycle is compared with every record of the other, nested."""
    assert check(cycle(42, "long"), cycle(42, "int")) == ()
    assert {problem.type.name for problem in check(cycle(41, "long"), cycle(42, "long"))} == {
        "READER_FIELD_MISSING_DEFAULT_VALUE"
    }
    with pytest.raises(ComparisonTooLarge, match=r"\b2000\b"):
        check(cycle(45, "long"), cycle(46, "long"))


def test_number_of_listed_problems_is_limited() -> None:
    def tree(last: str) -> Any:
        inner: Any = record("N0", ("end", last))
        for i in range(1, 41):
            inner = record(f"N{i}", ("left", inner), ("right", f"N{i - 1}"))
        return inner

    assert len(check(tree("int"), tree("string"))) == headrace.compat.resolution.INCOMPATIBILITIES_MAX


def test_too_many_pairs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headrace.compat.resolution, "PAIRS_MAX", 50)
    reader = [record(f"R{i}") for i in range(10)]
    writer = [record(f"W{i}") for i in range(10)]
    with pytest.raises(ComparisonTooLarge, match=r"\b50\b"):
        check(reader, writer)
    assert check(reader[:2], reader[:2]) == ()


def test_a_recursive_type_is_compared_once() -> None:
    def node(value: str) -> Any:
        return record("Node", ("value", value), ("next", ["null", "Node"]))

    assert check(node("long"), node("int")) == ()
    assert [problem.location for problem in check(node("int"), node("long"))] == ["/fields/0/type"]
