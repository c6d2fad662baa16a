"""Compares our messages with those of the Confluent registry's own classes, version 7.5."""

from __future__ import annotations

import base64
import random
import re
from collections.abc import Iterator
from itertools import pairwise

import pytest

from headrace.avro_schema import parse_schema
from headrace.compat import CompatibilityLevel, VersionedSchema, check_level, confluent_messages
from support.java_oracle import JavaOracle, confluent_classpath, decode_text, java_oracle
from support.schemas.schema_pairs import schema_pairs

pytestmark = pytest.mark.java

PAIRS = 800
SEED = 20


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaOracle]:
    directory = tmp_path_factory.mktemp("java")
    with java_oracle("CompatMessagesOracle", directory, confluent_classpath()) as oracle:
        yield oracle


def expected_messages(java: JavaOracle, level: CompatibilityLevel, candidate: str, history: list[str]) -> list[str]:
    texts = [base64.b64encode(text.encode()).decode() for text in (candidate, *history)]
    response = java.call_line("\t".join([level.value, *texts]))
    return [decode_text(message) for message in response.split("\t")] if response else []


def actual_messages(level: CompatibilityLevel, candidate: str, history: list[str]) -> list[str]:
    versions = [
        VersionedSchema(number, parse_schema(text, strict=False)) for number, text in enumerate(history, start=1)
    ]
    report = check_level(parse_schema(candidate, strict=False), versions, level)
    # The last message is added by the registry's REST layer.
    return confluent_messages(report)[:-1]


def without_paths(messages: list[str]) -> list[str]:
    """Removes paths: Confluent 7.5 has Avro 1.11, which locates problems of a writer's union one level higher than
    1.12.
    """
    return [re.sub(r"path '[^ ]*'(?=[ )])", "path", message) for message in messages]


def has_union(text: str) -> bool:
    return "[" in re.sub(r'"(symbols|aliases|fields)": \[', "", text)


def test_messages_match_confluent_registry(java: JavaOracle) -> None:
    rng = random.Random(SEED)
    refused = 0
    for (candidate, earlier), (other, _) in pairwise(schema_pairs(SEED, PAIRS)):
        level = rng.choice(tuple(CompatibilityLevel))
        history = rng.choice(([earlier], [other, earlier], [earlier, candidate]))
        expected, found = expected_messages(java, level, candidate, history), actual_messages(level, candidate, history)
        refused += bool(expected)
        assert without_paths(found) == without_paths(expected), (level, candidate, history)
        if not any(map(has_union, (candidate, *history))):
            assert found == expected, (level, candidate, history)
    assert PAIRS / 4 < refused < PAIRS * 3 / 4
