"""The console's database: sessions and actions, in SQLite or PostgreSQL."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from headrace.console.errors import ConsoleUnusable
from headrace.registry.storage.engines import PURPOSE, DatabaseAddress, Purpose, open_engine
from headrace.settings import Settings

CONNECTIONS: Final = 4
DATABASE_NAME: Final = "console.db"
METADATA: Final = sa.MetaData()


class ConsoleDatabase:
    """The database at `url`. Thread-safe; open it after forking.

    Raises:
        ConsoleUnusable: the database cannot be used.
    """

    def __init__(self, url: str) -> None:
        try:
            self._engine = open_engine(DatabaseAddress.of(url), CONNECTIONS)
        except (ValueError, SQLAlchemyError) as error:
            raise _unusable(error) from error

    @classmethod
    def of_settings(cls, settings: Settings) -> ConsoleDatabase:
        """Opens the database of `console.database_url`."""
        return cls(settings.console.database_url or f"sqlite:///{settings.data_dir.resolve() / DATABASE_NAME}")

    def create(self, table: sa.Table) -> None:
        """Creates a table if it does not exist.

        Raises:
            ConsoleUnusable: the database cannot be used.
        """
        try:
            with self.writing() as connection:
                METADATA.create_all(connection, [table])
        except SQLAlchemyError as error:
            raise _unusable(error) from error

    def reading(self) -> sa.Connection:
        """Returns a connection with a read-only transaction."""
        return self._engine.connect().execution_options(**{PURPOSE: Purpose.READ})

    def writing(self) -> _Transaction:
        """Returns a transaction: committed at the end of the block, rolled back by an exception."""
        return _Transaction(self._engine)

    def close(self) -> None:
        self._engine.dispose()


class _Transaction:
    def __init__(self, engine: sa.Engine) -> None:
        self._connection = engine.connect().execution_options(**{PURPOSE: Purpose.WRITE})

    def __enter__(self) -> sa.Connection:
        return self._connection

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._connection.commit()
        finally:
            self._connection.close()


def _unusable(error: Exception) -> ConsoleUnusable:
    cause = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
    return ConsoleUnusable(
        f"console.database_url cannot be used: {cause}; expected sqlite:///PATH or postgresql://USER:PASSWORD@HOST/NAME"
    )
