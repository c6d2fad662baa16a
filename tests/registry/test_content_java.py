"""Identity, normalization, tags and rules against the Confluent registry's own classes, of version 7.5."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from headrace.avro_schema import canonical_text, normalized_text, parse_schema
from headrace.registry.domain import Metadata, SchemaContent
from headrace.registry.errors import InvalidRuleSet
from headrace.registry.rules import RuleKind, RuleMode, RuleSet, check_rule_set
from headrace.registry.tags import EntityKind, TaggedEntity, with_tags
from support.examples import examples
from support.java_oracle import JavaOracle, confluent_classpath, decode_text, java_oracle
from support.schemas.strategies import schema_values

pytestmark = pytest.mark.java

STRING = '"string"'
RECORD = (
    '{"type":"record","name":"R","namespace":"n","fields":[{"name":"a","type":"int","x":1,"confluent:tags":["T"]},'
    '{"name":"b","type":["null",{"type":"array","items":{"type":"record","name":"S","fields":[{"name":"c",'
    '"type":"string"}]}}]}],"confluent:tags":["U","V"]}'
)


@dataclass(frozen=True)
class Verdict:
    canonical: str
    normalized: str
    fingerprint: str
    normalized_fingerprint: str
    tagged: str
    wrong_rules: str


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaOracle]:
    directory = tmp_path_factory.mktemp("java")
    with java_oracle("ContentOracle", directory, confluent_classpath()) as oracle:
        yield oracle


def java_verdict(java: JavaOracle, request: dict[str, Any], change: dict[str, Any] | None = None) -> Verdict:
    sent = [request] if change is None else [request, change]
    line = "\t".join(base64.b64encode(json.dumps(item).encode()).decode() for item in sent)
    verdict, *fields = java.call_line(line).split("\t")
    assert verdict == "ok", decode_text(fields[0])
    return Verdict(*(decode_text(field) for field in fields))


@settings(max_examples=examples(0.5), suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(value=schema_values())
def test_texts(java: JavaOracle, value: Any) -> None:
    text = json.dumps(value)
    # There, normalization moves a type without a namespace into the one around it, which makes it another type.
    assume('"namespace": ""' not in text)
    # The reference has dropped a scale of 0 since, which is said by default.
    assume('"scale": 0' not in text)
    schema = parse_schema(text)
    verdict = java_verdict(java, {"schema": text})
    assert canonical_text(schema) == verdict.canonical
    assert normalized_text(schema) == verdict.normalized
    assert SchemaContent(verdict.canonical).guid_bytes.hex() == verdict.fingerprint


words = st.text("abcé_ 1,", max_size=4)
named_texts = st.dictionaries(words, words, max_size=3)
rules = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["a", "b", "_1", "", "1a", "a-b", "a.b", "é", "a" * 64, "a" * 65]),
        "doc": words,
        "kind": st.sampled_from(tuple(RuleKind)),
        "mode": st.sampled_from(tuple(RuleMode)),
        "type": st.sampled_from(["CEL", "X"]),
        "tags": st.lists(words, max_size=3),
        "params": named_texts,
        "expr": words,
        "onSuccess": words,
        "onFailure": words,
        "disabled": st.booleans(),
    },
)
rule_sets = st.fixed_dictionaries(
    {}, optional={"migrationRules": st.lists(rules, max_size=3), "domainRules": st.lists(rules, max_size=3)}
)
metadata = st.fixed_dictionaries(
    {},
    optional={
        "tags": st.dictionaries(words, st.lists(words, max_size=3), max_size=2),
        "properties": named_texts,
        "sensitive": st.lists(words, max_size=3),
    },
)


@given(labels=st.none() | metadata, rule_set=st.none() | rule_sets)
def test_identity_and_rules(java: JavaOracle, labels: Any, rule_set: Any) -> None:
    verdict = java_verdict(java, {"schema": STRING, "metadata": labels, "ruleSet": rule_set})
    parsed_rules = None if rule_set is None else RuleSet.of(rule_set)
    content = SchemaContent(STRING, (), None if labels is None else Metadata.of(**labels), parsed_rules)
    assert content.guid_bytes.hex() == verdict.fingerprint
    try:
        check_rule_set(parsed_rules or RuleSet())
        wrong = ""
    except InvalidRuleSet as error:
        wrong = str(error)
    assert wrong == verdict.wrong_rules


entities = st.builds(
    TaggedEntity,
    st.sampled_from(["n.R.a", "n.R.b", "R.a", "n.S.c", "S.c"]),
    st.just(EntityKind.FIELD),
    st.lists(st.sampled_from("TUVW"), min_size=1, max_size=3).map(tuple),
) | st.builds(
    TaggedEntity,
    st.sampled_from(["n.R", "R", "n.S", "S"]),
    st.just(EntityKind.RECORD),
    st.lists(st.sampled_from("TUVW"), min_size=1, max_size=3).map(tuple),
)
changes = st.lists(entities, max_size=3, unique_by=lambda entity: entity.path.removeprefix("n."))


@given(add=changes, remove=changes)
def test_tags(java: JavaOracle, add: list[TaggedEntity], remove: list[TaggedEntity]) -> None:
    change = {
        key: [
            {"schemaEntity": {"entityPath": item.path, "entityType": item.kind}, "tags": item.tags} for item in entities
        ]
        for key, entities in (("tagsToAdd", add), ("tagsToRemove", remove))
    }
    assert (
        canonical_text(parse_schema(with_tags(RECORD, add, remove)))
        == java_verdict(java, {"schema": RECORD}, change).tagged
    )
