"""Power is lost at every moment of a warehouse's life; whatever is on the disk then, the next load makes whole.

All that loads do to the files of a warehouse is recorded. For every prefix of that the disk is built as it may be after
a loss of power, with no more on it than was forced there, and a new driver goes on with it. What was said to be
committed must still be committed, nothing else may be visible, no load may refuse, and at the end every offset is in
one published row. The metastore, the audit's database and the brokers keep what they were told.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from support.simulation.power_history import (
    WHOLE_LIFE,
    Aftermath,
    History,
    a_day_later,
    backfilled,
    compacted,
    more_messages,
    new_topics,
    nothing_new,
    of_an_older_release,
)
from support.simulation.power_loss import Named, pattern
from support.simulation.small_world import Lost, make_small

SEED = 20260101
HOURLY_STRIDE = 9
MIXES_APART = 4  # moments; of these some mix is looked at beside the extremes


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of drivers that go on: their small world, and nothing forced, since their disk is not recorded."""
    make_small(monkeypatch)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def check(history: History, *, moments: Collection[int] | None = None, mixed: Collection[int] = ()) -> int:
    """
    Returns:
        How many disks were looked at.

    Raises:
        Lost: one does not hold what it should.
    """
    after, count = Aftermath(history), 0
    for name, image, outside in history.disks(seed=SEED, moments=moments, mixed=mixed):
        after.check(name, image, outside)
        count += 1
    return count


@pytest.mark.usefixtures("quick")
def test_after_a_loss_of_power_at_some_moments_of_two_loads_the_next_load_completes_them(memory_path: Path) -> None:
    """The small case for every hour: it notices each missing fsync but that of archives, which two loads do not make.
    The tests below go through all moments of more."""
    history = History(memory_path / "disk").live([new_topics, more_messages])
    assert check(history, moments={*range(0, history.ends[-1], HOURLY_STRIDE), *history.ends}) > 30


@pytest.mark.simulation
@pytest.mark.usefixtures("quick")
def test_after_a_loss_of_power_at_any_moment_the_next_load_makes_all_whole(memory_path: Path) -> None:
    history = History(memory_path / "disk").live(WHOLE_LIFE)
    assert list((history.world.warehouse / "_headrace" / "archive").iterdir())
    assert list((history.world.warehouse / "_headrace" / "checkpoint").iterdir())
    assert check(history, mixed=range(0, history.ends[-1], MIXES_APART)) > 300


@pytest.mark.simulation
@pytest.mark.usefixtures("quick")
def test_a_backfill_loses_nothing_at_any_moment(memory_path: Path) -> None:
    history = History(memory_path / "disk").live([new_topics, more_messages, backfilled, a_day_later])
    first, last = history.ends[1], history.ends[-1]
    assert check(history, moments=range(first, last + 1), mixed=range(first, last, MIXES_APART)) > 150


@pytest.mark.simulation
@pytest.mark.usefixtures("quick")
def test_a_log_that_is_being_brought_to_a_newer_format_is_never_refused(memory_path: Path) -> None:
    history = History(memory_path / "disk").live([of_an_older_release, *WHOLE_LIFE[:1]])
    check(history, moments=range(history.ends[0], history.ends[0] + 40))


@pytest.mark.simulation
@pytest.mark.usefixtures("quick")
def test_a_name_that_a_killed_load_did_not_force_is_forced_before_anybody_builds_on_it(memory_path: Path) -> None:
    """A load is killed, another one finds what it left and goes on, and then the power is lost."""
    root = memory_path / "disk"
    undisturbed = History(root).live(WHOLE_LIFE)
    for number, step in names_made_first(undisturbed):
        shutil.rmtree(root)
        later = (nothing_new, a_day_later) if WHOLE_LIFE[step] is compacted else (nothing_new,)
        history = History(root, kill_before=number).live([*WHOLE_LIFE[: step + 1], *later])
        check(history, moments=[*removals(history, number), history.ends[-1]])


def removals(history: History, first: int) -> Iterator[int]:
    """Of each kind of name the first one, from an operation on, that is taken away: what it named must be safe."""
    seen: set[str] = set()
    for number, operation in enumerate(history.recorder.operations[first:], first):
        if not isinstance(operation, Named) or operation.node is not None or operation.name.startswith("."):
            continue
        if pattern(operation.path) not in seen:
            seen.add(pattern(operation.path))
            yield number


def names_made_first(history: History) -> Iterator[tuple[int, int]]:
    """Of each kind of name that others look for, the operation after the one that made the first, and its step."""
    seen = set()
    for number, operation in enumerate(history.recorder.operations[:-1]):
        if not isinstance(operation, Named) or operation.node is None or operation.name.startswith("."):
            continue
        if "/staging/" in operation.path:
            continue  # a work's own affair until it is offered
        kind = (pattern(operation.path), pattern(operation.source))
        if kind not in seen:
            seen.add(kind)
            yield number + 1, next(step for step, end in enumerate(history.ends) if number <= end)


@pytest.mark.simulation
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "site",
    [
        "disk.fsync_directories_above .",
        "disk.fsync_directories_above new/data/warehouse",
        "files._fsync_directories new/data/warehouse",
        "files._fsync_directories new/data/warehouse/orders/dt=*-*-*/hr=*",
        "files.put new/data/warehouse/orders/_schema/.*-*",
        "sink.finish new/data/warehouse/_headrace/staging/work-*/task-*-*/*.avro",
        "slots._write_temporary new/data/warehouse/_headrace/tmp/.*-*",
        "slots.keep new/data/warehouse/_headrace",
        "slots.keep new/data/warehouse/_headrace/log",
        "slots.keep new/data/warehouse/_headrace/archive",
        "slots.keep new/data/warehouse/_headrace/schemas",
        "staging.keep new/data/warehouse/_headrace/staging",
        "staging.keep new/data/warehouse/_headrace/staging/work-*",
        "staging.keep new/data/warehouse/_headrace/staging/work-*/task-*-*",
    ],
)
def test_without_a_force_a_load_loses_something(memory_path: Path, site: str) -> None:
    """Which promise of the storage what of a load rests on; that each force has its promise is tested there."""
    history = History(memory_path / "disk", without=site).live(WHOLE_LIFE)
    with pytest.raises(Lost):
        check(history, moments=history.ends)
        check(history)
