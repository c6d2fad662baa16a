"""Weeks of the generated year with a real metastore: between any two loads, Spark queries succeed and return the
produced rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.hive.hive_engines import SparkEngine
from support.simulation.year.analyst import Analyst
from support.simulation.year.life import Life
from support.simulation.year.plan import TO_ALL, TO_TOPICS, plan_year
from support.simulation.year.world import unhurried

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("shared_spark")]

SEED = 1


def test_sql_finds_all_committed_rows_after_each_load(
    shared_engines: tuple[SparkEngine, object], memory_path: Path
) -> None:
    spark, _ = shared_engines
    spark.executor.ensure_database("headrace")
    analyst = Analyst(spark.session)
    plan = plan_year(SEED, topics=10, days=14, rate=30, frequency=0.1)
    with unhurried():
        life = Life(memory_path, SEED, plan.topics, hive=spark.executor, between=analyst.query_some)
        life.live(14, plan.happenings, every=7)
        assert {*TO_TOPICS, *TO_ALL} <= {*life.event_counts}
        for topic in life.topics:
            analyst.query_topic(life, topic)
    assert analyst.queries > 40
