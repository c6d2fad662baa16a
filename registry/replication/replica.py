"""Follows a registry: asks it in rounds what has changed, and brings its own database to that.

Of several processes that follow for one database one does, and another goes on when that has not asked for `HOLDER_TIMEOUT_MS`.
What was seen of the other registry is only remembered here: whoever begins compares all of it with what is there.
"""

from __future__ import annotations

import itertools
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, Final, Protocol

from headrace.registry.domain import Mode, ReplicationState
from headrace.registry.errors import ReplicationStopped, ServiceError
from headrace.registry.names import ALL_CONTEXTS_SCOPE, context_of, resolve_in_context
from headrace.registry.replication.feed import (
    SCHEMAS_MAX,
    SUBJECTS_MAX,
    ReplicatedSchema,
    ReplicationPosition,
    ReplicationRequest,
    ReplicationResponse,
    parse_response,
    request_json,
)
from headrace.registry.replication.update import ReplicaDiverged, ReplicationUpdate, SchemaKey, apply_update
from headrace.registry.storage.cache import SubjectState
from headrace.registry.storage.database import Database
from headrace.registry.storage.replication import ReplicatedSubject, ReplicationTables
from headrace.registry.storage.repository import Repository

logger = logging.getLogger(__name__)

HOLDER_TIMEOUT_MS: Final = 5_000  # longer than a round takes but the first ones, which others may then make in vain
REFERENCE_PASSES_MAX: Final = 10  # of one round: what refers to what came even later is rare


class ReplicationSource(Protocol):
    """The registry that is followed."""

    @property
    def url(self) -> str: ...

    def fetch(self, request: ReplicationRequest) -> ReplicationResponse:
        """
        Raises:
            RegistryError: it gives no answer, or one that is none.
        """
        ...


class ReplicationCaller(Protocol):
    """What is used of `registry.client.RegistryClient`."""

    @property
    def url(self) -> str: ...

    def call(self, method: str, path: str, *, body: Mapping[str, Any] | None = None) -> Any: ...


class HttpReplicationSource:
    """A registry that is reached by its API."""

    def __init__(self, client: ReplicationCaller) -> None:
        self._client = client

    @property
    def url(self) -> str:
        return self._client.url

    def fetch(self, request: ReplicationRequest) -> ReplicationResponse:
        """
        Raises:
            ReplicationStopped: it is not one that can be followed.
            InvalidResponse: it is one of another release.
            RegistryError: it gives no answer.
        """
        try:
            answer = self._client.call("POST", "/replication", body=request_json(request))
        except ServiceError as error:
            if error.status in (404, 405):
                raise ReplicationStopped(
                    f"{self.url} cannot be followed: expected a registry of Headrace, and of a release that knows "
                    "POST /follow; others are copied by `headrace registry export` and `import`"
                ) from error
            raise
        return parse_response(answer, self.url)


class RoundResult(Enum):
    """What came of one."""

    UNCHANGED = auto()
    CHANGED = auto()
    WAITING = auto()
    """Another process follows for this database."""
    PROMOTED = auto()
    """This database follows nothing any more."""


@dataclass(frozen=True, slots=True)
class _Fetched:
    subjects: Mapping[str, ReplicatedSubject]
    schemas: Mapping[SchemaKey, ReplicatedSchema]


class Replica:
    """One process that follows. `now_ms` is the clock; `holder` a name that no other process has."""

    def __init__(self, source: ReplicationSource, database: Database, now_ms: Callable[[], int], holder: str) -> None:
        self._source = source
        self._database = database
        self._now_ms = now_ms
        self._holder = holder
        self._position: ReplicationPosition | None = None
        self._states: dict[str, SubjectState] = {}
        self._needs_full_copy = False

    def run_round(self) -> RoundResult:
        """Asks once and takes over what has changed.

        Raises:
            ReplicationStopped: no other round will be better.
            RegistryError: the other registry, or this database, gives no answer.
        """
        polled_ms = self._now_ms()
        replication = self._database.read(lambda repository: repository.replication_state())
        if replication is not None and replication.is_promoted:
            return RoundResult.PROMOTED
        if replication is not None and self._is_held(replication, polled_ms):
            self._reset()
            return RoundResult.WAITING
        response = self._source.fetch(ReplicationRequest(seen="" if self._position is None else str(self._position)))
        self._ensure_replicable(replication, response, polled_ms)
        if response.states is None or response.settings is None:
            return self._write_update(polled_ms, None) or RoundResult.UNCHANGED
        if self._position is not None and self._position.history != response.position.history:
            logger.warning("followed registry may have gone back: url=%s", self._source.url)
            self._reset()
        try:
            update, states = self._update(response, response.states)
            result = self._write_update(polled_ms, update)
        except ReplicaDiverged as error:
            logger.warning("all is taken over anew: cause=%s", error)
            self._reset()
            self._needs_full_copy = True
            return RoundResult.CHANGED
        if result is not None:
            return result
        self._position, self._states, self._needs_full_copy = response.position, states, False
        return RoundResult.CHANGED

    def _reset(self) -> None:
        self._position, self._states = None, {}

    def _is_held(self, replication: ReplicationState, now_ms: int) -> bool:
        return replication.holder != self._holder and now_ms < replication.polled_ms + HOLDER_TIMEOUT_MS

    def _ensure_replicable(
        self, replication: ReplicationState | None, response: ReplicationResponse, polled_ms: int
    ) -> None:
        """Makes sure that this database may become what the other registry is."""
        if replication is not None:
            if replication.source != response.source:
                raise ReplicationStopped(
                    f"{self._source.url} is another registry ({response.source}) than the one that is followed "
                    f"({replication.source}, at {replication.url}); follow it with an empty database"
                )
            return

        def write(repository: Repository) -> None:
            if repository.identity() == response.source:
                raise ReplicationStopped(f"{self._source.url} is a registry on this very database; name another one")
            repository.bump_revision(of_settings=True)
            repository.lock_out_writers()
            count = repository.subject_count()
            if count:
                raise ReplicationStopped(
                    f"the database holds {count} subjects of its own, which would be lost; follow with an empty one"
                )
            repository.put_mode(ALL_CONTEXTS_SCOPE, Mode.READONLY_OVERRIDE)
            ReplicationTables(repository).put_replication_state(
                ReplicationState(response.source, self._source.url, self._holder, polled_ms)
            )

        self._database.write(write)
        logger.info("following began: url=%s source=%s", self._source.url, response.source)

    def _update(
        self, response: ReplicationResponse, states: Mapping[str, SubjectState]
    ) -> tuple[ReplicationUpdate, dict[str, SubjectState]]:
        """What is to be done, and the states of subjects that are known when it is done."""
        assert response.settings is not None
        changed = {name for name, state in states.items() if self._states.get(name) != state}
        local = self._database.read(lambda repository: set(ReplicationTables(repository).subject_states()))
        fetched = self._fetch_subjects(changed)
        unchanged = states.keys() - changed
        deleted = (local | changed) - unchanged - fetched.subjects.keys()
        update = ReplicationUpdate(
            {**dict.fromkeys(deleted), **fetched.subjects},
            fetched.schemas,
            response.settings,
            is_full=self._needs_full_copy,
        )
        known = {name: state for name, state in states.items() if name not in deleted}
        return update, known | {name: subject.state for name, subject in fetched.subjects.items()}

    def _fetch_subjects(self, names: Collection[str]) -> _Fetched:
        """The versions of subjects, their schemas that are not here, and so on with what those refer to.

        What came after the subjects were listed may be referred to by what is fetched now.
        """
        subjects: dict[str, ReplicatedSubject] = {}
        schemas: dict[SchemaKey, ReplicatedSchema] = {}
        desired = set(names)
        for _ in range(REFERENCE_PASSES_MAX):
            if not desired:
                break
            found: dict[str, ReplicatedSubject] = {}
            for part in _parts(sorted(desired), SUBJECTS_MAX):
                found.update(self._source.fetch(ReplicationRequest(subjects=part)).subjects)
            subjects.update(found)
            lacking = self._missing_schemas(found) - schemas.keys()
            schemas.update(self._schemas(lacking))
            desired = self._missing_targets(schemas, subjects)
        return _Fetched(subjects, schemas)

    def _missing_schemas(self, subjects: Mapping[str, ReplicatedSubject]) -> set[SchemaKey]:
        """The schemas of subjects that are not here."""
        desired: dict[str, dict[int, bytes]] = defaultdict(dict)
        for name, subject in subjects.items():
            desired[context_of(name)].update((item.schema_id, item.fingerprint) for item in subject.versions)
        lacking = set()
        for context, fingerprints in desired.items():
            local = {} if self._needs_full_copy else self._fingerprints(context, fingerprints)
            if any(local.get(schema_id, fingerprint) != fingerprint for schema_id, fingerprint in fingerprints.items()):
                raise ReplicaDiverged(f"ids of context {context} stand for other schemas")
            lacking |= {(context, schema_id) for schema_id in fingerprints.keys() - local.keys()}
        return lacking

    def _fingerprints(self, context: str, ids: Iterable[int]) -> dict[int, bytes]:
        chosen = sorted(ids)
        return self._database.read(lambda repository: ReplicationTables(repository).fingerprints(context, chosen))

    def _schemas(self, keys: Collection[SchemaKey]) -> dict[SchemaKey, ReplicatedSchema]:
        """The schemas that are still there."""
        found: dict[SchemaKey, ReplicatedSchema] = {}
        waiting = sorted(keys)
        while waiting:
            part = waiting[:SCHEMAS_MAX]
            ids = {
                context: tuple(schema_id for _, schema_id in group)
                for context, group in itertools.groupby(part, lambda key: key[0])
            }
            response = self._source.fetch(ReplicationRequest(ids=ids)).schemas
            found.update(((item.schema.context, item.schema.schema_id), item) for item in response)
            # An answer with a part of them has the first ones; without any, they have gone.
            last = max(((item.schema.context, item.schema.schema_id) for item in response), default=part[-1])
            waiting = [key for key in waiting if key > last]
        return found

    def _missing_targets(
        self, schemas: Mapping[SchemaKey, ReplicatedSchema], subjects: Mapping[str, ReplicatedSubject]
    ) -> set[str]:
        """Subjects of which something that was fetched refers to a version that is neither fetched nor here."""
        targets: dict[str, set[int]] = defaultdict(set)
        for response in schemas.values():
            for reference in response.schema.content.references:
                if reference.version > 0:
                    name = resolve_in_context(f":{response.schema.context}:", reference.subject)
                    targets[name].add(reference.version)
        missing = {name for name in targets if targets[name] - _numbers(subjects.get(name))}
        local = (
            self._database.read(lambda repository: ReplicationTables(repository).replicated_subjects(sorted(missing)))
            if missing
            else {}
        )
        return {name for name in missing if targets[name] - _numbers(subjects.get(name)) - _numbers(local.get(name))}

    def _write_update(self, polled_ms: int, update: ReplicationUpdate | None) -> RoundResult | None:
        """Does an update and notes as of when this database holds all; what came in its way."""

        def write(repository: Repository) -> RoundResult | None:
            tables = ReplicationTables(repository)
            tables.lock_replication_state()
            replication = repository.replication_state()
            if replication is None or replication.is_promoted:
                return RoundResult.PROMOTED
            if self._is_held(replication, self._now_ms()):
                return RoundResult.WAITING
            if update is not None:
                apply_update(repository, update)
                replication = replace(replication, mode=update.settings.modes.get(ALL_CONTEXTS_SCOPE))
            now = replace(
                replication, url=self._source.url, holder=self._holder, polled_ms=self._now_ms(), as_of_ms=polled_ms
            )
            tables.put_replication_state(now)
            return None

        result = self._database.write(write)
        if result is not None:
            self._reset()
        return result


def promote(database: Database, now_ms: int) -> ReplicationState:
    """Lets a registry that follows another one take changes itself, at once and for good, and returns what it followed.

    Raises:
        ReplicationStopped: it follows nothing.
    """

    def write(repository: Repository) -> ReplicationState:
        tables = ReplicationTables(repository)
        tables.lock_replication_state()
        replication = repository.replication_state()
        if replication is None or replication.is_promoted:
            raise ReplicationStopped("the database follows no other registry, so there is nothing to promote")
        repository.bump_revision(of_settings=True)
        repository.remove_modes([ALL_CONTEXTS_SCOPE])
        if replication.mode is not None:
            repository.put_mode(ALL_CONTEXTS_SCOPE, replication.mode)
        promoted = replace(replication, promoted_ms=now_ms)
        tables.put_replication_state(promoted)
        return promoted

    promoted = database.write(write)
    logger.info("registry promoted: source=%s behind_s=%.1f", promoted.source, promoted.lag_s(now_ms))
    return promoted


def _numbers(subject: ReplicatedSubject | None) -> set[int]:
    return set() if subject is None else {version.version for version in subject.versions}


def _parts(items: list[str], size: int) -> Iterable[tuple[str, ...]]:
    return (tuple(items[start : start + size]) for start in range(0, len(items), size))
