"""Caches of one database within a process: schemas, versions of subjects, configurations and modes.

Schemas never change. Everything else is cached together with the registry's revision at which it was read; see
`revision`.
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

SCHEMA_CHARS_MAX = 8_000_000  # characters of all cached schemas' texts
SCHEMA_OVERHEAD_CHARS = 500  # added to the length of a schema's text as its size in the cache
VIEW_VERSIONS_MAX = 50_000  # versions of all cached subjects together, some 12 MB
VIEW_OVERHEAD_VERSIONS = 2  # added to a subject's number of versions as its size in the cache


@dataclass(frozen=True, slots=True)
class SubjectState:
    """The id and revision of a subject's row. Every change of the subject's versions increases `revision`."""

    subject_id: int
    revision: int


@dataclass(frozen=True, slots=True)
class VersionEntry:
    """A version as stored. Instead of the schema it has the primary key of the schema's row."""

    version: int
    deleted: bool
    created_ms: int
    schema_key: int
    lookup_key: bytes


@dataclass(frozen=True, slots=True)
class SubjectView:
    """All versions of a subject, ascending, without their schemas. `state` is None when the subject is not stored."""

    state: SubjectState | None = None
    entries: tuple[VersionEntry, ...] = ()

    @property
    def next_version(self) -> int:
        return 1 + (self.entries[-1].version if self.entries else 0)

    @property
    def is_deleted(self) -> bool:
        """Whether the subject has versions and all of them are soft-deleted."""
        return bool(self.entries) and self.entry(LATEST, deleted=False) is None

    def entry(self, version: int, *, deleted: bool) -> VersionEntry | None:
        """Returns the version with this number, or the newest one for `LATEST`; None if there is none. Soft-deleted
        versions are found only with `deleted`."""
        newest_first = (entry for entry in reversed(self.entries) if deleted or not entry.deleted)
        return next((entry for entry in newest_first if version in (LATEST, entry.version)), None)


@dataclass(frozen=True, slots=True)
class ScopeValues(Generic[T]):
    """The cached rows of one table, configurations or modes, by scope. If `is_complete` is True, all other scopes have
    no row."""

    values: dict[str | None, T | None]
    is_complete: bool

    def select(
        self, scopes: Sequence[str | None], read: Callable[[list[str | None]], Mapping[str | None, T]]
    ) -> dict[str | None, T]:
        """Returns the configurations or modes of these scopes; omits scopes without one. `read` loads the uncached
        ones, which are not added to the cache."""
        missing = [scope for scope in scopes if not self.is_complete and scope not in self.values]
        values = {**{scope: self.values.get(scope) for scope in scopes}, **(read(missing) if missing else {})}
        return {scope: value for scope, value in values.items() if value is not None}


class ScopesAtRevision:
    """The configurations and modes that are cached for one revision of the registry; None until they are first read."""

    def __init__(self, revision: Revision) -> None:
        self.revision = revision
        self.configs: ScopeValues[ConfigEntry] | None = None
        self.modes: ScopeValues[Mode] | None = None


class NewestRevision:
    """The newest revision of the registry that a read of a subject's versions has seen, and the time when it was first
    seen. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._newest = Revision(0, -1), float("-inf")

    def record(self, revision: Revision) -> None:
        """Records the revision that a read of a subject's versions has seen. To be called after the read."""
        newest, _ = self._newest
        # The revision numbers of another history may be lower.
        if revision.history != newest.history or revision.number > newest.number:
            self._newest = revision, self._clock()

    def age_s(self) -> float:
        """Returns the seconds since this process first read the newest revision that it knows."""
        return self._clock() - self._newest[1]


class ScopeCache:
    """Cached configurations and modes, which change with the registry's revision only. Thread-safe."""

    def __init__(self) -> None:
        self._newest = ScopesAtRevision(Revision(0, -1))

    def at(self, revision: Revision) -> ScopesAtRevision:
        """Returns the configurations and modes that are cached for a revision. Threads may add to them concurrently,
        since all read the same rows."""
        newest = self._newest
        if newest.revision == revision:
            return newest
        fresh = ScopesAtRevision(revision)
        # The revision numbers of another history may be lower.
        if revision.history != newest.revision.history or revision.number > newest.revision.number:
            self._newest = fresh
        return fresh


class LruCache(Generic[K, V]):
    """Least-recently-used cache with a limit on the number of entries and on the sum of their sizes. Thread-safe."""

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

    While that revision is unchanged, versions are only added, and each one increases the subject's revision by one.
    """

    revision: Revision
    view: SubjectView


class DatabaseCache:
    """Everything that a process caches of one database; schemas and versions only once they are committed.

    Entries belong to one history of the database (see `revision`). A restored backup begins another history, and older
    entries are then not used.
    """

    def __init__(self) -> None:
        self.scopes = ScopeCache()
        self.newest = NewestRevision()
        # Keyed by (history, row key). Within a history a row key belongs to one schema for ever.
        self._schemas: LruCache[tuple[int, int], StoredSchema] = LruCache(SCHEMA_CHARS_MAX)
        self._views: LruCache[str, ViewAtRevision] = LruCache(VIEW_VERSIONS_MAX)

    def schema(self, history: int, row_key: int) -> StoredSchema | None:
        """Returns the schema with this row key (primary key), or None if it is not cached.

        `history` is the number of the database's history, which changes when the database returns to an earlier state.
        The caller must check that a version still uses the schema.
        """
        return self._schemas.get((history, row_key))

    def put_schema(self, history: int, schema: StoredSchema) -> None:
        self._schemas.put((history, schema.row_key), schema, len(schema.content.text) + SCHEMA_OVERHEAD_CHARS)

    def view(self, subject: str) -> ViewAtRevision | None:
        """Returns the cached versions of a subject, or None. They may be outdated, or from before the database returned
        to an earlier state."""
        return self._views.get(subject)

    def put_view(self, subject: str, view_at_revision: ViewAtRevision) -> None:
        self._views.put(subject, view_at_revision, len(view_at_revision.view.entries) + VIEW_OVERHEAD_VERSIONS)
