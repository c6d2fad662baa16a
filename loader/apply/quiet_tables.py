"""Decides which tables a load without new messages compares with the commits.

With an open Spark session of an earlier load, or through HiveServer2, it compares as much as a load with new messages.
Otherwise it would wait for the start of a JVM: it then compares only tables that do not exist, which it finds with one
call to the metastore, and, once an hour, as much as other loads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from headrace.loader.apply.layout import QUARANTINE_DATABASE_SUFFIX
from headrace.loader.apply.tables_to_compare import TableShare, TablesToCompare
from headrace.loader.commit.state import LoaderState

COMPARED_EVERY_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class QuietTables:
    """Selects the topics whose tables a load without new messages compares.

    `is_open` returns whether the executor of table changes is open or needs no JVM. `table_names` returns the names of
    the tables and views in a database without a JVM, None if it cannot.
    """

    tables: TablesToCompare
    is_open: Callable[[], bool]
    table_names: Callable[[str], frozenset[str] | None]

    def share(self, state: LoaderState, after: str, compared_at_ms: int, now_ms: int) -> TableShare:
        """Returns the topics whose tables this load compares: as many as a load with new messages compares, or only
        missing tables.

        Args:
            state: state of the commit log.
            after: the end of the last share.
            compared_at_ms: when a load last compared a share, 0 for never.
        """
        if self.is_open() or not 0 <= now_ms - compared_at_ms < COMPARED_EVERY_MS:
            return self.tables.share(state, after)
        return TableShare(tuple(sorted(self._missing(state))))

    def _missing(self, state: LoaderState) -> frozenset[str]:
        database = self.tables.database
        names = self.table_names(database)
        missing = {topic for topic, known in state.topics.items() if names is not None and known.table not in names}
        quarantined = {topic: known.table for topic, known in state.topics.items() if known.quarantine.files}
        if quarantined:
            names = self.table_names(database + QUARANTINE_DATABASE_SUFFIX)
            missing |= {topic for topic, table in quarantined.items() if names is not None and table not in names}
        return frozenset(missing)
