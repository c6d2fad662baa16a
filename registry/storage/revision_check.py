"""Reads current revisions from an event loop, to check whether cached responses are still current.

One statement reads the history, the registry's revision and the revisions of the given subjects, so that they belong
together. SQLite reads a few pages from memory in the calling thread; PostgreSQL is queried asynchronously.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from sqlalchemy.engine import URL

from headrace.registry.errors import StoreError
from headrace.registry.storage.dependencies import SUBJECT_LIST_ID, Dependencies
from headrace.registry.storage.engines import DatabaseAddress, postgres_arguments
from headrace.registry.storage.models import STATE_ID
from headrace.registry.storage.revision import POSTGRES, SQLITE, Revision

if TYPE_CHECKING:
    import psycopg

logger = logging.getLogger(__name__)

REGISTRY: Final = 0
"""Marks the row with the registry's own revision, in place of a subject's row id. Only this row has a history."""

SQLITE_REGISTRY_REVISION: Final = f"SELECT {REGISTRY}, revision, {SQLITE} FROM registry_state WHERE id = ?"  # noqa: S608
SQLITE_REVISIONS: Final = (
    f"{SQLITE_REGISTRY_REVISION} UNION ALL "  # noqa: S608
    "SELECT id, revision, NULL FROM subjects WHERE id IN (SELECT value FROM json_each(?)) UNION ALL "
    # The highest id, because counting the rows would block the event loop.
    "SELECT ?, (SELECT coalesce(max(id), 0) FROM subjects), NULL WHERE ?"
)
POSTGRES_REVISIONS: Final = (
    f"SELECT {REGISTRY}, revision, {POSTGRES} FROM registry_state WHERE id = %s UNION ALL "  # noqa: S608
    "SELECT id, revision, NULL FROM subjects WHERE id = ANY(%s) UNION ALL "
    "SELECT %s, (SELECT count(*) FROM subjects), NULL WHERE %s"
)
# After this time the application handles the request without the cache, and reports a database that is unavailable.
REVISION_CHECK_TIMEOUT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Revisions:
    """The registry's revision and the revisions of subjects by row id, all read at the same time. Missing subjects are
    omitted.

    The row id `SUBJECT_LIST_ID` stands for the list of subject names; its revision is `Repository.subjects_revision`.
    """

    revision: Revision
    subjects: Mapping[int, int]

    def satisfies(self, dependencies: Dependencies) -> bool:
        """Whether a cached response with these dependencies was still current when the revisions were read."""
        return dependencies.revision == self.revision and all(
            self.subjects.get(subject_id) == revision for subject_id, revision in dependencies.subjects
        )


def _revisions_of(rows: Sequence[tuple[int, int, int | None]]) -> Revisions:
    revisions = {row_id: revision for row_id, revision, _ in rows}
    history = next(history for row_id, _, history in rows if row_id == REGISTRY)
    assert history is not None, "every migrated database has an identity row"
    return Revisions(Revision(history, revisions.pop(REGISTRY)), revisions)


class RevisionReader(Protocol):
    """Reads the revisions of the registry and of its subjects, in one event loop."""

    async def read(self, subject_ids: Collection[int]) -> Revisions:
        """Reads the registry's revision and those of the subjects with these row ids. The read begins after the call,
        so its result is never older than the call.

        Args:
            subject_ids: row ids of subjects; `SUBJECT_LIST_ID` stands for the list of subject names.

        Raises:
            StoreError: the database cannot be queried.
        """
        ...

    async def close(self) -> None: ...


def open_revision_reader(database_url: str) -> RevisionReader:
    """Opens a reader for a database URL that `Database` accepts."""
    address = DatabaseAddress.of(database_url)
    return SqliteRevisionReader(str(address.url.database)) if address.is_sqlite else PostgresRevisionReader(address.url)


class SqliteRevisionReader:
    """Reads revisions from SQLite on its own connection, which never waits: in WAL mode writers do not block
    readers."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    async def read(self, subject_ids: Collection[int]) -> Revisions:
        try:
            if self._connection is None:
                self._connection = sqlite3.connect(self._path, timeout=0, isolation_level=None)
            return self._read(self._connection, subject_ids)
        except sqlite3.Error as error:
            await self.close()
            raise StoreError(f"Error in the registry's database: {error}") from error

    def _read(self, connection: sqlite3.Connection, subject_ids: Collection[int]) -> Revisions:
        if not subject_ids:
            return _revisions_of(connection.execute(SQLITE_REGISTRY_REVISION, (STATE_ID,)).fetchall())
        rows = connection.execute(
            SQLITE_REVISIONS,
            (STATE_ID, json.dumps(list(subject_ids)), SUBJECT_LIST_ID, SUBJECT_LIST_ID in subject_ids),
        )
        return _revisions_of(rows.fetchall())

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class PostgresRevisionReader:
    """Reads revisions from PostgreSQL on its own connection and reconnects after a failure."""

    def __init__(self, url: URL) -> None:
        _, arguments = url.get_dialect()().create_connect_args(url)
        self._arguments: dict[str, Any] = {**postgres_arguments(url.query), **arguments}
        self._connection: psycopg.AsyncConnection[Any] | None = None

    async def read(self, subject_ids: Collection[int]) -> Revisions:
        import psycopg

        try:
            async with asyncio.timeout(REVISION_CHECK_TIMEOUT_S):
                return await self._read(subject_ids)
        except (psycopg.Error, OSError, TimeoutError) as error:
            await self.close()
            cause = " ".join(str(error).split()) or f"no response in {REVISION_CHECK_TIMEOUT_S} s"
            raise StoreError(f"Error in the registry's database: {cause}") from error

    async def _read(self, subject_ids: Collection[int]) -> Revisions:
        if self._connection is None:
            self._connection = await self._connect()
        cursor = await self._connection.execute(
            POSTGRES_REVISIONS,
            (STATE_ID, list(subject_ids), SUBJECT_LIST_ID, SUBJECT_LIST_ID in subject_ids),
            prepare=True,
        )
        return _revisions_of(await cursor.fetchall())

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        import psycopg

        return await psycopg.AsyncConnection.connect(**self._arguments, autocommit=True)

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
