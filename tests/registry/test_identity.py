"""The identity of a content, which determines its id."""

from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.registry.domain import Metadata, SchemaContent, SchemaId, SchemaReference
from headrace.registry.rules import Rule, RuleMode, RuleSet
from headrace.registry.storage.database import Database
from headrace.registry.storage.rows import metadata_json, read_metadata, read_rule_set, rule_set_json

STRING = '"string"'

# Few letters, so that concatenated texts are often equal.
words = st.text('a"1,\x01', max_size=2)
labels = st.builds(
    Metadata.of,
    st.dictionaries(words, words, max_size=2),
    st.dictionaries(words, st.lists(words, max_size=2), max_size=2),
    st.lists(words, max_size=2),
)
references = st.lists(st.builds(SchemaReference, words, words, st.integers(1, 2)), max_size=2)
rules = st.fixed_dictionaries(
    {"name": st.sampled_from(["a", "aa"]), "type": words},
    optional={
        "doc": words,
        "mode": st.sampled_from([RuleMode.WRITE, RuleMode.READ]),
        "tags": st.lists(words, max_size=2),
        "params": st.dictionaries(words, words, max_size=2),
        "expr": words,
        "onSuccess": words,
        "onFailure": words,
        "disabled": st.booleans(),
    },
).map(Rule.of)
rule_sets = st.builds(RuleSet, encoding=st.lists(rules, max_size=2).map(tuple), enable_at=st.none() | st.just("a"))
contents = st.builds(
    SchemaContent, words, references.map(tuple), st.none() | labels, st.none() | rule_sets | st.just(RuleSet())
)


@given(contents, contents)
def test_fingerprints_are_equal_for_equal_contents_only(one: SchemaContent, other: SchemaContent) -> None:
    assert (one.fingerprint == other.fingerprint) == (one == other)


@given(contents)
def test_stored_content_is_read_back_unchanged(content: SchemaContent) -> None:
    read = SchemaContent(
        content.text,
        content.references,
        read_metadata(metadata_json(content.metadata)),
        read_rule_set(rule_set_json(content.rule_set)),
    )
    assert read == content
    assert read.fingerprint == content.fingerprint


def rule(**values: object) -> RuleSet:
    return RuleSet.of({"domainRules": [{"name": "r", "type": "T", **values}]})


SAME_GUID = [
    (
        SchemaContent(STRING, metadata=Metadata.of({"**.ssn": "PII"})),
        SchemaContent(STRING, metadata=Metadata.of(tags={"**.ssn": ["PII"]})),
    ),
    (
        SchemaContent(STRING, rule_set=rule(type="ENCRYPTPII")),
        SchemaContent(STRING, rule_set=rule(type="ENCRYPT", tags=["PII"])),
    ),
    (
        SchemaContent(STRING, (SchemaReference("a", "bc", 1),)),
        SchemaContent(STRING, (SchemaReference("ab", "c", 1),)),
    ),
    (SchemaContent(STRING, metadata=Metadata()), SchemaContent(STRING, rule_set=RuleSet())),
    (
        SchemaContent(STRING, rule_set=RuleSet.of({"domainRules": [{"name": "r", "type": "T"}]})),
        SchemaContent(STRING, rule_set=RuleSet.of({"encodingRules": [{"name": "r", "type": "T"}]})),
    ),
    (SchemaContent(STRING, metadata=Metadata.of({"a": "b"})), SchemaContent(STRING, metadata=Metadata.of({"ab": ""}))),
]


@pytest.mark.parametrize(("one", "other"), SAME_GUID)
def test_contents_with_the_same_guid_have_different_fingerprints(one: SchemaContent, other: SchemaContent) -> None:
    assert one.guid == other.guid
    assert one.fingerprint != other.fingerprint


def test_fingerprint_bytes_are_stable() -> None:
    """Databases contain them."""
    content = SchemaContent(
        '"é"',
        (SchemaReference("n.N", "s", 1),),
        Metadata.of({"b": "1", "a": "é"}, {"p": ["t"]}, ["x"]),
        RuleSet.of({"domainRules": [{"name": "r", "type": "T"}], "enableAt": "now"}),
    )
    assert content.fingerprint.hex() == "1fd38ff74494d451acd2affa0be7c46ea9bc182130d1962f9ac3d09d7988a322"
    parts = b"\0\0\0\0\0\0\0\x08%b\0\0\0\0\0\0\0\x02[]" % STRING.encode() + b"\0\0\0\0\0\0\0\x04null" * 2
    assert SchemaContent(STRING).fingerprint == hashlib.sha256(parts).digest()


def test_empty_values_of_a_rule_equal_missing_ones() -> None:
    empty_values = {"doc": "", "expr": "", "onSuccess": "", "onFailure": "", "tags": [], "params": {}}
    assert rule(**empty_values) == rule()
    assert "type" in json.loads(rule_set_json(rule(type="")) or "")["domainRules"][0]


def test_lookup_by_fingerprint_compares_contents(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SchemaContent, "fingerprint", property(lambda _: b"f" * 32))
    database = Database(database_url)
    one, other = SAME_GUID[0]
    row_key = database.write(lambda repository: repository.add_schema(".", SchemaId(1), one, b"k" * 16, 0))
    found = database.read(lambda repository: repository.schema_with_content(".", one))
    assert found is not None
    assert found.row_key == row_key
    assert database.read(lambda repository: repository.schema_with_content(".", other)) is None
    database.close()
