"""Polls the source registry in rounds and applies its changes to the replica's database.

If several processes replicate into one database, one of them is active. Another one takes over when the active process
has not polled for `HOLDER_TIMEOUT_MS`. The last position is kept in memory only: a process that becomes active compares
the whole registry.
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

# If the active process has not polled for this time, another one takes over. Only the first rounds take longer, because
# they copy everything; a second process may then repeat their work.
HOLDER_TIMEOUT_MS: Final = 5_000
REFERENCE_PASSES_MAX: Final = 10  # per round; chains of references to subjects added during the round are rarely longer


class ReplicationSource(Protocol):
    """The registry that a replica copies."""

    @property
    def url(self) -> str: ...

    def fetch(self, request: ReplicationRequest) -> ReplicationResponse:
        """Sends a replica's request to the source registry and returns the response.

        Raises:
            RegistryError: the source registry is not reachable, rejects the request, or its response is invalid.
        """
        ...


class ReplicationCaller(Protocol):
    """The methods of `registry.client.RegistryClient` that replication uses."""

    @property
    def url(self) -> str: ...

    def call(self, method: str, path: str, *, body: Mapping[str, Any] | None = None) -> Any: ...


class HttpReplicationSource:
    """A source registry that a replica reads through its REST API."""

    def __init__(self, client: ReplicationCaller) -> None:
        self._client = client

    @property
    def url(self) -> str:
        return self._client.url

    def fetch(self, request: ReplicationRequest) -> ReplicationResponse:
        """Sends a replica's request to the source registry and returns the response.

        Raises:
            ReplicationStopped: the registry does not support replication.
            InvalidResponse: the response is malformed, or has the format of another release.
            RegistryError: the source registry is not reachable, or rejects the request.
        """
        try:
            response = self._client.call("POST", "/replication", body=request_json(request))
        except ServiceError as error:
            if error.status in (404, 405):
                raise ReplicationStopped(
                    f"{self.url} cannot be replicated: it is not a Headrace registry of a release with "
                    "POST /replication; copy other registries with `headrace registry export` and `import`"
                ) from error
            raise
        return parse_response(response, self.url)


class RoundResult(Enum):
    """The result of `Replica.run_round`: whether the source has changed, or why this process must not replicate."""

    UNCHANGED = auto()
    CHANGED = auto()
    WAITING = auto()
    """Another process replicates into this database."""
    PROMOTED = auto()
    """The replica was promoted and is no replica any more."""


@dataclass(frozen=True, slots=True)
class _Fetched:
    subjects: Mapping[str, ReplicatedSubject]
    schemas: Mapping[SchemaKey, ReplicatedSchema]


class Replica:
    """Replicates a source registry into a database, one round at a time. One instance per process.

    Args:
        source: the registry to replicate.
        database: the replica's database.
        now_ms: returns the current time.
        holder: a unique name of this process.
    """

    def __init__(self, source: ReplicationSource, database: Database, now_ms: Callable[[], int], holder: str) -> None:
        self._source = source
        self._database = database
        self._now_ms = now_ms
        self._holder = holder
        self._position: ReplicationPosition | None = None
        self._states: dict[str, SubjectState] = {}
        self._needs_full_copy = False

    def run_round(self) -> RoundResult:
        """Polls the source and applies its changes. Returns whether there were any, or why this process did not
        replicate.

        The first round of a process and the first one after `WAITING` compare everything and return `CHANGED`. So does
        a round that finds that a full copy is needed; it applies nothing, and the next round makes the copy.

        Raises:
            ReplicationStopped: a further round would fail as well.
            RegistryError: the source or this database is not reachable, or the response of the source is invalid.
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
            logger.warning(
                "source_history_changed url=%s possible_cause=restored backup action=fetching all subjects",
                self._source.url,
            )
            self._reset()
        try:
            update, states = self._build_update(response, response.states)
            result = self._write_update(polled_ms, update)
        except ReplicaDiverged as error:
            logger.warning("full_replication_needed action=fetching all subjects cause=%s", error)
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
        """Checks that this database is a replica of the source. Makes an empty database a replica.

        Args:
            replication: the state of the replica before the poll; None if the database was no replica then.
            response: the response of the source, with its identity.
            polled_ms: the time of the poll.

        Raises:
            ReplicationStopped: the database is a replica of another registry, is the source's own database, or is no
                replica and has subjects.
        """

        def write(repository: Repository) -> ReplicationState:
            tables = ReplicationTables(repository)
            tables.lock_replication_state()
            if repository.identity() == response.source:
                raise ReplicationStopped(
                    f"{self._source.url} is a registry on this same database; name another source registry"
                )
            existing = repository.replication_state()
            if existing is not None:
                return existing  # another process started at the same time
            repository.bump_revision(of_settings=True)
            repository.lock_out_writers()
            count = repository.subject_count()
            if count:
                raise ReplicationStopped(
                    f"the database has {count} subjects, which would be lost; replicate into an empty database"
                )
            repository.put_mode(ALL_CONTEXTS_SCOPE, Mode.READONLY_OVERRIDE)
            started = ReplicationState(response.source, self._source.url, self._holder, polled_ms)
            tables.put_replication_state(started)
            return started

        if replication is None:
            replication = self._database.write(write)
            if replication.holder == self._holder:
                logger.info("replication_started url=%s source_id=%s", self._source.url, response.source)
        if replication.source != response.source:
            raise ReplicationStopped(
                f"the database is a replica of {replication.url} (id {replication.source}), but {self._source.url} "
                f"is another registry (id {response.source}); name the same source, or replicate into an empty "
                "database"
            )

    def _build_update(
        self, response: ReplicationResponse, states: Mapping[str, SubjectState]
    ) -> tuple[ReplicationUpdate, dict[str, SubjectState]]:
        """Fetches the changed subjects and their schemas.

        Args:
            response: the response to the poll, with the settings of the source.
            states: the state of each subject in the source, from the same response.

        Returns:
            The update to apply, and the state of each subject in the source, to compare the next response with.
            Subjects that the update deletes are omitted.
        """
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
        """Fetches these subjects with all versions, and those of their schemas that this database does not have.

        If a fetched schema refers to a version that was neither fetched nor is in this database, fetches the subject of
        that version, too. The source registry may have added the version after this round listed the subjects.
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
            missing_keys = self._missing_schemas(found) - schemas.keys()
            schemas.update(self._schemas(missing_keys))
            desired = self._missing_targets(schemas, subjects)
        return _Fetched(subjects, schemas)

    def _missing_schemas(self, subjects: Mapping[str, ReplicatedSubject]) -> set[SchemaKey]:
        """Returns the keys (context, id) of these subjects' schemas that this database does not have.

        Raises:
            ReplicaDiverged: this database has another schema under one of the ids.
        """
        desired: dict[str, dict[int, bytes]] = defaultdict(dict)
        for name, subject in subjects.items():
            desired[context_of(name)].update((item.schema_id, item.fingerprint) for item in subject.versions)
        missing_keys = set()
        for context, fingerprints in desired.items():
            local = {} if self._needs_full_copy else self._fingerprints(context, fingerprints)
            if any(local.get(schema_id, fingerprint) != fingerprint for schema_id, fingerprint in fingerprints.items()):
                raise ReplicaDiverged(
                    f"schema ids of context {context} have other schemas in the source registry than in this replica; "
                    "replication continues with a full copy"
                )
            missing_keys |= {(context, schema_id) for schema_id in fingerprints.keys() - local.keys()}
        return missing_keys

    def _fingerprints(self, context: str, ids: Iterable[int]) -> dict[int, bytes]:
        chosen = sorted(ids)
        return self._database.read(lambda repository: ReplicationTables(repository).fingerprints(context, chosen))

    def _schemas(self, keys: Collection[SchemaKey]) -> dict[SchemaKey, ReplicatedSchema]:
        """Fetches the schemas with these keys (context, id), with several requests if they are long. Omits schemas that
        the source has deleted."""
        found: dict[SchemaKey, ReplicatedSchema] = {}
        waiting = sorted(keys)
        while waiting:
            part = waiting[:SCHEMAS_MAX]
            ids = {
                context: tuple(schema_id for _, schema_id in group)
                for context, group in itertools.groupby(part, lambda key: key[0])
            }
            received = self._source.fetch(ReplicationRequest(ids=ids)).schemas
            found.update(((item.schema.context, item.schema.schema_id), item) for item in received)
            # A partial response has the first schemas. If it is empty, the schemas were deleted.
            last = max(((item.schema.context, item.schema.schema_id) for item in received), default=part[-1])
            waiting = [key for key in waiting if key > last]
        return found

    def _missing_targets(
        self, schemas: Mapping[SchemaKey, ReplicatedSchema], subjects: Mapping[str, ReplicatedSubject]
    ) -> set[str]:
        """Returns the subjects that must be fetched as well, because a fetched schema refers to one of their versions
        and that version is neither in `subjects` nor in this database.

        Args:
            schemas: the fetched schemas.
            subjects: the fetched subjects.
        """
        targets: dict[str, set[int]] = defaultdict(set)
        for replicated in schemas.values():
            for reference in replicated.schema.content.references:
                if reference.version > 0:
                    name = resolve_in_context(f":{replicated.schema.context}:", reference.subject)
                    targets[name].add(reference.version)
        missing = {name for name in targets if targets[name] - _numbers(subjects.get(name))}
        local = (
            self._database.read(lambda repository: ReplicationTables(repository).replicated_subjects(sorted(missing)))
            if missing
            else {}
        )
        return {name for name in missing if targets[name] - _numbers(subjects.get(name)) - _numbers(local.get(name))}

    def _write_update(self, polled_ms: int, update: ReplicationUpdate | None) -> RoundResult | None:
        """Applies an update (None: nothing has changed) and records the time of the poll. Returns None, or the reason
        why nothing was written: `PROMOTED` (this is no replica any more) or `WAITING` (another process replicates)."""

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
    """Ends the replication of a replica, immediately and permanently, and restores the global mode that its source had.
    The replica is then writable, if this mode permits it. Returns the replication state with the time of the promotion.

    Args:
        database: the replica's database.
        now_ms: is stored as the time of the promotion.

    Raises:
        ReplicationStopped: the database is not a replica, or was already promoted.
    """

    def write(repository: Repository) -> ReplicationState:
        tables = ReplicationTables(repository)
        tables.lock_replication_state()
        replication = repository.replication_state()
        if replication is None or replication.is_promoted:
            raise ReplicationStopped(
                "the database is not a replica or was already promoted; check registry.database_url"
            )
        repository.bump_revision(of_settings=True)
        repository.remove_modes([ALL_CONTEXTS_SCOPE])
        if replication.mode is not None:
            repository.put_mode(ALL_CONTEXTS_SCOPE, replication.mode)
        promoted = replace(replication, promoted_ms=now_ms)
        tables.put_replication_state(promoted)
        return promoted

    promoted = database.write(write)
    logger.info("registry_promoted source_id=%s lag_s=%.1f", promoted.source, promoted.lag_s(now_ms))
    return promoted


def _numbers(subject: ReplicatedSubject | None) -> set[int]:
    return set() if subject is None else {version.version for version in subject.versions}


def _parts(items: list[str], size: int) -> Iterable[tuple[str, ...]]:
    return (tuple(items[start : start + size]) for start in range(0, len(items), size))
