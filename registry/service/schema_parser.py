"""From request to content: schemas parsed with their references, and how equal schemas find each other."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from headrace.avro_schema import (
    Schema,
    SchemaParseError,
    canonical_text,
    normalized_text,
    parse_schema,
    self_contained_text,
)
from headrace.registry.domain import (
    LATEST,
    SCHEMA_TYPE,
    SchemaContent,
    SchemaReference,
    SchemaRequest,
    StoredSchema,
    StoredVersion,
)
from headrace.registry.errors import InvalidSchema
from headrace.registry.names import qualified, resolve_in_context
from headrace.registry.storage.cache import LruCache
from headrace.registry.storage.repository import Repository
from headrace.registry.storage.revision import Revision
from headrace.registry.tags import TaggedEntity, UnknownEntity, known_entities, tagged_entities, with_tags

PARSED_SCHEMAS_MAX = 1000  # parsed schemas kept; the Confluent registry's own cache size
PARSED_REQUESTS_MAX = 400  # texts of requests kept as parsed, most of them in two spellings
CACHED_CHARS_MAX = 2_000_000  # of the texts of either; what is parsed takes some 15 bytes for each
REFERENCES_MAX = 1000  # schemas that one may refer to, itself and through others; beyond that a request takes seconds
RESOLVED_FORMAT = "resolved"
SHOWN_TEXT_MAX = 500  # characters of a refused schema that its error repeats


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schema in a request, parsed. `lookup_key` is equal for schemas that differ only in how they are written.

    The schema follows from `text`, which is as it came, and what the keys of `targets` stand for, to which it refers.
    """

    content: SchemaContent
    schema: Schema
    lookup_key: bytes
    text: str
    targets: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class _ParsedSchema:
    """A stored schema.

    `row_keys` has its own row key and those of all schemas that it refers to, at any distance; `key` is equal when these
    are the same and refer to each other in the same way. That held at `revision`: an import may give a version that is
    referred to another schema.
    """

    schema: Schema
    row_keys: frozenset[int]
    key: bytes
    revision: Revision

    @classmethod
    def of(
        cls, stored: StoredSchema, references: list[_ParsedSchema], key: bytes, revision: Revision, known: Schema | None
    ) -> _ParsedSchema:
        """`known` is the schema if it has been read before."""
        row_keys = frozenset([stored.row_key]).union(*(reference.row_keys for reference in references))
        if known is None:
            schemas = [reference.schema for reference in references]
            known = parse_schema(stored.content.text, references=schemas, strict=False)
        return cls(known, row_keys, key, revision)


@dataclass(frozen=True, slots=True)
class _ParsedRequest:
    """A text of a request, read with what it refers to."""

    schema: Schema
    canonical: str
    lookup_key: bytes
    targets: tuple[bytes, ...]


class SchemaParser:
    """Parses schemas, keeping what was parsed last. Thread-safe."""

    def __init__(self) -> None:
        # By history and row key, which is never used for another content in it.
        self._stored = LruCache[tuple[int, int], _ParsedSchema](CACHED_CHARS_MAX, PARSED_SCHEMAS_MAX)
        # A text is read again when its registration has to be decided again, and often checked before it is registered.
        # With the keys of what it refers to.
        self._read = LruCache[tuple[str, bool, tuple[bytes, ...]], _ParsedRequest](
            CACHED_CHARS_MAX, PARSED_REQUESTS_MAX
        )

    def candidate(
        self,
        repository: Repository,
        subject: str,
        request: SchemaRequest,
        *,
        normalize: bool,
        strict: bool,
        deleted: bool = False,
    ) -> Candidate:
        """The request's schema, with references to "latest" made definite.

        Args:
            repository: where the schemas are that it refers to.
            subject: whose context unqualified references are in.
            request: the schema.
            normalize: whether its text is normalized.
            strict: whether default values and namespaces are checked.
            deleted: whether it may refer to what is deleted softly.

        Raises:
            InvalidSchema: it is no Avro schema, or refers to what is not there.
        """
        if request.schema_type != SCHEMA_TYPE:
            raise InvalidSchema(f"Invalid schema type {request.schema_type}")
        if not request.text or not request.text.strip():
            raise InvalidSchema("Empty schema")
        try:
            references = tuple(_resolved_reference(repository, subject, item, deleted) for item in request.references)
            read = self._read_text(repository, subject, request.text, references, strict)
        except SchemaParseError as error:
            raise _invalid(subject, request, _error_text(error)) from error
        except _UnusableReference as error:
            raise _invalid(subject, request, str(error)) from error
        text = read.canonical
        if normalize:
            text, references = normalized_text(read.schema), tuple(sorted(set(references)))
        content = SchemaContent(text, references, request.metadata, request.rule_set)
        return Candidate(content, read.schema, read.lookup_key, request.text, read.targets)

    def _read_text(
        self,
        repository: Repository,
        subject: str,
        text: str,
        references: tuple[SchemaReference, ...],
        strict: bool,
    ) -> _ParsedRequest:
        if len(references) > REFERENCES_MAX:
            raise _UnusableReference(f"{len(references)} references; at most {REFERENCES_MAX} are followed")
        targets = [self._with_references(repository, target) for target in _targets(repository, subject, references)]
        key = (text, strict, tuple(target.key for target in targets))
        read = self._read.get(key)
        if read is None:
            schema = parse_schema(text, references=_schemas_within_bounds(targets), strict=strict)
            read = _ParsedRequest(schema, canonical_text(schema), _lookup_key(schema, bool(references)), key[2])
            self._read.put(key, read, len(text))
            # Under this key it is found when it has been registered and the next version is compared with it.
            self._read.put((read.canonical, False, key[2]), read, len(read.canonical))
        return read

    def tagged(
        self, repository: Repository, subject: str, request: SchemaRequest, latest: StoredVersion | None
    ) -> SchemaRequest:
        """A request with the tags that it adds, removes or keeps from the latest version in its text.

        Raises:
            InvalidSchema: it is no Avro schema, refers to what is not there, or has no such record or field.
        """
        if not (request.tags_to_add or request.tags_to_remove or request.propagates_tags):
            return request
        if latest is not None and not (request.text and request.text.strip()):
            request = replace(request, text=latest.schema.content.text, references=latest.schema.content.references)
        kept: list[TaggedEntity] = []
        if request.propagates_tags and latest is not None:
            kept = tagged_entities(self.parsed(repository, latest.schema))
        text = self.candidate(repository, subject, request, normalize=False, strict=False).content.text
        try:
            text = with_tags(text, request.tags_to_add, request.tags_to_remove)
        except UnknownEntity as error:
            raise InvalidSchema(str(error), subject=subject) from error
        # A record or field of before that is no more has no tags to keep.
        text = with_tags(text, known_entities(text, kept), ())
        version = request.version
        if version is None and (request.tags_to_add or request.tags_to_remove):
            version = LATEST
        return replace(request, text=text, version=version, tags_to_add=(), tags_to_remove=(), propagates_tags=False)

    def formatted(self, repository: Repository, stored: StoredSchema, format_name: str) -> str:
        """A schema's text; as `resolved` with every type that it refers to written out, in other formats as it is."""
        if format_name.lower() != RESOLVED_FORMAT:
            return stored.content.text
        return self_contained_text(self.parsed(repository, stored))

    def parsed(self, repository: Repository, stored: StoredSchema) -> Schema:
        """A stored schema; leniently, because it may be older than today's rules.

        Raises:
            InvalidSchema: what it refers to is no longer there, as after an import that left it out.
        """
        return self._readable(repository, stored).schema

    def key(self, repository: Repository, stored: StoredSchema) -> bytes:
        """Equal, in whatever process, for a stored schema as long as all that it refers to is the same.

        Raises:
            InvalidSchema: what it refers to is no longer there.
        """
        if not stored.content.references:
            return _key(repository.history(), stored, ())
        return self._readable(repository, stored).key

    def _readable(self, repository: Repository, stored: StoredSchema) -> _ParsedSchema:
        try:
            return self._with_references(repository, stored)
        except (_UnusableReference, SchemaParseError) as error:
            raise InvalidSchema(f"Schema {stored.schema_id} cannot be read: {error}") from error

    def lookup_key(self, repository: Repository, stored: StoredSchema) -> bytes | None:
        """The key by which a stored schema is found; None when it cannot be read with what it refers to now."""
        try:
            return _lookup_key(self.parsed(repository, stored), bool(stored.content.references))
        except (InvalidSchema, _UnusableReference):
            return None

    def is_equivalent(self, repository: Repository, candidate: Candidate, stored: StoredSchema) -> bool:
        """Whether a schema whose `lookup_key` is the candidate's is it, written otherwise: the key may be forged."""
        content = stored.content
        if (content.text, content.references) == (candidate.content.text, candidate.content.references):
            return True
        try:
            whole = _comparable_text(self.parsed(repository, stored), bool(content.references))
        except (InvalidSchema, _UnusableReference):
            return False
        return whole == _comparable_text(candidate.schema, bool(candidate.content.references))

    def _with_references(self, repository: Repository, stored: StoredSchema) -> _ParsedSchema:
        # Not by recursion, since schemas that refer to each other make long chains.
        revision = repository.revision()
        found: dict[int, _ParsedSchema] = {}
        pending, opened = [stored], set[int]()
        while pending:
            schema = pending[-1]
            known = found.get(schema.row_key) or self._stored.get((revision.history, schema.row_key))
            # What a reference means changes with the registry's revision only.
            if known is None or (schema.content.references and known.revision != revision):
                targets = _targets(repository, qualified(schema.context, ""), schema.content.references)
                missing = [target for target in targets if target.row_key not in found]
                if missing and schema.row_key in opened:
                    raise _UnusableReference("the schemas refer to each other in a circle")
                if missing:
                    opened.add(schema.row_key)
                    pending.extend(missing)
                    continue
                references = [found[target.row_key] for target in targets]
                known = self._parsed_with(schema, references, revision, known)
                self._stored.put((revision.history, schema.row_key), known, len(schema.content.text))
            found[schema.row_key] = known
            pending.pop()
        return found[stored.row_key]

    def _parsed_with(
        self, stored: StoredSchema, references: list[_ParsedSchema], revision: Revision, before: _ParsedSchema | None
    ) -> _ParsedSchema:
        keys = tuple(reference.key for reference in references)
        key = _key(revision.history, stored, keys)
        if before is not None and before.key == key:
            return replace(before, revision=revision)
        read = self._read.get((stored.content.text, False, keys))
        return _ParsedSchema.of(stored, references, key, revision, None if read is None else read.schema)


def _key(history: int, stored: StoredSchema, references: tuple[bytes, ...]) -> bytes:
    return hashlib.sha256(b"%d %d" % (history, stored.row_key) + b"".join(references)).digest()


class _UnusableReference(Exception):
    """A reference that leads nowhere, in a circle, or to too much."""

    @classmethod
    def missing(cls, reference: SchemaReference) -> _UnusableReference:
        return cls(f'No schema reference found for subject "{reference.subject}" and version {reference.version}')


def _schemas_within_bounds(targets: list[_ParsedSchema]) -> list[Schema]:
    reached = len(frozenset[int]().union(*(target.row_keys for target in targets)))
    if reached > REFERENCES_MAX:
        raise _UnusableReference(f"{reached} schemas are referred to by others; at most {REFERENCES_MAX} are read")
    return [target.schema for target in targets]


def _targets(repository: Repository, parent: str, references: tuple[SchemaReference, ...]) -> list[StoredSchema]:
    targets = []
    for reference in references:
        # Also softly deleted: what a stored schema refers to stays part of it.
        found = repository.version(resolve_in_context(parent, reference.subject), reference.version, deleted=True)
        if found is None:
            raise _UnusableReference.missing(reference)
        targets.append(found.schema)
    return targets


def _resolved_reference(
    repository: Repository, subject: str, reference: SchemaReference, deleted: bool
) -> SchemaReference:
    number = reference.version
    target = resolve_in_context(subject, reference.subject)
    found = repository.version(target, number, deleted=deleted and number != LATEST)
    if found is None or reference.version < LATEST:
        raise _UnusableReference.missing(reference)
    return replace(reference, version=found.version)


def _lookup_key(schema: Schema, has_references: bool) -> bytes:
    return hashlib.md5(_comparable_text(schema, has_references).encode(), usedforsecurity=False).digest()


def _comparable_text(schema: Schema, has_references: bool) -> str:
    # References are written out first, so that a schema written in one piece finds the one that was split.
    whole = schema
    if has_references:
        try:
            whole = parse_schema(self_contained_text(schema), strict=False)
        except (SchemaParseError, RecursionError) as error:
            reason = _error_text(error) if isinstance(error, SchemaParseError) else "nested too deeply"
            raise _UnusableReference(f"with all that it refers to the schema cannot be read: {reason}") from error
    return normalized_text(whole)


def _error_text(error: SchemaParseError) -> str:
    return f"line {error.position.line}, column {error.position.column}: {error.message}"


def _invalid(subject: str, request: SchemaRequest, details: str) -> InvalidSchema:
    text = request.text or ""
    shown = text if len(text) <= SHOWN_TEXT_MAX else text[:SHOWN_TEXT_MAX] + "..."
    references = ", ".join(
        f"{{name='{item.name}', subject='{item.subject}', version={item.version}}}" for item in request.references
    )
    described = f"{{subject={subject},version={request.version or 0},schemaType={SCHEMA_TYPE},schema={shown}}}"
    return InvalidSchema(
        f"Invalid schema of type {SCHEMA_TYPE}, details: Invalid schema {described} with refs [{references}] "
        f"of type {SCHEMA_TYPE}, details: {details}"
    )
