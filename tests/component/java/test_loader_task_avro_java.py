"""Projected rows in Avro Java: always readable, and equal to the result of its resolving reader if that succeeds."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.avro_schema import Schema, parse_schema, self_contained_text
from headrace.loader.load_schema import StoredRoute
from support.java_oracle import JavaOracle, decode_text, java_oracle
from support.loader.projection_oracle import encode, load_schema_of, project, states_of
from support.schemas.strategies import data_for, growing_histories, histories, schemas

CASES = int(os.environ.get("HEADRACE_EQUALITY_CASES") or 60)
"""Number of pairs of a history and a message in each of the two generated tests; `make equality` uses 100,000."""
DATA = 4 if CASES >= 1000 else 1
"""Messages per history: generating one takes as long as comparing several."""
SLOW = settings(
    deadline=None,
    max_examples=CASES // DATA,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaOracle]:
    with java_oracle("ProjectionOracle", tmp_path_factory.mktemp("java")) as oracle:
        yield oracle


def verdict(java: JavaOracle, writer: Schema, load: Schema, body: bytes, route: StoredRoute | None = None) -> list[str]:
    parts = (
        self_contained_text(writer).encode(),
        self_contained_text(load).encode(),
        body,
        project(writer, load, body, route),
    )
    return java.call_line(" ".join(base64.b64encode(part).decode() or "-" for part in parts)).split("\t")


@SLOW
@given(growing_histories(), st.data())
def test_additive_history_resolves_as_in_avro_java(java: JavaOracle, versions: list[Schema], data: Any) -> None:
    load = load_schema_of(*versions)
    for _ in range(DATA):
        writer = data.draw(st.sampled_from(versions))
        body = encode(writer, data.draw(data_for(writer)))
        answer = verdict(java, writer, load, body)
        assert answer == ["same"], [answer[0], *map(decode_text, answer[1:])]


@SLOW
@given(st.one_of(histories(), schemas().map(lambda schema: [schema])), st.data())
def test_every_row_is_readable(java: JavaOracle, versions: list[Schema], data: Any) -> None:
    state = states_of(*versions)[-1]
    for _ in range(DATA):
        number = data.draw(st.integers(1, len(versions)))
        writer = versions[number - 1]
        body = encode(writer, data.draw(data_for(writer)))
        answer = verdict(java, writer, parse_schema(state.text), body, state.routes[number])
        assert answer[0] != "unreadable", [answer[0], *map(decode_text, answer[1:])]


WIDENINGS = [
    ('"int"', '"float"', 16_777_217),
    ('"int"', '"double"', -(2**31)),
    ('"long"', '"float"', (1 << 54) + (1 << 30) + 1),
    ('"long"', '"double"', 2**63 - 1),
    ('"float"', '"double"', 0.10000000149011612),
    ('"int"', '"long"', -1),
]


@pytest.mark.parametrize(("narrow", "wide", "value"), WIDENINGS)
def test_promotions_round_as_in_java(java: JavaOracle, narrow: str, wide: str, value: Any) -> None:
    text = '{"type":"record","name":"R","fields":[{"name":"a","type":%s}]}'
    writer, wider = parse_schema(text % narrow), parse_schema(text % wide)
    assert verdict(java, writer, load_schema_of(writer, wider), encode(writer, {"a": value})) == ["same"]


@pytest.mark.parametrize("default", ["3.4028235e38", "3.4028236e38", "-1e39", "1" + 350 * "0"])
@pytest.mark.parametrize("kind", ["float", "double"])
def test_defaults_beyond_the_largest_are_infinite_as_in_java(java: JavaOracle, kind: str, default: str) -> None:
    text = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}%s]}'
    writer = parse_schema(text % "")
    load = parse_schema(text % f',{{"name":"b","type":"{kind}","default":{default}}}')
    assert verdict(java, writer, load, encode(writer, {"a": 1})) == ["same"]
