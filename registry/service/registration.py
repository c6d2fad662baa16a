"""Registering schemas, after the Confluent Schema Registry's order of decisions.

A registration is decided on one view of the subject, outside any write transaction, and then written if the subject
is still as it was seen; else it is decided again. So parsing and compatibility checks hold no lock, and of many
clients racing each is either first or sees the one that was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from registry.domain import (
    LATEST,
    Metadata,
    SchemaRequest,
    StoredVersion,
)
from registry.errors import IncompatibleSchema, InvalidSchema, OperationNotPermitted, StoreError
from registry.names import context_of, in_context_of
from registry.service.compatibility import Compatibility
from registry.service.configuration import Configuration
from registry.service.texts import Candidate, SchemaTexts
from registry.storage.database import Database
from registry.storage.repository import Conflict, Repository, SubjectState

logger = logging.getLogger(__name__)

DECISIONS_MAX = 200
"""Of one registration. Each one lost is another client's success on the same subject, so only a subject that takes
some two hundred registrations at once, from one unlucky client's view, can come near it."""

VERSION_PROPERTY = "confluent:version"


@dataclass(frozen=True, slots=True)
class _Plan:
    subject: str
    seen: SubjectState | None
    candidate: Candidate
    version: int


@dataclass(frozen=True, slots=True)
class Registered:
    """The version that holds the schema; `is_new` says that it was not there before."""

    stored: StoredVersion
    is_new: bool


class Registration:
    """Adds schemas. `now_ms` gives the time of registration in milliseconds since 1970."""

    def __init__(
        self,
        database: Database,
        texts: SchemaTexts,
        configuration: Configuration,
        compatibility: Compatibility,
        now_ms: Callable[[], int],
    ) -> None:
        self._database = database
        self._texts = texts
        self._configuration = configuration
        self._compatibility = compatibility
        self._now_ms = now_ms

    def register(self, subject: str, request: SchemaRequest, *, normalize: bool) -> Registered:
        """The version that holds the schema: an equal one that was there, else a new one.

        Raises:
            InvalidSchema: malformed, empty, a missing reference, or not the version that the request expects.
            IncompatibleSchema: the subject's level forbids it.
            OperationNotPermitted: the request imposes an id.
        """
        for _ in range(DECISIONS_MAX):
            decided = self._database.read(lambda repository: self._decide(repository, subject, request, normalize))
            if isinstance(decided, StoredVersion):
                return Registered(decided, is_new=False)
            try:
                stored = self._database.write(partial(self._apply, plan=decided), attempts=1)
            except Conflict:
                continue
            logger.info(
                "schema registered: subject=%s version=%d schema_id=%d",
                subject,
                stored.version,
                stored.schema.schema_id,
            )
            return Registered(stored, is_new=True)
        raise StoreError(f"Register operation on subject '{subject}' timed out: too many others at once")

    def _decide(
        self, repository: Repository, subject: str, request: SchemaRequest, normalize: bool
    ) -> StoredVersion | _Plan:
        seen = repository.subject_state(subject)
        latest = repository.version(subject, LATEST)
        request = _completed(request, latest)
        normalize = normalize or self._configuration.normalize(repository, subject)
        candidate = self._texts.candidate(repository, subject, request, normalize=normalize, strict=True)
        existing = matching(repository, subject, candidate, request, deleted=False)
        if existing is not None and _is_expected(existing, latest, request):
            return existing
        if request.schema_id is not None:
            raise OperationNotPermitted(f"Subject {subject} in context . is not in import mode", subject=subject)
        version = 1 + max((number for number, _ in repository.version_numbers(subject)), default=0)
        if request.version not in (None, 0, LATEST, version):
            raise InvalidSchema("Version is not one more than previous version", subject=subject)
        candidate = _with_metadata(candidate, request, latest, version)
        verdict = self._compatibility.verdict(repository, subject, candidate.schema)
        if not verdict.is_compatible:
            raise IncompatibleSchema(verdict.messages, subject=subject)
        return _Plan(subject, seen, candidate, version)

    def _apply(self, repository: Repository, *, plan: _Plan) -> StoredVersion:
        now_ms = self._now_ms()
        content = plan.candidate.content
        subject_id = repository.claim_subject(plan.subject, plan.seen)
        for reference in content.references:
            if not repository.hold_reference(in_context_of(plan.subject, reference.subject), reference.version):
                raise Conflict(f"{reference} has been deleted")
        context = context_of(plan.subject)
        repository.list_context(context)
        if repository.schema_of(context, content) is None:
            schema_id = repository.take_schema_id(context)
            repository.add_schema(context, schema_id, content, plan.candidate.lookup_key, now_ms)
        schema = repository.schema_of(context, content)
        if schema is None or not repository.hold_schema(schema.row_key):
            raise Conflict("the schema has gone")
        repository.add_version(subject_id, plan.version, schema.row_key, now_ms)
        _drop_replaced(repository, subject_id, plan.subject, schema.schema_id)
        return StoredVersion(plan.subject, plan.version, replace(schema, deleted=False), now_ms)


def matching(
    repository: Repository, subject: str, candidate: Candidate, request: SchemaRequest, *, deleted: bool
) -> StoredVersion | None:
    """The newest version of a subject that says the same as the candidate.

    A request without metadata matches whatever the version has; `confluent:version` counts only if both have it.
    """
    found = repository.versions(subject=subject, lookup_key=candidate.lookup_key, deleted=deleted)
    for version in reversed(found):
        if request.metadata is None or _same_metadata(request.metadata, version.schema.content.metadata):
            return version
    return None


def _completed(request: SchemaRequest, latest: StoredVersion | None) -> SchemaRequest:
    """A request without a schema changes only the latest version's metadata."""
    if request.text is not None or latest is None:
        return request
    content = latest.schema.content
    return replace(request, text=content.text, references=content.references)


def _is_expected(existing: StoredVersion, latest: StoredVersion | None, request: SchemaRequest) -> bool:
    if request.schema_id is not None and request.schema_id != existing.schema.schema_id:
        return False
    if request.version == LATEST:
        return latest is not None and latest.version == existing.version
    return request.version in (None, 0, existing.version)


def _with_metadata(
    candidate: Candidate, request: SchemaRequest, latest: StoredVersion | None, version: int
) -> Candidate:
    """Metadata that the request leaves out is the latest version's; a version number in it is kept true."""
    metadata = request.metadata
    if metadata is None and latest is not None:
        metadata = latest.schema.content.metadata
    properties = dict(metadata.properties) if metadata is not None else {}
    if (request.version or 0) > 0 or VERSION_PROPERTY in properties:
        properties[VERSION_PROPERTY] = str(version)
        metadata = replace(metadata or Metadata(), properties=tuple(sorted(properties.items())))
    return replace(candidate, content=replace(candidate.content, metadata=metadata))


def _same_metadata(wanted: Metadata, found: Metadata | None) -> bool:
    if found is None:
        return wanted == Metadata()
    left, right = dict(wanted.properties), dict(found.properties)
    if (VERSION_PROPERTY in left) != (VERSION_PROPERTY in right):
        left.pop(VERSION_PROPERTY, None)
        right.pop(VERSION_PROPERTY, None)
    return left == right and wanted.tags == found.tags and wanted.sensitive == found.sensitive


def _drop_replaced(repository: Repository, subject_id: int, subject: str, schema_id: int) -> None:
    """Registering again what was deleted softly replaces the deleted version, unless something refers to it."""
    replaced = [
        found.version
        for found in repository.versions(subject=subject, schema_id=schema_id, deleted=True)
        if found.deleted and not repository.referencing(subject, found.version, deleted=True)
    ]
    if replaced:
        repository.remove_versions(subject_id, replaced)
