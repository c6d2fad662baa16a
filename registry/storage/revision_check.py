"""Looking at revisions from an event loop: whether what an answer rests on still holds.

One statement reads which history of the database it is, the registry's revision and those of the subjects asked for, so
that they belong together. On
SQLite that is a read of some pages that are in memory, made where it is called; on a server the loop goes on meanwhile.
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
"""In place of a subject's row id in the row of a look that is the registry's; only that one has a history."""

SQLITE_REGISTRY_REVISION: Final = f"SELECT {REGISTRY}, revision, {SQLITE} FROM registry_state WHERE id = ?"  # noqa: S608  (our own)
SQLITE_REVISIONS: Final = (
    f"{SQLITE_REGISTRY_REVISION} UNION ALL "  # noqa: S608
    "SELECT id, revision, NULL FROM subjects WHERE id IN (SELECT value FROM json_each(?)) UNION ALL "
    # Not their number, for which the event loop would wait while all of them are counted.
    "SELECT ?, (SELECT coalesce(max(id), 0) FROM subjects), NULL WHERE ?"
)
POSTGRES_REVISIONS: Final = (
    f"SELECT {REGISTRY}, revision, {POSTGRES} FROM registry_state WHERE id = %s UNION ALL "  # noqa: S608
    "SELECT id, revision, NULL FROM subjects WHERE id = ANY(%s) UNION ALL "
    "SELECT %s, (SELECT count(*) FROM subjects), NULL WHERE %s"
)
REVISION_CHECK_TIMEOUT_S: Final = 2.0  # then the application is asked, which knows how to say that the database is away


@dataclass(frozen=True, slots=True)
class Revisions:
    """Revisions as they were at one time: the registry's, and by row id those of the subjects that are there.

    Of `SUBJECT_LIST_ID` it is what `Repository.subjects_revision` says.
    """

    revision: Revision
    subjects: Mapping[int, int]

    def satisfies(self, dependencies: Dependencies) -> bool:
        """Whether an answer that rests on `dependencies` held at that time."""
        return dependencies.revision == self.revision and all(
            self.subjects.get(subject_id) == revision for subject_id, revision in dependencies.subjects
        )


def _look(rows: Sequence[tuple[int, int, int | None]]) -> Revisions:
    revisions = {row_id: revision for row_id, revision, _ in rows}
    history = next(history for row_id, _, history in rows if row_id == REGISTRY)
    assert history is not None, "a database that was upgraded has a row of its identity"
    return Revisions(Revision(history, revisions.pop(REGISTRY)), revisions)


class RevisionReader(Protocol):
    """Where looks come from; used by one event loop."""

    async def look(self, subject_ids: Collection[int]) -> Revisions:
        """A look that begins now.

        Raises:
            StoreError: the database cannot be asked.
        """
        ...

    async def close(self) -> None: ...


def open_revision_reader(database_url: str) -> RevisionReader:
    """Looks at the database of a URL that `Database` takes."""
    address = DatabaseAddress.of(database_url)
    return SqliteRevisionReader(str(address.url.database)) if address.is_sqlite else PostgresRevisionReader(address.url)


class SqliteRevisionReader:
    """Reads on a connection of its own, which never waits: writers do not keep readers from reading in WAL mode."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    async def look(self, subject_ids: Collection[int]) -> Revisions:
        try:
            if self._connection is None:
                self._connection = sqlite3.connect(self._path, timeout=0, isolation_level=None)
            return self._look(self._connection, subject_ids)
        except sqlite3.Error as error:
            await self.close()
            raise StoreError(f"Error in the registry's database: {error}") from error

    def _look(self, connection: sqlite3.Connection, subject_ids: Collection[int]) -> Revisions:
        if not subject_ids:
            return _look(connection.execute(SQLITE_REGISTRY_REVISION, (STATE_ID,)).fetchall())
        rows = connection.execute(
            SQLITE_REVISIONS,
            (STATE_ID, json.dumps(list(subject_ids)), SUBJECT_LIST_ID, SUBJECT_LIST_ID in subject_ids),
        )
        return _look(rows.fetchall())

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class PostgresRevisionReader:
    """Reads on a connection of its own, made again after it was lost."""

    def __init__(self, url: URL) -> None:
        _, arguments = url.get_dialect()().create_connect_args(url)
        self._arguments: dict[str, Any] = {**postgres_arguments(url.query), **arguments}
        self._connection: psycopg.AsyncConnection[Any] | None = None

    async def look(self, subject_ids: Collection[int]) -> Revisions:
        import psycopg

        try:
            async with asyncio.timeout(REVISION_CHECK_TIMEOUT_S):
                return await self._look(subject_ids)
        except (psycopg.Error, OSError, TimeoutError) as error:
            await self.close()
            cause = " ".join(str(error).split()) or f"no answer in {REVISION_CHECK_TIMEOUT_S} s"
            raise StoreError(f"Error in the registry's database: {cause}") from error

    async def _look(self, subject_ids: Collection[int]) -> Revisions:
        if self._connection is None:
            self._connection = await self._connect()
        cursor = await self._connection.execute(
            POSTGRES_REVISIONS,
            (STATE_ID, list(subject_ids), SUBJECT_LIST_ID, SUBJECT_LIST_ID in subject_ids),
            prepare=True,
        )
        return _look(await cursor.fetchall())

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        import psycopg

        return await psycopg.AsyncConnection.connect(**self._arguments, autocommit=True)

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
