"""Selects the topics without new commits whose tables a load compares with the commits.

Other programs may drop or alter tables. Missing tables are found by name, with one request for a whole database. An
altered table is found only by reading it, which costs the metastore some ms for each table. With many topics each load
therefore reads a part of the tables, a different one each time.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.hive_ddl.executors.base import Executor
from headrace.loader.apply.layout import QUARANTINE_DATABASE_SUFFIX
from headrace.loader.commit.state import LoaderState

logger = logging.getLogger(__name__)

PARTS_MIN: Final = 5


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
class TablesToCompare:
    """Selects topics whose tables a load compares. `database` is the database of the tables."""

    executor: Callable[[], Executor]
    database: str
    limits: CompareLimits = METASTORE_LIMITS

    def topics(self, state: LoaderState) -> tuple[str, ...]:
        """Returns the topics with a missing table, and a part of the others.

        Args:
            state: state of the commit log, after the commits of this load.
        """
        return tuple(
            sorted({*self.missing(state), *part_of(sorted(state.topics), state.commit_number, self.limits.tables)})
        )

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


def part_of(topics: Sequence[str], commit_number: int, compared_max: int) -> Sequence[str]:
    """Returns the part of the topics whose tables are compared after a commit: all of them, or about `compared_max`.

    The number of parts is a prime, so that loads of one, two, three or four commits each compare every part in turn.

    Args:
        topics: all topics, sorted.
        commit_number: the newest commit.
        compared_max: most topics to return.
    """
    if len(topics) <= compared_max:
        return topics
    parts = next(
        number
        for number in itertools.count(PARTS_MIN)
        if number * compared_max >= len(topics) and all(number % divisor for divisor in range(2, number))
    )
    return topics[commit_number % parts :: parts]
