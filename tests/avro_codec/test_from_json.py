"""JSON values as Avro binary and back: bytes and texts as Avro Java, unnamed branches, refusals with their field."""

from __future__ import annotations

import base64
import copy
import itertools
import json
import math
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headrace.avro_codec.from_json import RECURSIONS_MAX, JsonMismatch, compile_from_json
from headrace.avro_codec.to_json import compile_to_json
from headrace.avro_schema import Schema, parse_schema
from headrace.pipeline.java import JavaNotFoundError
from support.schemas.avro_java import java_results
from support.schemas.samples import encode_samples
from support.schemas.schema_pairs import schema_pairs
from support.schemas.union_pairs import union_pairs

SCHEMAS = 150
CHANGED_TEXTS = 6
JAVA_CHANGES = re.compile(
    "no such field|code points 0 to 255|expected record [\\w.]+ |expected int, found -?[0-9]+[.]0"
)
"""The reasons to refuse a JSON value that Avro Java accepts. It drops unknown fields and the upper bits of characters
in bytes, reads anything as a record without fields, and whole fractions as integers."""

SCALARS: tuple[Any, ...] = (None, True, 0, -1, 2**31, 2**63, 0.5, 1e30, "", "abc", "é", "€", "NaN", [], {})


def changed(value: Any, rng: random.Random) -> Any:
    """Returns a copy of a JSON value with one member or item replaced, removed or added, or without a branch name."""
    value = copy.deepcopy(value)
    places: list[tuple[Any, Any]] = []
    pending = [value]
    while pending:
        node = pending.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        places += [(node, key) for key in keys]
        pending += [node[key] for key in keys]
    if not places:
        return rng.choice(SCALARS)
    node, key = rng.choice(places)
    inner = node[key]
    match rng.randrange(5):
        case 0 if isinstance(node, dict):
            del node[key]
        case 1 if isinstance(node, dict) and len(node) > 1:  # of a named branch, Avro Java ignores the others
            node[f"{key}x"] = rng.choice(SCALARS)
        case 2 if isinstance(inner, dict) and len(inner) == 1:
            (node[key],) = inner.values()
        case 3:
            node[key] = {rng.choice(("int", "string", "map", "R")): inner}
        case _:
            node[key] = rng.choice(SCALARS)
    return value


def result_of(schema: Schema, text: str) -> bytes | JsonMismatch:
    try:
        return compile_from_json(schema)(json.loads(text))
    except JsonMismatch as error:
        return error


def test_bytes_are_those_of_avro_java(tmp_path: Path) -> None:
    requests: list[dict[str, Any]] = []
    for index, (text, _) in enumerate(itertools.chain(schema_pairs(3, SCHEMAS), union_pairs(3, SCHEMAS))):
        bodies = encode_samples(parse_schema(text), random.Random(index))
        if bodies:
            requests.append({"schema": text, "bodies": [base64.b64encode(one).decode() for one in bodies], "texts": []})
    try:
        results = java_results("JsonOracle", requests, tmp_path)
    except JavaNotFoundError as error:
        pytest.skip(str(error))
    rng = random.Random(3)
    again = []
    for request, result in zip(requests, results, strict=True):
        schema = parse_schema(request["schema"])
        decode = compile_to_json(schema, None)
        for body, text in zip(request["bodies"], result["texts"], strict=True):
            assert not text or decode(base64.b64decode(body)) == json.loads(text), (request["schema"], text)
            assert not text or result_of(schema, text) == base64.b64decode(body), (request["schema"], text)
        texts = [
            json.dumps(changed(json.loads(text), rng)) for text in result["texts"] if text for _ in range(CHANGED_TEXTS)
        ]
        again.append({"schema": request["schema"], "bodies": [], "texts": texts})
    counts: Counter[str] = Counter()
    for request, result in zip(again, java_results("JsonOracle", again, tmp_path), strict=True):
        schema = parse_schema(request["schema"])
        for text, body in zip(request["texts"], result["bodies"], strict=True):
            ours = result_of(schema, text)
            if body is None:
                counts["unnamed branch" if isinstance(ours, bytes) else "both reject"] += 1
            elif isinstance(ours, bytes):
                assert ours == base64.b64decode(body), (request["schema"], text)
                counts["equal"] += 1
            else:
                assert JAVA_CHANGES.search(ours.sentence), (request["schema"], text, ours)
                counts["java changes the value"] += 1
    print(dict(counts))
    assert min(counts["equal"], counts["both reject"], counts["unnamed branch"]) > 300


RECORD = parse_schema(
    """{"type": "record", "name": "R", "namespace": "a", "fields": [
        {"name": "id", "type": "long"},
        {"name": "ratio", "type": ["null", "double"], "default": null},
        {"name": "raw", "type": {"type": "fixed", "name": "F", "size": 2}, "default": "ab"},
        {"name": "size", "type": ["int", "long", "string"], "default": 0},
        {"name": "next", "type": ["null", "R"], "default": null},
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "float"}}, "default": {}}]}"""
)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"id": 1}, {"ratio": None, "raw": "ab", "size": {"int": 0}, "next": None, "tags": {}}),
        ({"id": 1, "ratio": 0.5}, {"ratio": {"double": 0.5}}),
        ({"id": 1, "ratio": "NaN"}, {"ratio": {"double": "NaN"}}),
        ({"id": 1, "size": 2**40}, {"size": {"long": 2**40}}),
        ({"id": 1, "size": "L"}, {"size": {"string": "L"}}),
        ({"id": 1, "next": {"id": 2, "ratio": 1}}, {"next": {"a.R": {"id": 2, "ratio": {"double": 1.0}}}}),
    ],
)
def test_defaults_and_unnamed_branches(value: Any, named: dict[str, Any]) -> None:
    encode = compile_from_json(RECORD)
    assert encode(value) == encode({**value, **named})


@pytest.mark.parametrize(
    ("value", "path", "words"),
    [
        ({}, "id", "missing"),
        ({"id": 1, "idd": 1}, "idd", "no such field"),
        ({"id": 2**63}, "id", "range of long"),
        ({"id": 1.0}, "id", "expected long"),
        ({"id": True}, "id", "found true"),
        ({"id": 1, "ratio": 2**53 + 1}, "ratio", "rounds"),
        ({"id": 1, "ratio": 10**400}, "ratio", "many digits is outside"),
        ({"id": 1, "ratio": math.inf}, "ratio", "range of double"),
        ({"id": 1, "ratio": {"double": "x"}}, "ratio", "the text 'x'"),
        ({"id": 1, "raw": "abc"}, "raw", "expected 2 bytes, found 3"),
        ({"id": 1, "raw": "a€"}, "raw", "code points 0 to 255"),
        ({"id": 1, "size": 5}, "size", 'fits int and long.*{"int": …}'),
        ({"id": 1, "size": {"int": 2**31}}, "size", "range of int"),
        ({"id": 1, "size": None}, "size", "int or long or string, found null"),
        ({"id": 1, "tags": {"a": [0.5, 1e39]}}, "tags['a'][1]", "range of float"),
        ({"id": 1, "tags": {"\ud800": []}}, "tags['\\ud800']", "surrogate"),
        ({"id": 1, "next": {"id": "x"}}, "next.id", "expected long"),
        ([], "", "expected record a.R"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_field(value: Any, path: str, words: str) -> None:
    with pytest.raises(JsonMismatch, match=words) as caught:
        compile_from_json(RECORD)(value)
    assert caught.value.path == path


def nested(levels: int, inner: Any = None) -> Any:
    for _ in range(levels):
        inner = {"id": 1, "next": inner}
    return inner


def test_nesting_and_branch_tries_are_limited() -> None:
    encode = compile_from_json(RECORD)
    assert encode(nested(RECURSIONS_MAX + 1))
    with pytest.raises(JsonMismatch, match=f"more than {RECURSIONS_MAX} times"):
        encode(nested(RECURSIONS_MAX + 2))
    assert encode(nested(2)), "the limits are those of one value"
    pair = '{"type": "record", "name": "%s", "fields": [{"name": "x", "type": ["null", "A", "B"]}]}'
    twins = parse_schema(f'["null", {pair % "A"}]'.replace('"B"', pair % "B"))
    value: Any = None
    for _ in range(40):
        value = {"x": value}
    with pytest.raises(JsonMismatch, match="name the branches"):
        compile_from_json(twins)(value)
