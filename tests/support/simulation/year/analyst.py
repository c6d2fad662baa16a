"""Runs queries with Spark SQL between the loads of a year."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from headrace.hive_ddl.executors.spark import SparkExecutor
from headrace.hive_ddl.names import quote_identifier
from support.hive.spark_sessions import spark_session
from support.simulation.year.life import Life
from support.simulation.year.story import Kind

QUERIED_TOPICS = 3  # topics


class Analyst:
    """Queries tables after each load. A query must find every committed row of a topic once."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        self.queries = 0

    def query_some(self, life: Life) -> None:
        """Queries a few of the loaded topics, unless the newest load had an injected fault.

        Raises:
            AssertionError: the result differs from the produced messages.
            pyspark.errors.PySparkException: a query failed.
        """
        if not life.is_rough:
            known = sorted(life.log.read_state().topics)
            for topic in life.chance.sample(known, min(QUERIED_TOPICS, len(known))):
                self.query_topic(life, topic)

    def query_topic(self, life: Life, topic: str) -> None:
        table = quote_identifier(life.log.read_state().topics[topic].table)
        # All columns of a few rows, so that every schema that a file was written in is resolved.
        query = f"SELECT n, IF(n % 5 = 0, struct(*), NULL) AS all_columns FROM headrace.{table}"
        rows = self.session.sql(query).collect()
        found = sorted(row.n for row in rows)
        expected = sorted(
            one.n
            for one in life.story.by_topic[topic]
            if one.kind is Kind.ROW and one.committed and one.loss is None and not one.retired
        )
        if found != expected:
            wrong = sorted({*found} ^ {*expected})[:10]
            raise life.story.failed(
                topic, f"SQL finds {len(found)} rows, should find {len(expected)}; differing: {wrong}"
            )
        self.queries += 1


@contextmanager
def analyst_of(directory: Path) -> Iterator[tuple[Analyst, SparkExecutor]]:
    """Yields an analyst and the metastore for the loads under `directory`, whose database it creates."""
    with spark_session(directory / "data", directory / "warehouse") as session:
        executor = SparkExecutor(session)
        executor.ensure_database("headrace")
        yield Analyst(session), executor
