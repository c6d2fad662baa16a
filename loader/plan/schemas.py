"""The schemas of a topic, asked of the registry and kept beside the log.

A schema id never changes its meaning, so what was once answered is kept in `schemas/<id>.avsc`, and a registry that
is down stops only what nobody has asked for before. Ids found in messages that are not of the topic's own subject
are asked for by name, so that they are known or known to be absent, and no range stops twice before one of them.
`loader.read.units` says when.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from headrace.avro_schema import AvroSchemaError, Schema, self_contained_text
from headrace.loader.decide.decision import LoadSchema
from headrace.loader.decide.json_values import canonical
from headrace.loader.decide.state import TopicState
from headrace.loader.load_schema import EMPTY, KeptRoute, LoadState, fold
from headrace.loader.storage.protocols import SlotStorage
from headrace.registry.errors import (
    UNANSWERED,
    AccessRefused,
    RegistryError,
    RegistryUnavailable,
    SchemaNotFound,
    SubjectNotFound,
    VersionNotFound,
)

if TYPE_CHECKING:
    from headrace.registry.client import RegisteredSchema

logger = logging.getLogger(__name__)

SUBJECT_SUFFIX = "-value"
TIME_PROPERTY = "headrace.time"
ALLOW = "allow the loader's registry user to read it"


class Registry(Protocol):
    """What is asked of the registry's client."""

    def versions(self, subject: str) -> Sequence[int]: ...

    def version(self, subject: str, version: int) -> RegisteredSchema: ...

    def schema_by_id(self, schema_id: int) -> RegisteredSchema: ...

    def parsed(self, registered: RegisteredSchema) -> Schema: ...


@dataclass(frozen=True, slots=True)
class TopicSchemas:
    """`load_schema` is the topic's after folding in what is new; `is_changed` says that something was.

    `writer_schemas` are self-contained texts by id; `absent_ids` were asked for and do not exist. `routes` are those
    by which the subject's versions were folded in, by id.
    """

    load_schema: LoadSchema
    is_changed: bool
    writer_schemas: Mapping[int, str]
    absent_ids: frozenset[int]
    routes: Mapping[int, KeptRoute]


@dataclass(frozen=True, slots=True)
class AskedIds:
    """`absent` ids do not exist, or name nothing that could be read with; `refused` says why one may not be asked
    for. One that is nowhere here got no answer."""

    registered: frozenset[int]
    absent: frozenset[int]
    refused: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Waiting:
    """The topic cannot be loaded yet, and nothing is wrong."""

    reason: str


@dataclass(frozen=True, slots=True)
class SchemaProblem:
    """The topic cannot be loaded until somebody acts."""

    reason: str


class WriterSchemas:
    """Answers for one run. After the first request that the registry leaves unanswered it is not asked again.

    Args:
        keeps: whether new schemas are kept; a dry run leaves no trace.
    """

    def __init__(self, registry: Registry, storage: SlotStorage, *, keeps: bool = True) -> None:
        self._registry = registry
        self._storage = storage
        self._keeps = keeps
        self._outage: RegistryError | None = None

    @property
    def outage(self) -> str:
        """Why the registry could not be asked, "" while it answers."""
        if self._outage is None:
            return ""
        return (
            str(self._outage) if isinstance(self._outage, RegistryUnavailable) else f"schema registry: {self._outage}"
        )

    def of_topic(self, topic: str, known: TopicState | None) -> TopicSchemas | Waiting | SchemaProblem:
        """The schemas to load a topic with. `known` is what has been decided of it."""
        subject = topic + SUBJECT_SUFFIX
        try:
            load_schema = self._load_schema(subject, known.load_schema if known else None)
        except AccessRefused as error:
            return SchemaProblem(f"subject {subject}: {error}; {ALLOW}")
        except (AvroSchemaError, ValueError) as error:
            return SchemaProblem(
                f"subject {subject}: {error}; delete that version, or leave the topic out with loader.topics_exclude"
            )
        except UNANSWERED:
            return Waiting("the registry does not answer and no schema of this topic is known yet")
        if load_schema is None:
            return Waiting(f"no subject {subject} is registered")
        texts: dict[int, str] = {}
        absent: set[int] = set()
        for schema_id in sorted(load_schema.writer_ids | (known.asked_ids if known else frozenset())):
            try:
                text = self._text(schema_id, absent)
            except AccessRefused as error:
                return SchemaProblem(f"schema {schema_id}: {error}; {ALLOW}")
            if text is not None:
                texts[schema_id] = text
        changed = known is None or load_schema != known.load_schema
        return TopicSchemas(load_schema, changed, texts, frozenset(absent), _folded(load_schema).routes)

    def ask(self, schema_ids: Iterable[int]) -> AskedIds:
        """Asks for schemas by id; those that exist are kept."""
        registered: set[int] = set()
        absent: set[int] = set()
        refused: dict[int, str] = {}
        for schema_id in schema_ids:
            try:
                if self._text(schema_id, absent) is not None:
                    registered.add(schema_id)
            except AccessRefused as error:
                refused[schema_id] = f"{error}; {ALLOW}"
        return AskedIds(frozenset(registered), frozenset(absent), refused)

    def _load_schema(self, subject: str, known: LoadSchema | None) -> LoadSchema | None:
        """The load schema after the versions that are not in it yet; None for a subject that does not exist."""
        try:
            versions = self._versions(subject)
        except UNANSWERED:
            if known is None:
                raise
            return known
        state = _folded(known) if known else EMPTY
        news = [version for version in versions if version not in state.versions]
        if not news:
            return known
        folded = known
        for version in news:
            try:
                registered = self._registry.version(subject, version)
                schema = self._registry.parsed(registered)
            except (VersionNotFound, SubjectNotFound):
                continue  # deleted since it was listed
            except UNANSWERED as error:
                self._note_outage(error)
                break
            state = fold(state, version, schema, registered.schema_id)
            self._keep(registered.schema_id, self_contained_text(schema))
            folded = LoadSchema(
                revision=(known.revision if known else 0) + 1,
                subject=subject,
                version=max(state.versions),
                fold=canonical(state.to_json()).decode(),
                text=state.text,
                writer_ids=(folded.writer_ids if folded else frozenset()) | {registered.schema_id},
                time_property=registered.metadata.get(TIME_PROPERTY, ""),
            )
        return folded

    def _versions(self, subject: str) -> list[int]:
        if self._outage:
            raise self._outage
        try:
            return sorted(self._registry.versions(subject))
        except SubjectNotFound:
            return []
        except UNANSWERED as error:
            self._note_outage(error)
            raise

    def _text(self, schema_id: int, absent: set[int]) -> str | None:
        """The text of a schema; None when it does not exist (then it is added to `absent`) or cannot be asked for."""
        kept = self._storage.read(_path(schema_id))
        if kept is not None:
            return kept.decode()
        if self._outage:
            return None
        try:
            text = self_contained_text(self._registry.parsed(self._registry.schema_by_id(schema_id)))
        except SchemaNotFound:
            absent.add(schema_id)
            return None
        except UNANSWERED as error:
            self._note_outage(error)
            return None
        except AccessRefused:
            raise  # nothing is known of the schema, so its messages wait
        except (AvroSchemaError, RegistryError) as error:
            # Registered but of no use (another format, a lost reference): its messages go to the quarantine.
            logger.warning("schema_unusable schema_id=%d error=%s", schema_id, error)
            absent.add(schema_id)
            return None
        self._keep(schema_id, text)
        return text

    def _keep(self, schema_id: int, text: str) -> None:
        if self._keeps and not self._storage.exists(_path(schema_id)):
            self._storage.put_if_absent(_path(schema_id), text.encode())

    def _note_outage(self, error: RegistryError) -> None:
        self._outage = error
        logger.warning("registry_unavailable error=%s", error)


def _folded(load_schema: LoadSchema) -> LoadState:
    return LoadState.from_json(json.loads(load_schema.fold))


def _path(schema_id: int) -> str:
    return f"schemas/{schema_id}.avsc"
