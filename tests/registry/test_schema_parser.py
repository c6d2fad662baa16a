"""Parses schemas with chains, cycles and limits of references, without a database."""

from __future__ import annotations

import pytest

from headrace.registry.domain import (
    LATEST,
    SchemaContent,
    SchemaId,
    SchemaReference,
    SchemaRequest,
    StoredSchema,
    StoredVersion,
)
from headrace.registry.errors import InvalidSchema
from headrace.registry.service import schema_parser
from headrace.registry.service.schema_parser import SchemaParser
from headrace.registry.storage.revision import Revision
from headrace.registry.tags import EntityKind, TaggedEntity


class Versions:
    """The methods of a repository that the parser calls. Subject `sN` has the schema with row key N."""

    def __init__(self) -> None:
        self.schemas: list[StoredSchema] = []
        self.queries = 0
        self.now = Revision(0, 0)

    def add(self, text: str, *targets: int) -> StoredSchema:
        references = tuple(SchemaReference(f"N{target}", f"s{target}", 1) for target in targets)
        row_key = len(self.schemas)
        self.schemas.append(StoredSchema(SchemaId(row_key), SchemaContent(text, references), 0, row_key=row_key))
        return self.schemas[-1]

    def fixed(self, *targets: int) -> StoredSchema:
        return self.add(f'{{"type":"fixed","name":"N{len(self.schemas)}","size":1}}', *targets)

    def revision(self) -> Revision:
        return self.now

    def version(self, subject: str, version: int, *, deleted: bool = False) -> StoredVersion | None:
        self.queries += 1
        number = int(subject.removeprefix("s"))
        return StoredVersion(subject, 1, self.schemas[number], 0) if number < len(self.schemas) else None


def candidate(versions: Versions, request: SchemaRequest) -> schema_parser.Candidate:
    return SchemaParser().parse_candidate(versions, "s", request, normalize=False, strict=True)  # type: ignore[arg-type]


def test_long_reference_chain_is_parsed_without_recursion() -> None:
    versions = Versions()
    versions.fixed()
    for number in range(1, 550):
        versions.fixed(number - 1)
    schemas = SchemaParser()
    assert len(schemas.parse_stored(versions, versions.schemas[-1]).names) == 550  # type: ignore[arg-type]
    queries = versions.queries
    schemas.parse_stored(versions, versions.schemas[-1])  # type: ignore[arg-type]
    assert versions.queries == queries, "parsed schemas are cached"


def test_schema_referenced_twice_is_parsed_once() -> None:
    versions = Versions()
    versions.fixed()
    versions.fixed(0)
    versions.fixed(0)
    versions.fixed(1, 2)
    assert len(SchemaParser().parse_stored(versions, versions.schemas[-1]).names) == 4  # type: ignore[arg-type]


@pytest.mark.parametrize("targets", [[(0,)], [(1,), (0,)], [(1,), (2,), (3, 1), ()]])
def test_circular_references_are_rejected(targets: list[tuple[int, ...]]) -> None:
    # Only an import that replaces versions can create a cycle.
    versions = Versions()
    for row in targets:
        versions.fixed(*row)
    with pytest.raises(InvalidSchema):
        SchemaParser().parse_stored(versions, versions.schemas[0])  # type: ignore[arg-type]
    request = SchemaRequest('"int"', references=(SchemaReference("N0", "s0", 1),))
    with pytest.raises(InvalidSchema):
        candidate(versions, request)


def test_missing_reference_of_stored_schema_is_reported() -> None:
    versions = Versions()
    versions.fixed(7)
    with pytest.raises(InvalidSchema, match='No schema reference found for subject "s7" and version 1'):
        SchemaParser().parse_stored(versions, versions.schemas[0])  # type: ignore[arg-type]


@pytest.mark.parametrize(("bound", "is_rejected"), [(4, True), (5, False)])
def test_indirect_references_count_once_towards_the_limit(
    monkeypatch: pytest.MonkeyPatch, bound: int, is_rejected: bool
) -> None:
    versions = Versions()
    versions.fixed()
    versions.fixed(0)
    versions.fixed(1, 0)
    versions.fixed(1)
    versions.fixed(2, 3)
    monkeypatch.setattr(schema_parser, "REFERENCES_MAX", bound)
    request = SchemaRequest('"int"', references=(SchemaReference("N4", "s4", 1), SchemaReference("N3", "s3", LATEST)))
    if is_rejected:
        with pytest.raises(InvalidSchema, match=rf"\b5\b.*\b{bound}\b"):
            candidate(versions, request)
    else:
        assert [reference.version for reference in candidate(versions, request).content.references] == [1, 1]


def test_split_schema_has_lookup_key_of_schema_in_one_piece() -> None:
    versions = Versions()
    versions.fixed()
    reference = SchemaReference("N0", "s0", 1)
    split = candidate(versions, SchemaRequest('{"type":"array","items":"N0"}', references=(reference,)))
    whole = SchemaRequest('{"type":"array","items":{"name":"N0","type":"fixed","size":1}}')
    assert candidate(versions, whole).lookup_key == split.lookup_key


def test_schema_is_parsed_with_current_references() -> None:
    """An import may give a referenced version another schema, which increases the registry's revision."""
    versions = Versions()
    versions.fixed()
    versions.add('{"type":"record","name":"N1","fields":[{"name":"a","type":"N0"}]}', 0)
    versions.add('{"type":"record","name":"N2","fields":[{"name":"b","type":"N1"}]}', 1)
    schemas = SchemaParser()
    request = SchemaRequest('{"type":"array","items":"N2"}', references=(SchemaReference("N2", "s2", 1),))

    def sizes() -> tuple[str, bytes]:
        text = schemas.format_text(versions, versions.schemas[2], "resolved")  # type: ignore[arg-type]
        tried = schemas.parse_candidate(versions, "s", request, normalize=False, strict=True)  # type: ignore[arg-type]
        return text.partition('"size":')[2][:1], tried.lookup_key

    before = sizes()
    queries = versions.queries
    assert sizes() == before
    assert versions.queries == queries + 2, "only the request's reference is read twice; indirect ones are cached"
    other = SchemaContent('{"type":"fixed","name":"N0","size":2}')
    versions.schemas[0] = StoredSchema(SchemaId(9), other, 0, row_key=9)
    versions.now = Revision(0, 1)
    after = sizes()
    assert (before[0], after[0]) == ("1", "2")
    assert before[1] != after[1]


def test_parsed_schema_of_another_history_is_not_used() -> None:
    versions = Versions()
    schemas = SchemaParser()
    parsed = schemas.parse_stored(versions, versions.fixed())  # type: ignore[arg-type]
    assert schemas.parse_stored(versions, versions.schemas[0]) is parsed  # type: ignore[arg-type]
    again = StoredSchema(SchemaId(0), SchemaContent('{"type":"fixed","name":"N0","size":7}'), 0, row_key=0)
    versions.now = Revision(1, 0)
    assert schemas.parse_stored(versions, again) != parsed  # type: ignore[arg-type]


def test_new_revision_without_changed_references_needs_no_parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = Versions()
    versions.fixed()
    versions.fixed(0)
    schemas = SchemaParser()
    parsed = schemas.parse_stored(versions, versions.schemas[1])  # type: ignore[arg-type]
    versions.now = Revision(0, 1)
    monkeypatch.setattr(schema_parser, "parse_schema", None)
    assert schemas.parse_stored(versions, versions.schemas[1]) is parsed  # type: ignore[arg-type]


def test_tags_are_propagated_to_existing_fields_only() -> None:
    versions = Versions()
    latest = versions.add(
        '{"type":"record","name":"R","fields":[{"name":"a","type":"int","confluent:tags":["A"]},'
        '{"name":"b","type":"int","confluent:tags":["B"]}]}'
    )
    request = SchemaRequest(
        '{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"c","type":"int"}]}',
        tags_to_add=(TaggedEntity("R.c", EntityKind.FIELD, ("C",)),),
        propagates_tags=True,
    )
    schemas = SchemaParser()
    tagged = schemas.apply_tags(versions, "s", request, StoredVersion("s", 1, latest, 0))  # type: ignore[arg-type]
    text = candidate(versions, tagged).content.text
    assert text == (
        '{"type":"record","name":"R","fields":[{"name":"a","type":"int","confluent:tags":["A"]},'
        '{"name":"c","type":"int","confluent:tags":["C"]}]}'
    )
    assert tagged.version == LATEST
    plain = SchemaRequest('"int"')
    assert schemas.apply_tags(versions, "s", plain, None) is plain  # type: ignore[arg-type]


def test_text_is_parsed_once_per_references_and_strictness(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    parse_schema = schema_parser.parse_schema
    monkeypatch.setattr(
        schema_parser, "parse_schema", lambda text, **more: parsed.append(text) or parse_schema(text, **more)
    )
    versions = Versions()
    versions.fixed()
    schemas = SchemaParser()

    def read(text: str, *, strict: bool, normalize: bool = False, references: tuple[SchemaReference, ...] = ()) -> str:
        request = SchemaRequest(text, references=references)
        found = schemas.parse_candidate(versions, "s", request, normalize=normalize, strict=strict)  # type: ignore[arg-type]
        return found.content.text

    text = '{"type":"string","b":1,"a":2}'
    assert read(text, strict=True) == read(text, strict=True) == text
    assert read(text, strict=True, normalize=True) == '{"type":"string","a":2,"b":1}'
    read(text, strict=False)
    assert parsed == [text], "a text that passed the strict check passes the lenient one"
    stored = versions.add(text)
    assert schemas.parse_stored(versions, stored).root.props == (("b", 1), ("a", 2))  # type: ignore[arg-type]
    assert parsed == [text], "a registered text is not parsed again for the comparison with the next version"
    spaced = '{ "type": "long", "x": 1 }'
    read(spaced, strict=True)
    read('{"type":"long","x":1}', strict=False)
    assert parsed == [text, spaced]
    read('{"type":"long","x":1}', strict=True)
    assert len(parsed) == 3, "a lenient result does not pass the strict check"
    read(text, strict=True, references=(SchemaReference("N0", "s0", 1),))
    assert len(parsed) > 3, "other references make another schema"
