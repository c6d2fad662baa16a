"""Compares our parser with Avro Java: verdicts, texts, Parsing Canonical Form and fingerprints."""

import json
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.avro_schema import (
    SchemaParseError,
    canonical_text,
    fingerprint_crc64,
    parse_schema,
    parsing_canonical_form,
)
from support.cases import all_cases
from support.java_oracle import JavaOracle, decode_text, java_oracle
from support.schemas.strategies import schema_values


@pytest.fixture(scope="module")
def java(tmp_path_factory) -> Iterator[JavaOracle]:
    with java_oracle("SchemaOracle", tmp_path_factory.mktemp("java")) as oracle:
        yield oracle


def python_result(text: str, *, lenient_json: bool = False) -> list[str]:
    try:
        schema = parse_schema(text, lenient_json=lenient_json)
    except SchemaParseError as error:
        return ["error", str(error)]
    return ["ok", canonical_text(schema), parsing_canonical_form(schema), f"{fingerprint_crc64(schema):016x}"]


def java_result(java: JavaOracle, text: str) -> list[str]:
    verdict, *rest = java.call(text)
    return [verdict, decode_text(rest[0]), *([decode_text(rest[1]), rest[2]] if verdict == "ok" else [])]


def assert_same(java: JavaOracle, text: str) -> None:
    expected, found = python_result(text), java_result(java, text)
    if expected[0] == found[0] == "error":
        return
    assert expected == found, text


@given(value=schema_values())
def test_generated_schemas_match_avro_java(java, value):
    text = json.dumps(value)
    assert python_result(text)[0] == "ok", python_result(text)
    assert_same(java, text)


@given(value=schema_values(max_depth=2), data=st.data())
def test_damaged_schemas_match_avro_java(java, value, data):
    """Verdicts are equal also if one value of a valid schema is replaced, dropped or repeated."""
    assert_same(java, json.dumps(_damage(value, data)))


_WRONG = [
    "int",
    "R",
    "S",
    "a-b",
    "",
    ".A",
    "n..m",
    None,
    5,
    -1,
    1.5,
    True,
    [],
    {},
    ["null"],
    {"type": "int"},
    ["A", "A"],
]


def _damage(value, data):
    if isinstance(value, dict) and value:
        key = data.draw(st.sampled_from(sorted(value)))
        change = data.draw(st.sampled_from(["inner", "inner", "inner", "replace", "drop"]))
        if change == "drop":
            return {k: v for k, v in value.items() if k != key}
        changed = _damage(value[key], data) if change == "inner" else data.draw(st.sampled_from(_WRONG))
        return {**value, key: changed}
    if isinstance(value, list) and value:
        i = data.draw(st.integers(0, len(value) - 1))
        if data.draw(st.integers(0, 3)) == 0:
            return [*value, value[i]]
        return [*value[:i], _damage(value[i], data), *value[i + 1 :]]
    return data.draw(st.sampled_from(_WRONG))


CASES = [
    '{"type":"record","name":"A","namespace":"n","fields":[{"name":"b","type":"B"},'
    '{"name":"c","type":{"type":"record","name":"B","fields":[]}}]}',
    '{"type":"record","name":"A","namespace":"n","fields":[{"name":"b","type":"B"},'
    '{"name":"x","type":{"type":"fixed","size":1,"name":"B","namespace":""}}]}',
    '{"type":"record","name":".A","namespace":"q","fields":[]}',
    '{"type":"record","name":"A","namespace":"a..b","fields":[]}',
    '{"type":"record","name":"n.string","fields":[{"name":"a","type":["null","n.string"]},{"name":"b","type":"string"}]}',
    '{"type":"record","name":"n.record","fields":[{"name":"a","type":["null","n.record"]}]}',
    '{"type":"record","name":"A","fields":[{"name":"f","type":"double","default":"NaN"}]}',
    '{"type":"record","name":"A","fields":[{"name":"f","type":["null","double"],"default":"1.5"}]}',
    '{"type":"record","name":"A","fields":[{"name":"f","type":"double","default":123456789012345678901234567890}]}',
    '{"type":"record","name":"a.A","fields":[{"name":"x","type":{"type":"record","namespace":"","name":"B","fields":'
    '[{"name":"q","type":["null","a.A"]}]}},{"name":"y","type":"B"}]}',
    '[{"type":"record","name":"A","fields":[]},{"type":"record","name":"n.A","fields":[]}]',
    '[{"type":"record","name":"A","fields":[]},"A"]',
    '{"type":"record","name":"A","fields":[{"name":"f","type":{"type":"A"}},{"name":"g","type":["null",{"type":"A"}]}]}',
    '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"fixed","name":"F","size":1}},'
    '{"name":"b","type":{"type":"fixed","name":"F","size":1}}]}',
    '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"fixed","name":"F","size":1}},'
    '{"name":"b","type":{"type":"fixed","name":"F","size":1,"doc":"d"}}]}',
    '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"fixed","name":"F","size":1}},'
    '{"name":"b","type":{"type":"fixed","name":"F","size":2}}]}',
    '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"record","name":"R","fields":[]}}]}',
    '{"type":"record","name":"R","aliases":["A","A","n.A"],"fields":[{"name":"a","type":"int","aliases":["b","b"]}]}',
    '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"record","name":"S","fields":[{"name":"x","type":'
    '{"type":"fixed","name":"F","size":1}}]}},{"name":"b","type":{"type":"record","name":"S","doc":"d","fields":'
    '[{"name":"x","type":"F","doc":"d","aliases":["y"]}]}}]}',
    '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"enum","name":"E","symbols":["A"]}},'
    '{"name":"b","type":{"type":"enum","name":"E","symbols":["A"],"default":"A"}}]}',
    '{"type":"string","note":"\\u0001\\u001f\\u007f\\u2028é\\\\u001f\\ud83d\\ude00"}',
    '{"type":"fixed","name":"F","size":4294967296}',
    '"union"',
    '"record"',
    '{"type":"union"}',
    '""',
    '{"type":""}',
    '{"type":"record","name":"R","namespace":"","fields":[]}',
    '{"type":"record","name":"R","namespace":null,"doc":null,"fields":[]}',
    '{"type":"enum","name":"E","symbols":["A"],"default":null}',
    '{"type":"record","name":"R","fields":[{"name":"f","type":"int","default":1,"order":null}]}',
    '{"type":"record","name":"R","aliases":null,"fields":[]}',
    '{"type":"record","name":"R","aliases":[5],"fields":[]}',
    '{"type":"record","name":"R.","fields":[]}',
    '{"type":"record","name":"R","fields":[{"name":"f","type":"float","default":1e39}]}',
    '{"type":"record","name":"R","fields":[{"name":"f","type":"int","default":2147483648}]}',
    '{"type":"map","values":"int","default":{},"x":[]}',
]


def test_special_cases_match_avro_java(java):
    for text in CASES:
        assert_same(java, text)


def test_a_duplicate_key_is_refused_although_java_takes_the_last(java):
    text = '{"type":"int","a":1,"a":2}'
    assert python_result(text)[0] == "error"
    assert java_result(java, text)[0] == "ok"


LENIENT_CASES = [
    '/* licence */ "string"',
    '// licence\n{"type":"int"}',
    '// one\r"int"',
    '/**/{/*a*/"type"//b\n:/*c*/"int"/**/,/*d*/"x"/**/:[/**/1/**/,/**/2/***/]/*e*/}',
    '{"type":"int","x":"/* no */ // comment"}',
    '{"type":"int","x":"a\\"/* no comment"}',
    '{"type":"int","type":"string"}',
    '{"p":1,"type":"record","name":"A","q":2,"p":3,"fields":[]}',
    '{"type":"record","name":"A","doc":"x","doc":"y","fields":[{"name":"a","type":"int"}],"fields":[]}',
    '{"type":"record","name":"A","fields":[{"name":"a","name":"b","type":"int","type":"long","default":1,"default":2}]}',
    '/* open "string"',
    '"string" /* open',
    "/",
    '{"type":"int"/}',
    '# no comment\n"int"',
    '{"type":"int",}',
    '\ufeff"string"',
]


def test_lenient_json_matches_avro_java(java):
    """Comments, and keys that an object has several times."""
    with all_cases() as case:
        for text in LENIENT_CASES:
            with case(text):
                expected, found = java_result(java, text), python_result(text, lenient_json=True)
                assert expected[0] == found[0]
                assert expected[0] == "error" or expected == found


def test_lenient_json_takes_linear_time():
    for part in ('"', '\\"', "/*", "/**", "//", "*/"):
        assert python_result(part * 1_000_000, lenient_json=True)[0] == "error"


@given(value=schema_values(), data=st.data())
def test_comments_between_json_tokens_do_not_change_a_schema(value, data):
    comments = st.sampled_from(["", " ", '/* " */', "/***/", "// [ {\n", "//\r\n"])
    tokens = re.findall(r'"(?:[^"\\]|\\.)*"|[\[\]{}:,]|[^\s\[\]{}:,"]+', json.dumps(value))
    text = "".join(data.draw(comments) + token for token in tokens)
    assert python_result(text, lenient_json=True) == python_result(json.dumps(value))
