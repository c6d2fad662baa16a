"""Detects that the database has returned to an earlier state, by a number of the database's current history.

A history is a period in which no committed change was lost. A failover to a lagging standby, a point-in-time recovery
and a restored snapshot or dump begin a new one: they all assign revisions, row keys, ids and version numbers a second
time, to other data. The tables cannot show it, because they are restored as well. The history number is therefore
derived from:

- PostgreSQL: the start time of the server, the file path of the table `registry_identity` (which also identifies the
  database) and the transaction that wrote its only row, which is never updated. Every start of the server begins a new
  history, although mostly nothing was lost; that costs the caches once and never a wrong response.
- SQLite: the schema version of the file. It grows when `.restore` writes a backup into the file, and otherwise only
  with migrations and VACUUM.

The statements that read revisions read the history too, so that both belong together.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

SQLITE: Final = "(SELECT schema_version FROM pragma_schema_version)"
POSTGRES: Final = (
    "(SELECT hashtextextended(concat_ws(' ', pg_relation_filepath(tableoid), xmin, "
    "extract(epoch FROM pg_postmaster_start_time())), 0) FROM registry_identity LIMIT 1)"
)


class Revision(NamedTuple):
    """The registry's revision: the number of the database's history, which changes when the database returns to an
    earlier state, and a number that grows within a history.

    While both are unchanged, all data that depends on the registry's revision alone is unchanged. A tuple, because two
    revisions are compared for each cached response.
    """

    history: int
    number: int


class History(FunctionElement[int]):
    """An SQL expression for the number of the database's history, which changes when the database returns to an earlier
    state. Any statement can select it as a column."""

    inherit_cache = True  # without it SQLAlchemy compiles each statement every time
    type = sa.BigInteger()


@compiles(History, "sqlite")
def _in_sqlite(*_: Any, **__: Any) -> str:
    return SQLITE


@compiles(History, "postgresql")
def _in_postgres(*_: Any, **__: Any) -> str:
    return POSTGRES
