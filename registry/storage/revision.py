"""Which history of the database this is: another one after it may have gone back.

A failover to a standby that lagged behind, a recovery to a point in time, a snapshot or a dump that was put back: then
revisions, row keys, ids and version numbers are given a second time, to something else. Nothing that is in the tables
can tell, since it went back with them. What can:

- PostgreSQL: when the server was started, in which file the table `registry_identity` lies (which names the database
  too) and which transaction wrote its only row, that is never written again. So every start of a server counts as
  another history, though mostly nothing was lost: that costs the caches once, and no wrong answer.
- SQLite: the number of the file's schema, which grows when a back-up is put back into it (`.restore`), and otherwise
  with migrations and VACUUM only.

It is read in the statements that tell revisions, so that they belong together.
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
    """A history of the database and the registry's revision in it: what was settled then still is, while it is now.

    A tuple, since two of them are compared for every kept answer.
    """

    history: int
    number: int


class History(FunctionElement[int]):
    """The number of the present history, as a column of any statement."""

    inherit_cache = True  # else each statement with it would be compiled each time
    type = sa.BigInteger()


@compiles(History, "sqlite")
def _in_sqlite(*_: Any, **__: Any) -> str:
    return SQLITE


@compiles(History, "postgresql")
def _in_postgres(*_: Any, **__: Any) -> str:
    return POSTGRES
