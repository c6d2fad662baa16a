"""Messages in the exact wording of the Confluent registry. The messages of each rule are in the golden files."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.avro_schema import Schema, parse_schema
from headrace.compat import CompatibilityLevel, VersionedSchema, check_level, confluent_messages


def record(*fields: dict[str, Any], name: str = "R") -> Schema:
    return parse_schema(json.dumps({"type": "record", "name": name, "fields": list(fields)}))


A = {"name": "a", "type": "int"}
B = {"name": "b", "type": "string"}
R_A = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'


def messages(candidate: Schema, level: str, *history: Schema) -> list[str]:
    versions = [VersionedSchema(number, schema) for number, schema in enumerate(history, 1)]
    return confluent_messages(check_level(candidate, versions, CompatibilityLevel(level)))


def test_no_messages_when_compatible() -> None:
    assert messages(record(A), "FULL", record(A)) == []


def test_backward_messages() -> None:
    assert messages(record(A, B), "BACKWARD", record(A)) == [
        "{errorType:'READER_FIELD_MISSING_DEFAULT_VALUE', description:'The field 'b' at path '/fields/1' in the new "
        "schema has no default value and is missing in the old schema', additionalInfo:'b'}",
        "{oldSchemaVersion: 1}",
        f"{{oldSchema: '{R_A}'}}",
        "{validateFields: 'false', compatibility: 'BACKWARD'}",
    ]


def test_forward_swaps_old_and_new() -> None:
    found = messages(record(A), "FORWARD_TRANSITIVE", record(A, B))
    assert "in the old schema has no default value and is missing in the new schema" in found[0]
    assert found[1] == "{oldSchemaVersion: 1}"
    assert found[-1] == "{validateFields: 'false', compatibility: 'FORWARD_TRANSITIVE'}"


def test_full_with_only_forward_problems_omits_the_old_schema() -> None:
    found = messages(record(A), "FULL", record(A, B))
    assert len(found) == 2
    assert found[1] == "{validateFields: 'false', compatibility: 'FULL'}"


def test_full_with_problems_in_both_directions_names_the_old_schema() -> None:
    found = messages(record(B), "FULL", record(A))
    assert ["old schema has no" in found[0], "new schema has no" in found[1]] == [True, True]
    assert found[2:4] == ["{oldSchemaVersion: 1}", f"{{oldSchema: '{R_A}'}}"]


def test_messages_name_newest_incompatible_version() -> None:
    with_default = {**B, "default": ""}
    found = messages(record(A, B), "BACKWARD_TRANSITIVE", record(A), record(A), record(A, with_default))
    assert "{oldSchemaVersion: 2}" in found
    assert len(found) == 4


def test_long_old_schema_is_truncated() -> None:
    fields = [{"name": f"field_{i}", "type": "string"} for i in range(1000)]
    found = messages(record(A), "BACKWARD", record(*fields))
    assert len(found[-2]) == len("{oldSchema: ''}") + 10_240


def test_ambiguous_alias_has_exception_message() -> None:
    reader = record({"name": "c", "type": "int", "aliases": ["a", "d"]})
    found = messages(reader, "BACKWARD", record(A, {"name": "d", "type": "int"}))
    assert found[0] == (
        "Unexpected exception during compatibility check: Reader record field c type:INT pos:0 matches multiple fields "
        'in writer record schema {"type":"record","name":"R","fields":[{"name":"a","type":"int"},'
        '{"name":"d","type":"int"}]}'
    )


@pytest.mark.parametrize("flag", [True, False])
def test_last_message_contains_validate_fields(flag: bool) -> None:
    report = check_level(record(A, B), [VersionedSchema(1, record(A))], CompatibilityLevel.BACKWARD)
    last = confluent_messages(report, validate_fields=flag)[-1]
    assert last == f"{{validateFields: '{str(flag).lower()}', compatibility: 'BACKWARD'}}"


def test_other_messages_come_first_even_if_compatible() -> None:
    report = check_level(record(A), [VersionedSchema(1, record(A))], CompatibilityLevel("FULL"))
    assert confluent_messages(report, validate_fields=True, extra_messages=["x", "y"]) == [
        "x",
        "y",
        "{validateFields: 'true', compatibility: 'FULL'}",
    ]
    report = check_level(record(A, B), [VersionedSchema(1, record(A))], CompatibilityLevel("BACKWARD"))
    found = confluent_messages(report, extra_messages=["x"])
    assert [found[0], found[2], found[-1]] == [
        "x",
        "{oldSchemaVersion: 1}",
        "{validateFields: 'false', compatibility: 'BACKWARD'}",
    ]
