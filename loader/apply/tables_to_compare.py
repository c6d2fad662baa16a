"""Selects the topics without new commits whose tables a load compares with the commits.

Other programs may drop or alter tables. Missing tables are found by name, with one request for a whole database. An
altered table is found only by reading it, which costs the metastore some ms for each table. With many topics each load
therefore reads a share of the tables, which begins where that of the last load ended.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.hive_ddl.executors.base import Executor
from headrace.loader.apply.layout import QUARANTINE_DATABASE_SUFFIX
from headrace.loader.commit.state import LoaderState

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CompareLimits:
    """Limits of a comparison: tables of topics without new commits per load, partitions per call of the executor."""

    tables: int
    partitions: int


METASTORE_LIMITS: Final = CompareLimits(200, 500)
"""The metastore returns 100 tables, or the partitions of a table, in one response. 200 tables take half a second."""

HIVE_SERVER_LIMITS: Final = CompareLimits(10, 10)
"""HiveServer2 needs two statements for each table, and one for each partition."""


@dataclass(frozen=True, slots=True)
class TableShare:
    """The topics whose tables a load compares, sorted. `end` is the topic after which the next share begins; None if
    this load compares only missing tables, so that the next share stays the same."""

    topics: tuple[str, ...] = ()
    end: str | None = None


@dataclass(frozen=True, slots=True)
class TablesToCompare:
    """Selects topics whose tables a load compares. `database` is the database of the tables."""

    executor: Callable[[], Executor]
    database: str
    limits: CompareLimits = METASTORE_LIMITS

    def share(self, state: LoaderState, after: str) -> TableShare:
        """Returns the topics with a missing table, and a share of the others.

        Args:
            state: state of the commit log, after the commits of this load.
            after: the end of the last load's share.
        """
        share = next_topics(sorted(state.topics), after, self.limits.tables)
        return TableShare(tuple(sorted({*self.missing(state), *share})), share[-1] if share else None)

    def missing(self, state: LoaderState) -> frozenset[str]:
        """Returns the topics whose table or quarantine table does not exist; none if the metastore cannot list tables,
        because then the applier reports the failure."""
        quarantined = {topic: known.table for topic, known in state.topics.items() if known.quarantine.files}
        try:
            return self._missing("", {topic: known.table for topic, known in state.topics.items()}) | self._missing(
                QUARANTINE_DATABASE_SUFFIX, quarantined
            )
        except Exception as error:  # the appliers report the same failure for each topic
            logger.warning("missing_tables_not_searched error=%s", error)
            return frozenset()

    def _missing(self, suffix: str, tables: dict[str, str]) -> frozenset[str]:
        existing = self.executor().table_names(self.database + suffix) if tables else frozenset()
        return frozenset(topic for topic, table in tables.items() if table not in existing)


def next_topics(topics: Sequence[str], after: str, topics_max: int) -> Sequence[str]:
    """Returns up to `topics_max` topics that follow the topic `after`; the first topic follows the last one.

    Args:
        topics: all topics, sorted.
        after: a topic that need not exist any more; "" to begin with the first one.
    """
    start = bisect.bisect_right(topics, after)
    return (*topics[start:], *topics[:start])[:topics_max]
