"""What is stored under a subject, without the schemas; and what a process keeps from one read to the next.

Schemas never change; other things held at a revision.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from headrace.registry.domain import LATEST, ConfigEntry, Mode, StoredSchema
from headrace.registry.storage.revision import Revision

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
V = TypeVar("V")

SCHEMA_CHARS_MAX = 8_000_000  # of the texts of all schemas that are kept
SCHEMA_OVERHEAD_CHARS = 500  # that a schema counts for beside its text
VIEW_VERSIONS_MAX = 50_000  # of all subjects whose versions are kept, some 12 MB
VIEW_OVERHEAD_VERSIONS = 2  # that a subject counts for beside its versions


@dataclass(frozen=True, slots=True)
class SubjectState:
    """A subject's row: every change of its versions makes `revision` greater."""

    subject_id: int
    revision: int


@dataclass(frozen=True, slots=True)
class VersionEntry:
    """A stored version without its schema."""

    version: int
    deleted: bool
    created_ms: int
    schema_key: int
    lookup_key: bytes


@dataclass(frozen=True, slots=True)
class SubjectView:
    """All versions of a subject, ascending, without their schemas. `state` is None when nothing is stored."""

    state: SubjectState | None = None
    entries: tuple[VersionEntry, ...] = ()

    @property
    def next_version(self) -> int:
        return 1 + (self.entries[-1].version if self.entries else 0)

    @property
    def is_deleted(self) -> bool:
        """Whether there are versions and all are deleted softly."""
        return bool(self.entries) and self.entry(LATEST, deleted=False) is None

    def entry(self, version: int, *, deleted: bool) -> VersionEntry | None:
        """The version of that number, or the newest for `LATEST`."""
        seen = (entry for entry in reversed(self.entries) if deleted or not entry.deleted)
        return next((entry for entry in seen if version in (LATEST, entry.version)), None)


@dataclass(frozen=True, slots=True)
class ScopeValues(Generic[T]):
    """What scopes have in one table; None where they have nothing. All others have nothing when it `is_complete`."""

    values: dict[str | None, T | None]
    is_complete: bool

    def of(
        self, scopes: Sequence[str | None], read: Callable[[list[str | None]], Mapping[str | None, T]]
    ) -> dict[str | None, T]:
        """What the scopes have, read only for those that are not known. Of a large table that is not kept."""
        missing = [scope for scope in scopes if not self.is_complete and scope not in self.values]
        values = {**{scope: self.values.get(scope) for scope in scopes}, **(read(missing) if missing else {})}
        return {scope: value for scope, value in values.items() if value is not None}


class ScopesAtRevision:
    """Configurations and modes at one revision of the registry."""

    def __init__(self, revision: Revision) -> None:
        self.revision = revision
        self.configs: ScopeValues[ConfigEntry] | None = None
        self.modes: ScopeValues[Mode] | None = None


class NewestRevision:
    """The newest moment of the registry at which subjects were read, and since when it is known. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._cached_result = Revision(0, -1), float("-inf")

    def record(self, revision: Revision) -> None:
        """To be called after the read."""
        newest, _ = self._cached_result
        # In another history it may well be a lower one.
        if revision.history != newest.history or revision.number > newest.number:
            self._cached_result = revision, self._clock()

    def age_s(self) -> float:
        """Since the end of the first read that saw it."""
        return self._clock() - self._cached_result[1]


class ScopeCache:
    """What earlier reads found, which changes only with the registry's revision. Thread-safe."""

    def __init__(self) -> None:
        self._newest = ScopesAtRevision(Revision(0, -1))

    def at(self, revision: Revision) -> ScopesAtRevision:
        """To look into and to add to, which any number of threads may do at once: they find the same."""
        newest = self._newest
        if newest.revision == revision:
            return newest
        fresh = ScopesAtRevision(revision)
        # In another history it may well be a lower one.
        if revision.history != newest.revision.history or revision.number > newest.revision.number:
            self._newest = fresh
        return fresh


class LruCache(Generic[K, V]):
    """The values last used, within bounds of their number and of the sum of their sizes. Thread-safe."""

    def __init__(self, size_max: int, entries_max: int | None = None) -> None:
        self._size_max = size_max
        self._entries_max = entries_max
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                return None
            self._entries.move_to_end(key)
            return found[0]

    def put(self, key: K, value: V, size: int) -> None:
        with self._lock:
            self._size += size - self._entries.pop(key, (None, 0))[1]
            self._entries[key] = value, size
            while self._size > self._size_max or (self._entries_max and len(self._entries) > self._entries_max):
                _, (_, dropped) = self._entries.popitem(last=False)
                self._size -= dropped


@dataclass(frozen=True, slots=True)
class ViewAtRevision:
    """All versions of a subject at one revision of the registry.

    Until that grows, versions are only added, each by one to the subject's revision.
    """

    revision: Revision
    view: SubjectView


class DatabaseCache:
    """All that a process keeps of one database. Of schemas and versions only what is committed.

    Each is kept with the history that it is of, and in another one it is not found.
    """

    def __init__(self) -> None:
        self.scopes = ScopeCache()
        self.newest = NewestRevision()
        # By history and row key, which no other schema ever has in it.
        self._schemas: LruCache[tuple[int, int], StoredSchema] = LruCache(SCHEMA_CHARS_MAX)
        self._views: LruCache[str, ViewAtRevision] = LruCache(VIEW_VERSIONS_MAX)

    def schema(self, history: int, row_key: int) -> StoredSchema | None:
        """A schema; whether a version has it must be asked each time."""
        return self._schemas.get((history, row_key))

    def put_schema(self, history: int, schema: StoredSchema) -> None:
        self._schemas.put((history, schema.row_key), schema, len(schema.content.text) + SCHEMA_OVERHEAD_CHARS)

    def view(self, subject: str) -> ViewAtRevision | None:
        """Some state of a subject that has been, maybe in another history."""
        return self._views.get(subject)

    def put_view(self, subject: str, seen: ViewAtRevision) -> None:
        self._views.put(subject, seen, len(seen.view.entries) + VIEW_OVERHEAD_VERSIONS)
