"""A generated year of loads: messages, failures of topics and brokers, and the actions of operators.

Every acknowledged message is a row, is quarantined, or is in a gap that a commit declares. All tiers of the audit agree
except for messages that the brokers lost. Every partition of the metastore is readable between any two loads. Each
reported problem was caused, and each cause is reported. `PYTHONPATH=tests python -m support.simulation.year` runs a
year of 200 topics.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.loader.commit.file_index import FileIndex
from headrace.loader.inspect.verify import verify_topic
from headrace.loader.storage.local import local_storage
from support.simulation.extent import IS_FULL
from support.simulation.year.life import Life, Size
from support.simulation.year.plan import TO_ALL, TO_TOPICS, plan_year
from support.simulation.year.story import Loss
from support.simulation.year.world import unhurried

BYTES_PER_PARTITION_MAX = 400
"""The limit of a checkpoint without its schemas, per topic and partition."""

SLACK = 1.2
"""The permitted ratio of the state in the twelfth month to that in the third, per topic and partition. It grows a
little, because elections add leader epochs."""


STORED_RUN_IDS_MAX = 20
"""The limit of runs and rewrites in the state: those of a few days, however long the history."""


def simulated(root: Path, seed: int, topics: int, days: int, *, rate: int, frequency: float = 1.0) -> Life:
    plan = plan_year(seed, topics, days, rate=rate, frequency=frequency)
    life = Life(root, seed, plan.topics)
    with unhurried():
        life.live(days, plan.happenings)
    return life


def check(life: Life) -> None:
    """Checks the final state. Each load has been checked before."""
    assert {*TO_TOPICS, *TO_ALL} <= {*life.event_counts}, f"seed {life.seed}: this never happened"
    assert life.lost[Loss.REMOVED] and life.lost[Loss.REPLACED] and life.lost[Loss.RECREATED], life.lost
    unread = {topic: numbers for topic, numbers in life.story.unread.items() if numbers}
    assert not unread, f"seed {life.seed}: these were never loaded"
    assert life.judge.rows_sampled > 100
    log = life.world.log()
    state = log.read_state()
    for topic in state.topics:
        verified = verify_topic(log, FileIndex(log), local_storage(life.world.warehouse), topic, checksums=True)
        assert not verified.findings, f"seed {life.seed}: {verified.findings[:3]}"


def check_flat(sizes: Sequence[Size]) -> None:
    """Checks that state and auxiliary files grow with topics, partitions and schemas, and not with the history."""
    for one in sizes:
        assert one.state_bytes <= BYTES_PER_PARTITION_MAX * (one.topics + one.partitions), one
        assert one.run_ids <= STORED_RUN_IDS_MAX, one
        assert one.files["archive"] <= one.commits // 100 + 1, one
        assert one.files["log"] <= 300, one
        assert one.files["checkpoint"] <= 2, one
        assert one.files["staging"] <= 100, one
        assert one.files["index"] <= one.days + one.topics, one
    third, twelfth = sizes[len(sizes) // 4], sizes[-1]
    assert _each(twelfth) <= SLACK * _each(third), (third, twelfth)


def _each(size: Size) -> float:
    return size.state_bytes / (size.topics + size.partitions)


def test_some_days_with_failures_load_every_message(memory_path: Path) -> None:
    """The small case for every hour."""
    life = simulated(memory_path, seed=3, topics=4, days=8, rate=10, frequency=4)
    assert {*TO_TOPICS, *TO_ALL} <= {*life.event_counts}, "this never happened"
    assert not any(life.story.unread.values()), life.story.unread


@pytest.mark.simulation
@pytest.mark.parametrize("seed", [1, 2] if IS_FULL else [1])
def test_a_small_year_with_every_kind_of_failure_loads_every_message(memory_path: Path, seed: int) -> None:
    life = simulated(memory_path, seed, topics=10, days=90, rate=40)
    check(life)
    check_flat(life.sizes)


@pytest.mark.simulation
def test_three_weeks_of_many_topics_and_failures_load_every_message(memory_path: Path) -> None:
    life = simulated(memory_path, seed=51, topics=120, days=20, rate=60, frequency=3)
    check(life)
    check_flat(life.sizes)
