"""From request to content: schemas parsed with their references, and how equal schemas find each other."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace

from avro_schema import Schema, SchemaParseError, canonical_text, normalized_text, parse_schema, self_contained_text
from registry.domain import (
    LATEST,
    SCHEMA_TYPE,
    SchemaContent,
    SchemaReference,
    SchemaRequest,
    StoredSchema,
)
from registry.errors import InvalidSchema
from registry.names import in_context_of, qualified
from registry.storage.repository import Repository

PARSED_MAX = 1000  # parsed schemas kept; the Confluent registry's own cache size
SHOWN_TEXT_MAX = 500  # characters of a refused schema that its error repeats


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schema in a request, parsed. `lookup_key` is equal for schemas that differ only in how they are written."""

    content: SchemaContent
    schema: Schema
    lookup_key: bytes


class SchemaTexts:
    """Parses schemas, keeping those that are stored. Thread-safe."""

    def __init__(self) -> None:
        # By row key, which is never used for another content, so that nothing here can become wrong.
        self._parsed: OrderedDict[int, Schema] = OrderedDict()
        self._lock = threading.Lock()

    def candidate(
        self, repository: Repository, subject: str, request: SchemaRequest, *, normalize: bool, strict: bool
    ) -> Candidate:
        """The request's schema, with references to "latest" made definite.

        Raises:
            InvalidSchema: it is no Avro schema, or refers to what is not there.
        """
        if request.schema_type != SCHEMA_TYPE:
            raise InvalidSchema(f"Invalid schema type {request.schema_type}")
        if not request.text or not request.text.strip():
            raise InvalidSchema("Empty schema")
        try:
            references = tuple(_definite(repository, subject, reference) for reference in request.references)
            schema = parse_schema(
                request.text, references=self._referenced(repository, subject, references), source="", strict=strict
            )
        except SchemaParseError as error:
            raise _invalid(subject, request, _described(error)) from error
        except _ReferenceMissing as error:
            raise _invalid(subject, request, str(error)) from error
        if normalize:
            text, references = normalized_text(schema), tuple(sorted(set(references)))
        else:
            text = canonical_text(schema)
        content = SchemaContent(text, references, request.metadata, request.rule_set)
        return Candidate(content, schema, _lookup_key(schema, bool(references)))

    def parsed(self, repository: Repository, stored: StoredSchema) -> Schema:
        """A stored schema; leniently, because it may be older than today's rules."""
        with self._lock:
            found = self._parsed.get(stored.row_key)
            if found is not None:
                self._parsed.move_to_end(stored.row_key)
                return found
        references = self._referenced(repository, qualified(stored.context, ""), stored.content.references)
        schema = parse_schema(stored.content.text, references=references, strict=False)
        with self._lock:
            self._parsed[stored.row_key] = schema
            while len(self._parsed) > PARSED_MAX:
                self._parsed.popitem(last=False)
        return schema

    def _referenced(self, repository: Repository, parent: str, references: tuple[SchemaReference, ...]) -> list[Schema]:
        schemas = []
        for reference in references:
            # Also softly deleted: what a stored schema refers to stays part of it.
            target = in_context_of(parent, reference.subject)
            found = repository.version(target, reference.version, deleted=True)
            if found is None:
                raise _ReferenceMissing(reference)
            schemas.append(self.parsed(repository, found.schema))
        return schemas


class _ReferenceMissing(Exception):
    def __init__(self, reference: SchemaReference) -> None:
        super().__init__(f'No schema reference found for subject "{reference.subject}" and version {reference.version}')


def _definite(repository: Repository, subject: str, reference: SchemaReference) -> SchemaReference:
    found = repository.version(in_context_of(subject, reference.subject), reference.version)
    if found is None or reference.version < LATEST:
        raise _ReferenceMissing(reference)
    return replace(reference, version=found.version)


def _lookup_key(schema: Schema, has_references: bool) -> bytes:
    # References are written out first, so that a schema written in one piece finds the one that was split.
    whole = parse_schema(self_contained_text(schema), strict=False) if has_references else schema
    return hashlib.md5(normalized_text(whole).encode(), usedforsecurity=False).digest()


def _described(error: SchemaParseError) -> str:
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
