"""The schemas of a topic, from the registry and from the cache.

Every schema is cached (`schema_cache`), so a registry outage stops only topics with schemas that were never fetched. A
message may have a schema id that belongs to no version of the topic's subject. Such an id is looked up after a range
has stopped before it (`loader.read.units`). If the registry has it, it is stored in the topic's state, so that no range
stops before it again.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.avro_schema import AvroSchemaError, Schema, SchemaParseError, self_contained_text
from headrace.avro_schema.message_time import TIME_PROPERTY
from headrace.loader.commit.commit import LoadSchema
from headrace.loader.commit.json_values import canonical
from headrace.loader.commit.state import TopicState
from headrace.loader.errors import SchemaReplaced
from headrace.loader.load_schema import EMPTY, LoadSchemaTooLarge, LoadState, StoredRoute, fold, with_owner
from headrace.loader.plan.registry_requests import (
    IdentityRequest,
    Registry,
    RegistryRequest,
    RegistryResponses,
    SchemaByIdRequest,
    VersionRequest,
    VersionsRequest,
)
from headrace.loader.plan.schema_cache import SchemaCache
from headrace.loader.storage.protocols import CommitStorage
from headrace.registry.errors import (
    INCONCLUSIVE_ERRORS,
    AccessDenied,
    CredentialsRefused,
    RegistryError,
    RegistryUnavailable,
    SchemaNotFound,
    SubjectNotFound,
    VersionNotFound,
)

logger = logging.getLogger(__name__)

UNUSABLE_SCHEMA = (AvroSchemaError, LoadSchemaTooLarge, RecursionError)
"""Errors of a schema of which no columns can be made: it is malformed, too large or nested too deeply."""

PERMISSION_REMEDY = "allow the loader's registry user to read it"


@dataclass(frozen=True, slots=True)
class TopicSchemas:
    """The schemas of one topic. `load_schema` includes the subject's new versions; `is_changed` means that there were
    new ones.

    `writer_schemas` are self-contained texts by id; `absent_ids` were requested and are not cached, and the registry
    has no usable schema for them. `routes` are the routes of the subject's versions, by id. `newest_id` is the
    schema id of the newest version, None if unknown. `problems` are sentences about versions of the subject that cannot
    be used; their messages go to the quarantine.
    """

    load_schema: LoadSchema
    is_changed: bool
    writer_schemas: Mapping[int, str]
    absent_ids: frozenset[int]
    routes: Mapping[int, StoredRoute]
    newest_id: int | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FetchedIds:
    """The result of `WriterSchemas.look_up`, which looks up schema ids in the registry. `registered` ids have a schema
    in the registry or in the cache. `absent` ids are not cached, and the registry has no usable schema for them.
    `refused` are ids whose schema the loader may not read or that now have another schema than before, with the reason.
    There was no conclusive response for other ids."""

    registered: frozenset[int]
    absent: frozenset[int]
    refused: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class SchemasUnavailable:
    """The result for a topic that cannot be loaded yet, with the reason: its subject has no version, or no schema is
    cached and the registry is unavailable. A later run may load it."""

    reason: str


@dataclass(frozen=True, slots=True)
class SchemaProblem:
    """The result for a topic that cannot be loaded until an operator acts, with the reason."""

    reason: str


class WriterSchemas:
    """Provides the schemas of all topics for one run, from the registry and the cache. After the first registry request
    with an inconclusive error, such as no response, no more are sent.

    Args:
        subject_of: returns the subject of a topic's values.
        writable: whether new schemas are cached; a dry run writes nothing.
    """

    def __init__(
        self, registry: Registry, storage: CommitStorage, subject_of: Callable[[str], str], *, writable: bool = True
    ) -> None:
        self._subject_of = subject_of
        self._responses = RegistryResponses(registry)
        self._cache = SchemaCache(storage, writable=writable)
        self._replaced: dict[int, SchemaReplaced] = {}
        self._folds: dict[str, LoadState] = {}
        self._compared: set[int] = set()
        """Ids of the cached schemas that this run has compared with the registry."""

    @property
    def is_refused(self) -> bool:
        """Whether the registry cannot be used because it rejected the loader's credentials."""
        return isinstance(self._responses.outage, CredentialsRefused)

    @property
    def outage(self) -> str:
        """The reason why the registry cannot be used, "" if it can."""
        outage = self._responses.outage
        if outage is None:
            return ""
        return str(outage) if isinstance(outage, RegistryUnavailable) else f"schema registry: {outage}"

    def prefetch(self, topics: Mapping[str, TopicState | None]) -> None:
        """Sends the requests that `of_topic` will need for these topics, several concurrently."""
        if not topics:
            return
        self._responses.prefetch([IdentityRequest(), *(VersionsRequest(self._subject_of(topic)) for topic in topics)])
        with contextlib.suppress(*INCONCLUSIVE_ERRORS, AccessDenied):
            self._cache.set_identity(self._responses.fetch(IdentityRequest()))
        requests = [request for topic, known in topics.items() for request in self._requests(topic, known)]
        self._responses.prefetch(requests)
        versions = [request for request in requests if isinstance(request, VersionRequest)]
        if len(versions) > 1:
            self._store(versions)

    def _store(self, requests: Iterable[VersionRequest]) -> None:
        """Caches the schemas of the responses to these requests. `of_topic` reports errors."""
        texts = {}
        for request in requests:
            with contextlib.suppress(Exception):
                registered, schema = self._responses.fetch(request)
                texts[registered.schema_id] = _self_contained_text(schema)
        self._cache.store(texts)

    def _requests(self, topic: str, known: TopicState | None) -> Iterator[RegistryRequest[object]]:
        """Yields the registry requests for the schemas of a topic: the versions of its subject that are not folded in
        yet, and the schema ids in the topic's state whose cached texts were not compared with this registry.

        If the topic's messages have ids that belong to no known version of the subject, the newest version is requested
        too: it shows whether the subject was deleted and registered again.

        Args:
            known: the topic's state, None if it has no commit.
        """
        subject = self._subject_of(topic)
        folded = self._folded(known.load_schema).versions if known else ()
        with contextlib.suppress(RegistryError):
            versions = self._responses.fetch(VersionsRequest(subject))
            newest = versions[-1:] if known and _foreign_ids(known) else ()
            yield from (VersionRequest(subject, one) for one in versions if one not in folded or one in newest)
        ids = known.load_schema.writer_ids | known.foreign_ids if known else frozenset()
        yield from (SchemaByIdRequest(one) for one in sorted(ids) if not self._cache.is_verified(one))

    def of_topic(self, topic: str, known: TopicState | None) -> TopicSchemas | SchemasUnavailable | SchemaProblem:
        """Returns the schemas for loading a topic, or the reason why it cannot be loaded.

        Args:
            known: the topic's state in the commit log, None if it has no commit.
        """
        subject = self._subject_of(topic)
        if known is not None and known.load_schema.subject != subject:
            return SchemaProblem(
                f"its table was created from subject {known.load_schema.subject}, and loader.subject is {subject} now; "
                f"set {known.load_schema.subject} in a [[loader.topic]] section for it"
            )
        try:
            load_schema, problems = self._load_schema(subject, known)
        except AccessDenied as error:
            return SchemaProblem(f"subject {subject}: {error}; {PERMISSION_REMEDY}")
        except SchemaReplaced as error:
            return SchemaProblem(f"subject {subject}: {error}")
        except INCONCLUSIVE_ERRORS:
            reason = (
                "the registry rejects the loader's credentials" if self.is_refused else "the registry is unavailable"
            )
            return SchemasUnavailable(
                f"{reason} and no schema of this topic is cached; the first load that can use the registry continues"
            )
        if load_schema is None and problems:
            return SchemaProblem("; ".join(problems))
        if load_schema is None:
            return SchemasUnavailable(
                f"no subject {subject} is registered yet; register a schema for it, or exclude the topic with "
                "loader.topics_exclude"
            )
        texts: dict[int, str] = {}
        absent: set[int] = set()
        for schema_id in sorted(load_schema.writer_ids | (known.foreign_ids if known else frozenset())):
            try:
                text = self._text(schema_id, absent)
            except AccessDenied as error:
                return SchemaProblem(f"schema {schema_id}: {error}; {PERMISSION_REMEDY}")
            except SchemaReplaced as error:
                return SchemaProblem(str(error))
            if text is not None:
                texts[schema_id] = text
        changed = known is None or load_schema != known.load_schema
        folded = self._folded(load_schema)
        return TopicSchemas(load_schema, changed, texts, frozenset(absent), folded.routes, folded.newest, problems)

    def replaced(self, ids: Mapping[str, Collection[int]], run_hash: int) -> Mapping[str, SchemaProblem]:
        """Returns the topics that use a schema id which now has another schema in the registry, each with the problem.

        Call it after `of_topic` was called for all topics. A schema that was compared once is not compared in every
        run. Each run compares two ids per topic, unless it has compared them already: the newest, because a restored
        registry lacks the newest ids, and one that changes from run to run. If any of them differs, all ids are
        compared.

        Args:
            ids: the ids of cached schemas, by topic; only topics with something to read.
            run_hash: a number that differs between runs; chooses the second id.
        """
        sampled = {one for known in ids.values() for one in _sampled_ids(sorted(known), run_hash)}
        self._compare(sampled - self._compared)
        if self._replaced:
            self._compare({one for known in ids.values() for one in known})
        self._cache.save()
        return {
            topic: SchemaProblem(str(self._replaced[min(hit)]))
            for topic, known in ids.items()
            if (hit := self._replaced.keys() & set(known))
        }

    def _compare(self, ids: Collection[int]) -> None:
        self._responses.prefetch(map(SchemaByIdRequest, sorted(ids)))
        for schema_id in sorted(ids):
            with contextlib.suppress(AccessDenied, SchemaReplaced):
                self._fetched_text(schema_id, set())

    def look_up(self, schema_ids: Iterable[int]) -> FetchedIds:
        """Looks up schemas by id in the registry, even if they are cached, and caches those that exist. Sends nothing
        after an inconclusive error; cached ids then count as registered. The ids may come from messages of several
        topics."""
        schema_ids = tuple(schema_ids)
        registered: set[int] = set()
        absent: set[int] = set()
        refused: dict[int, str] = {}
        self._responses.prefetch(map(SchemaByIdRequest, schema_ids))
        for schema_id in schema_ids:
            try:
                if self._text(schema_id, absent, trust_cached=False) is not None:
                    registered.add(schema_id)
            except AccessDenied as error:
                refused[schema_id] = f"{error}; {PERMISSION_REMEDY}"
            except SchemaReplaced as error:
                refused[schema_id] = str(error)
        self._cache.save()
        return FetchedIds(frozenset(registered), frozenset(absent), refused)

    def _load_schema(self, subject: str, topic: TopicState | None) -> tuple[LoadSchema | None, tuple[str, ...]]:
        """Returns the topic's load schema with the subject's new versions folded in, as far as they could be fetched,
        and the problems of versions that cannot be folded in. The load schema is None if the topic has none yet and its
        subject has no usable version.

        An unusable version does not stop the topic: other versions are folded in and their messages are loaded. Each
        run tries it again, since another release may be able to use it.

        Args:
            topic: the topic's state, None if it has no commit.

        Raises:
            RegistryUnavailable, ServiceError, StoreError: the topic has no load schema yet, and no version could be
                fetched.
            AccessDenied: the registry denies access to the subject.
            SchemaReplaced: a version has a schema id under which another schema is cached.
        """
        known = topic.load_schema if topic else None
        try:
            versions = self._responses.fetch(VersionsRequest(subject))
        except INCONCLUSIVE_ERRORS:
            if known is None:
                raise
            return known, ()
        problems: list[str] = []
        state = self._folded(known) if known else EMPTY
        folded = known
        is_reregistered = topic is not None and self._is_reregistered(subject, versions, topic)
        for version in (version for version in versions if is_reregistered or version not in state.versions):
            try:
                registered, schema = self._responses.fetch(VersionRequest(subject, version))
            except (VersionNotFound, SubjectNotFound):
                continue  # deleted after the versions were listed
            except INCONCLUSIVE_ERRORS:
                if folded is None:
                    raise
                break
            except UNUSABLE_SCHEMA as error:
                problems.append(_unusable_version(subject, version, error))
                continue
            try:
                self._check_cached(registered.schema_id, _self_contained_text(schema))
                if folded is not None and version in state.versions and registered.schema_id in folded.writer_ids:
                    continue
                state = with_owner(fold(state, version, schema, registered.schema_id), registered.metadata)
            except UNUSABLE_SCHEMA as error:
                problems.append(_unusable_version(subject, version, error))
                continue
            folded = LoadSchema(
                revision=(known.revision if known else 0) + 1,
                subject=subject,
                version=version if is_reregistered else max(state.versions),
                fold=canonical(state.to_json()).decode(),
                text=state.text,
                writer_ids=(folded.writer_ids if folded else frozenset()) | {registered.schema_id},
                time_property=registered.metadata.get(TIME_PROPERTY, ""),
            )
        return folded, tuple(problems)

    def _is_reregistered(self, subject: str, versions: Sequence[int], topic: TopicState) -> bool:
        """Whether the subject seems to have been permanently deleted and registered again: the schema of its newest
        version is not in the topic's load schema. Known version numbers may then belong to other schemas.

        Always False, without a request, for a topic whose messages have only ids of known versions.

        Args:
            versions: the version numbers of the subject in the registry, ascending.
        """
        if not versions or not _foreign_ids(topic):
            return False
        with contextlib.suppress(VersionNotFound, SubjectNotFound, *UNUSABLE_SCHEMA, *INCONCLUSIVE_ERRORS):
            registered, _ = self._responses.fetch(VersionRequest(subject, versions[-1]))
            return registered.schema_id not in topic.load_schema.writer_ids
        return False

    def _text(self, schema_id: int, absent: set[int], *, trust_cached: bool = True) -> str | None:
        """Returns the text of the schema with this id, from the cache or the registry; None if it does not exist or
        cannot be fetched.

        Args:
            absent: a set to which the id is added if the schema is not cached and the registry has no usable schema
                with this id.
            trust_cached: whether a cached text that was compared with this registry before needs no request.

        Raises:
            SchemaReplaced: the registry has another schema under the id than the cache.
            AccessDenied: the schema is not cached, and the registry denies access to it.
        """
        cached_text = self._cache.text(schema_id)
        if cached_text is not None and (
            self._responses.outage or (trust_cached and self._cache.is_verified(schema_id))
        ):
            return cached_text
        text = self._fetched_text(schema_id, absent if cached_text is None else set())
        return cached_text if text is None else text

    def _fetched_text(self, schema_id: int, absent: set[int]) -> str | None:
        """Requests the schema of an id from the registry and returns its text; None if there is no conclusive response,
        if the registry has no usable schema with the id, or if it denies access and the schema is cached.

        Args:
            absent: a set to which the id is added if the registry has no usable schema with it.

        Raises:
            SchemaReplaced: the cache has another schema for the id.
            AccessDenied: the schema is not cached, and the registry denies access to it.
        """
        is_cached = self._cache.text(schema_id) is not None
        try:
            text = _self_contained_text(self._responses.fetch(SchemaByIdRequest(schema_id)))
        except INCONCLUSIVE_ERRORS:
            return None
        except AccessDenied:
            if is_cached:
                return None
            raise  # the schema is unknown until access is granted, so its messages are not read
        except (AvroSchemaError, RegistryError) as error:
            if is_cached and isinstance(error, AvroSchemaError):
                raise self._record_replaced(self._cache.mark_replaced(schema_id)) from error
            if is_cached:
                self._cache.mark_compared(schema_id)
            elif not isinstance(error, SchemaNotFound):
                # Registered but unusable (another format, a missing reference): its messages are quarantined.
                logger.warning("schema_unusable schema_id=%d error=%s", schema_id, error)
            absent.add(schema_id)
            return None
        self._check_cached(schema_id, text)
        return text

    def _check_cached(self, schema_id: int, text: str) -> None:
        try:
            self._cache.compare(schema_id, text)
            self._compared.add(schema_id)
        except SchemaReplaced as error:
            raise self._record_replaced(error) from None

    def _record_replaced(self, error: SchemaReplaced) -> SchemaReplaced:
        self._replaced[error.schema_id] = error
        return error

    def _folded(self, load_schema: LoadSchema) -> LoadState:
        """Returns the state of a load schema's fold (the merge of the subject's versions), to which further versions
        can be added. The result is cached for the run, because parsing a large one takes long."""
        if load_schema.fold not in self._folds:
            self._folds[load_schema.fold] = LoadState.from_json(json.loads(load_schema.fold))
        return self._folds[load_schema.fold]


def _self_contained_text(schema: Schema) -> str:
    """Returns the text of a schema with its references written out.

    Raises:
        SchemaParseError: the schema with its references nests too deep, although each of them alone does not.
    """
    try:
        return self_contained_text(schema)
    except RecursionError:
        message = "combined with its references, its types nest too deep"
        raise SchemaParseError(message, source=schema.source) from None


def _unusable_version(subject: str, version: int, error: Exception) -> str:
    reason = "its types are nested too deeply" if isinstance(error, RecursionError) else error
    return (
        f"version {version} of subject {subject} cannot be used, and its messages go to the quarantine: {reason}; "
        "delete that version, or exclude the topic with loader.topics_exclude"
    )


def _foreign_ids(topic: TopicState) -> frozenset[int]:
    """Returns the schema ids in a topic's messages that belong to no known version of its subject."""
    return topic.foreign_ids - topic.load_schema.writer_ids


def _sampled_ids(ids: Sequence[int], run_hash: int) -> set[int]:
    return {ids[-1], ids[run_hash % len(ids)]} if ids else set()
