"""Some weeks of the generated year with a real metastore: whatever happens, Spark answers between any two loads, and
says what was produced."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.simulation.year.analyst import analyst_of
from support.simulation.year.life import Life
from support.simulation.year.plan import TO_ALL, TO_TOPICS, plan_year
from support.simulation.year.world import unhurried

pytestmark = pytest.mark.spark

SEED = 1


def test_sql_answers_between_any_two_loads(tmp_path: Path) -> None:
    plan = plan_year(SEED, topics=10, days=14, rate=30, frequency=0.1)
    with analyst_of(tmp_path) as (analyst, executor), unhurried():
        life = Life(tmp_path, SEED, plan.topics, hive=executor, between=analyst.ask)
        life.live(14, plan.happenings, every=7)
        assert {*TO_TOPICS, *TO_ALL} <= {*life.met}
        for topic in life.topics:
            analyst.ask_of(life, topic)
    assert analyst.answers > 40
