"""The schemas of a topic, asked of the registry and kept beside the log.

What was once answered is kept (`kept_schemas`), and a registry that is down stops only what nobody has asked for
before. Ids found in messages that are not of the topic's own subject
are asked for by name, so that they are known or known to be absent, and no range stops twice before one of them.
`loader.read.units` says when.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.avro_schema import AvroSchemaError, Schema, SchemaParseError, self_contained_text
from headrace.loader.commit.commit import LoadSchema
from headrace.loader.commit.json_values import canonical
from headrace.loader.commit.state import TopicState
from headrace.loader.errors import SchemaReplaced
from headrace.loader.load_schema import EMPTY, KeptRoute, LoadState, fold
from headrace.loader.plan.asking import Asking, Identity, Question, Registry, SchemaOf, Version, Versions
from headrace.loader.plan.kept_schemas import KeptSchemas
from headrace.loader.storage.protocols import CommitStorage
from headrace.registry.errors import (
    INCONCLUSIVE_ERRORS,
    AccessDenied,
    RegistryError,
    RegistryUnavailable,
    SchemaNotFound,
    SubjectNotFound,
    VersionNotFound,
)

logger = logging.getLogger(__name__)

TIME_PROPERTY = "headrace.time"
ALLOW = "allow the loader's registry user to read it"


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
        subject_of: the subject of a topic's values.
        keeps: whether new schemas are kept; a dry run leaves no trace.
    """

    def __init__(
        self, registry: Registry, storage: CommitStorage, subject_of: Callable[[str], str], *, keeps: bool = True
    ) -> None:
        self._subject_of = subject_of
        self._asking = Asking(registry)
        self._kept = KeptSchemas(storage, keeps=keeps)
        self._replaced: dict[int, SchemaReplaced] = {}
        self._folds: dict[str, LoadState] = {}

    @property
    def outage(self) -> str:
        """Why the registry could not be asked, "" while it answers."""
        outage = self._asking.outage
        if outage is None:
            return ""
        return str(outage) if isinstance(outage, RegistryUnavailable) else f"schema registry: {outage}"

    def ask_ahead(self, topics: Mapping[str, TopicState | None]) -> None:
        """Asks what `of_topic` will ask for these topics, several questions at a time."""
        if not topics:
            return
        self._asking.ahead([Identity(), *(Versions(self._subject_of(topic)) for topic in topics)])
        with contextlib.suppress(*INCONCLUSIVE_ERRORS, AccessDenied):
            self._kept.use(self._asking.answer(Identity()))
        self._asking.ahead(question for topic, known in topics.items() for question in self._questions(topic, known))

    def _questions(self, topic: str, known: TopicState | None) -> Iterator[Question[object]]:
        """Those that follow from a subject's versions, and from what is known of the topic."""
        subject = self._subject_of(topic)
        folded = self._folded(known.load_schema).versions if known else ()
        with contextlib.suppress(RegistryError):
            versions = self._asking.answer(Versions(subject))
            newest = versions[-1:] if known and _foreign_ids(known) else ()
            yield from (Version(subject, one) for one in versions if one not in folded or one in newest)
        ids = known.load_schema.writer_ids | known.asked_ids if known else frozenset()
        yield from (SchemaOf(one) for one in sorted(ids) if not self._kept.is_compared(one))

    def of_topic(self, topic: str, known: TopicState | None) -> TopicSchemas | Waiting | SchemaProblem:
        """The schemas to load a topic with. `known` is what has been committed of it."""
        subject = self._subject_of(topic)
        if known is not None and known.load_schema.subject != subject:
            return SchemaProblem(
                f"its table was made from subject {known.load_schema.subject}, and loader.subject says {subject} now; "
                f"name {known.load_schema.subject} for it, in a [[loader.topic]] of its own"
            )
        try:
            load_schema = self._load_schema(subject, known)
        except AccessDenied as error:
            return SchemaProblem(f"subject {subject}: {error}; {ALLOW}")
        except SchemaReplaced as error:
            return SchemaProblem(f"subject {subject}: {error}")
        except (AvroSchemaError, ValueError) as error:
            return SchemaProblem(
                f"subject {subject}: {error}; delete that version, or leave the topic out with loader.topics_exclude"
            )
        except INCONCLUSIVE_ERRORS:
            return Waiting("the registry does not answer and no schema of this topic is known yet")
        if load_schema is None:
            return Waiting(f"no subject {subject} is registered")
        texts: dict[int, str] = {}
        absent: set[int] = set()
        for schema_id in sorted(load_schema.writer_ids | (known.asked_ids if known else frozenset())):
            try:
                text = self._text(schema_id, absent)
            except AccessDenied as error:
                return SchemaProblem(f"schema {schema_id}: {error}; {ALLOW}")
            except SchemaReplaced as error:
                return SchemaProblem(str(error))
            if text is not None:
                texts[schema_id] = text
        changed = known is None or load_schema != known.load_schema
        return TopicSchemas(load_schema, changed, texts, frozenset(absent), self._folded(load_schema).routes)

    def replaced(self, ids: Mapping[str, Collection[int]], turn: int) -> Mapping[str, SchemaProblem]:
        """The topics among those with something to read that use an id which the registry gave to another schema.

        To be called after `of_topic` of all topics. Texts that were compared once are not compared again, all of them,
        in every run: of each topic the newest id is, since a registry that was put back from an older copy has lost the
        newest ones, and another in turn. Once anything is found, all are.

        Args:
            ids: by topic, those whose schemas are known.
            turn: another number in each run.
        """
        self._compare({one for known in ids.values() for one in _watched(sorted(known), turn)})
        if self._replaced:
            self._compare({one for known in ids.values() for one in known})
        self._kept.save()
        return {
            topic: SchemaProblem(str(self._replaced[min(hit)]))
            for topic, known in ids.items()
            if (hit := self._replaced.keys() & set(known))
        }

    def _compare(self, ids: Collection[int]) -> None:
        self._asking.ahead(map(SchemaOf, sorted(ids)))
        for schema_id in sorted(ids):
            with contextlib.suppress(AccessDenied, SchemaReplaced):
                self._asked_text(schema_id, set())

    def ask(self, schema_ids: Iterable[int]) -> AskedIds:
        """Asks for schemas by id, also for those that other topics use; those that exist are kept."""
        schema_ids = tuple(schema_ids)
        registered: set[int] = set()
        absent: set[int] = set()
        refused: dict[int, str] = {}
        self._asking.ahead(map(SchemaOf, schema_ids))
        for schema_id in schema_ids:
            try:
                if self._text(schema_id, absent, trusts=False) is not None:
                    registered.add(schema_id)
            except AccessDenied as error:
                refused[schema_id] = f"{error}; {ALLOW}"
            except SchemaReplaced as error:
                refused[schema_id] = str(error)
        self._kept.save()
        return AskedIds(frozenset(registered), frozenset(absent), refused)

    def _load_schema(self, subject: str, topic: TopicState | None) -> LoadSchema | None:
        """The load schema after the versions that are not in it yet; None for a subject that does not exist."""
        known = topic.load_schema if topic else None
        try:
            versions = self._asking.answer(Versions(subject))
        except INCONCLUSIVE_ERRORS:
            if known is None:
                raise
            return known
        state = self._folded(known) if known else EMPTY
        folded = known
        is_anew = topic is not None and self._is_registered_anew(subject, versions, topic)
        for version in (version for version in versions if is_anew or version not in state.versions):
            try:
                registered, schema = self._asking.answer(Version(subject, version))
            except (VersionNotFound, SubjectNotFound):
                continue  # deleted since it was listed
            except INCONCLUSIVE_ERRORS:
                break
            self._compared(registered.schema_id, _whole_text(schema))
            if folded is not None and version in state.versions and registered.schema_id in folded.writer_ids:
                continue
            state = fold(state, version, schema, registered.schema_id)
            folded = LoadSchema(
                revision=(known.revision if known else 0) + 1,
                subject=subject,
                version=version if is_anew else max(state.versions),
                fold=canonical(state.to_json()).decode(),
                text=state.text,
                writer_ids=(folded.writer_ids if folded else frozenset()) | {registered.schema_id},
                time_property=registered.metadata.get(TIME_PROPERTY, ""),
            )
        return folded

    def _is_registered_anew(self, subject: str, versions: Sequence[int], topic: TopicState) -> bool:
        """Whether the numbers of versions that are known are other versions now, since the subject was deleted for good
        and registered anew.

        Asked only of a topic in whose messages ids were met that are of none of its versions, so that the others cost
        no question more.
        """
        if not versions or not _foreign_ids(topic):
            return False
        with contextlib.suppress(VersionNotFound, SubjectNotFound, *INCONCLUSIVE_ERRORS):
            registered, _ = self._asking.answer(Version(subject, versions[-1]))
            return registered.schema_id not in topic.load_schema.writer_ids
        return False

    def _text(self, schema_id: int, absent: set[int], *, trusts: bool = True) -> str | None:
        """The text of a schema; None when it does not exist (then it is added to `absent`) or cannot be asked for.

        Args:
            trusts: takes a kept text that was compared with this registry before.

        Raises:
            SchemaReplaced, AccessDenied.
        """
        kept = self._kept.text(schema_id)
        if kept is not None and (self._asking.outage or (trusts and self._kept.is_compared(schema_id))):
            return kept
        text = self._asked_text(schema_id, absent if kept is None else set())
        return kept if text is None else text

    def _asked_text(self, schema_id: int, absent: set[int]) -> str | None:
        """What the registry has under an id, compared with what is kept; None where it says nothing."""
        is_kept = self._kept.text(schema_id) is not None
        try:
            text = _whole_text(self._asking.answer(SchemaOf(schema_id)))
        except INCONCLUSIVE_ERRORS:
            return None
        except AccessDenied:
            if is_kept:
                return None
            raise  # nothing is known of the schema, so its messages wait
        except (AvroSchemaError, RegistryError) as error:
            if is_kept and isinstance(error, AvroSchemaError):
                raise self._noted(self._kept.replaced(schema_id)) from error
            if is_kept:
                self._kept.missed(schema_id)
            elif not isinstance(error, SchemaNotFound):
                # Registered but of no use (another format, a lost reference): its messages go to the quarantine.
                logger.warning("schema_unusable schema_id=%d error=%s", schema_id, error)
            absent.add(schema_id)
            return None
        self._compared(schema_id, text)
        return text

    def _compared(self, schema_id: int, text: str) -> None:
        try:
            self._kept.compare(schema_id, text)
        except SchemaReplaced as error:
            raise self._noted(error) from None

    def _noted(self, error: SchemaReplaced) -> SchemaReplaced:
        self._replaced[error.schema_id] = error
        return error

    def _folded(self, load_schema: LoadSchema) -> LoadState:
        """Read once in a run; what is known of a large subject takes a while to read."""
        if load_schema.fold not in self._folds:
            self._folds[load_schema.fold] = LoadState.from_json(json.loads(load_schema.fold))
        return self._folds[load_schema.fold]


def _whole_text(schema: Schema) -> str:
    """
    Raises:
        SchemaParseError: with all its references in one text it nests too deep; each by itself the registry accepts.
    """
    try:
        return self_contained_text(schema)
    except RecursionError:
        message = "with the schemas that it refers to, its types hold each other too deeply"
        raise SchemaParseError(message, source=schema.source) from None


def _foreign_ids(topic: TopicState) -> frozenset[int]:
    """Ids that messages of a topic carried, and that are of none of the versions it was folded from."""
    return topic.asked_ids - topic.load_schema.writer_ids


def _watched(ids: Sequence[int], turn: int) -> set[int]:
    return {ids[-1], ids[turn % len(ids)]} if ids else set()
