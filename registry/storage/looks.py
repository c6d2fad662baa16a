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
from headrace.registry.storage.engines import DatabaseAddress, postgres_arguments
from headrace.registry.storage.footing import ALL_SUBJECTS, Footing
from headrace.registry.storage.history import POSTGRES, SQLITE, Moment
from headrace.registry.storage.models import STATE_ID

if TYPE_CHECKING:
    import psycopg

logger = logging.getLogger(__name__)

REGISTRY: Final = 0
"""In place of a subject's row id in the row of a look that is the registry's; only that one has a history."""

SQLITE_STATE: Final = f"SELECT {REGISTRY}, revision, {SQLITE} FROM registry_state WHERE id = ?"  # noqa: S608  (our own)
SQLITE_LOOK: Final = (
    f"{SQLITE_STATE} UNION ALL "  # noqa: S608
    "SELECT id, revision, NULL FROM subjects WHERE id IN (SELECT value FROM json_each(?)) UNION ALL "
    # Not their number, for which the event loop would wait while all of them are counted.
    "SELECT ?, (SELECT coalesce(max(id), 0) FROM subjects), NULL WHERE ?"
)
POSTGRES_LOOK: Final = (
    f"SELECT {REGISTRY}, revision, {POSTGRES} FROM registry_state WHERE id = %s UNION ALL "  # noqa: S608
    "SELECT id, revision, NULL FROM subjects WHERE id = ANY(%s) UNION ALL "
    "SELECT %s, (SELECT count(*) FROM subjects), NULL WHERE %s"
)
LOOK_TIMEOUT_S: Final = 2.0  # then the application is asked, which knows how to say that the database is away


@dataclass(frozen=True, slots=True)
class Look:
    """Revisions as they were at one time: the registry's, and by row id those of the subjects that are there.

    Of `ALL_SUBJECTS` it is what `Repository.subjects_revision` says.
    """

    moment: Moment
    subjects: Mapping[int, int]

    def bears(self, footing: Footing) -> bool:
        """Whether an answer that rests on `footing` held at that time."""
        return footing.moment == self.moment and all(
            self.subjects.get(subject_id) == revision for subject_id, revision in footing.subjects
        )


def _look(rows: Sequence[tuple[int, int, int | None]]) -> Look:
    revisions = {row_id: revision for row_id, revision, _ in rows}
    history = next(history for row_id, _, history in rows if row_id == REGISTRY)
    assert history is not None, "a database that was upgraded has a row of its identity"
    return Look(Moment(history, revisions.pop(REGISTRY)), revisions)


class Looks(Protocol):
    """Where looks come from; used by one event loop."""

    async def look(self, subject_ids: Collection[int]) -> Look:
        """A look that begins now.

        Raises:
            StoreError: the database cannot be asked.
        """
        ...

    async def close(self) -> None: ...


def looks_at(database_url: str) -> Looks:
    """Looks at the database of a URL that `Database` takes."""
    address = DatabaseAddress.of(database_url)
    return SqliteLooks(str(address.url.database)) if address.is_sqlite else PostgresLooks(address.url)


class SqliteLooks:
    """Reads on a connection of its own, which never waits: writers do not keep readers from reading in WAL mode."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    async def look(self, subject_ids: Collection[int]) -> Look:
        try:
            if self._connection is None:
                self._connection = sqlite3.connect(self._path, timeout=0, isolation_level=None)
            return self._look(self._connection, subject_ids)
        except sqlite3.Error as error:
            await self.close()
            raise StoreError(f"Error in the registry's database: {error}") from error

    def _look(self, connection: sqlite3.Connection, subject_ids: Collection[int]) -> Look:
        if not subject_ids:
            return _look(connection.execute(SQLITE_STATE, (STATE_ID,)).fetchall())
        rows = connection.execute(
            SQLITE_LOOK,
            (STATE_ID, json.dumps(list(subject_ids)), ALL_SUBJECTS, ALL_SUBJECTS in subject_ids),
        )
        return _look(rows.fetchall())

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class PostgresLooks:
    """Reads on a connection of its own, made again after it was lost."""

    def __init__(self, url: URL) -> None:
        _, arguments = url.get_dialect()().create_connect_args(url)
        self._arguments: dict[str, Any] = {**postgres_arguments(url.query), **arguments}
        self._connection: psycopg.AsyncConnection[Any] | None = None

    async def look(self, subject_ids: Collection[int]) -> Look:
        import psycopg

        try:
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                return await self._look(subject_ids)
        except (psycopg.Error, OSError, TimeoutError) as error:
            await self.close()
            cause = " ".join(str(error).split()) or f"no answer in {LOOK_TIMEOUT_S} s"
            raise StoreError(f"Error in the registry's database: {cause}") from error

    async def _look(self, subject_ids: Collection[int]) -> Look:
        if self._connection is None:
            self._connection = await self._connect()
        cursor = await self._connection.execute(
            POSTGRES_LOOK,
            (STATE_ID, list(subject_ids), ALL_SUBJECTS, ALL_SUBJECTS in subject_ids),
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
