"""Some weeks of the generated year with a real metastore: whatever happens, Spark answers between any two loads, and
says what was produced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.hive_ddl.executors.session import close_session, open_session
from headrace.hive_ddl.executors.spark import SparkExecutor
from headrace.hive_ddl.names import quote_identifier
from headrace.hive_ddl.table import local_location
from year.life import Life
from year.plan import TO_ALL, TO_TOPICS, plan_year
from year.story import Kind
from year.world import unhurried

pytestmark = pytest.mark.spark

SEED = 1
ASKED_BETWEEN = 3  # topics


@pytest.fixture
def session(tmp_path: Path) -> Iterator[SparkSession]:
    session = open_session(
        app_name="tests",
        master="local[1]",
        metastore_uri=None,
        data_dir=tmp_path / "data",
        warehouse_uri=local_location(tmp_path / "warehouse"),
        extra={"sql.shuffle.partitions": "1"},
        short_lived=True,
    )
    yield session
    close_session(session)


class Analyst:
    """Asks after every load; what he is told of a topic is all its rows that were decided, each once."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        self.answers = 0

    def ask(self, life: Life) -> None:
        if not life.is_rough:
            known = sorted(life.log.read_state().topics)
            for topic in life.chance.sample(known, min(ASKED_BETWEEN, len(known))):
                self.ask_of(life, topic)

    def ask_of(self, life: Life, topic: str) -> None:
        table = quote_identifier(life.log.read_state().topics[topic].table)
        (row,) = self.session.sql(
            f"SELECT count(*) AS rows, coalesce(sum(n), 0) AS sum FROM headrace.{table}"
        ).collect()
        there = [
            one.n
            for one in life.story.by_topic[topic]
            if one.kind is Kind.ROW and one.decided and one.gone is None and not one.retired
        ]
        if (row.rows, row.sum) != (len(there), sum(there)):
            raise life.story.failed(topic, f"SQL finds {row}, should find {len(there)} rows with the sum {sum(there)}")
        # All columns of a few rows, so that every schema that a file was written in is resolved.
        self.session.sql(f"SELECT * FROM headrace.{table} WHERE n % 5 = 0").collect()
        self.answers += 1


def test_sql_answers_between_any_two_loads(session: SparkSession, tmp_path: Path) -> None:
    analyst = Analyst(session)
    plan = plan_year(SEED, topics=10, days=14, rate=30, frequency=0.1)
    executor = SparkExecutor(session)
    executor.ensure_database("headrace")
    life = Life(tmp_path, SEED, plan.topics, hive=executor, between=analyst.ask)
    with unhurried():
        life.live(14, plan.happenings, every=7)
    assert {*TO_TOPICS, *TO_ALL} <= {*life.met}
    for topic in life.topics:
        analyst.ask_of(life, topic)
    assert analyst.answers > 40
