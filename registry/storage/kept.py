"""What a process keeps from one read to the next: schemas, which never change, and what scopes have at a revision."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from registry.domain import ConfigEntry, Mode, StoredSchema

T = TypeVar("T")

SCHEMA_CHARS_MAX = 8_000_000  # of the texts of all schemas that are kept
SCHEMA_CHARS_EXTRA = 500  # that a schema counts for beside its text


@dataclass(frozen=True, slots=True)
class ScopeValues(Generic[T]):
    """What scopes have in one table; None where they have nothing. All others have nothing when it `is_whole`."""

    values: dict[str | None, T | None]
    is_whole: bool

    def lacks(self, scope: str | None) -> bool:
        return not self.is_whole and scope not in self.values


class ScopesAtRevision:
    """Configurations and modes at one revision of the registry."""

    def __init__(self, revision: int) -> None:
        self.revision = revision
        self.configs: ScopeValues[ConfigEntry] | None = None
        self.modes: ScopeValues[Mode] | None = None


class KeptScopes:
    """What earlier reads found, which changes only with the registry's revision. Thread-safe."""

    def __init__(self) -> None:
        self._newest = ScopesAtRevision(-1)

    def at(self, revision: int) -> ScopesAtRevision:
        """To look into and to add to, which any number of threads may do at once: they find the same."""
        newest = self._newest
        if newest.revision == revision:
            return newest
        fresh = ScopesAtRevision(revision)
        if revision > newest.revision:
            self._newest = fresh
        return fresh


class KeptSchemas:
    """Schemas by their row key, which no other schema ever has once it was committed. Thread-safe.

    Only whether a version has the schema must be asked each time.
    """

    def __init__(self, chars_max: int = SCHEMA_CHARS_MAX) -> None:
        self._chars_max = chars_max
        self._chars = 0
        self._schemas: OrderedDict[int, StoredSchema] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, row_key: int) -> StoredSchema | None:
        with self._lock:
            found = self._schemas.get(row_key)
            if found is not None:
                self._schemas.move_to_end(row_key)
            return found

    def keep(self, schema: StoredSchema) -> None:
        """Of a schema that is committed; those longest not asked for go."""
        with self._lock:
            if schema.row_key not in self._schemas:
                self._schemas[schema.row_key] = schema
                self._chars += _size(schema)
            while self._chars > self._chars_max:
                _, gone = self._schemas.popitem(last=False)
                self._chars -= _size(gone)


@dataclass(frozen=True, slots=True)
class Kept:
    """All that a process keeps of one database."""

    scopes: KeptScopes = field(default_factory=KeptScopes)
    schemas: KeptSchemas = field(default_factory=KeptSchemas)


def _size(schema: StoredSchema) -> int:
    return len(schema.content.text) + SCHEMA_CHARS_EXTRA
