"""Parses schemas with their references, and computes keys that find equal schemas."""

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

PARSED_SCHEMAS_MAX = 1000  # cached schemas; the Confluent registry's own cache size
PARSED_REQUESTS_MAX = 400  # cached texts of requests; most are cached as sent and as stored
CACHED_CHARS_MAX = 2_000_000  # in each cache; a parsed schema takes some 15 bytes per character
REFERENCES_MAX = 1000  # direct and indirect references of a schema; more take seconds per request
RESOLVED_FORMAT = "resolved"
SHOWN_TEXT_MAX = 500  # characters of an invalid schema that its error repeats


@dataclass(frozen=True, slots=True)
class Candidate:
    """A parsed schema of a request. `lookup_key` is the same for schemas that differ only in spelling.

    `content` is the content that a registration stores: the text in canonical JSON, normalized on request, with
    references, metadata and rules. `text` is the request's own text, which may have comments. `targets` are hashes of
    the referenced schemas (see `SchemaParser.closure_key`). `text` and `targets` together determine `schema`.
    """

    content: SchemaContent
    schema: Schema
    lookup_key: bytes
    text: str
    targets: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class _ParsedSchema:
    """A stored schema, parsed.

    `row_keys` are the primary keys of the database rows of this schema and of all schemas that it refers to, directly
    or indirectly. `closure_key` is a hash of these schemas and of how they refer to each other. Both are valid at
    `revision`, because an import may give a referenced version another schema.
    """

    schema: Schema
    row_keys: frozenset[int]
    closure_key: bytes
    revision: Revision

    @classmethod
    def of(
        cls, stored: StoredSchema, references: list[_ParsedSchema], key: bytes, revision: Revision, known: Schema | None
    ) -> _ParsedSchema:
        """Parses a stored schema.

        Args:
            stored: the schema.
            references: the schemas that it refers to.
            key: its `closure_key`.
            revision: the registry's revision at which `references` were read.
            known: the parsed text of `stored` from an earlier call, or None.
        """
        row_keys = frozenset([stored.row_key]).union(*(reference.row_keys for reference in references))
        if known is None:
            schemas = [reference.schema for reference in references]
            known = parse_schema(stored.content.text, references=schemas, strict=False)
        return cls(known, row_keys, key, revision)


@dataclass(frozen=True, slots=True)
class _ParsedRequest:
    """The schema of a registry request, parsed with its references."""

    schema: Schema
    canonical: str
    lookup_key: bytes
    targets: tuple[bytes, ...]


class SchemaParser:
    """Parses schemas and caches the most recent ones. Thread-safe."""

    def __init__(self) -> None:
        # Keyed by (history, row key). Within a history a row key belongs to one content for ever.
        self._parsed_schemas = LruCache[tuple[int, int], _ParsedSchema](CACHED_CHARS_MAX, PARSED_SCHEMAS_MAX)
        # Keyed by text, strictness and the closure keys of the references. A text is parsed again when its registration
        # is decided again, and is often checked before it is registered.
        self._parsed_requests = LruCache[tuple[str, bool, tuple[bytes, ...]], _ParsedRequest](
            CACHED_CHARS_MAX, PARSED_REQUESTS_MAX
        )

    def parse_candidate(
        self,
        repository: Repository,
        subject: str,
        request: SchemaRequest,
        *,
        normalize: bool,
        strict: bool,
        deleted: bool = False,
    ) -> Candidate:
        """Parses the request's schema and resolves references to "latest" to version numbers.

        Args:
            repository: contains the referenced schemas.
            subject: references without a context refer to the context of this subject.
            request: the schema.
            normalize: normalizes the schema's text.
            strict: checks default values and namespaces.
            deleted: allows references to soft-deleted versions, if they name a version number.

        Raises:
            InvalidSchema: the text is empty or not an Avro schema, the request has another schema type, or the
                references cannot be used: a version does not exist, or there are too many.
        """
        if request.schema_type != SCHEMA_TYPE:
            raise InvalidSchema(f"Invalid schema type {request.schema_type}")
        if not request.text or not request.text.strip():
            raise InvalidSchema("Empty schema")
        if request.invalid_reference:
            raise _invalid(subject, request, f"Invalid reference: {request.invalid_reference}")
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
            raise _UnusableReference(f"the schema has {len(references)} references; the limit is {REFERENCES_MAX}")
        targets = [self._with_references(repository, target) for target in _targets(repository, subject, references)]
        key = (text, strict, tuple(target.closure_key for target in targets))
        read = self._parsed_requests.get(key)
        if read is None:
            referenced = _schemas_within_bounds(targets)
            schema = parse_schema(text, references=referenced, strict=strict, lenient_json=True)
            read = _ParsedRequest(schema, canonical_text(schema), _lookup_key(schema, bool(references)), key[2])
            self._parsed_requests.put(key, read, len(text))
            # Also cached under the canonical text, which a registration stores: the next version is compared with it.
            self._parsed_requests.put((read.canonical, False, key[2]), read, len(read.canonical))
        return read

    def apply_tags(
        self, repository: Repository, subject: str, request: SchemaRequest, latest: StoredVersion | None
    ) -> SchemaRequest:
        """Returns the request with changed tags in its schema's text. Adds and removes the tags that the request lists;
        if the request propagates tags, the tags of the latest version are added too. A request that lists tags and has
        no version gets the version `LATEST`.

        Args:
            repository: contains the referenced schemas.
            subject: the subject of the request.
            request: if it has no schema text, the schema of the latest version is tagged.
            latest: the latest version of the subject; None if the subject has no version.

        Raises:
            InvalidSchema: the text is not an Avro schema, a reference does not exist, or a tagged record or field does
                not exist.
        """
        if not (request.tags_to_add or request.tags_to_remove or request.propagates_tags):
            return request
        if latest is not None and not (request.text and request.text.strip()):
            request = replace(request, text=latest.schema.content.text, references=latest.schema.content.references)
        propagated: list[TaggedEntity] = []
        if request.propagates_tags and latest is not None:
            propagated = tagged_entities(self.parse_stored(repository, latest.schema))
        text = self.parse_candidate(repository, subject, request, normalize=False, strict=False).content.text
        try:
            text = with_tags(text, request.tags_to_add, request.tags_to_remove)
        except UnknownEntity as error:
            raise InvalidSchema(str(error), subject=subject) from error
        # Tags of records and fields that were removed are not propagated.
        text = with_tags(text, known_entities(text, propagated), ())
        version = request.version
        if version is None and (request.tags_to_add or request.tags_to_remove):
            version = LATEST
        return replace(request, text=text, version=version, tags_to_add=(), tags_to_remove=(), propagates_tags=False)

    def format_text(self, repository: Repository, stored: StoredSchema, format_name: str) -> str:
        """The text of a stored schema in a requested format: `resolved` contains every referenced type; other formats
        give the text as stored."""
        if format_name.lower() != RESOLVED_FORMAT:
            return stored.content.text
        return self_contained_text(self.parse_stored(repository, stored))

    def parse_stored(self, repository: Repository, stored: StoredSchema) -> Schema:
        """Parses a stored schema without strict checks, because it may have been registered before these checks
        existed.

        Raises:
            InvalidSchema: the schema cannot be parsed with its references; imports may omit a referenced version or
                replace its schema.
        """
        return self._parsed_or_invalid(repository, stored).schema

    def closure_key(self, repository: Repository, stored: StoredSchema) -> bytes:
        """A hash of a stored schema and of all schemas that it refers to, directly or indirectly.

        All processes compute the same key while these schemas are unchanged.

        Raises:
            InvalidSchema: the schema has references and cannot be parsed with them, such as after one was deleted.
        """
        if not stored.content.references:
            return _closure_key(repository.history(), stored, ())
        return self._parsed_or_invalid(repository, stored).closure_key

    def _parsed_or_invalid(self, repository: Repository, stored: StoredSchema) -> _ParsedSchema:
        try:
            return self._with_references(repository, stored)
        except (_UnusableReference, SchemaParseError) as error:
            raise InvalidSchema(f"Schema {stored.schema_id} cannot be parsed: {error}") from error

    def lookup_key(self, repository: Repository, stored: StoredSchema) -> bytes | None:
        """The lookup key of a stored schema; None if it cannot be parsed with its current references."""
        try:
            return _lookup_key(self.parse_stored(repository, stored), bool(stored.content.references))
        except (InvalidSchema, _UnusableReference):
            return None

    def is_equivalent(self, repository: Repository, candidate: Candidate, stored: StoredSchema) -> bool:
        """Whether a stored schema with the candidate's `lookup_key` is equal except for spelling.

        The key alone does not prove it, because MD5 can be forged.
        """
        content = stored.content
        if (content.text, content.references) == (candidate.content.text, candidate.content.references):
            return True
        try:
            stored_text = _comparable_text(self.parse_stored(repository, stored), bool(content.references))
        except (InvalidSchema, _UnusableReference):
            return False
        return stored_text == _comparable_text(candidate.schema, bool(candidate.content.references))

    def _with_references(self, repository: Repository, stored: StoredSchema) -> _ParsedSchema:
        # Iterative, because chains of references can be long.
        revision = repository.revision()
        found: dict[int, _ParsedSchema] = {}
        pending, opened = [stored], set[int]()
        while pending:
            schema = pending[-1]
            known = found.get(schema.row_key) or self._parsed_schemas.get((revision.history, schema.row_key))
            # The target of a reference changes with the registry's revision only.
            if known is None or (schema.content.references and known.revision != revision):
                targets = _targets(repository, qualified(schema.context, ""), schema.content.references)
                missing = [target for target in targets if target.row_key not in found]
                if missing and schema.row_key in opened:
                    raise _UnusableReference("circular references")
                if missing:
                    opened.add(schema.row_key)
                    pending.extend(missing)
                    continue
                references = [found[target.row_key] for target in targets]
                known = self._parsed_with(schema, references, revision, known)
                self._parsed_schemas.put((revision.history, schema.row_key), known, len(schema.content.text))
            found[schema.row_key] = known
            pending.pop()
        return found[stored.row_key]

    def _parsed_with(
        self, stored: StoredSchema, references: list[_ParsedSchema], revision: Revision, before: _ParsedSchema | None
    ) -> _ParsedSchema:
        keys = tuple(reference.closure_key for reference in references)
        key = _closure_key(revision.history, stored, keys)
        if before is not None and before.closure_key == key:
            return replace(before, revision=revision)
        read = self._parsed_requests.get((stored.content.text, False, keys))
        return _ParsedSchema.of(stored, references, key, revision, None if read is None else read.schema)


def _closure_key(history: int, stored: StoredSchema, references: tuple[bytes, ...]) -> bytes:
    return hashlib.sha256(b"%d %d" % (history, stored.row_key) + b"".join(references)).digest()


class _UnusableReference(Exception):
    """The references of a schema cannot be used: a version is missing, they are circular, there are too many, or the
    schema cannot be parsed with them."""

    @classmethod
    def missing(cls, reference: SchemaReference) -> _UnusableReference:
        return cls(f'No schema reference found for subject "{reference.subject}" and version {reference.version}')


def _schemas_within_bounds(targets: list[_ParsedSchema]) -> list[Schema]:
    count = len(frozenset[int]().union(*(target.row_keys for target in targets)))
    if count > REFERENCES_MAX:
        raise _UnusableReference(
            f"the schema has {count} direct and indirect references; the limit is {REFERENCES_MAX}"
        )
    return [target.schema for target in targets]


def _targets(repository: Repository, parent: str, references: tuple[SchemaReference, ...]) -> list[StoredSchema]:
    targets = []
    for reference in references:
        # Soft-deleted versions too: a stored schema keeps its references.
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
    # References are inlined, so that a schema in one piece equals the same schema split into several.
    inlined = schema
    if has_references:
        try:
            inlined = parse_schema(self_contained_text(schema), strict=False)
        except (SchemaParseError, RecursionError) as error:
            reason = _error_text(error) if isinstance(error, SchemaParseError) else "nested too deeply"
            raise _UnusableReference(f"the schema with its references cannot be parsed: {reason}") from error
    return normalized_text(inlined)


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
