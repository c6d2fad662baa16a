"""Follows a registry: asks it in rounds what has changed, and brings its own database to that.

Of several processes that follow for one database one does, and another goes on when that has not asked for `HOLD_MS`.
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

from headrace.registry.domain import Following, Mode
from headrace.registry.errors import FollowingStopped, ServiceError
from headrace.registry.following.feed import (
    SCHEMAS_MAX,
    SUBJECTS_MAX,
    Position,
    Question,
    Told,
    ToldSchema,
    question_json,
    read_told,
)
from headrace.registry.following.mirror import SchemaKey, Unlike, Update, mirror
from headrace.registry.names import EVERYWHERE, context_of, in_context_of
from headrace.registry.storage.database import Database
from headrace.registry.storage.following import FollowingTables, ListedSubject
from headrace.registry.storage.kept import SubjectState
from headrace.registry.storage.repository import Repository

logger = logging.getLogger(__name__)

HOLD_MS: Final = 5_000  # longer than a round takes but the first ones, which others may then make in vain
CLOSINGS_MAX: Final = 10  # of one round: what refers to what came even later is rare


class Source(Protocol):
    """The registry that is followed."""

    @property
    def url(self) -> str: ...

    def ask(self, question: Question) -> Told:
        """
        Raises:
            RegistryError: it gives no answer, or one that is none.
        """
        ...


class Caller(Protocol):
    """What is used of `registry.client.RegistryClient`."""

    @property
    def url(self) -> str: ...

    def call(self, method: str, path: str, *, body: Mapping[str, Any] | None = None) -> Any: ...


class RemoteSource:
    """A registry that is reached by its API."""

    def __init__(self, client: Caller) -> None:
        self._client = client

    @property
    def url(self) -> str:
        return self._client.url

    def ask(self, question: Question) -> Told:
        """
        Raises:
            FollowingStopped: it is not one that can be followed.
            AnswerUnusable: it is one of another release.
            RegistryError: it gives no answer.
        """
        try:
            answer = self._client.call("POST", "/follow", body=question_json(question))
        except ServiceError as error:
            if error.status in (404, 405):
                raise FollowingStopped(
                    f"{self.url} cannot be followed: expected a registry of Headrace, and of a release that knows "
                    "POST /follow; others are copied by `headrace registry export` and `import`"
                ) from error
            raise
        return read_told(answer, self.url)


class Round(Enum):
    """What came of one."""

    UNCHANGED = auto()
    CHANGED = auto()
    WAITING = auto()
    """Another process follows for this database."""
    PROMOTED = auto()
    """This database follows nothing any more."""


@dataclass(frozen=True, slots=True)
class _Fetched:
    subjects: Mapping[str, ListedSubject]
    schemas: Mapping[SchemaKey, ToldSchema]


class Follower:
    """One process that follows. `now_ms` is the clock; `holder` a name that no other process has."""

    def __init__(self, source: Source, database: Database, now_ms: Callable[[], int], holder: str) -> None:
        self._source = source
        self._database = database
        self._now_ms = now_ms
        self._holder = holder
        self._position: Position | None = None
        self._states: dict[str, SubjectState] = {}
        self._takes_all = False

    def round(self) -> Round:
        """Asks once and takes over what has changed.

        Raises:
            FollowingStopped: no other round will be better.
            RegistryError: the other registry, or this database, gives no answer.
        """
        asked_ms = self._now_ms()
        following = self._database.read(lambda repository: repository.following())
        if following is not None and following.is_promoted:
            return Round.PROMOTED
        if following is not None and self._is_held(following, asked_ms):
            self._forget()
            return Round.WAITING
        told = self._source.ask(Question(seen="" if self._position is None else str(self._position)))
        self._begin(following, told, asked_ms)
        if told.states is None or told.settings is None:
            return self._write(asked_ms, None) or Round.UNCHANGED
        if self._position is not None and self._position.history != told.position.history:
            logger.warning("followed registry may have gone back: url=%s", self._source.url)
            self._forget()
        try:
            update, states = self._update(told, told.states)
            outcome = self._write(asked_ms, update)
        except Unlike as error:
            logger.warning("all is taken over anew: cause=%s", error)
            self._forget()
            self._takes_all = True
            return Round.CHANGED
        if outcome is not None:
            return outcome
        self._position, self._states, self._takes_all = told.position, states, False
        return Round.CHANGED

    def _forget(self) -> None:
        self._position, self._states = None, {}

    def _is_held(self, following: Following, now_ms: int) -> bool:
        return following.holder != self._holder and now_ms < following.asked_ms + HOLD_MS

    def _begin(self, following: Following | None, told: Told, asked_ms: int) -> None:
        """Makes sure that this database may become what the other registry is."""
        if following is not None:
            if following.source != told.source:
                raise FollowingStopped(
                    f"{self._source.url} is another registry ({told.source}) than the one that is followed "
                    f"({following.source}, at {following.url}); follow it with an empty database"
                )
            return

        def write(repository: Repository) -> None:
            if repository.identity() == told.source:
                raise FollowingStopped(f"{self._source.url} is a registry on this very database; name another one")
            repository.bump_revision(of_settings=True)
            repository.keep_writers_out()
            count = repository.subject_count()
            if count:
                raise FollowingStopped(
                    f"the database holds {count} subjects of its own, which would be lost; follow with an empty one"
                )
            repository.put_mode(EVERYWHERE, Mode.READONLY_OVERRIDE)
            FollowingTables(repository).put_following(Following(told.source, self._source.url, self._holder, asked_ms))

        self._database.write(write)
        logger.info("following began: url=%s source=%s", self._source.url, told.source)

    def _update(self, told: Told, states: Mapping[str, SubjectState]) -> tuple[Update, dict[str, SubjectState]]:
        """What is to be done, and the states of subjects that are known when it is done."""
        assert told.settings is not None
        changed = {name for name, state in states.items() if self._states.get(name) != state}
        here = self._database.read(lambda repository: set(FollowingTables(repository).subject_states()))
        fetched = self._fetched(changed)
        unchanged = states.keys() - changed
        gone = (here | changed) - unchanged - fetched.subjects.keys()
        update = Update(
            {**dict.fromkeys(gone), **fetched.subjects}, fetched.schemas, told.settings, is_whole=self._takes_all
        )
        known = {name: state for name, state in states.items() if name not in gone}
        return update, known | {name: subject.state for name, subject in fetched.subjects.items()}

    def _fetched(self, names: Collection[str]) -> _Fetched:
        """The versions of subjects, their schemas that are not here, and so on with what those refer to.

        What came after the subjects were listed may be referred to by what is fetched now.
        """
        subjects: dict[str, ListedSubject] = {}
        schemas: dict[SchemaKey, ToldSchema] = {}
        wanted = set(names)
        for _ in range(CLOSINGS_MAX):
            if not wanted:
                break
            found: dict[str, ListedSubject] = {}
            for part in _parts(sorted(wanted), SUBJECTS_MAX):
                found.update(self._source.ask(Question(subjects=part)).subjects)
            subjects.update(found)
            lacking = self._lacking(found) - schemas.keys()
            schemas.update(self._schemas(lacking))
            wanted = self._missing_targets(schemas, subjects)
        return _Fetched(subjects, schemas)

    def _lacking(self, subjects: Mapping[str, ListedSubject]) -> set[SchemaKey]:
        """The schemas of subjects that are not here."""
        wanted: dict[str, dict[int, bytes]] = defaultdict(dict)
        for name, subject in subjects.items():
            wanted[context_of(name)].update((item.schema_id, item.fingerprint) for item in subject.versions)
        lacking = set()
        for context, fingerprints in wanted.items():
            here = {} if self._takes_all else self._fingerprints(context, fingerprints)
            if any(here.get(schema_id, fingerprint) != fingerprint for schema_id, fingerprint in fingerprints.items()):
                raise Unlike(f"ids of context {context} stand for other schemas")
            lacking |= {(context, schema_id) for schema_id in fingerprints.keys() - here.keys()}
        return lacking

    def _fingerprints(self, context: str, ids: Iterable[int]) -> dict[int, bytes]:
        chosen = sorted(ids)
        return self._database.read(lambda repository: FollowingTables(repository).fingerprints(context, chosen))

    def _schemas(self, keys: Collection[SchemaKey]) -> dict[SchemaKey, ToldSchema]:
        """The schemas that are still there."""
        found: dict[SchemaKey, ToldSchema] = {}
        waiting = sorted(keys)
        while waiting:
            part = waiting[:SCHEMAS_MAX]
            ids = {
                context: tuple(schema_id for _, schema_id in group)
                for context, group in itertools.groupby(part, lambda key: key[0])
            }
            told = self._source.ask(Question(ids=ids)).schemas
            found.update(((item.schema.context, item.schema.schema_id), item) for item in told)
            # An answer with a part of them has the first ones; without any, they have gone.
            last = max(((item.schema.context, item.schema.schema_id) for item in told), default=part[-1])
            waiting = [key for key in waiting if key > last]
        return found

    def _missing_targets(
        self, schemas: Mapping[SchemaKey, ToldSchema], subjects: Mapping[str, ListedSubject]
    ) -> set[str]:
        """Subjects of which something that was fetched refers to a version that is neither fetched nor here."""
        targets: dict[str, set[int]] = defaultdict(set)
        for told in schemas.values():
            for reference in told.schema.content.references:
                if reference.version > 0:
                    name = in_context_of(f":{told.schema.context}:", reference.subject)
                    targets[name].add(reference.version)
        missing = {name for name in targets if targets[name] - _numbers(subjects.get(name))}
        here = (
            self._database.read(lambda repository: FollowingTables(repository).listed_subjects(sorted(missing)))
            if missing
            else {}
        )
        return {name for name in missing if targets[name] - _numbers(subjects.get(name)) - _numbers(here.get(name))}

    def _write(self, asked_ms: int, update: Update | None) -> Round | None:
        """Does an update and notes as of when this database holds all; what came in its way."""

        def write(repository: Repository) -> Round | None:
            tables = FollowingTables(repository)
            tables.hold_following()
            following = repository.following()
            if following is None or following.is_promoted:
                return Round.PROMOTED
            if self._is_held(following, self._now_ms()):
                return Round.WAITING
            if update is not None:
                mirror(repository, update)
                following = replace(following, mode=update.settings.modes.get(EVERYWHERE))
            now = replace(
                following, url=self._source.url, holder=self._holder, asked_ms=self._now_ms(), as_of_ms=asked_ms
            )
            tables.put_following(now)
            return None

        outcome = self._database.write(write)
        if outcome is not None:
            self._forget()
        return outcome


def promote(database: Database, now_ms: int) -> Following:
    """Lets a registry that follows another one take changes itself, at once and for good, and returns what it followed.

    Raises:
        FollowingStopped: it follows nothing.
    """

    def write(repository: Repository) -> Following:
        tables = FollowingTables(repository)
        tables.hold_following()
        following = repository.following()
        if following is None or following.is_promoted:
            raise FollowingStopped("the database follows no other registry, so there is nothing to promote")
        repository.bump_revision(of_settings=True)
        repository.remove_modes([EVERYWHERE])
        if following.mode is not None:
            repository.put_mode(EVERYWHERE, following.mode)
        promoted = replace(following, promoted_ms=now_ms)
        tables.put_following(promoted)
        return promoted

    promoted = database.write(write)
    logger.info("registry promoted: source=%s behind_s=%.1f", promoted.source, promoted.behind_s(now_ms))
    return promoted


def _numbers(subject: ListedSubject | None) -> set[int]:
    return set() if subject is None else {version.version for version in subject.versions}


def _parts(items: list[str], size: int) -> Iterable[tuple[str, ...]]:
    return (tuple(items[start : start + size]) for start in range(0, len(items), size))
